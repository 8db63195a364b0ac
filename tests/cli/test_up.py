"""`npuenv up`: what its parts are about, told by fakes of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import doctor, main
from npuenv.core.errors import ExitCode
from npuenv.install.environments import default_environment
from tests.install.test_environments import made

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.terminal.options import DoctorCommand


@pytest.fixture
def asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the doctor was asked; it finds problems, so that nothing is installed."""
    seen: dict[str, Any] = {}

    def run(ui: object, command: DoctorCommand, python: str) -> ExitCode:
        seen.update(framework=command.framework, python=python)
        return ExitCode.PROBLEMS

    monkeypatch.setattr(doctor, "run", run)
    return seen


def test_the_doctor_looks_at_the_environment_that_trains_whatever_is_activated(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = default_environment("cpu")
    root = made(link.parent / "aaa", stack="cpu")
    link.symlink_to(root)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "other"))
    assert main(["up", "--for", "cpu", "--yes"]) == 1
    assert asked == {"framework": "cpu", "python": str(link / "bin" / "python")}


def test_before_there_is_one_the_doctor_looks_at_the_running_python(asked: dict[str, Any]) -> None:
    assert main(["up", "--for", "cpu", "--yes"]) == 1
    assert asked["python"] == sys.executable


@pytest.mark.parametrize(("words", "framework"), [(["--for", "verl==0.7.1"], "verl"), (["cpu-full"], "cpu")])
def test_the_doctor_judges_for_the_use_of_the_stack(asked: dict[str, Any], words: list[str], framework: str) -> None:
    assert main(["up", *words, "--yes"]) == 1
    assert asked["framework"] == framework
