"""The output of hccn_tool card by card: values, and the cards without a readable one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.checks.base import CheckResult, Context, skip, unread
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked
from npuenv.facts.hccn.tool import NOT_ASKED, HccnRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npuenv.core.fact import Fact

_REACH = ("receive timeout", "unreachable", "time exceeded")
NO_DEVICE_HEALTH = "get device health status failed"  # the message for a card that the driver cannot reach


class Answers(NamedTuple):
    """The answers to one query, by card number."""

    values: dict[int, Any]
    lines: dict[int, Evidence]  # the line of each value
    unread: dict[int, Evidence]  # the cards without a readable answer, each with its output


def answers(context: Context, name: str) -> Answers | None:
    """The answers in the fact `hccn.NAME`; None if it was not queried or does not exist."""
    fact: Fact[dict[int, Fact[Any]]] = getattr(context.facts.hccn, name)
    if not was_asked(fact) or fact.state is State.ABSENT:
        return None
    if fact.value is None:
        line = next(iter(fact.evidence), Evidence("hccn_tool", ""))
        return Answers({}, {}, dict.fromkeys(sorted(cards_here(context)), line))
    values = {card: item.value for card, item in fact.value.items() if item.value is not None}
    lines = {card: fact.value[card].evidence[0] for card in values}
    blind = {card: item.evidence[0] for card, item in fact.value.items() if item.state is State.UNKNOWN}
    return Answers(values, lines, blind)


def about(
    make: Callable[..., CheckResult], name: str, lines: Mapping[int, Evidence], cards: Iterable[int], **args: Any
) -> CheckResult | None:
    """The result for some cards, each with its line; None without any."""
    named = tuple(cards)
    return make(name, *(lines[card] for card in named), cards=named, **args) if named else None


def cards_here(context: Context) -> set[int]:
    """The physical numbers of the cards of this machine or container."""
    nodes = context.facts.npu.nodes.value
    return set(nodes.numbers) if nodes else set()


def tool_failure(context: Context) -> CheckResult | None:
    """The result if hccn_tool itself cannot be used; None if it works."""
    hccn = context.facts.hccn
    if hccn.tool.value is None:
        return skip("network.because-no-tool")
    if was_asked(hccn.grammar) and hccn.grammar.state is not State.KNOWN:
        return skip("network.because-tool")
    return None


def unread_cards(context: Context, cards: Mapping[int, Evidence], *, of: Mapping[int, Any]) -> CheckResult | None:
    """Unknown for the cards without a readable answer; `of` are those that are expected to have one.

    The check of the tool reports a card that answers nothing, queries that were skipped because of it, and a tool that
    answers for no card.
    """
    silent = {*silent_cards(context), *(card for card, line in cards.items() if line.line.startswith(NOT_ASKED))}
    if cards and context.facts.hccn.refused.is_known and (not of or cards.keys() <= silent):
        return skip("network.because-tool")
    return unread({card: line for card, line in cards.items() if card not in silent})


def silent_cards(context: Context) -> list[int]:
    """The cards without any answer, if other cards answer or the tool itself reports them."""
    hccn = context.facts.hccn
    refused = hccn.refused.value
    if refused is None:
        return []
    if refused.kind is not HccnRefusal.NO_ANSWER:
        return []
    links = hccn.links.value or {}
    others = [card for card, fact in links.items() if fact.value is not None]
    silent = [card for card, fact in links.items() if fact.value is None and fact.evidence[0].line == refused.line]
    match = re.search(r" -i ([0-9]+)", hccn.refused.evidence[0].command)
    if not silent and NO_DEVICE_HEALTH in refused.line.lower() and match:
        silent = [int(match[1])]
    return silent if others or NO_DEVICE_HEALTH in refused.line.lower() else []


def stranded_cards(context: Context) -> list[int]:
    """The cards that reach nothing and have no gateway or no address to watch."""
    found = answers(context, "net_health")
    states = found.values if found else {}
    return [card for card, state in states.items() if state in _REACH and not _has_way(context, card)]


def _has_way(context: Context, card: int) -> bool:
    """Whether the card has a gateway and an address to watch, as far as these were queried."""
    for name in ("gateways", "netdetects"):
        fact = (getattr(context.facts.hccn, name).value or {}).get(card)
        if fact is not None and fact.state is State.ABSENT:
            return False
    return True
