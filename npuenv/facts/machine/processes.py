"""The processes that matter to training: Ray, vLLM, Python and what is dead but still there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.host.base import Host

PS = ("ps", "-eo", "pid,ppid,stat,comm")
_AT_MOST = 5000  # rows that are read; a machine with more is read as far as this
_NAMED_AT_MOST = 48  # processes whose command lines are looked up
_LETTERS_AT_MOST = 200  # kept of a command line
# torch names its main thread pt_main_thread, and vLLM its engine VLLM::EngineCore; the kernel keeps 15 letters.
_OURS = re.compile(r"(?:python[0-9.]*|pt_main_thread|ray::.*|raylet|gcs_server|VLLM.*|vllm.*|torchrun)(?: <defunct>)?")
_ROW = re.compile(r"^\s*([0-9]+)\s+([0-9]+)\s+([A-Za-z][A-Za-z<+]*)\s+(\S.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `stat` is as `ps` has it: Z a zombie, l with more than one thread."""

    pid: int
    parent: int
    stat: str
    name: str
    command: str = ""  # the first of its words; only of a process that process 1 has inherited

    @property
    def is_zombie(self) -> bool:
        return self.stat.startswith("Z")

    @property
    def is_half_dead(self) -> bool:
        """True when the main thread has ended and others live on: it still holds its memory and its cards."""
        return self.is_zombie and "l" in self.stat


@dataclass(frozen=True, slots=True)
class Processes:
    """What runs here, as far as it concerns training."""

    count: int
    init: str  # the name of process 1; empty where it is not seen
    ours: tuple[Process, ...]  # Python, Ray, vLLM, by number, zombies included
    zombies: tuple[Process, ...]  # all that are dead and wait for their parent, by number


def processes(host: Host) -> Fact[Processes]:
    """One look at the table of processes, `  412     1 Sl   raylet`."""
    ran = host.run(PS, timeout_s=4.0)
    rows = [found.groups() for found in map(_ROW.match, ran.out.splitlines()[:_AT_MOST]) if found]
    if not rows:
        return (absent if ran.is_absent else unknown)(Evidence(" ".join(PS), why_failed(ran)))
    everything = sorted((Process(int(pid), int(parent), stat, name) for pid, parent, stat, name in rows), key=_number)
    ours = [process for process in everything if _OURS.fullmatch(process.name)]
    first = next((process.name for process in everything if process.pid == 1), "")
    value = Processes(
        len(everything), first, tuple(_with_commands(host, ours)), tuple(item for item in everything if item.is_zombie)
    )
    return known(value, Evidence(" ".join(PS), f"{len(everything)} processes, {len(ours)} of Python, Ray or vLLM"))


def line_of(process: Process) -> Evidence:
    """A process as evidence."""
    words = (process.command or process.name)[:120]
    return Evidence(" ".join(PS), f"{process.pid} {process.parent} {process.stat} {words}")


def _with_commands(host: Host, found: Iterable[Process]) -> Iterable[Process]:
    named = 0
    for process in found:
        if process.is_zombie or process.parent != 1 or named >= _NAMED_AT_MOST:
            yield process  # a zombie has no command line any more, and what others run is none of our business
            continue
        named += 1
        looked = host.look(f"/proc/{process.pid}/cmdline")
        words = " ".join(looked.text.split("\0")).strip()[:_LETTERS_AT_MOST] if looked.state is PathState.FILE else ""
        yield Process(process.pid, process.parent, process.stat, process.name, words)


def _number(process: Process) -> int:
    return process.pid
