"""Which environment `npuenv smoke-train` tests, and what it says of that before it begins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.core.errors import ExitCode
from tests.app.test_resolution import cards, said
from tests.install.test_environments import made
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

# A Python that trains on the CPU and writes no more than its device; asked for torch_npu it has none.
TRAINER = """#!/bin/sh
[ "$1" = -m ] || exit 0
echo '{"kind": "header", "device": "cpu"}' > "$4/metrics.jsonl"
echo broken >&2
exit 1
"""


@pytest.fixture
def environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of the stack `cpu`, in force in an empty home."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    root = made(home / "data/npuenv/envs/cpu/aaa", stack="cpu")
    (root.parent / "current").symlink_to(root)
    with_trainer(root)
    return root


def with_trainer(root: Path) -> Path:
    (root / "bin").mkdir(parents=True, exist_ok=True)
    (root / "bin/python").write_text(TRAINER)
    (root / "bin/python").chmod(0o755)
    return root


@pytest.mark.parametrize("has_cards", [True, False])
def test_an_owner_of_cards_reads_first_that_the_cpu_is_tested(
    has_cards: bool, environment: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if has_cards:
        cards(home / "bin", monkeypatch, said("info_910B2C_24.1.0"))
    assert main(["smoke-train"]) == ExitCode.UNKNOWN
    out, err = capfd.readouterr()
    first = sentence("store.environment-newest", name="cpu", python=f"{environment}/bin/python")
    assert out.splitlines()[0] == first
    assert err.splitlines() == ([sentence("smoke.cards-untested")] if has_cards else [])
    assert says(out, "smoke.unknown", environment="cpu", device=sentence("smoke.on-cpu"))


def test_the_activated_environment_is_tested_before_one_of_npuenvs(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = with_trainer(tmp_path / "own")
    monkeypatch.setenv("VIRTUAL_ENV", str(own))
    assert main(["smoke-train", "--json"]) == ExitCode.UNKNOWN
    assert json.loads(capfd.readouterr().out)["environment"] == str(own)


def test_without_any_environment_nothing_is_tested(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    with_trainer(tmp_path / "session")
    (tmp_path / "session/bin/python").rename(tmp_path / "python3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["smoke-train"]) == ExitCode.INPUT
    assert says(capfd.readouterr().err, "smoke.no-environment", python=f"{tmp_path}/python3")


@pytest.mark.parametrize(
    ("stack", "key", "hint"),
    [
        ("verl-0.7.1-cann8.5.0", "smoke.no-python", "npuenv install verl-0.7.1-cann8.5.0"),
        ("verl-0.7.1-cann8.5.O", "resolve.unknown", "verl-0.7.1-cann8.5.0"),
        ("verl", "resolve.stack-is-framework", "--for verl"),
    ],
)
def test_a_stack_that_is_not_installed_is_named_in_the_next_step(
    stack: str, key: str, hint: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["smoke-train", "--stack", stack, "--lang", "en"]) == ExitCode.INPUT
    error, _, next_step = capfd.readouterr().err.partition("\n")
    assert says(error, key) and hint in next_step and "cpu" not in next_step


def test_two_names_for_what_is_tested_exclude_each_other(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke-train", "--target", "here", "--stack", "cpu"]) == ExitCode.INPUT
    assert says(capfd.readouterr().err, "install.one-of", one="--target", other="--stack")
