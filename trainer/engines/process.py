"""A generator in a child process on this machine: the smallest split there is, with nothing but the system's own means.

The child is `python -m trainer.generator`. Requests and answers go through its two pipes; buckets lie in memory that
both see (`Arena`), others are sent. Nothing here waits without a bound, also not to write: a child that is
stopped reads nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import torch

from trainer import children
from trainer.config import BadSetting
from trainer.engines.generator_client import GeneratorLost
from trainer.engines.remote import Pool
from trainer.interrupt import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.base import Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec, Generated, ReferenceLogProbs
    from trainer.types import Batch
    from trainer.weights import Bucket

T = TypeVar("T")
# How a child begins, from the memory that both see, its log and its environment.
Begin: TypeAlias = "Callable[[Arena, Path | None, Mapping[str, str]], subprocess.Popen[bytes]]"

_HEADER_BYTES = 8
# What a child may take to end by itself: an engine of several processes ends them.
_GRACE_S = 2.0
# A child whose pipe has ended is as good as dead; how it died is known a moment later.
_DEATH_S = 5.0
_READ_BYTES = 1 << 20


def pool(order: EngineSpec, numbers: Sequence[int], *, logs: Path | None = None, begin: Begin | None = None) -> Pool:
    """Generators with these numbers on this machine, started now; each writes to `generator-N.log` in `logs`."""
    arena = Arena()

    def start(slot: int) -> ProcessGenerator:
        number = numbers[slot]
        log = None if logs is None else logs / f"generator-{number}.log"
        return ProcessGenerator(f"generator {number}", order, arena, log=log, begin=begin)

    return Pool(start, len(numbers), timeout_s=order.config.rollout.generator_timeout_s, allocate=arena.allocate)


@dataclass(slots=True)
class Reply(Generic[T]):
    """The pending response of a child."""

    generator: ProcessGenerator
    number: int
    found: list[T] = field(default_factory=list)

    def result(self, timeout_s: float) -> T:
        if not self.found:
            self.found.append(self.generator.take(self.number, timeout_s))
        return self.found[0]


class ProcessGenerator:
    """A running child. After a GeneratorLost every later result raises it too."""

    def __init__(
        self,
        name: str,
        order: EngineSpec,
        arena: Arena,
        *,
        log: Path | None = None,  # its standard error, appended; None: this process's
        environ: Mapping[str, str] | None = None,  # beside this process's
        begin: Begin | None = None,  # None: as a new program
    ) -> None:
        self.name = name
        self._arena, self._log = arena, log
        self._process = (begin or _start)(arena, log, {**os.environ, **(environ or {})})
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
        self._unsent, self._unread = bytearray(), bytearray()
        self._answers: dict[int, Any] = {}
        self._asked = 0
        self._lost: Exception | None = None
        self._finalizer = weakref.finalize(self, _stop, self._process)
        self._ask("start", order, arena.fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> Reply[Generated]:
        return self._ask("generate", list(prompts), sampling)

    def load(self, bucket: Bucket) -> Reply[None]:
        return self._send("load", bucket)

    def reference_logprobs(self, parts: Sequence[Batch]) -> Reply[ReferenceLogProbs]:
        return self._ask("reference_logprobs", list(parts))

    def load_reference(self, bucket: Bucket) -> Reply[None]:
        return self._send("load_reference", bucket)

    def sleep(self) -> Reply[None]:
        return self._ask("sleep")

    def wake(self) -> Reply[None]:
        return self._ask("wake")

    def end(self) -> None:
        """Closes its input, at which it ends; kills it where that takes longer than a moment."""
        self._lost = self._lost or GeneratorLost(self.name, "was ended")
        self._finalizer()

    def take(self, number: int, timeout_s: float) -> Any:
        """The response to a request, by its number, once; see `generator_client.Pending.result`.

        Raises BadSetting if the child could not create the engine of the configuration.
        """
        deadline = time.monotonic() + timeout_s
        while number not in self._answers:
            if self._lost is not None:
                raise self._lost
            left = deadline - time.monotonic()
            # What has come already is still read when the time is over.
            if not self._move(max(left, 0.0)) and left <= 0:
                raise TimeoutError(f"{self.name} has not answered within {timeout_s:g} s")
        return self._answers.pop(number)

    def _send(self, word: str, bucket: Bucket) -> Reply[None]:
        place = self._arena.place(bucket.flat)
        sent = b"" if place is not None else bucket.flat.numpy().tobytes()
        about = (bucket.version, bucket.index, bucket.is_last, bucket.entries)
        return self._ask(word, about, bucket.checksum, place, sent)

    def _ask(self, word: str, *arguments: Any) -> Reply[Any]:
        text = pickle.dumps((self._asked, word, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        self._unsent += len(text).to_bytes(_HEADER_BYTES, "big") + text
        self._asked += 1
        if self._lost is None:
            self._write()
        return Reply(self, self._asked - 1)

    def _move(self, timeout_s: float) -> bool:
        """Writes and reads what can be, and waits for that at most so long; whether there was anything."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if self._unsent:
            poll.register(self._in, select.POLLOUT)
        events = dict(poll.poll(timeout_s * 1000))
        if self._in in events:
            self._write()
        if self._out in events:
            self._read()
        return bool(events)

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._in, self._unsent[:_READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # it has ended: reading shows how

    def _read(self) -> None:
        try:
            found = os.read(self._out, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""  # it is being ended by another thread
        if not found:
            self._lost = self._lost or GeneratorLost(self.name, self._ended())
            return
        self._unread += found
        while len(self._unread) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._unread[:_HEADER_BYTES], "big")
            if len(self._unread) < end:
                return
            self._hear(*pickle.loads(memoryview(self._unread)[_HEADER_BYTES:end].tobytes()))
            del self._unread[:end]

    def _hear(self, number: int, is_done: bool, found: Any) -> None:
        if is_done:
            self._answers[number] = found
            return
        kind, text = found
        if number == 0 and kind in ("BadSetting", "NoDevice"):
            self._lost = BadSetting(text)
        else:
            self._lost = GeneratorLost(self.name, f"failed: {kind}: {text}")

    def _ended(self) -> str:
        code = children.wait(self._process, _DEATH_S)
        if code is None:
            return "closed its pipe"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        last = _last_line(self._log) if code > 0 else ""
        return f"{how}: {last}" if last else how


def _start(arena: Arena, log: Path | None, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    safe = ["-P"] if getattr(sys.flags, "safe_path", False) else []
    argv = [sys.executable, *safe, "-m", "trainer.generator"]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        file = None if log is None else stack.enter_context(log.open("ab"))
        # It starts with this thread's signal mask, so that a Ctrl-C waits until the child itself ignores it.
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=file, env=environ, pass_fds=(arena.fd,))


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if children.wait(process, _GRACE_S) is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_line(log: Path | None) -> str:
    if log is None or not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


MemoryRange = tuple[int, int]  # offset and bytes


class Arena:
    """One file of memory that grows. Pieces are never freed: their owner reuses them."""

    def __init__(self) -> None:
        self.fd = _file()
        self._size = 0
        self._pieces: dict[int, tuple[Tensor, MemoryRange]] = {}  # by the address here

    def allocate(self, num_bytes: int) -> Tensor:
        """A new piece, uint8 of this length. Raises OSError if there is no memory for it."""
        offset, length = self._size, -(-max(num_bytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        # Allocates the memory now, unlike a sparse file: a shortage would otherwise be a fault later.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fd, offset, length)
        else:
            os.ftruncate(self.fd, offset + length)
        self._size += length
        piece = look(self.fd, (offset, num_bytes))
        self._pieces[piece.data_ptr()] = (piece, (offset, num_bytes))
        return piece

    def place(self, piece: Tensor) -> MemoryRange | None:
        """The location of a piece; None for memory that is not shared."""
        _, place = self._pieces.get(piece.data_ptr(), (None, None))
        return place if place is not None and place[1] == len(piece) else None

    def close(self) -> None:
        """Forgets the file; pieces that are in use stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def look(fd: int, place: MemoryRange) -> Tensor:
    """The memory at a place of an arena's file; its tensor keeps it."""
    offset, num_bytes = place
    whole = torch.frombuffer(mmap.mmap(fd, max(num_bytes, 1), offset=offset), dtype=torch.uint8)
    return whole[:num_bytes]


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trainer-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
