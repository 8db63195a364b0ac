"""Findings from divided answers: who differs, from what, what could not be told. Start from `judge` and `finding`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from npuenv.cluster.nodeset import fold, fold_numbers
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.cluster.consistency.rules import Aspect
    from npuenv.cluster.consistency.values import Split, Subject, Told

EVIDENCE_AT_MOST = 6
_TOPICS_AT_MOST = 6  # that one sentence names
GROUPS_AT_MOST = 3  # values with their holders
AREA = "agree"


def finding(
    name: str,
    status: Status,
    says: Message,
    lines: Iterable[tuple[str, Evidence]] = (),
    *,
    source: str,
    fix: str = "",
    is_dangerous: bool = False,
    **args: object,
) -> Finding:
    """A finding about several nodes; each line of evidence begins with its node."""
    shown = [Evidence(f"{node}: {line.command}" if line.command else node, line.line) for node, line in lines]
    cure = Fix(_message(f"fix-{fix}", **args), is_dangerous=is_dangerous) if fix else None
    is_bad = status in (Status.FAIL, Status.WARN, Status.UNKNOWN)
    return Finding(
        f"{AREA}.{name}",
        status,
        says,
        tuple(dict.fromkeys(shown))[:EVIDENCE_AT_MOST],
        source,
        cure if is_bad and status is not Status.UNKNOWN else None,
    )


def alone(name: str, absent: Mapping[str, str], source: str) -> Finding:
    """The finding where fewer than two nodes are left to try something; `absent` says why the others took no part."""
    if not absent:
        return finding(name, Status.SKIP, _message("ports-alone"), source=source)
    lines = [(node, Evidence("python3", why)) for node, why in absent.items()]
    return finding(name, Status.UNKNOWN, _message("blind", who=fold(absent)), lines, source=source)


def who(subjects: Iterable[Subject]) -> object:
    """The subjects in few words: `node[01-02], node07 cards 3,5`."""
    cards: defaultdict[str, list[int]] = defaultdict(list)
    for node, card in subjects:
        cards[node] += [] if card is None else [card]
    alike: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for node, numbers in cards.items():
        alike[tuple(sorted(numbers))].append(node)
    words = [
        _message("who-cards", nodes=fold(nodes), cards=fold_numbers(numbers)) if numbers else fold(nodes)
        for numbers, nodes in alike.items()
    ]
    return words[0] if len(words) == 1 else tuple(words)


def word(text: str) -> object:
    """A value as it is said."""
    return _message(f"word-{text[1:]}") if text.startswith(":") else text


def judge(
    aspect: Aspect, told: Mapping[str, Told], splits: Sequence[Split], status: Status, *, is_plan: bool = False
) -> Finding:
    """The finding of one row. `status` is what a difference means here; `splits` are all of its topics. With `is_plan`
    a topic without a common value is no difference.
    """
    apart = [split for split in splits if not split.is_united and (split.common or not is_plan)]
    blind = _blind(told, is_mixed=bool(splits))
    if apart:
        says = _differences(apart)
        if blind:
            says = _message("and-blind", says=says, who=who(blind))
        lines = [*_lines(apart), *_one_each(blind)]
        return finding(
            aspect.id,
            status,
            says,
            lines,
            source=aspect.source,
            fix=aspect.fix,
            is_dangerous=aspect.is_dangerous,
        )
    unwell = [split for split in splits if aspect.wanted and split.common not in aspect.wanted]
    if unwell and (aspect.unwanted == "warn" or not blind):
        return _alike_but_wrong(aspect, unwell, blind)
    if blind:
        return _unread(aspect, told, splits, blind)
    if not splits or all(split.holders.keys() == {":none"} for split in splits):
        return finding(aspect.id, Status.SKIP, _why_skipped(told), source=aspect.source)
    return finding(aspect.id, Status.OK, _same(splits), _lines(splits)[:1], source=aspect.source)


def _alike_but_wrong(aspect: Aspect, unwell: Sequence[Split], blind: Mapping[Subject, Evidence]) -> Finding:
    """The finding where all agree on a value that is not a right one: never one of what is well."""
    says = _same(unwell)
    if aspect.unwanted != "warn":
        return finding(
            aspect.id, Status.SKIP, _message("alike-unwell", says=says), _lines(unwell)[:1], source=aspect.source
        )
    if blind:
        says = _message("and-blind", says=says, who=who(blind))
    lines = [*_lines(unwell)[:1], *_one_each(blind)]
    return finding(aspect.id, Status.WARN, says, lines, source=aspect.source, fix=aspect.fix)


def _why_skipped(told: Mapping[str, Told]) -> Message:
    levels = sorted({each.level for each in told.values() if each.level})
    if levels:
        return _message("skip-level", level=levels[0])
    hiding = [node for node, each in told.items() if each.hidden and not each.values]
    return _message("skip-hidden", who=fold(hiding)) if hiding else _message("skip-nothing")


def _unread(
    aspect: Aspect, told: Mapping[str, Told], splits: Sequence[Split], blind: Mapping[Subject, Evidence]
) -> Finding:
    lines = _one_each(blind)
    nodes = {subject.node for subject in blind}
    has_values = any(each.values for each in told.values())
    if not has_values and nodes == set(told):
        says = _message("blind-all", count=len(nodes))
    elif has_values and splits:
        says = _message("blind-some", who=who(blind), says=_same(splits))
    else:
        says = _message("blind", who=who(blind))
    return finding(aspect.id, Status.UNKNOWN, says, lines, source=aspect.source)


def _blind(told: Mapping[str, Told], *, is_mixed: bool) -> dict[Subject, Evidence]:
    """Who could not tell. What was left out by its level, or is hidden, counts only where other nodes have told it."""
    from npuenv.cluster.consistency.values import Subject

    found = {Subject(node, card): line for node, each in told.items() for card, line in each.blind.items()}
    if is_mixed:
        hiding = (node for node, each in told.items() if each.hidden and not each.values and not each.is_list)
        found.update({Subject(node): Evidence("capture", "a stand-in") for node in hiding})
        left_out = {node: each.level for node, each in told.items() if each.level and not each.values}
        found.update(
            {Subject(node): Evidence("not asked", f"needs --level {level}") for node, level in left_out.items()}
        )
    return found


def _one_each(blind: Mapping[Subject, Evidence]) -> list[tuple[str, Evidence]]:
    """One line for each node that could not tell."""
    lines: dict[str, Evidence] = {}
    for subject, line in blind.items():
        lines.setdefault(subject.node, line)
    return list(lines.items())


def _differences(apart: Sequence[Split]) -> Message:
    if len(apart) == 1:
        return _difference(apart[0])
    together: defaultdict[tuple[Subject, ...], list[Split]] = defaultdict(list)
    alone = []
    for split in apart:
        if split.common is not None and len(split.odd) == 1:
            together[next(iter(split.odd.values()))].append(split)
        else:
            alone.append(split)
    parts = [_several(subjects, splits) for subjects, splits in together.items()]
    parts += [_difference(split) for split in alone[:_TOPICS_AT_MOST]]
    if len(alone) > _TOPICS_AT_MOST:
        parts.append(_message("more", count=len(alone) - _TOPICS_AT_MOST))
    return chain(parts)


def chain(parts: Sequence[Message]) -> Message:
    """Sentences one after the other."""
    says = parts[0]
    for part in parts[1:]:
        says = _message("then", first=says, rest=part)
    return says


def _several(subjects: tuple[Subject, ...], splits: Sequence[Split]) -> Message:
    if len(splits) == 1:
        return _difference(splits[0])
    items = [
        _message("instead", topic=split.topic, value=word(next(iter(split.odd))), common=word(split.common or ""))
        for split in splits[:_TOPICS_AT_MOST]
    ]
    if len(splits) > _TOPICS_AT_MOST:
        items.append(_message("more", count=len(splits) - _TOPICS_AT_MOST))
    return _message("said", who=who(subjects), value=tuple(items))


def _difference(split: Split) -> Message:
    groups = few([_message("said", who=who(whose), value=word(value)) for value, whose in split.odd.items()])
    if len(groups) < len(split.odd):
        rest = [subject for whose in list(split.odd.values())[GROUPS_AT_MOST:] for subject in whose]
        groups = (*groups[:-1], _message("more-on", count=len(split.odd) - GROUPS_AT_MOST, who=who(rest)))
    if split.common is None:
        says = _message("tied", groups=groups)
    else:
        says = _message("odd", odd=groups, count=len(split.holders[split.common]), common=word(split.common))
    return _message("of", topic=split.topic, says=says) if split.topic else says


def few(groups: Sequence[Message]) -> tuple[Message, ...]:
    """The first groups, and how many more there are: where all differ, nobody reads all of them."""
    if len(groups) <= GROUPS_AT_MOST + 1:  # the last one takes no more room than its number
        return tuple(groups)
    return (*groups[:GROUPS_AT_MOST], _message("more", count=len(groups) - GROUPS_AT_MOST))


def _same(splits: Sequence[Split]) -> Message:
    united = [split for split in splits if split.is_united]
    if len(splits) == 1 and united and not splits[0].topic:
        value, whose = next(iter(splits[0].holders.items()))
        return _message("same", value=word(value), count=len(whose))
    if len(united) < len(splits):
        return _message("layout", count=max(len(split.holders) for split in splits))
    return _message("same-topics", count=len(splits))


def _lines(splits: Sequence[Split]) -> list[tuple[str, Evidence]]:
    """The deciding lines: of those that differ first, then one of the others."""
    found = []
    for split in splits:
        shown = [subject for whose in split.odd.values() for subject in whose[:2]]
        shown += list(split.holders.get(split.common or "", ()))[:1]
        found += [(subject.node, split.lines[subject]) for subject in shown]
    return found


def _message(name: str, /, **args: object) -> Message:
    return Message(f"{AREA}.{name}", args)


message = _message
