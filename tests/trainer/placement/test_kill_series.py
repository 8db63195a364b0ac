"""A run through real Ray, again and again, with one of its processes killed, stopped or interrupted at a random moment.

Each run either ends with the very numbers of a run that nobody disturbed, or with a cause that names the victim; it
never hangs, and leaves no process. `NPUENV_RAY_KILLS` says how many (20 is the whole table), `NPUENV_RAY_KILL_SEED`
where the moments lie.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from signal import SIGINT, SIGKILL, SIGSTOP, SIGTERM
from typing import TYPE_CHECKING

import pytest

from tests.trainer.placement.ray_cases import (
    NEEDS_RAY,
    Home,
    Trial,
    computed,
    head,
    home,
    processes_of,
    ran,
    trial,
    wait_for,
    worker_actors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.trainer.placement.ray_cases import Record

NUM_KILLS = int(os.environ.get("NPUENV_RAY_KILLS", "0"))
SEED = int(os.environ.get("NPUENV_RAY_KILL_SEED", "1"))
pytestmark = [
    *NEEDS_RAY,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not NUM_KILLS, reason="takes minutes: NPUENV_RAY_KILLS=20 runs it with 20 kills"),
]

STEPS, LATEST = 50, 30
ENDLESS = 100_000  # of a run that is to end for another reason
SMALL = (
    "layers=1", "hidden=16", "heads=4", "kv_heads=2", "intermediate=24", "prompts_per_step=4", "rollouts_per_prompt=4",
    "mini_batches=1", "distractors=0", "save_every=5", "lr_schedule=constant",
)  # fmt: skip
SPLIT = ("train_cards=0-1", "infer_cards=2-3")
AHEAD = (*SPLIT, "off_policy=1")
TOGETHER = ("train_cards=0-1",)
COMPLETED, BROKE, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True)
class Kill:
    """One kind of kill; what may come of it."""

    victim: str
    number: signal.Signals
    layouts: tuple[tuple[str, ...], ...]
    codes: tuple[int, ...]
    named: str = ""  # a pattern of the cause, where the run ends or begins anew
    is_own: bool = False  # the run has a Ray of its own
    is_fatal: bool = False  # the Ray that it joined cannot be used any more

    @property
    def name(self) -> str:
        where = " of its own Ray" if self.is_own else ""
        return f"{self.victim}{where}: {self.number.name}"


RANK = r"{victim} on \S+ (was killed|hangs)"
KILLS = (
    Kill("rank 0", SIGKILL, (SPLIT, AHEAD, TOGETHER), (COMPLETED,), RANK),
    Kill("rank 1", SIGKILL, (SPLIT, AHEAD, TOGETHER), (COMPLETED,), RANK),
    Kill("rank 0", SIGSTOP, (SPLIT, AHEAD, TOGETHER), (COMPLETED,), RANK),
    Kill("rank 1", SIGSTOP, (SPLIT, AHEAD, TOGETHER), (COMPLETED,), RANK),
    Kill("generator", SIGKILL, (SPLIT, AHEAD), (COMPLETED,)),
    Kill("generator", SIGSTOP, (SPLIT, AHEAD), (COMPLETED,)),
    Kill("supervisor", SIGINT, (SPLIT, AHEAD, TOGETHER), (INTERRUPTED,)),
    Kill("supervisor", SIGTERM, (SPLIT, AHEAD, TOGETHER), (INTERRUPTED,), is_own=True),
    Kill("supervisor", SIGKILL, (SPLIT, AHEAD), (-SIGKILL,)),
    Kill("supervisor", SIGKILL, (SPLIT, AHEAD), (-SIGKILL,), is_own=True),
    Kill("gcs_server", SIGKILL, (SPLIT, AHEAD, TOGETHER), (BROKE,), "Ray's head at .* does not answer", is_fatal=True),
    Kill("gcs_server", SIGSTOP, (SPLIT, TOGETHER), (BROKE,), "Ray's head at .* does not answer", is_own=True),
    Kill("raylet", SIGKILL, (SPLIT, AHEAD, TOGETHER), (BROKE,), "its raylet has ended", is_own=True),
)


@dataclass
class Row:
    """What became of one kill."""

    kill: Kill
    layout: str
    at: int  # the step after which it was done
    code: int | None = None
    seconds: float = 0.0  # from the kill to the end
    came: str = ""
    flaws: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        words = [f"{self.kill.name:<34}", f"{self.layout:<11}", f"after {self.at:>2}", f"{self.code!s:>4}"]
        return "  ".join([*words, f"{self.seconds:5.1f} s", "; ".join(self.flaws) or self.came])


def planned() -> Iterator[tuple[Kill, tuple[str, ...], int]]:
    """Every kind once, then those that a running Ray survives once more, in turn; seeded."""
    chance = random.Random(SEED)
    again = [each for each in KILLS if not (each.is_own or each.is_fatal)]
    kills = [*KILLS, *(again[at % len(again)] for at in range(max(0, NUM_KILLS - len(KILLS))))][:NUM_KILLS]
    chance.shuffle(kills)
    for kill in kills:
        yield kill, chance.choice(kill.layouts), chance.randint(1, LATEST)


def told(layout: tuple[str, ...]) -> str:
    return {SPLIT: "split", AHEAD: "split ahead", TOGETHER: "colocated"}[layout]


class Bed:
    """The Ray that runs join, made anew where it was killed, and the runs that nobody disturbs, one of a layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._there: tuple[Home, str] | None = None
        self._whole: dict[tuple[str, ...], list[Record]] = {}
        self.slowest_s = 0.0

    def joined(self) -> tuple[Home, str]:
        if self._there is None:
            at = self._stack.enter_context(home())
            self._there = at, self._stack.enter_context(head(at))
        return self._there

    def close(self) -> None:
        self._stack.close()
        self._there = None

    def whole(self, layout: tuple[str, ...]) -> list[Record]:
        if layout not in self._whole:
            at, address = self.joined()
            out, began = self.folder / f"whole-{len(self._whole)}", time.monotonic()
            code, said, run = ran(at, out, f"ray={address}", *layout, *SMALL, f"steps={STEPS}")
            assert (code, said) == (COMPLETED, ""), said
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self._whole[layout] = computed(run.records())
            assert [each["step"] for each in self._whole[layout]] == list(range(1, STEPS + 1))
        return self._whole[layout]

    def limits(self) -> list[str]:
        """As long as a whole run takes here: nothing but a process that was stopped goes beyond it."""
        limit_s = max(10.0, self.slowest_s)
        return [f"hang_limit_s={limit_s:.0f}", f"generator_timeout_s={limit_s / 2:.0f}", "cluster_limit_s=240"]


