"""The cards and their driver as the host shows them. Here: what single cards say when asked one by one
(`npuenv.facts.npu.details`) or kept busy, and who uses them.

Ascend DMI prints one item below the other (7.3.0):

    Hardware:
        aicore:
            FAIL
            *** Device 4: a timeout error occurred.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Collector, fact, file_text, made_of, not_asked, plain_lines, why_failed
from npuenv.facts.npu.driver import DriverFacts, without_table
from npuenv.facts.python import Devices, devices
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.facts.npu.details import Questions
    from npuenv.facts.npu.failures import SmiTrouble
    from npuenv.facts.npu.queries import Board, Ecc, FaultEvent, Health, Mapped, QueryRefusal, Spod, Topology
    from npuenv.facts.npu.smi import NpuProcess, SmiTable


T = TypeVar("T")
_BURN_LEVEL = 3  # from this level on, cards are kept busy for minutes
_BURN_S = 60
PLACES = ("ascend-dmi", "/usr/local/Ascend/toolbox/latest/Ascend-DMI/bin/ascend-dmi")
_HEALTH_TIMEOUT_S = 240.0  # the document says at most two minutes for healthCheck
_AICORE_TIMEOUT_S = 600.0  # and three to eight minutes for one round of the aicore diagnosis
_WORDS = ("PASS", "HEALTH", "SKIP", "FAIL", "GENERAL_WARN", "IMPORTANT_WARN", "EMERGENCY_WARN")
_ITEM = r"^\s+([A-Za-z][A-Za-z0-9_/ -]{0,40}):\s*$"
_NOTE = r"^\s*\*\*\*\s*(\S.*)$"
_LOOKED_UP_AT_MOST = 64
_NAME_LENGTH = 15  # the kernel keeps this much of a program's name
_STATUS = r"(?m)^(Name|State|Uid|PPid):\s*(\S+)"
CLAIMS = "/proc/uda/namespace_node"
_EXCLUSIVE_BELOW = 128  # namespaces with a smaller number own their devices alone
_DMESG = ("dmesg", "--level=emerg,alert,crit,err,warn")  # a host's whole log can be megabytes
_KINDS = (
    ("conflict", r"Conflict open udevid"),
    ("abnormal", r"\[ascend\].*Device is abnormal"),
    ("exception", r"\[ascend\].*Get mntn message\. \(exception_id=0x(?P<code>[0-9A-Fa-f]{8})"),
)
_DEVICE = r"\b(?:dev_?id|udevid)=(\d{1,4})\b"
_CLAIM = r"ns_id (\d+) identify (\S+) root_tgid (\d+) dev_num (\d+)(.*)"
_MAPPED = r"\s*(\d+)\s+(\d+)\s*"


class Dmi(NamedTuple):
    """What a diagnosis came to."""

    items: Mapping[str, str]  # item -> PASS, HEALTH, SKIP, FAIL, GENERAL_WARN, IMPORTANT_WARN, EMERGENCY_WARN
    notes: Mapping[str, tuple[str, ...]]  # item -> the lines with asterisks below it
    code: int
    tail: str  # the last lines as they were printed, for what cannot be read


def dmi(host: Host) -> Fact[Dmi]:
    """The health check and one round of the aicore diagnosis; absent where the tool is not installed.

    Both disturb work on the cards. Nothing is stored on the host: only the JSON format would be.
    """
    place = next((place for place in PLACES if not host.run((place, "-v"), timeout_s=20.0).is_absent), None)
    if place is None:
        return absent(Evidence(PLACES[0], "not found"))
    items: dict[str, str] = {}
    notes: dict[str, tuple[str, ...]] = {}
    evidence: list[Evidence] = []
    tail, code = "", 0
    for words, timeout_s in (
        (("--dg", "--se", "healthCheck", "-q"), _HEALTH_TIMEOUT_S),
        (("--dg", "-i", "aicore", "-q"), _AICORE_TIMEOUT_S),
    ):
        ran = host.run((place, *words), timeout_s=timeout_s)
        command = " ".join((PLACES[0], *words))
        if ran.timed_out or ran.code is None:
            evidence.append(Evidence(command, why_failed(ran)))
            continue
        read = parse_dmi(ran.out + ("\n" + ran.err if ran.err else ""), ran.code)
        items.update(read.items)
        notes.update(read.notes)
        tail, code = read.tail, code or read.code
        lines = [f"{item}: {word}" for item, word in read.items.items()] or [read.tail.replace("\n", " | ")[-300:]]
        evidence += [Evidence(command, line) for line in lines]
    return known(Dmi(items, notes, code, tail), *evidence) if items else unknown(*evidence)


def parse_dmi(text: str, code: int) -> Dmi:
    """The items that have one of the documented words below their name."""
    items: dict[str, str] = {}
    notes: dict[str, tuple[str, ...]] = {}
    item: str | None = None
    lines = plain_lines(text)
    for line in lines:
        head, note = re.match(_ITEM, line), re.match(_NOTE, line)
        if head:
            item = head[1]
        elif item is not None and line.strip() in _WORDS:
            items.setdefault(item, line.strip())
        elif item is not None and note and item in items:
            notes[item] = (*notes.get(item, ()), note[1])
    printed = [line for line in lines if line.strip()]
    return Dmi(items, notes, code, "\n".join(printed[-12:])[-1500:])


def _details(name: str, *, level: int = USE_LEVEL) -> Any:
    """Declares a fact that `Questions` gives: from `level` on of ill cards, from level 2 on of all."""

    def read(host: Collector, table: Fact[SmiTable], trouble: Fact[SmiTrouble]) -> Fact[Any]:
        if table.value is None:
            return without_table(table, trouble)
        is_healthy = all(card.health in ("OK", None) for card in table.value.cards)
        if host.level < USE_LEVEL and (is_healthy or level == USE_LEVEL):
            return absent(*table.evidence) if name == "health" else not_asked(USE_LEVEL)
        return made_of(host.shared(_questions), lambda questions: questions.ask(host, name))

    return fact(read, "npu.smi", "npu.smi_trouble")


def _questions(host: Collector) -> Fact[Questions]:
    from npuenv.facts.npu.details import Questions  # its parsers are needed only where a card is asked

    table: SmiTable = host.get("npu.smi").value  # type: ignore[assignment]  # known to whoever asks for this
    return known(Questions(table, timeout_s=host.timeout(4.0, 10.0), is_brief=host.level < USE_LEVEL))


def _idle(reader: Callable[[Collector], Fact[T]]) -> Callable[[Collector, Fact[SmiTable]], Fact[T]]:
    """The same reader where no process is on a card."""

    def read(host: Collector, table: Fact[SmiTable]) -> Fact[T]:
        if table.value is not None and table.value.processes:
            return absent(Evidence("npu-smi info", "processes run on the cards"))
        if table.value is not None and table.value.unlisted:
            return unknown(Evidence("npu-smi info", "the processes cannot be read"))
        return reader(host)

    return read


class Holder(NamedTuple):
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
        looked = host.look(f"/proc/{process.pid}/status") if at < _LOOKED_UP_AT_MOST and process.name else None
        is_read = looked is not None and looked.state is PathState.FILE
        holder = _holder(process, dict(re.findall(_STATUS, looked.text)) if looked and is_read else {})
        found.append(holder)
        evidence.append(Evidence("npu-smi info", line_of(holder)))
    return known(tuple(found), *(evidence or (Evidence("npu-smi info", "no process is listed"),)))


def line_of(holder: Holder) -> str:
    """A holder in one line."""
    memory = "" if holder.memory_mib is None else f", {holder.memory_mib} MB"
    return f"NPU {holder.npu}: process {holder.pid} {holder.name}".rstrip() + memory


def _holder(process: NpuProcess, status: dict[str, str]) -> Holder:
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


class KernelEvent(NamedTuple):
    """Something that the driver wrote to the kernel's log; equal ones are told once, with their last line."""

    kind: str  # conflict: a container wants a device that another one holds | abnormal | exception
    device: int | None  # as the driver numbers it
    code: str  # of an exception, "A6193215"; else ""
    line: str


