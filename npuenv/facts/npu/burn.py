"""Keeping the cards busy on purpose: Ascend DMI where it is installed.

It prints one item below the other (7.3.0):

    Hardware:
        aicore:
            FAIL
            *** Device 4: a timeout error occurred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.npu.text import plain_lines
from npuenv.facts.read import why_failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host.base import Host

PLACES = ("ascend-dmi", "/usr/local/Ascend/toolbox/latest/Ascend-DMI/bin/ascend-dmi")
HEALTH_TIMEOUT_S = 240.0  # the document says at most two minutes for healthCheck
AICORE_TIMEOUT_S = 600.0  # and three to eight minutes for one round of the aicore diagnosis
_WORDS = ("PASS", "HEALTH", "SKIP", "FAIL", "GENERAL_WARN", "IMPORTANT_WARN", "EMERGENCY_WARN")
_ITEM = re.compile(r"^\s+([A-Za-z][A-Za-z0-9_/ -]{0,40}):\s*$")
_NOTE = re.compile(r"^\s*\*\*\*\s*(\S.*)$")


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
        head, note = _ITEM.match(line), _NOTE.match(line)
        if head:
            item = head[1]
        elif item is not None and line.strip() in _WORDS:
            items.setdefault(item, line.strip())
        elif item is not None and note and item in items:
            notes[item] = (*notes.get(item, ()), note[1])
    printed = [line for line in lines if line.strip()]
    return Dmi(items, notes, code, "\n".join(printed[-12:])[-1500:])
