"""Links that go down and come up again: each time costs the collective that runs (ERROR CQE, EI0013)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import Check, Context, Verdict, fix, ok, skip, unsure, warn
from npuenv.facts.asker import was_asked
from npuenv.facts.base import Evidence, Fact, State

if TYPE_CHECKING:
    import datetime

    from npuenv.facts.hccn.a2 import LinkChanges

LEVEL = 2
_SOURCE = "hicann/hccl fault diagnosis, ERROR CQE: hccn_tool -link_stat shows whether the port flaps"
# Ours: cards of one machine have been up equally long and see the same maintenance of a switch.
_COUNT_AT_LEAST = 10
_TIMES_THE_OTHERS = 3
_OTHERS_AT_LEAST = 2
# Ours: a start of the driver takes the link down once.
_DOWN_A_DAY = 3
_DAY_S = 24 * 60 * 60
_TIME = re.compile(r"\w{3} (\w{3}) +(\d+) (\d+):(\d+):(\d+) (\d{4})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _flaps(context: Context) -> Verdict:
    """A link that came up far more often than the others did, or that went down several times within a day."""
    hccn, fact = context.facts.hccn, context.facts.hccn.link_changes
    if not was_asked(fact) or fact.state is State.ABSENT:
        return skip("network.none-asked")
    read = {card: item.value for card, item in (fact.value or {}).items() if item.value is not None}
    if fact.value is None or not read:
        return _unread(fact, because_tool=hccn.refused.is_known or hccn.grammar.state is not State.KNOWN)
    often = [card for card in read if _is_odd(card, {number: item.up_count for number, item in read.items()})]
    lately = [card for card, item in read.items() if _downs(item) >= _DOWN_A_DAY]
    cards = sorted({*often, *lately})
    if not cards:
        return ok("network.flaps-ok", *fact.evidence[:1], count=len(read))
    commands = {card: fact.value[card].evidence[0].command for card in cards}
    shown = [Evidence(commands[card], f"link up count: {read[card].up_count}") for card in cards]
    counts = tuple(f"{card}: {read[card].up_count}" for card in cards)
    name = "network.flaps-often" if often else "network.flaps-lately"
    return warn(name, *shown, fix=fix("network.flaps"), counts=counts, cards=tuple(cards))


def _unread(fact: Fact[Any], *, because_tool: bool) -> Verdict:
    """No card's answer could be read. A tool that does not know the question is an older one."""
    if because_tool:
        return skip("network.because-tool")
    from npuenv.facts.hccn.answers import Refusal, refusal  # read from level 2 on

    said = refusal("\n".join(item.line for item in fact.evidence))
    if said is not None and said.kind is Refusal.GRAMMAR:
        return skip("network.none-asked")
    return unsure("network.cards-unread", *fact.evidence, count=len(fact.evidence))


def _is_odd(card: int, counts: dict[int, int]) -> bool:
    others = sorted(count for number, count in counts.items() if number != card)
    if len(others) < _OTHERS_AT_LEAST or counts[card] < _COUNT_AT_LEAST:
        return False
    return counts[card] > _TIMES_THE_OTHERS * max(others[len(others) // 2], 1)


def _downs(changes: LinkChanges) -> int:
    """How often the link went down within the day before the answer."""
    now = _moment(changes.now)
    if now is None:
        return 0
    moments = (_moment(text) for text, state in changes.changes if state == "DOWN")
    return sum(moment is not None and 0 <= (now - moment).total_seconds() <= _DAY_S for moment in moments)


def _moment(text: str) -> datetime.datetime | None:
    """`Wed Aug  2 03:09:26 2022` in any locale; None for a text that is no time."""
    import datetime

    found = _TIME.fullmatch(text)
    if found is None or found[1] not in _MONTHS:
        return None
    day, hour, minute, second, year = (int(found[group]) for group in (2, 3, 4, 5, 6))
    try:
        return datetime.datetime(year, _MONTHS.index(found[1]) + 1, day, hour, minute, second)
    except ValueError:
        return None


CHECKS = (Check("network.link-flaps", (), _SOURCE, _flaps, is_about_cards=True, level=LEVEL),)
