"""Records: valid JSON whatever the numbers, flushed line by line."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END, TINY, group
from trainer.device import peak_rss_mib
from trainer.loop import train_step
from trainer.metrics.records import FILE, Progress, Records, stage_of_error
from trainer.saving import checkpoint
from trainer.stages.probes import StageFailed
from trainer.tasks.base import RewardBroken, group_rewards
from trainer.tasks.digits import successor
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def test_each_record_is_on_disk_before_the_next_is_written(tmp_path: Path) -> None:
    with Records(tmp_path / "new" / "folder") as records:
        for number in range(3):
            records.write("step", step=number)
            lines = (tmp_path / "new" / "folder" / FILE).read_text(encoding="utf-8").splitlines()
            assert json.loads(lines[-1]) == {"kind": "step", "step": number}
            assert len(lines) == number + 1


def test_numbers_that_json_cannot_hold_become_texts_at_any_depth(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        records.write("step", loss=math.nan, deep={"list": [math.inf, (1.5, -math.inf)]}, fine=None)
    line = (tmp_path / FILE).read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(line, parse_constant=refuse)
    assert found == {"kind": "step", "loss": "nan", "deep": {"list": ["inf", [1.5, "-inf"]]}, "fine": None}


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("old\n")
    with Records(tmp_path) as records:
        records.write("end")
    assert (tmp_path / FILE).read_text() == '{"kind": "end"}\n'


def test_a_full_disk_is_an_error_at_once(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / FILE).symlink_to("/dev/full")
    records = Records(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        records.write("step")
    with pytest.raises(OSError, match="No space left"), records:
        pass


class Echo:
    """A follower that answers each record, and speaks at the end."""

    def read(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"kind": "echo", "of": record["kind"], "loss": record.get("loss")}] if record["kind"] == "step" else []

    def finish(self) -> list[dict[str, Any]]:
        return [{"kind": "farewell", "share": math.inf}]


def test_what_a_follower_says_stands_after_what_it_read_and_before_the_end(tmp_path: Path) -> None:
    with Records(tmp_path, followers=[Echo()]) as records:
        records.write("step", loss=math.nan)
        records.write("end")
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert lines == [
        {"kind": "step", "loss": "nan"},
        {"kind": "echo", "of": "step", "loss": "nan"},
        {"kind": "farewell", "share": "inf"},
        {"kind": "end"},
    ]


def test_times_of_a_part_add_up_even_when_it_fails() -> None:
    progress = Progress()
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), progress.phase("train"):
            raise ValueError("x")
    assert list(progress.seconds) == ["train"]
    assert 0 < progress.seconds["train"] <= progress.elapsed_s()


def test_the_peak_of_memory_is_in_mebibytes() -> None:
    assert 20 < peak_rss_mib() < 100_000


# An error becomes the stage it belongs to, and a reward that breaks names its line.

T = TypeVar("T")

GROUPS = [group("14=", (5, END), (6, END))]


def in_a_thread(act: Callable[[], T]) -> T:
    """What it gives back in a thread that is not the main one."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join(timeout=240)
    return found[0]


def caught(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def score(reward: Callable[..., float], limit_s: float | None = 5.0) -> list[list[float]]:
    return group_rewards(GROUPS, replace(successor(1), reward=reward), limit_s=limit_s)


def test_rewards_are_given_and_the_environments_come_first() -> None:
    assert score(lambda prompt, rollout: 0.25) == [[0.25, 0.25]]
    paid = [replace(GROUPS[0], rollouts=(replace(GROUPS[0].rollouts[0], reward=2.0), GROUPS[0].rollouts[1]))]
    assert group_rewards(paid, replace(successor(1), reward=lambda prompt, rollout: 0.5), limit_s=None) == [[2.0, 0.5]]


def test_a_reward_that_raises_is_named_with_its_line() -> None:
    def raises(prompt: object, rollout: object) -> float:
        raise ValueError("no such key")

    error = caught(lambda: score(raises))
    assert type(error) is RewardBroken
    line = raises.__code__.co_firstlineno + 1
    assert str(error).endswith(f" ValueError at test_records.py:{line} raises: no such key")
    found = stage_of_error(error)
    assert found is not None and (found["name"], found["cause"]) == ("reward", "reward-raises")


def test_an_error_of_the_backward_pass_belongs_to_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: torch.Tensor) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.Tensor, "backward", fails)
    found = stage_of_error(caught(lambda: train_step(build_trainer(TINY, CPU, seed=0), 1)))
    assert found is not None and (found["name"], found["cause"]) == ("update", "broken")


