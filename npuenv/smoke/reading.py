"""Access to the records of a run, and findings made from them."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message
from npuenv.smoke.run import METRICS, Record

_SOURCE = "the run's own records"
# Characters of a reason in a sentence; the evidence has the complete text.
LONGEST_REASON = 120
# A location in a library's own source, of no use to the user: [/__w/pytorch/.../pair.cc:537]
_SOURCE_PLACE = re.compile(r"\[/[^\]\s]*\]\s*")
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z])|。")


@dataclass(frozen=True)
class Reading:
    """The records of a run, and how its process ended. `exit_code` None: it was still running."""

    records: Sequence[Record]
    exit_code: int | None
    log_tail: str

    @cached_property
    def steps(self) -> list[Record]:
        return [record for record in self.records if record.get("kind") == "step"]

    @cached_property
    def header(self) -> Record | None:
        return next((record for record in self.records if record.get("kind") == "header"), None)

    @cached_property
    def end(self) -> Record | None:
        """The last one: with several ranks a first `end` may come before the run is over."""
        return next((record for record in reversed(self.records) if record.get("kind") == "end"), None)

    @property
    def is_completed(self) -> bool:
        return self.end is not None and self.end.get("status") == "completed" and self.exit_code == 0

    def setting(self, name: str) -> Any:
        """The value of a setting of the run; None without a header."""
        settings = (self.header or {}).get("settings")
        return settings.get(name) if isinstance(settings, Mapping) else None

    def stage(self, name: str) -> Record | None:
        """The record of a stage: the first that did not pass, else the last; None if there is none."""
        found = [each for each in self.records if each.get("kind") == "stage" and each.get("name") == name]
        return next((each for each in found if each.get("passed") is False), found[-1] if found else None)

    def answers(self, when: str) -> list[int] | None:
        """0 or 1 for each held-out prompt of an evaluation; None if there is no readable one."""
        for record in self.records:
            if record.get("kind") == "eval" and record.get("when") == when and record.get("split") == "heldout":
                correct = record.get("correct")
                if isinstance(correct, list) and all(answer in (0, 1) for answer in correct):
                    return [int(answer) for answer in correct]
        return None


def finding(
    check: str,
    status: Status,
    key: str,
    args: Mapping[str, object] | None = None,
    *,
    evidence: Record | str = "",
    fix_key: str = "",
) -> Finding:
    """A finding with the message `smoke.KEY`; a failure has the next step `smoke.KEY-fix`, or that of `fix_key`."""
    line = evidence if isinstance(evidence, str) else json.dumps({k: v for k, v in evidence.items() if k != "kind"})
    fix = Fix(says=Message(f"smoke.{fix_key or key}-fix")) if status is Status.FAIL else None
    shown = (Evidence(METRICS, line),) if line else ()
    shortened = {name: brief(value) if name == "reason" else value for name, value in (args or {}).items()}
    return Finding(check, status, Message(f"smoke.{key}", shortened), shown, _SOURCE, fix)


def brief(reason: object) -> object:
    """A reason for use in a sentence: shortened, without locations in a library's source and without ASCII art.

    A text longer than `LONGEST_REASON` ends after its first sentence, or with an ellipsis. Other values are returned
    unchanged.
    """
    if not isinstance(reason, str):
        return reason
    plain = "".join(each for each in reason if unicodedata.category(each) != "So" and each not in "\ufe0f\u200d")
    text = " ".join(_SOURCE_PLACE.sub("", plain).split())
    if len(text) <= LONGEST_REASON:
        return text
    ended = _SENTENCE_END.search(text)
    first = text[: ended.start()] if ended else text
    return first if len(first) <= LONGEST_REASON else f"{first[: LONGEST_REASON - 1].rstrip()}…"


def number(record: Record, name: str) -> float:
    """A number of a record, also from a text like "NaN", which JSON cannot represent; NaN for any other value."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan
