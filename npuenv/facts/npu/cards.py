"""What single cards say when they are asked one by one (`npuenv.facts.npu.details`), and when they are kept busy.

Ascend DMI prints one item below the other (7.3.0):

    Hardware:
        aicore:
            FAIL
            *** Device 4: a timeout error occurred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Group, fact, not_asked
from npuenv.facts.npu.driver import without_table
from npuenv.facts.npu.text import plain_lines
from npuenv.facts.read import why_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.facts.collector import Collector
    from npuenv.facts.npu.details import Questions
    from npuenv.facts.npu.queries import Board, Ecc, FaultEvent, Health, Mapped, Refusal, Spod, Topology
    from npuenv.facts.npu.smi import SmiTable, SmiTrouble
    from npuenv.facts.python.interpreter import Devices
    from npuenv.host.base import Host

T = TypeVar("T")
BURN_LEVEL = 3  # from this level on, cards are kept busy for minutes
BURN_S = 60
PLACES = ("ascend-dmi", "/usr/local/Ascend/toolbox/latest/Ascend-DMI/bin/ascend-dmi")
HEALTH_TIMEOUT_S = 240.0  # the document says at most two minutes for healthCheck
AICORE_TIMEOUT_S = 600.0  # and three to eight minutes for one round of the aicore diagnosis
_WORDS = ("PASS", "HEALTH", "SKIP", "FAIL", "GENERAL_WARN", "IMPORTANT_WARN", "EMERGENCY_WARN")
_ITEM = r"^\s+([A-Za-z][A-Za-z0-9_/ -]{0,40}):\s*$"
_NOTE = r"^\s*\*\*\*\s*(\S.*)$"


@dataclass(frozen=True, slots=True)
class Dmi:
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
        (("--dg", "--se", "healthCheck", "-q"), HEALTH_TIMEOUT_S),
        (("--dg", "-i", "aicore", "-q"), AICORE_TIMEOUT_S),
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
    """Declares the fact that a method of `Questions` gives: from `level` on of ill cards, from level 2 on of all."""

    def read(host: Collector, table: Fact[SmiTable], trouble: Fact[SmiTrouble]) -> Fact[Any]:
        if table.value is None:
            return without_table(table, trouble)
        is_healthy = all(card.health in ("OK", None) for card in table.value.cards)
        if host.level < USE_LEVEL and (is_healthy or level == USE_LEVEL):
            return absent(*table.evidence) if name == "health" else not_asked(USE_LEVEL)
        asked: Callable[[Host], Fact[Any]] = getattr(host.shared(_questions).value, name)
        return asked(host)

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


def _burn(host: Collector) -> Fact[Devices]:
    from npuenv.facts.python.interpreter import devices

    return devices(host, host.python, BURN_S)


class CardFacts(Group):
    health: Fact[tuple[Health, ...]] = _details("health", level=1)  # at level 1 only of those that are not OK
    ecc: Fact[tuple[Ecc, ...]] = _details("ecc")
    boards: Fact[tuple[Board, ...]] = _details("boards")
    chips: Fact[tuple[Board, ...]] = _details("chips")
    mapped: Fact[tuple[Mapped, ...]] = _details("mapped")
    topology: Fact[Topology] = _details("topology")
    spods: Fact[tuple[Spod, ...]] = _details("spods")
    faults: Fact[tuple[FaultEvent, ...]] = _details("faults")
    # These two are about those above, so they come after them.
    silent: Fact[tuple[Refusal, ...]] = _details("silent")
    # Fact of these -> the cards that it lacks, and what they said instead.
    unread: Fact[dict[str, dict[str, Evidence]]] = _details("unread", level=1)
    burn: Fact[Devices] = fact(_idle(_burn), "npu.smi", level=BURN_LEVEL)
    dmi: Fact[Dmi] = fact(_idle(dmi), "npu.smi", level=BURN_LEVEL)