@pytest.mark.parametrize("is_main", [True, False], ids=["main thread", "another thread, as in Ray"])
def test_a_reward_that_hangs_is_stopped_and_named_even_where_it_catches_everything(is_main: bool) -> None:
    def hangs(prompt: object, rollout: object) -> float:
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # noqa: PERF203 - what such a function does is the point
                continue

    began = time.monotonic()
    error = caught(lambda: score(hangs, 0.2)) if is_main else in_a_thread(lambda: caught(lambda: score(hangs, 0.2)))
    assert 0.2 <= time.monotonic() - began < 120
    assert re.search(r"\b0\.2 s: .* test_records\.py:", str(error))
    assert str(error).endswith(" hangs")
    found = stage_of_error(error)
    assert found is not None and (found["name"], found["cause"]) == ("reward", "reward-hangs")


def test_the_alarm_is_off_afterwards() -> None:
    import signal

    before = signal.getsignal(signal.SIGALRM)
    assert score(lambda prompt, rollout: 1.0, 60.0) == [[1.0, 1.0]]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.slow
def test_off_the_main_thread_the_alarm_is_off_afterwards_too() -> None:
    def in_time() -> list[list[float]]:
        found = score(lambda prompt, rollout: 1.0, 1.0)
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:  # the alarm would be heard here
            time.sleep(0.01)
        return found

    assert in_a_thread(in_time) == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("error", "name", "cause"),
    [
        (MemoryError(), "memory", "out-of-memory"),
        (RuntimeError("NPU out of memory. Tried to allocate"), "memory", "out-of-memory"),
        (ImportError("libhccl.so"), "import", "import-failed"),
    ],
)
def test_errors_that_speak_for_themselves(error: Exception, name: str, cause: str) -> None:
    found = stage_of_error(error)
    assert found is not None
    assert (found["name"], found["cause"], found["passed"]) == (name, cause, False)
    assert found["reason"]


def test_a_stage_that_was_recorded_is_not_recorded_twice_and_what_is_unknown_has_no_stage() -> None:
    assert stage_of_error(StageFailed("matmul", "wrong")) is None
    assert stage_of_error(ValueError("nobody knows")) is None


def unwritable(monkeypatch: pytest.MonkeyPatch, error: Exception, free: int) -> None:
    def save(state: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": free}))


@pytest.mark.parametrize(
    ("error", "free", "number", "cause"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1 << 40, errno.ENOSPC, "full-disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 1 << 40, errno.EDQUOT, "full-disk"),
        (RuntimeError("file write failed"), 100, errno.ENOSPC, "full-disk"),
        (RuntimeError("file write failed"), 1 << 40, errno.EIO, "cannot-save"),
        (OSError(errno.EROFS, "Read-only file system"), 1 << 40, errno.EROFS, "cannot-save"),
    ],
)
def test_a_save_that_fails_says_why_and_leaves_room_to_say_it(
    error: Exception, free: int, number: int, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwritable(monkeypatch, error, free)
    raised = caught(lambda: checkpoint.save({"w": torch.ones(1)}, tmp_path))
    assert isinstance(raised, OSError) and raised.errno == number
    found = stage_of_error(raised)
    assert found is not None and (found["name"], found["cause"]) == ("checkpoint", cause)
    assert list(tmp_path.iterdir()) == []
