"""Pings between cards as hccn_tool prints them: over RoCE, over HCCS (A3) and over UB (950).

    device 0 PING 10.12.165.80
    recv seq=0,time=0.114000ms
    3 packets transmitted, 3 received, 0.00% packet loss

The exit status of the HCCS ping does not tell of lost packets, so only the text counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npuenv.facts.hccn.lines import lines_of

_TARGET = re.compile(r"device \d+ (?:PING (\S+)|dev\s+EID \S+ to (\S+))", re.IGNORECASE)
_SUMMARY = re.compile(
    r"(\d{1,9}) packets transmitted, (\d{1,9}) received, (\d{1,3}(?:\.\d{1,6})?)% packets? loss", re.IGNORECASE
)
_PLANE = re.compile(r"plane check result = 0x([0-9a-f]{1,16})", re.IGNORECASE)
# The tool's words -> ours, the gravest first.
_TROUBLES = (
    ("message too long", "message too long"),
    ("destination host unreachable", "unreachable"),
    ("recv time out", "time out"),
)


@dataclass(frozen=True, slots=True)
class Ping:
    """How one ping went. Without a last line the numbers are None and `trouble` says what was seen instead."""

    target: str  # "" where the first line is missing
    sent: int | None
    received: int | None
    trouble: str  # "", or `time out`, `unreachable`, `message too long`
    plane_errors: int = 0  # answers of the HCCS ping whose check of the plane is not 0x0

    @property
    def lost(self) -> int | None:
        return None if self.sent is None or self.received is None else self.sent - self.received


def ping(text: str) -> Ping | None:
    """One ping. None where the text is none, holds several, or where its numbers contradict each other."""
    lines = lines_of(text)
    summaries = [match for match in map(_SUMMARY.fullmatch, lines) if match]
    lower = "\n".join(lines).lower()
    trouble = next((ours for theirs, ours in _TROUBLES if theirs in lower), "")
    targets = [match[1] or match[2] for match in map(_TARGET.fullmatch, lines) if match]
    if len(summaries) > 1 or len(targets) > 1 or not (summaries or trouble):
        return None
    planes = sum(int(found, 16) != 0 for found in _PLANE.findall(lower))
    target = targets[0] if targets else ""
    if not summaries:
        return Ping(target, None, None, trouble, planes)
    sent, received, loss = int(summaries[0][1]), int(summaries[0][2]), float(summaries[0][3])
    if sent < 1 or received > sent or abs(loss - 100 * (sent - received) / sent) > 1:
        return None
    return Ping(target, sent, received, trouble, planes)