def pid_of(kill: Kill, at: Home, run: Trial) -> int:
    if kill.victim == "supervisor":
        return run.process.pid
    if kill.victim.startswith("rank"):
        return run.pid(int(kill.victim[-1]))
    if kill.victim == "generator":
        return min(pid for pid in worker_actors(at) if pid not in (run.pid(0), run.pid(1)))
    return min(pid for pid, line in processes_of(at).items() if f"/{kill.victim} " in line)


def killed(bed: Bed, kill: Kill, layout: tuple[str, ...], after: int, out: Path) -> Row:
    """One run, one kill; what became of it."""
    row, chance = Row(kill, told(layout), after), random.Random(after)
    whole, words = bed.whole(layout), [*layout, *SMALL]
    words += [f"steps={ENDLESS if kill.codes == (BROKE,) else STEPS}", *bed.limits()]
    with ExitStack() as stack:
        if kill.is_own:
            at, where = stack.enter_context(home()), "ray=local"
        else:
            at, address = bed.joined()
            where = f"ray={address}"
        run = stack.enter_context(begun(at, out, where, *words))
        run.until_step(after)
        time.sleep(chance.random() * 0.1)  # anywhere within a step
        os.kill(pid_of(kill, at, run), kill.number)
        began = time.monotonic()
        row.code, said = run.end()
        row.seconds = time.monotonic() - began
        judge(row, run, said, whole)
        try:
            wait_for(lambda: not (processes_of(at) if kill.is_own else worker_actors(at)), limit_s=60)
        except AssertionError:
            row.flaws.append(f"left behind: {[line[:60] for line in processes_of(at).values()]}")
        if row.code in (INTERRUPTED, -SIGKILL) and not row.flaws and not kill.is_own:
            row.flaws += gone_on(at, out, where, words, whole)
            row.came += "; resume=true: the same numbers"
    if kill.is_fatal:
        bed.close()
    return row


