"""Loggers beside the record file: what they are given, and that none of them can end a training."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trainer.config import LOGGERS, BadSetting, parse
from trainer.metrics.advice import Advisor
from trainer.metrics.records import FILE, LOGGER_MAKERS, Logger, Loggers, Records

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, wanted: str) -> list[dict[str, Any]]:
    """The records of a small run with loggers."""
    with Records(folder, followers=[Loggers(folder), Advisor()]) as records:
        records.write("header", settings={"loggers": wanted, "lr": 0.1})
        for step in (1, 2):
            records.write("step", step=step, **{"critic/score/mean": step / 4, "actor/loss": float("nan"), "ok": True})
        records.write("eval", when="after", step=0, accuracy=0.5, correct=[1, 0], **{"val-core/x/acc/mean@1": 0.5})
        records.write("end", status="completed")
    return [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


def kinds(records: list[dict[str, Any]]) -> list[str]:
    return [record["kind"] for record in records]


class Fake:
    """A logging package that remembers, or breaks at one of its calls."""

    def __init__(self, breaks_at: str = "") -> None:
        self.breaks_at, self.calls = breaks_at, list[tuple[str, Any]]()

    def call(self, name: str, what: Any = None) -> None:
        print("a greeting")
        if name == self.breaks_at:
            raise RuntimeError(f"no\n{name}")
        self.calls.append((name, what))

    def as_wandb(self) -> ModuleType:
        module: Any = ModuleType("wandb")
        module.Settings = lambda **values: values
        started = SimpleNamespace(
            log=lambda values, step: self.call("log", (step, values)), finish=lambda: self.call("finish")
        )
        module.init = lambda **values: (self.call("init", values), started)[1]  # type: ignore[func-returns-value]
        return module  # type: ignore[no-any-return]


def test_wandb_is_offline_in_the_runs_folder_and_gets_the_finite_numbers_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake.as_wandb())
    assert kinds(run(tmp_path, "wandb")) == ["header", "step", "step", "eval", "end"]
    (_, started), *logged, closed = fake.calls
    assert (started["mode"], started["dir"], started["config"]["lr"]) == ("offline", str(tmp_path), 0.1)
    assert [what for _, what in logged] == [
        (1, {"critic/score/mean": 0.25, "training/global_step": 1}),
        (2, {"critic/score/mean": 0.5, "training/global_step": 2}),
        # What comes after training belongs to its last step.
        (2, {"eval/accuracy": 0.5, "val-core/x/acc/mean@1": 0.5}),
    ]
    assert closed == ("finish", None)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


@pytest.mark.parametrize(
    ("breaks_at", "place"), [("init", 1), ("log", 2), ("finish", 4)], ids=["at-start", "at-a-step", "at-the-end"]
)
def test_a_logger_that_breaks_leaves_one_note_and_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks_at: str, place: int
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Fake(breaks_at).as_wandb())
    records = run(tmp_path, "wandb")
    assert [kind for kind in kinds(records) if kind != "note"] == ["header", "step", "step", "eval", "end"]
    assert kinds(records).index("note") == place
    assert [record for record in records if record["kind"] == "note"] == [
        {"kind": "note", "what": "logger", "logger": "wandb", "reason": f"RuntimeError: no {breaks_at}"}
    ]


def test_a_missing_package_and_an_unknown_name_are_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(folder: Path, settings: object) -> Logger:
        raise ModuleNotFoundError("No module named 'swanlab'", name="swanlab")

    monkeypatch.setattr("trainer.metrics.records.LOGGER_MAKERS", {**LOGGER_MAKERS, "swanlab": absent})
    notes = {r["logger"]: r["reason"] for r in run(tmp_path, "swanlab, mlflow") if r["kind"] == "note"}
    assert "package swanlab" in notes["swanlab"]
    assert "tensorboard, wandb, swanlab" in notes["mlflow"]


def test_without_the_setting_no_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "swanlab", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it would now raise
    assert kinds(run(tmp_path, "")) == ["header", "step", "step", "eval", "end"]


def test_tensorboard_holds_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert "note" not in kinds(run(tmp_path, "tensorboard"))
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("critic/score/mean")] == [(1, 0.25), (2, 0.5)]


def test_the_real_wandb_takes_the_calls(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the package wandb")
    assert "note" not in kinds(run(tmp_path, "wandb"))
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))


def test_the_real_swanlab_takes_the_calls(tmp_path: Path) -> None:
    pytest.importorskip("swanlab", reason="needs the package swanlab")
    assert "note" not in kinds(run(tmp_path, "swanlab"))
    assert list((tmp_path / "swanlog").glob("run-*/run-*.swanlab"))


def test_the_settings_accept_exactly_the_loggers_that_there_are() -> None:
    assert set(LOGGERS) == set(LOGGER_MAKERS)
    with pytest.raises(BadSetting, match=r"loggers=foo: .*Accepted: tensorboard, wandb, swanlab"):
        parse(["loggers=foo"], devices=("cpu",))
