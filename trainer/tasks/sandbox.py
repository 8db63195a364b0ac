"""Runs untrusted Python code of a model within limits.

Each run is a new process: an isolated interpreter without site-packages, in its own session, with an empty environment
and an empty folder that is removed afterwards. Limited or refused:

- time: killed, with its threads, after `time_s` of wall time, and by a limit of CPU time;
- memory: address space at most `memory_bytes`; threads share it, and other processes cannot be started;
- files: none can be created, written, renamed, removed or changed, and with Landlock (Linux 5.13) only the
  interpreter's library and the system's can be read. Without Landlock, for root, it runs as the user nobody and reads
  what everybody may. If neither is possible nothing is run;
- network and other processes: no sockets of any kind, no signals, no tracing, no other programs (a seccomp filter that
  allows some sixty system calls; x86_64 and aarch64, the latter's table not yet run on such a machine);
- output: at most a mebibyte is read, and more counts as a failure.

Not contained: faults of the kernel or of the interpreter's C code behind the allowed calls; CPU time taken from other
processes until it is stopped; information from timing. A solution that needs numpy, a temporary file or a child process
fails. `require` raises if this machine cannot do it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.launch import exit_code, wait_for_child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHILD = Path(__file__).with_name("sandbox_child.py")
_NO_WALL = 97  # the child's exit code where a wall could not be raised; after `require` it means nothing
_MOST_OUTPUT = 1 << 20


class End(Enum):
    """How a run ended."""

    DONE = "done"  # by itself, with exit code 0
    FAILED = "failed"  # an exception, another exit code, a signal, too much output
    TIME = "time"  # it was killed


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take."""

    time_s: float = 4.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A run's end and what it wrote."""

    end: End
    output: str
    code: int  # below 0: the signal that ended it


def program(source: str, stdin: str, bounds: Bounds) -> ProgramResult:
    """Runs a complete program on an input; the output is what it printed."""
    return _run({"source": source, "stdin": stdin, "calls": None}, bounds)


def values(source: str, calls: Sequence[str], bounds: Bounds) -> Mapping[int, Any]:
    """Runs a source and then expressions in its names; their values by place, none for one that failed.

    Values are read back as literals (`ast.literal_eval`); one that is no literal counts as failed. The source can say
    what values it likes, but it does not know which are wanted.
    """
    ended = _run({"source": source, "stdin": "", "calls": list(calls)}, bounds)
    found: dict[int, Any] = {}
    for line in ended.output.splitlines():
        found.update(_value(line))
    return found


def _value(line: str) -> dict[int, Any]:
    try:
        number, written = json.loads(line)
        return {int(number): literal_eval(written)}
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return {}  # untrusted text: what cannot be read is no value


def require() -> None:
    """Raises BadSetting where untrusted code cannot be run within bounds."""
    if sys.platform == "linux":
        ended = program("print(6 * 7)", "", Bounds(time_s=30.0))
        if (ended.end, ended.output) == (End.DONE, "42\n"):
            return
        why = f"it ended with code {ended.code}" if ended.code != _NO_WALL else "the kernel refuses the walls"
    else:
        why = f"{sys.platform} has none"
    raise BadSetting(
        f"Code answers need a sandbox, and this machine gives none: {why}. It takes Linux on x86_64 or aarch64 with "
        "seccomp, and Landlock or the user root"
    )


def _run(job: Mapping[str, Any], bounds: Bounds) -> ProgramResult:
    deadline_s = time.monotonic() + bounds.time_s
    text = json.dumps(
        {**job, "no_wall": _NO_WALL, "cpu_s": int(bounds.time_s) + 1, "memory_bytes": bounds.memory_bytes}
    )
    with tempfile.TemporaryDirectory(prefix="answer-") as folder, tempfile.TemporaryFile() as given:
        given.write(text.encode(errors="replace"))
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD)],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
            close_fds=True,
        )
        try:
            output, is_late = _read(process, deadline_s)
        finally:
            _kill(process)
    if is_late:
        return ProgramResult(End.TIME, output, process.returncode)
    is_done = process.returncode == 0 and len(output) <= _MOST_OUTPUT
    return ProgramResult(End.DONE if is_done else End.FAILED, output, process.returncode)


def _read(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[str, bool]:
    """The output until the program ends, writes too much or its time is over, and whether it was stopped."""
    assert process.stdout is not None
    parts, size, is_late = [], 0, False
    with process.stdout as pipe:
        while size <= _MOST_OUTPUT:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                is_late = True
                break
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
        else:
            process.kill()
    if wait_for_child(process, max(0.0, deadline_s - time.monotonic())) is None:
        is_late = True  # it closed its output and went on
    return b"".join(parts).decode(errors="replace"), is_late


def _kill(process: subprocess.Popen[bytes]) -> None:
    if exit_code(process) is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