class Claim(NamedTuple):
    """A mount namespace that has devices of its own: a container, or the host (pid of its first process)."""

    namespace: int
    root_pid: int  # as the host numbers it
    devices: tuple[int, ...]
    is_ours: bool

    @property
    def is_exclusive(self) -> bool:
        return self.namespace < _EXCLUSIVE_BELOW


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


def events(host: Host) -> Fact[tuple[KernelEvent, ...]]:
    """The driver's troubles since the boot; unknown where this user may not read the log."""
    ran = host.run(_DMESG)
    if "unrecognized option" in ran.err or "unknown option" in ran.err:
        ran = host.run(_DMESG[:1])
    command = " ".join(ran.argv)
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    if ran.timed_out or ran.code != 0:
        # Ordinary users and containers may not read it: that is how machines are, and says nothing about the cards.
        return (absent if "not permitted" in ran.err else unknown)(Evidence(command, why_failed(ran)))
    found = parse_kernel_log(ran.out)
    lines = (Evidence(command, event.line) for event in found)
    return known(found, *(tuple(lines) or (Evidence(command, "no trouble of the NPU driver"),)))


def claims(host: Host) -> Fact[tuple[Claim, ...]]:
    """Who holds which device; absent where the driver does not tell or only tells root."""
    text = file_text(host, CLAIMS)
    if text.value is None:
        only_root = any("denied" in item.line or "not permitted" in item.line for item in text.evidence)
        return absent(*text.evidence) if only_root else Fact(text.state, None, text.evidence)
    found = parse_claims(text.value)
    if not found and text.value.strip():
        return unknown(*text.evidence)
    lines = [
        Evidence(CLAIMS, f"process {claim.root_pid} holds devices {', '.join(map(str, claim.devices)) or '-'}")
        for claim in found
    ]
    return known(found, *(lines or [Evidence(CLAIMS, "no namespace holds a device")]))


