"""Every planted fault, run for a few steps in this process, is named by the verdict, in both languages."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.messages import say
from npuenv.report.smoke import Where, headline, verdict
from npuenv.smoke.judge import cause, judge
from tests.support.sentences import part, says, sentence
from tests.trainer.placement.ray_cases import HAS_RAY, NO_RAY, home, ran

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npuenv.core.finding import Finding

torch = pytest.importorskip("torch", reason="the trainer needs torch, which comes with a stack, not with npuenv")
WHERE = Where("tiny", "cpu")

# What the run is started with, the sentence of the verdict, and what of its arguments is known beforehand.
FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("fault=lr-zero", "lr-zero", {}),
    ("lr=0", "lr-zero", {}),
    ("fault=shuffled-reward", "shuffled-reward", {}),
    ("fault=constant-reward", "constant-reward", {"low": "0.5"}),
    ("fault=no-signal", "no-signal", {"groups": 32}),
    ("fault=zero-advantage", "rewards-lost", {}),
    ("fault=mask-off-by-one", "mask-failed", {}),
    ("fault=stale-sampler", "sampler-weights-failed", {}),
    ("fault=nan-gradient", "nan-gradient", {"value": "nan", "step": 1}),
    ("fault=wrong-arithmetic", "arithmetic-wrong", {"device": "cpu"}),
    ("fault=corrupt-checkpoint", "checkpoint-failed", {}),
    ("fault=full-disk", "full-disk", {}),
    ("fault=reward-raises", "reward-raises", {"reason": part("KeyError at faults.py:")}),
    ("fault=reward-hangs reward_timeout_s=0.2", "reward-hangs", {}),
    ("fault=no-end-token", "no-end-token", {}),
    ("fault=skipped-validation", "no-validation", {"when": sentence("smoke.moment-both")}),
    ("rollouts_per_prompt=1 convention=trl", "group-of-one", {}),
    ("rollouts_per_prompt=1", "group-of-one-raw", {}),
    ("temperature=0.001", "same-answers", {"groups": 32}),
]


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """The trainer's signal handlers, threads and precision are this process's: they are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def judged(out: Path, *words: str) -> tuple[Finding, ...]:
    """The findings of a run of two steps in this process."""
    from trainer.__main__ import main

    code = main(["--out", str(out), "steps=2", "device=cpu", *words])
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return judge(records, exit_code=code)


# One each of the learner, the loss and the sampler; the others in `.ci/run`.
QUICK = {
    "fault=zero-advantage",
    "fault=mask-off-by-one",
    "fault=stale-sampler",
}


@pytest.mark.parametrize(
    ("words", "key", "args"),
    [pytest.param(*row, id=row[0], marks=[] if row[0] in QUICK else pytest.mark.slow) for row in FAULTS],
)
def test_a_planted_fault_is_named_by_the_first_sentence(
    words: str, key: str, args: dict[str, Any], tmp_path: Path
) -> None:
    found = judged(tmp_path, *words.split())
    named = cause(found)
    assert named is not None and named.says.key == f"smoke.{key}"
    assert verdict(found) == "fail"
    assert says(say(named.says), f"smoke.{key}", **args)
    for lang in ("en", "zh"):
        assert say(headline(found, named, WHERE), lang) == sentence(
            "smoke.fail", lang, environment="tiny", device="cpu", cause=say(named.says, lang)
        )
    assert named.fix is not None and say(named.fix.says) and say(named.fix.says, "zh")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(not HAS_RAY, reason=NO_RAY)
@pytest.mark.parametrize(
    ("fault", "key"),
    [
        ("generator-dies", "generator-lost"),
        ("generator-garbage", "generator-lost"),
        ("stale-weights", "stale-weights"),
    ],
)
@pytest.mark.long
def test_a_planted_fault_of_another_process_is_named_too(fault: str, key: str, tmp_path: Path) -> None:
    with home() as at:
        code, _, run = ran(at, tmp_path, "generators=1", "steps=4", "device=cpu", "restarts=0", f"fault={fault}")
    named = cause(judge(run.records(), exit_code=code))
    assert named is not None and named.says.key == f"smoke.{key}"


@pytest.mark.slow
def test_without_a_fault_two_steps_are_too_few_to_tell_and_nothing_else_is_wrong(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert verdict(found) == "unknown"
    assert {each.says.key for each in found if each.status.value in ("fail", "unknown", "warn")} == {"smoke.too-little"}


@pytest.mark.slow
def test_a_stale_sampler_is_not_also_called_a_corrupt_checkpoint(tmp_path: Path) -> None:
    keys = {each.check: each.says.key for each in judged(tmp_path, "fault=stale-sampler", "steps=4")}
    assert keys["training.checkpoint-exact"] == "smoke.next-step-after-sampler-weights"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_sound_run_is_no_false_alarm(seed: int, tmp_path: Path) -> None:
    """20 other seeds were run by hand; by chance one in a thousand runs that learn nothing would pass."""
    found = judged(tmp_path, "steps=200", f"seed={seed}")
    assert verdict(found) == "pass"


def test_a_file_that_may_not_grow_is_named_as_a_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    """A real write that fails: the process may write no file larger than 64 KiB, the checkpoint has more."""

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        found = judged(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    named = cause(found)
    assert verdict(found) == "fail"
    assert named is not None and named.says.key == "smoke.full-disk"
    assert os.strerror(errno.EFBIG) in say(named.says)
    assert not (tmp_path / "checkpoint" / "state.unfinished").exists()


def test_a_disk_that_is_full_is_named_and_leaves_room_for_the_records(tmp_path: Path) -> None:
    """A real one: 400 KiB, where the checkpoint of the default model needs more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is refused here: {mounted.stderr.strip()}")
    try:
        found = judged(disk)
        named = cause(found)
        assert named is not None and named.says.key == "smoke.full-disk"
        assert os.strerror(errno.ENOSPC) in say(headline(found, cause(found), WHERE))
        assert not (disk / "checkpoint" / "state.unfinished").exists()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
