"""Who runs on the cards: the processes that npu-smi lists, as this session sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, known
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.facts.npu.smi import Process, SmiTable
    from npuenv.host.base import Host

_LOOKED_UP_AT_MOST = 64
_NAME_LENGTH = 15  # the kernel keeps this much of a program's name
_STATUS = re.compile(r"^(Name|State|Uid|PPid):\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a card. It is `here` when this session sees a process of that number that can be the one."""

    npu: int
    chip: int | None
    pid: int  # as npu-smi numbers it: the host's number
    name: str
    memory_mib: int | None
    is_in_container: bool  # npu-smi gives a number inside a container, or hides the name as it does across containers
    is_here: bool
    uid: int | None  # of the process that is here
    is_zombie: bool


def holders(host: Host, table: SmiTable) -> Fact[tuple[Holder, ...]]:
    """One per row of the process table; known and empty where there is none."""
    found = []
    evidence = []
    for at, process in enumerate(table.processes):
        status = _status(host, process.pid) if at < _LOOKED_UP_AT_MOST and process.name else {}
        holder = _holder(process, status)
        found.append(holder)
        evidence.append(Evidence("npu-smi info", line_of(holder)))
    return known(tuple(found), *(evidence or (Evidence("npu-smi info", "no process is listed"),)))


def line_of(holder: Holder) -> str:
    """A holder in one line."""
    memory = "" if holder.memory_mib is None else f", {holder.memory_mib} MB"
    return f"NPU {holder.npu}: process {holder.pid} {holder.name}".rstrip() + memory


def _holder(process: Process, status: dict[str, str]) -> Holder:
    # A number alone proves nothing: the same one can be another process in another container.
    name = status.get("Name", "")
    is_here = bool(name) and name[:_NAME_LENGTH] == process.name[:_NAME_LENGTH]
    uid = status.get("Uid", "") if is_here else ""
    return Holder(
        npu=process.npu,
        chip=process.chip,
        pid=process.pid,
        name=process.name,
        memory_mib=process.memory_mib,
        is_in_container=process.container_pid is not None or not process.name,
        is_here=is_here,
        uid=int(uid) if re.fullmatch(r"[0-9]{1,10}", uid) else None,
        is_zombie=is_here and status.get("State", "").startswith("Z"),
    )


def _status(host: Host, pid: int) -> dict[str, str]:
    looked = host.look(f"/proc/{pid}/status")
    return dict(_STATUS.findall(looked.text)) if looked.state is PathState.FILE else {}