@contextlib.contextmanager
def begun(at: Home, out: Path, *words: str) -> Iterator[Trial]:
    """A run that has begun to learn. Where Ray itself cannot be started, as on a busy machine, another one."""
    for is_last in (False, False, True):
        with trial(at, out, *words) as run:
            with contextlib.suppress(AssertionError):
                run.until_step(1)
            if run.steps():
                yield run
                return
            code, said = run.end()
        assert not is_last and "Ray could not be started" in said, f"{code}: {said}"
        print(f"\n    Ray was not to be had: {said.strip()}", flush=True)


def judge(row: Row, run: Trial, said: str, whole: list[Record]) -> None:
    """Whether what it wrote is what a run that nobody disturbed wrote, as far as it came, and whether it says why."""
    kill, found = row.kill, computed(run.records())
    if row.code not in kill.codes:
        row.flaws.append(f"code {row.code}")
    steps = [each["step"] for each in found]
    if found[:STEPS] != whole[: len(found)] or steps != list(range(1, len(steps) + 1)) or len(found) < row.at:
        row.flaws.append(f"other numbers: steps {steps}")
    if row.code == COMPLETED and len(found) != STEPS:
        row.flaws.append(f"{len(found)} steps")
    last = (run.records() or [{}])[-1]
    statuses = {COMPLETED: ("end", "completed"), INTERRUPTED: ("end", "interrupted"), BROKE: ("ranks", None)}
    if row.code in statuses and (last.get("kind"), last.get("status")) != statuses[row.code]:
        row.flaws.append(f"the last record is of kind {last.get('kind')}, said was {said!r}")
    restarts = run.records("header")[-1]["placement"]["restarts"]
    row.came = f"went on {len(restarts)}x, " if restarts else ""
    row.came += said.strip().splitlines()[-1] if said.strip() else f"{last.get('status')}, nothing said"
    if kill.named and not re.search(kill.named.format(victim=kill.victim), said):
        row.flaws.append(f"the victim is not named: {said!r}")
    if "Traceback" in said:
        row.flaws.append(said)


def gone_on(at: Home, out: Path, where: str, words: list[str], whole: list[Record]) -> list[str]:
    """What is wrong with the numbers of an interrupted run that goes on later."""
    code, said, run = ran(at, out, where, *words, "resume=auto")
    return [] if code == COMPLETED and computed(run.records()) == whole else [f"went on later to {code}: {said}"]


def test_every_kill_ends_in_recovery_or_in_a_cause_that_names_the_victim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bed, rows = Bed(tmp_path), []
    try:
        for number, (kill, layout, after) in enumerate(planned()):
            rows.append(killed(bed, kill, layout, after, tmp_path / str(number)))
            with capsys.disabled():
                print(f"\n{number + 1:>2}  {rows[-1]}", end="", flush=True)
    finally:
        bed.close()
    with capsys.disabled():
        print(f"\n{sum(not row.flaws for row in rows)} of {len(rows)}")
    assert [str(row) for row in rows if row.flaws] == []
    assert len(rows) == NUM_KILLS
