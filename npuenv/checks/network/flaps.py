"""Check of links that flap: each time it costs the running collective (ERROR CQE, EI0013)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import CheckResult, Context, card_check, fix_for, ok, skip, warn, worst
from npuenv.checks.network.answers import answers, unread_cards
from npuenv.core.fact import Evidence, Fact, State

if TYPE_CHECKING:
    import datetime

    from npuenv.facts.hccn.parsers import LinkChanges

LEVEL = 2
_SOURCE = "hicann/hccl fault diagnosis, ERROR CQE: hccn_tool -link_stat shows whether the port flaps"
# npuenv's own threshold: cards of one machine have equal uptime and the same switch maintenance.
_COUNT_AT_LEAST = 10
_TIMES_THE_OTHERS = 3
_OTHERS_AT_LEAST = 2
# npuenv's own threshold: a start of the driver takes the link down once.
_DOWN_A_DAY = 3
_DAY_S = 24 * 60 * 60
_TIME = re.compile(r"\w{3} (\w{3}) +(\d+) (\d+):(\d+):(\d+) (\d{4})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _flaps(context: Context) -> CheckResult:
    """A link that came up far more often than the others, or that went down several times within a day."""
    fact, found = context.facts.hccn.link_changes, answers(context, "link_changes")
    if found is None or _is_older(fact):
        return skip("network.none-asked")
    read = found.values
    if not read and context.facts.hccn.grammar.state is not State.KNOWN:
        return skip("network.because-tool")
    often = [card for card in read if _is_odd(card, {number: item.up_count for number, item in read.items()})]
    lately = [card for card, item in read.items() if card not in often and _downs(item) >= _DOWN_A_DAY]
    outcomes = [unread_cards(context, found.unread, of=read)]
    for name, cards in (("network.flaps-often", often), ("network.flaps-lately", lately)):
        shown = [Evidence(found.lines[card].command, f"link up count: {read[card].up_count}") for card in cards]
        counts = tuple(f"{card}: {read[card].up_count}" for card in cards)
        if cards:
            outcomes.append(warn(name, *shown, fix=fix_for("network.flaps"), counts=counts, cards=tuple(cards)))
    return worst(outcomes, otherwise=ok("network.flaps-ok", *fact.evidence[:1], count=len(read)))


def _is_older(fact: Fact[Any]) -> bool:
    """Whether the tool does not support the query."""
    if fact.value is not None:
        return False
    from npuenv.facts.hccn.answers import Refusal, refusal  # imported from level 2 on

    answer = refusal("\n".join(item.line for item in fact.evidence))
    return answer is not None and answer.kind is Refusal.GRAMMAR


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
    """`Wed Aug  2 03:09:26 2022` in any locale; None for an invalid time."""
    import datetime

    found = _TIME.fullmatch(text)
    if found is None or found[1] not in _MONTHS:
        return None
    day, hour, minute, second, year = (int(found[group]) for group in (2, 3, 4, 5, 6))
    try:
        return datetime.datetime(year, _MONTHS.index(found[1]) + 1, day, hour, minute, second)
    except ValueError:
        return None


CHECKS = (card_check("network.link-flaps", (), _SOURCE, _flaps, level=LEVEL),)
