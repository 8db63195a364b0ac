"""The record of a run that its owner may publish, and the row that becomes of it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from npuenv import app
from npuenv.checks import Finding
from npuenv.cli import main
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.finding import Status
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.maintain.refresh.from_files import run_proposal
from npuenv.matrix import load_matrix
from npuenv.smoke.run import run_record
from tests.cluster.uniform import description
from tests.support.machines.simulated import SimulatedHost
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = "https://forge.example/me/notes/issues/7"
HEADER = {"kind": "header", "device": "npu:0", "ranks": 2}


def record(header: dict[str, Any], cause: Finding | None = None, machine: str = "a2-b3-host-roll") -> dict[str, Any]:
    facts = collect(SimulatedHost(dict(description(machine, 1))), imports=False)
    return run_record(facts, [header], [], cause, "2026-11-26")


def test_a_record_says_what_ran_on_which_chip_with_which_versions_and_no_more() -> None:
    found = record(HEADER)
    assert (found["chip"], found["cards"], found["date"], found["failed"]) == ("910B3", 2, "2026-11-26", "")
    assert (
        found["cann"] and found["driver"] and found["packages"]["torch-npu"] and found["packages"]["python"] == "3.11"
    )
    assert set(found) == {"schema", "chip", "cards", "cann", "driver", "packages", "what", "failed", "date"}


def test_a_failure_is_said_without_names_of_this_machine() -> None:
    sentence = Message("smoke.refused", {"reason": "/home/lu.ming/x"})
    cause = Finding("training.import", Status.FAIL, sentence, evidence=(), source="", fix=None)
    failed = record(HEADER, cause)["failed"]
    assert failed and "lu.ming" not in failed


@pytest.mark.parametrize(
    ("header", "machine", "key"),
    [
        ({**HEADER, "device": "cpu"}, "a2-b3-host-roll", "smoke.record-without-card"),
        (
            {"kind": "header", "backend": "verl", "settings": {"cards": 0}},
            "a2-b3-host-roll",
            "smoke.record-without-card",
        ),
        (HEADER, "cpu-debian", "smoke.record-unknown"),
    ],
)
def test_a_run_that_says_nothing_of_a_stack_on_cards_has_no_record(
    header: dict[str, Any], machine: str, key: str
) -> None:
    with pytest.raises(CannotTell) as caught:
        record(header, machine=machine)
    assert caught.value.message.key == key


@pytest.mark.slow
def test_a_published_record_becomes_a_row_of_the_table_by_patch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables"
    subprocess.run(["cp", "-r", str(load_matrix().folder), str(tables)], check=True)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(record({"kind": "header", "backend": "verl", "settings": {"cards": 4}})))
    assert main(["matrix", "add-run", str(file), "--source", ADDRESS, "--tables", str(tables)]) == 0
    subprocess.run(["patch", "-p1", "-d", str(tables)], input=capsys.readouterr().out, text=True, check=True)
    patched = tables.rename(tmp_path / "patched")  # what was read from a folder is kept
    before, after = load_matrix().runs, load_matrix(patched).runs
    (new,) = [run for run in after if run not in before]
    assert (new.hardware, new.chip, new.cards, new.source) == ("a2", "910B3", 4, ADDRESS)
    assert new.packages["torch-npu"] and "verl" in new.what
    assert main(["matrix", "check", "--quiet", "--tables", str(patched)]) == 0
    assert main(["matrix", "add-run", str(file), "--source", ADDRESS, "--tables", str(patched)]) == 2


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        ({"chip": "910B3\nid = 'x'"}, "matrix.run-unreadable"),
        ({"packages": {"torch": 'x"\n'}}, "matrix.run-unreadable"),
        ({"cards": True}, "matrix.run-unreadable"),
        ({"what": "x" * 1000}, "matrix.run-unreadable"),
        ({"schema": "npuenv.run/2"}, "matrix.run-unreadable"),
        ({"chip": "X100"}, "matrix.run-chip"),
    ],
)
def test_what_no_smoke_test_would_have_written_is_refused(tmp_path: Path, edit: dict[str, Any], key: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**record(HEADER), **edit}))
    with pytest.raises(BadInput) as caught:
        run_proposal(file, ADDRESS, "2026-11-27", load_matrix())
    assert caught.value.message.key == key


def test_a_source_that_is_no_address_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(record(HEADER)))
    for name, source in (("run.json", "me"), ("run.json", f"{ADDRESS}\n+id = 1"), ("none.json", ADDRESS)):
        with pytest.raises(BadInput):
            run_proposal(tmp_path / name, source, "2026-11-27", load_matrix())


def test_without_a_card_nothing_is_trained_for_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app.training, "has_cards", lambda: False)
    monkeypatch.setattr(app, "smoke_train", lambda *_, **__: pytest.fail("it trains"))
    assert main(["smoke-train", "--attest", str(tmp_path / "run.json")]) == 3
    assert says(capsys.readouterr().err, "smoke.record-without-card") and not list(tmp_path.iterdir())
