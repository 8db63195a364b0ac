"""Who uses the cards: the processes that npu-smi lists, the containers that hold devices, and what the kernel logs.

The driver writes, as seen on an A2 host:

    [ascend] [uda] [ERROR] [uda_occupy_dev_by_ns 932] <npu-smi:4711> Conflict open udevid. (udevid=0; ns=..)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Group, fact, not_asked
from npuenv.facts.npu.driver import without_table
from npuenv.facts.npu.text import plain_lines
from npuenv.facts.read import file_text, why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.facts.collector import Collector
    from npuenv.facts.npu.smi import Process, SmiTable, SmiTrouble
    from npuenv.host.base import Host, Ran

_LOOKED_UP_AT_MOST = 64
_NAME_LENGTH = 15  # the kernel keeps this much of a program's name
_STATUS = r"(?m)^(Name|State|Uid|PPid):\s*(\S+)"


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
    return dict(re.findall(_STATUS, looked.text)) if looked.state is PathState.FILE else {}


CLAIMS = "/proc/uda/namespace_node"
EXCLUSIVE_BELOW = 128  # namespaces with a smaller number own their devices alone
_DMESG = ("dmesg", "--level=emerg,alert,crit,err,warn")  # a host's whole log can be megabytes
_KINDS = (
    ("conflict", r"Conflict open udevid"),
    ("abnormal", r"\[ascend\].*Device is abnormal"),
    ("exception", r"\[ascend\].*Get mntn message\. \(exception_id=0x(?P<code>[0-9A-Fa-f]{8})"),
)
_DEVICE = r"\b(?:dev_?id|udevid)=(\d{1,4})\b"
_CLAIM = r"ns_id (\d+) identify (\S+) root_tgid (\d+) dev_num (\d+)(.*)"
_MAPPED = r"\s*(\d+)\s+(\d+)\s*"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """Something that the driver wrote to the kernel's log; equal ones are told once, with their last line."""

    kind: str  # conflict: a container wants a device that another one holds | abnormal | exception
    device: int | None  # as the driver numbers it
    code: str  # of an exception, "A6193215"; else ""
    line: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A mount namespace that has devices of its own: a container, or the host (pid of its first process)."""

    namespace: int
    root_pid: int  # as the host numbers it
    devices: tuple[int, ...]
    is_ours: bool

    @property
    def is_exclusive(self) -> bool:
        return self.namespace < EXCLUSIVE_BELOW


def parse_kernel_log(text: str) -> tuple[KernelEvent, ...]:
    """The driver's lines that tell of trouble, in the order of their first appearance."""
    found: dict[tuple[str, int | None, str], KernelEvent] = {}
    for line in plain_lines(text):
        for kind, pattern in _KINDS:
            match = re.search(pattern, line)
            if match:
                device = re.search(_DEVICE, line[match.start() :])
                number = int(device[1]) if device else None
                code = (match.groupdict().get("code") or "").upper()
                found[kind, number, code] = KernelEvent(kind, number, code, line.strip()[:300])
                break
    return tuple(found.values())


def parse_claims(text: str) -> tuple[Claim, ...]:
    """The namespaces with devices. A block that lists fewer devices than it says is left out.

    Source: driver, uda_proc_fs (`ns_id %u identify %llx root_tgid %u dev_num %u namespace %pK(#), udev list:`).
    """
    found = []
    lines = plain_lines(text)
    for at, line in enumerate(lines):
        head = re.search(_CLAIM, line)
        if not head:
            continue
        rest = lines[at + 1 :]
        rows = [re.fullmatch(_MAPPED, row) for row in (rest[1:] if rest[:1] == ["logic_devid udevid"] else rest)]
        devices = [int(row[2]) for row in rows[: int(head[4][:4])] if row]
        if len(devices) == int(head[4]):
            found.append(Claim(int(head[1]), int(head[3]), tuple(devices), "(#)" in head[5]))
    return tuple(found)


def events(host: Host, *, timeout_s: float = 10.0) -> Fact[tuple[KernelEvent, ...]]:
    """The driver's troubles since the boot; unknown where this user may not read the log."""
    ran = host.run(_DMESG, timeout_s=timeout_s)
    if "unrecognized option" in ran.err or "unknown option" in ran.err:
        ran = host.run(_DMESG[:1], timeout_s=timeout_s)
    command = " ".join(ran.argv)
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    if ran.timed_out or ran.code != 0:
        return _refused(command, ran)
    found = parse_kernel_log(ran.out)
    lines = (Evidence(command, event.line) for event in found)
    return known(found, *(tuple(lines) or (Evidence(command, "no trouble of the NPU driver"),)))


def _refused(command: str, ran: Ran) -> Fact[tuple[KernelEvent, ...]]:
    """Ordinary users and containers may not read it: that is how machines are, and says nothing about the cards."""
    why = Evidence(command, why_failed(ran))
    return absent(why) if "not permitted" in ran.err else unknown(why)


def claims(host: Host) -> Fact[tuple[Claim, ...]]:
    """Who holds which device; absent where the driver does not tell or only tells root."""
    text = file_text(host, CLAIMS)
    if text.value is None:
        only_root = any("denied" in item.line or "not permitted" in item.line for item in text.evidence)
        return absent(*text.evidence) if only_root else Fact(text.state, None, text.evidence)
    found = parse_claims(text.value)
    if not found and text.value.strip():
        return unknown(*text.evidence)
    lines = (Evidence(CLAIMS, f"process {claim.root_pid} holds devices {_words(claim)}") for claim in found)
    return known(found, *(tuple(lines) or (Evidence(CLAIMS, "no namespace holds a device"),)))


def _words(claim: Claim) -> str:
    return ", ".join(map(str, claim.devices)) or "-"


def _holders(host: Host, table: Fact[SmiTable], trouble: Fact[SmiTrouble]) -> Fact[tuple[Holder, ...]]:
    return holders(host, table.value) if table.value else without_table(table, trouble)


def _claims(host: Collector, trouble: Fact[SmiTrouble]) -> Fact[tuple[Claim, ...]]:
    """Below the level that uses cards only where somebody else uses them."""
    in_use = trouble.value is not None and trouble.value.is_in_use
    return claims(host) if in_use or host.level >= USE_LEVEL else not_asked(USE_LEVEL)


class HolderFacts(Group):
    holders: Fact[tuple[Holder, ...]] = fact(_holders, "npu.smi", "npu.smi_trouble")
    claims: Fact[tuple[Claim, ...]] = fact(_claims, "npu.smi_trouble")  # by the driver's own account
    kernel: Fact[tuple[KernelEvent, ...]] = fact(events, level=USE_LEVEL)
