"""Starts the ranks of a run on this machine, finds out which one ended it, and handles the signals of each.

The launching process computes nothing and imports no torch, so that it survives a killed rank and can name it.

A child is watched safely with respect to Ctrl-C at any moment. `Popen.poll` and `Popen.wait` take a lock: an interrupt
between acquiring it and the block that releases it leaves it locked, and the next `wait` waits forever. `exit_code` and
`wait_for_child` take no lock and reap nothing: the process stays a zombie until the one `Popen.wait` at its end.

At the first signal a run ends between two steps with a checkpoint, at the second at once (`Interrupt`). The first
imports are not interrupted either. A signal while Python cleans up, where an exception would be lost, is handled a
moment later.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from subprocess import Popen
    from types import FrameType


# Exit codes of a run.
COMPLETED, BROKE, BAD_SETTING, INTERRUPTED = 0, 1, 2, 130
# The file where ranks on one machine find each other; without it MASTER_ADDR and MASTER_PORT say where.
RENDEZVOUS = "TRAINER_RENDEZVOUS"
# The process that started a rank of this machine: without it a rank was started by another launcher.
_LAUNCHER = "TRAINER_LAUNCHER"
# Set in a process of a placed run: the placement for the header, as JSON.
PLACED = "TRAINER_PLACED"
# How long the other ranks may take to end by themselves after one has failed: they write what they know. The one that
# the others failed for may be among them: they can see its death before it is seen here.
_GRACE_S = 5.0
# How long after the first rank the last one may take to end well. They end a checkpoint together.
_TOGETHER_S = 60.0
# Only a process that connects to Ray has this. An imported Ray is no sign of that: vllm imports it.
_SUPERVISES = "trainer.placement.supervise"
_POLL_S = 0.005
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def complain(text: str, code: int) -> int:
    """Says on stderr why a command ends; gives back its exit code."""
    sys.stderr.write(f"trainer: {text}\n")
    return code


def exit_code(process: Popen[bytes]) -> int | None:
    """The exit code, or minus the signal's number; None while it runs."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def wait_for_child(process: Popen[bytes], timeout_s: float) -> int | None:
    """The exit code, or None when it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (code := exit_code(process)) is None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_S))
    return code


def end_with_parent(number: int) -> None:
    """Has the kernel send this process a signal when the thread that started it has ended, whatever way; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How the ranks ended: the one that failed by itself, or rank 0 if none failed."""

    rank: int
    code: int  # negative: the signal that ended it
    is_stuck: bool = False  # it did not end when the others did

    def __str__(self) -> str:
        if self.is_stuck:
            return f"rank {self.rank} did not end within {_TOGETHER_S:g} s of the others"
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with {self.code}"
        return f"rank {self.rank} {how}"


def is_rank() -> bool:
    """Whether this process was started as one of several, here or by another launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_placed() -> bool:
    """Whether this process was given its place by `trainer.placement`."""
    return PLACED in os.environ


def size() -> int:
    """How many ranks this process's launcher started."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


def rank() -> int:
    """This process's number among its ranks, from 0."""
    return int(os.environ.get("RANK", "0")) if is_rank() else 0


