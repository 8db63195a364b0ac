"""`npuenv smoke-train` on a node that a launcher has started it on beside the first; what trains there is scripted."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.smoke.run import head_elsewhere
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from pathlib import Path

SECOND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
CARDS = {"train_cards": "0-1"}


@pytest.mark.parametrize(
    ("environ", "settings", "head"),
    [
        (SECOND, CARDS, "10.0.0.1"),
        ({**SECOND, "RANK": "0"}, CARDS, None),
        ({**SECOND, "WORLD_SIZE": "1"}, CARDS, None),
        (SECOND, {}, None),
        ({**SECOND, "RANK": "first"}, CARDS, None),
        ({}, CARDS, None),
    ],
)
def test_a_run_is_led_elsewhere_only_on_another_node_of_a_run_over_cards(
    environ: dict[str, str], settings: dict[str, str], head: str | None
) -> None:
    assert head_elsewhere(settings, environ) == head


def trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str, *words: str
) -> tuple[int, list[str]]:
    """The exit code where the trainer of a target says something and ends so; and its words."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    told = tmp_path / "told.json"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(told)!r}, 'w'))\n"
        f"sys.stderr.write({said!r})\nsys.exit({code})\n"
    )
    python.chmod(0o755)
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)
    argv = ["smoke-train", "--target", str(tmp_path / "env"), "-o", str(tmp_path / "out"), "--train-cards", "0-1"]
    return main([*argv, *words]), json.loads(told.read_text())


def test_a_node_that_lends_itself_writes_nothing_into_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = trained(tmp_path, monkeypatch, 0, "", "--json", "resume=true", "steps=5")
    assert code == 0 and not (tmp_path / "out").exists()
    assert words[:2] == ["-m", "trainer"] and words[-2:] == ["steps=5", "train_cards=0-1"]
    assert json.loads(capsys.readouterr().out) == {
        "schema": "npuenv.smoke-node/1",
        "exit": 0,
        "head": "10.0.0.1",
        "says": sentence("smoke.lent-over", head="10.0.0.1"),
    }


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (2, 2), (130, 130)])
def test_a_node_that_lends_itself_ends_as_the_run_does_and_says_why(
    code: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "" if code == 130 else "trainer: head lost\n"
    assert trained(tmp_path, monkeypatch, code, said)[0] == expected
    assert ("head lost" in capsys.readouterr().err) == (code != 130)