def _claims(host: Collector, trouble: Fact[SmiTrouble]) -> Fact[tuple[Claim, ...]]:
    """Below the level that uses cards only where somebody else uses them."""
    in_use = trouble.value is not None and trouble.value.is_in_use
    return claims(host) if in_use or host.level >= USE_LEVEL else not_asked(USE_LEVEL)


class NpuFacts(DriverFacts):
    """What is true of cards and driver."""

    holders: Fact[tuple[Holder, ...]] = fact(
        lambda host, table, trouble: holders(host, table.value) if table.value else without_table(table, trouble),
        "npu.smi",
        "npu.smi_trouble",
    )
    claims: Fact[tuple[Claim, ...]] = fact(_claims, "npu.smi_trouble")  # by the driver's own account
    kernel: Fact[tuple[KernelEvent, ...]] = fact(events, level=USE_LEVEL)
    health: Fact[tuple[Health, ...]] = _details("health", level=1)  # at level 1 only of those that are not OK
    ecc: Fact[tuple[Ecc, ...]] = _details("ecc")
    boards: Fact[tuple[Board, ...]] = _details("boards")
    chips: Fact[tuple[Board, ...]] = _details("chips")
    mapped: Fact[tuple[Mapped, ...]] = _details("mapped")
    topology: Fact[Topology] = _details("topology")
    spods: Fact[tuple[Spod, ...]] = _details("spods")
    faults: Fact[tuple[FaultEvent, ...]] = _details("faults")
    # These two are about those above, so they come after them.
    silent: Fact[tuple[QueryRefusal, ...]] = _details("silent")
    # Fact of these -> the cards that it lacks, and what they said instead.
    unread: Fact[dict[str, dict[str, Evidence]]] = _details("unread", level=1)
    burn: Fact[Devices] = fact(_idle(lambda host: devices(host, host.python, _BURN_S)), "npu.smi", level=_BURN_LEVEL)
    dmi: Fact[Dmi] = fact(_idle(dmi), "npu.smi", level=_BURN_LEVEL)