def run_ranks(argv: Sequence[str], size: int, logs: Path) -> RankExit:
    """`python -m trainer` with these arguments once per rank; waits for all.

    Rank 0 has this process's stderr; the others write to `rank-N.log` in the folder. When one fails, the others get
    a few seconds and are then stopped. An interrupt of this process reaches every rank, and they are waited for.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainer-"))
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(size):
                log = None if rank == 0 else stack.enter_context((logs / f"rank-{rank}.log").open("wb"))
                environ = {**os.environ, **_place(rank, size, Path(folder) / "rendezvous")}
                ranks.append(subprocess.Popen([sys.executable, "-m", "trainer", *argv], env=environ, stderr=log))
            return _wait_for_ranks(ranks)
        except KeyboardInterrupt:
            for process in ranks:
                process.send_signal(signal.SIGINT)
            try:
                _wait_for_ranks(ranks)  # all finish the step at hand; the first saves
            except KeyboardInterrupt:
                _end_ranks(ranks)
            raise
        except OSError:  # one of them could not be started: the others would wait for it
            for process in ranks:
                process.kill()
                process.wait()
            raise


def _place(rank: int, size: int, rendezvous: Path) -> dict[str, str]:
    """The location of a rank, from its environment."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    place |= {RENDEZVOUS: str(rendezvous), _LAUNCHER: str(os.getpid())}
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        place["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are here: no need of a host name that resolves
    return place


def end_with_launcher() -> None:
    """Lets a rank that `run_ranks` started be killed with its parent: nothing else would end it, and it holds cards."""
    if _LAUNCHER not in os.environ or is_placed() or sys.platform != "linux":
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(os.environ[_LAUNCHER]):  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """Ends this process; a rank, and one that has placed others through Ray, without the interpreter's own end.

    The threads of gloo outlive their process group where shards use it, and those of Ray its connection; they, and
    ours that wait for Ray, may need Python while it is taken down.
    """
    if (is_rank() and not is_placed()) or _SUPERVISES in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _wait_for_ranks(ranks: Sequence[subprocess.Popen[bytes]]) -> RankExit:
    deadline = None
    while True:
        codes = [exit_code(process) for process in ranks]
        if any(codes):
            return _cause(codes, _end_ranks(ranks))
        if all(code == 0 for code in codes):
            for process in ranks:
                process.wait()
            return RankExit(0, 0)
        if 0 in codes and deadline is None:
            deadline = time.monotonic() + _TOGETHER_S
        if deadline is not None and time.monotonic() > deadline:
            _end_ranks(ranks)
            return RankExit(codes.index(None), 1, is_stuck=True)
        time.sleep(0.01)


def _cause(seen: Sequence[int | None], codes: Sequence[int | None]) -> RankExit:
    """The rank that made the others fail, from the exit codes at the first failure and at the end.

    A rank that loses another fails too: with an exit code, or by SIGABRT if the collectives' library aborts. So any
    other signal is the cause, whichever failure was seen first; without one, the first failure is. Of ranks that ended
    alike the first is named. Example: [-SIGABRT, None], then [-SIGABRT, -SIGKILL]: rank 1.
    """
    failed = [rank for rank, code in enumerate(codes) if code]

    def place(rank: int) -> tuple[bool, bool, bool]:
        code = codes[rank] or 0
        return code > 0 or code == -signal.SIGABRT, not seen[rank], code > 0

    code = codes[min(failed, key=place)] or 0
    return RankExit(codes.index(code), code)


def _end_ranks(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """Waits a while for the ranks, then kills the rest; how each ended by itself, None if it did not."""
    deadline = time.monotonic() + _GRACE_S
    while any(exit_code(process) is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(0.01)
    codes = [exit_code(process) for process in ranks]
    for process in ranks:
        process.kill()
        process.wait()
    return codes


# Signals.

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One Ctrl-C reaches a rank twice: from the terminal, and from the process that started it.
_SAME_S = 0.5
_AGAIN_S = 0.01


class Interrupted(KeyboardInterrupt):
    """The run ended after a complete step whose state is saved; the text is the signal's name."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(signal_name)
        self.step = step


@dataclass(slots=True)
class Interrupt:
    """The handler of signals: it raises KeyboardInterrupt, but stores the first one while signals are held."""

    name: str | None = None  # of the remembered signal
    _is_held: bool = False
    _at: float = 0.0

    def install(self) -> None:
        """Takes over the signals of this process."""
        for number in SIGNALS:
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        """A signal has come."""
        now = time.monotonic()
        if self._is_held and self.name is None:
            self.name, self._at = signal.Signals(number).name, now
        elif self.name is None or now - self._at >= _SAME_S:
            if _would_be_lost(frame):
                _thread.start_new_thread(_send_again, (_thread.get_ident(), number))
                return
            raise KeyboardInterrupt(signal.Signals(number).name)

    def hold(self) -> None:
        """From here on a first signal waits for the end of the next `put_off`."""
        self._is_held = True

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Within it a first signal waits for its end, and raises KeyboardInterrupt there."""
        self.hold()
        yield
        self._is_held = False
        if self.name is not None:
            raise KeyboardInterrupt(self.name)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """During the block a first signal waits for `requested`."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def requested(self, world: Any) -> str | None:
        """The signal that any rank of a `World` got, so that all leave after the same step; None. A collective."""
        return next(filter(None, world.gather(self.name)), None)


@contextmanager
def given_back() -> Iterator[None]:
    """After it the signals have the effect that they had before it. They are the main thread's alone."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore_signals() -> None:
    """From here on signals are ignored: the rest takes no time. Only the main thread handles them."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether this runs inside a function that Python calls while it cleans up: exceptions there are printed and
    dropped.

    The import of each module runs such a function for its lock.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "cb" and "importlib" in code.co_filename):
            return True
        frame = frame.f_back
    return False


def _send_again(thread: int, number: int) -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(thread, number)
