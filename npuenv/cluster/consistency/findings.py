"""What each node reports about one topic, how the nodes group by it, and the finding that follows. Pure values.

A finding says which nodes differ, from what, and for which the value is unknown.

A topic is compared by itself: a package, a limit; "" if a rule has only one. All values of a topic, over all nodes and
cards, make one partition.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from npuenv.cluster.inventory import fold, fold_numbers, grouped
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npuenv.facts.collect import Facts


NONE = ":none"  # a value that begins with a colon is a word of the catalogue

_NAMES_AT_MOST = 256


class ValueKey(NamedTuple):
    """What a value of one node is about."""

    topic: str = ""
    card: int | None = None


class Subject(NamedTuple):
    """Whose value it is."""

    node: str
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it is compared and shown, with its line. `number` is compared if a row has a tolerance."""

    text: str
    evidence: Evidence
    number: float | None = None


@dataclass(frozen=True, slots=True)
class NodeValues:
    """The values of one node for one rule. All empty: there is no such thing on it."""

    values: Mapping[ValueKey, Value] = field(default_factory=dict)
    unknown: Mapping[int | None, Evidence] = field(default_factory=dict)  # card (None: the node) -> why it is unknown
    level: int = 0  # the lowest level that collects it, where this one left it out
    is_list: bool = False  # all topics are listed: one that is missing does not exist on the node
    command: str = ""  # what a list was read from
    hidden: frozenset[str] = frozenset()  # topics whose values are stand-ins, which cannot be compared


@dataclass(frozen=True, slots=True)
class Partition:
    """The nodes and cards grouped by their values of one topic."""

    topic: str
    holders: Mapping[str, tuple[Subject, ...]]  # value -> who has it, the most frequent one first
    lines: Mapping[Subject, Evidence]
    expected: tuple[str, ...] = ()  # the right values; (): any

    @property
    def is_unanimous(self) -> bool:
        return len(self.holders) < 2

    @property
    def majority(self) -> str | None:
        """The expected value, if any subject has it; else the value of more than half; else None."""
        right = next((value for value in self.expected if value in self.holders), None)
        if right is not None:
            return right
        first = next(iter(self.holders), None)
        total = sum(map(len, self.holders.values()))
        return first if first is not None and 2 * len(self.holders[first]) > total else None

    @property
    def outliers(self) -> dict[str, tuple[Subject, ...]]:
        """The values other than the majority's, with their holders; without a majority all."""
        return {value: who for value, who in self.holders.items() if value != self.majority}


def group_values(
    by_node: Mapping[str, NodeValues], *, tolerance: float = 0.0, expected: tuple[str, ...] = ()
) -> list[Partition]:
    """One partition for each topic, in the order in which topics first occur.

    A node whose list lacks a topic has the value NONE. `tolerance`: the share up to which numbers count as equal.
    `expected`: the right values, whatever the majority has.
    """
    topics: dict[str, dict[str, dict[Subject, Value]]] = {}
    for node, each in by_node.items():
        for key, value in each.values.items():
            topics.setdefault(key.topic, {}).setdefault(node, {})[Subject(node, key.card)] = value
    partitions = []
    for topic, values in topics.items():
        found: dict[Subject, Value] = {}
        for node, each in by_node.items():
            if node in values:
                found.update(values[node])
            elif each.is_list and topic not in each.hidden:
                found[Subject(node)] = Value(NONE, Evidence(each.command, f"{topic} -"))
        texts = _rounded(found, tolerance) if tolerance else {who: value.text for who, value in found.items()}
        holders = {text: tuple(whose) for text, whose in grouped((text, who) for who, text in texts.items()).items()}
        ordered = dict(sorted(holders.items(), key=lambda item: -len(item[1])))
        lines = {who: value.evidence for who, value in found.items()}
        partitions.append(Partition(topic, ordered, lines, expected))
    return partitions


def is_layout(by_node: Mapping[str, NodeValues]) -> bool:
    """Whether all nodes have the same values, card by card."""
    each = [{key: value.text for key, value in one.values.items()} for one in by_node.values()]
    return all(one == each[0] for one in each) and not any(one.unknown for one in by_node.values())


def _rounded(found: Mapping[Subject, Value], tolerance: float) -> dict[Subject, str]:
    """The text of each value; numbers within the tolerance have the text of the smallest."""
    texts: dict[Subject, str] = {who: value.text for who, value in found.items() if value.number is None}
    numbers = sorted((value.number, who) for who, value in found.items() if value.number is not None)
    start: tuple[float, str] | None = None
    for number, who in ((number, who) for number, who in numbers if number is not None):
        if start is None or number > start[0] * (1 + tolerance):
            start = (number, found[who].text)
        texts[who] = start[1]
    return {who: texts[who] for who in found}


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a node's clock is ahead of the local one, with its uncertainty `within_s`."""

    seconds: float
    within_s: float
    evidence: str


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The answer of one node when all were probed. It has real names and is never saved."""

    hostname: str
    boot: str = ""  # the kernel's number of this start; "" where it could not be read
    offset: ClockOffset | None = None
    # Host name -> its addresses on this node; a name without an answer is missing.
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()  # its own
    login: str = ""  # the address by which it was reached


NOT_PROBED: Mapping[str, NodeIdentity] = MappingProxyType({})  # the nodes were not probed; not: none has answered


def names_to_resolve(hostnames: Iterable[str]) -> tuple[str, ...]:
    """The host names that every node resolves; at most 256."""
    return tuple(dict.fromkeys(filter(None, hostnames)))[:_NAMES_AT_MOST]


EVIDENCE_AT_MOST = 6
_TOPICS_AT_MOST = 6  # in one sentence
GROUPS_AT_MOST = 3  # values with their holders, in one sentence
AREA = "agree"


@dataclass(frozen=True, slots=True)
class ConsistencyRule:
    """One row of rules.toml: something that must be the same on all nodes."""

    id: str
    read: Callable[[Facts], NodeValues]
    differs: str  # fail, warn, release:N, set, breaking, with-ray; see rules.toml
    source: str
    fix: str  # the name of its sentence in the catalogue
    tolerance: float = 0.0  # the share by which numbers may differ
    layout: Callable[[Mapping[str, Facts]], bool] | None = None  # whether values without a majority are intended
    may_lack: tuple[str, ...] = ()  # topics that a node may be without: under `release` only a warning
    expected: tuple[str, ...] = ()  # the right values, the most usual one first; (): any
    if_unexpected: str = "skip"  # if all agree on another one: warn, or skip because each node's doctor judges it
    follows_from: tuple[str, ...] = ()  # findings of which this one is a consequence
    is_layout: bool = False  # cards of one machine may differ, as long as those of the same number do not
    is_about_cards: bool = False
    is_for_cards: bool = False  # only nodes that have cards need it
    is_dangerous: bool = False  # its fix touches security

    @property
    def needs_cards(self) -> bool:
        """Whether nodes without cards are left out."""
        return self.is_about_cards or self.is_for_cards


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
    is_fixable = fix and status in (Status.FAIL, Status.WARN)
    return Finding(
        f"{AREA}.{name}",
        status,
        says,
        tuple(dict.fromkeys(shown))[:EVIDENCE_AT_MOST],
        source,
        Fix(message(f"fix-{fix}", **args), is_dangerous=is_dangerous) if is_fixable else None,
    )


def too_few_nodes(name: str, absent: Mapping[str, str], source: str) -> Finding:
    """The finding if fewer than two nodes can be probed; `absent`: why the others were not."""
    if not absent:
        return finding(name, Status.SKIP, message("ports-alone"), source=source)
    lines = [(node, Evidence("python3", why)) for node, why in absent.items()]
    return finding(name, Status.UNKNOWN, message("blind", who=fold(absent)), lines, source=source)


def unknown_finding(name: str, unknown: Mapping[Subject, Evidence], source: str) -> Finding:
    """The finding if the values of some nodes or cards are unknown."""
    lines = [(subject.node, line) for subject, line in unknown.items()]
    return finding(name, Status.UNKNOWN, message("blind", who=fold_subjects(unknown)), lines, source=source)


def with_unknown(says: Message, names: object) -> Message:
    """The sentence, and for whom the value is unknown; `names` may be empty."""
    return message("and-blind", says=says, who=names) if names else says


def fold_subjects(subjects: Iterable[Subject]) -> object:
    """The subjects, folded: `node[01-02], node07 cards 3,5`."""
    cards: defaultdict[str, list[int]] = defaultdict(list)
    for node, card in subjects:
        cards[node] += [] if card is None else [card]
    alike = grouped((tuple(sorted(numbers)), node) for node, numbers in cards.items())
    words = [
        message("who-cards", nodes=fold(nodes), cards=fold_numbers(numbers)) if numbers else fold(nodes)
        for numbers, nodes in alike.items()
    ]
    return words[0] if len(words) == 1 else tuple(words)


def shown_value(text: str) -> object:
    """A value for a sentence."""
    return message(f"word-{text[1:]}") if text.startswith(":") else text


def judge_rule(
    rule: ConsistencyRule,
    by_node: Mapping[str, NodeValues],
    partitions: Sequence[Partition],
    status: Status,
    *,
    is_plan: bool = False,
) -> Finding:
    """The finding of one row. `status` is that of a difference. With `is_plan` a topic without a majority is none."""
    apart = [each for each in partitions if not each.is_unanimous and (each.majority or not is_plan)]
    unknown = _unknown_subjects(by_node, is_mixed=bool(partitions))
    if apart:
        says = with_unknown(_differences(apart), unknown and fold_subjects(unknown))
        lines = [*_lines(apart), *_one_each(unknown)]
        return finding(rule.id, status, says, lines, source=rule.source, fix=rule.fix, is_dangerous=rule.is_dangerous)
    wrong = [partition for partition in partitions if rule.expected and partition.majority not in rule.expected]
    if wrong and (rule.if_unexpected == "warn" or not unknown):
        return _alike_but_wrong(rule, wrong, unknown)
    if unknown:
        return _unknown_finding(rule, by_node, partitions, unknown)
    if not partitions or all(partition.holders.keys() == {":none"} for partition in partitions):
        return finding(rule.id, Status.SKIP, _why_skipped(by_node), source=rule.source)
    return finding(rule.id, Status.OK, _same(partitions), _lines(partitions[:1])[:1], source=rule.source)


def _alike_but_wrong(rule: ConsistencyRule, wrong: Sequence[Partition], unknown: Mapping[Subject, Evidence]) -> Finding:
    """The finding if all agree on a value that is not a right one."""
    says = _same(wrong)
    if rule.if_unexpected != "warn":
        return finding(rule.id, Status.SKIP, message("alike-unwell", says=says), _lines(wrong)[:1], source=rule.source)
    says = with_unknown(says, unknown and fold_subjects(unknown))
    lines = [*_lines(wrong)[:1], *_one_each(unknown)]
    return finding(rule.id, Status.WARN, says, lines, source=rule.source, fix=rule.fix)


def _why_skipped(by_node: Mapping[str, NodeValues]) -> Message:
    levels = sorted({each.level for each in by_node.values() if each.level})
    if levels:
        return message("skip-level", level=levels[0])
    hiding = [node for node, each in by_node.items() if each.hidden and not each.values]
    return message("skip-hidden", who=fold(hiding)) if hiding else message("skip-nothing")


def _unknown_finding(
    rule: ConsistencyRule,
    by_node: Mapping[str, NodeValues],
    partitions: Sequence[Partition],
    unknown: Mapping[Subject, Evidence],
) -> Finding:
    lines = _one_each(unknown)
    nodes = {subject.node for subject in unknown}
    has_values = any(each.values for each in by_node.values())
    if not has_values and nodes == set(by_node):
        says = message("blind-all", count=len(nodes))
    elif has_values and partitions:
        says = message("blind-some", who=fold_subjects(unknown), says=_same(partitions))
    else:
        says = message("blind", who=fold_subjects(unknown))
    return finding(rule.id, Status.UNKNOWN, says, lines, source=rule.source)


def _unknown_subjects(by_node: Mapping[str, NodeValues], *, is_mixed: bool) -> dict[Subject, Evidence]:
    """Subjects without a value. Those left out by level, or hidden, count only if other nodes have a value."""
    found = {Subject(node, card): line for node, each in by_node.items() for card, line in each.unknown.items()}
    if is_mixed:
        hiding = (node for node, each in by_node.items() if each.hidden and not each.values and not each.is_list)
        found.update({Subject(node): Evidence("capture", "a stand-in") for node in hiding})
        left_out = ((node, each.level) for node, each in by_node.items() if each.level and not each.values)
        found.update({Subject(node): Evidence("not asked", f"needs --level {level}") for node, level in left_out})
    return found


def _one_each(unknown: Mapping[Subject, Evidence]) -> list[tuple[str, Evidence]]:
    """One line for each node."""
    lines: dict[str, Evidence] = {}
    for subject, line in unknown.items():
        lines.setdefault(subject.node, line)
    return list(lines.items())


def _differences(apart: Sequence[Partition]) -> Message:
    if len(apart) == 1:
        return _difference(apart[0])
    # Topics in which the same subjects are the only odd ones are said together.
    united = [each for each in apart if each.majority is not None and len(each.outliers) == 1]
    together = grouped((next(iter(each.outliers.values())), each) for each in united)
    alone = [each for each in apart if each.majority is None or len(each.outliers) != 1]
    parts = [_several(subjects, partitions) for subjects, partitions in together.items()]
    parts += [_difference(partition) for partition in alone[:_TOPICS_AT_MOST]]
    if len(alone) > _TOPICS_AT_MOST:
        parts.append(message("more", count=len(alone) - _TOPICS_AT_MOST))
    return join(parts)


def join(parts: Sequence[Message]) -> Message:
    """The sentences as one."""
    says = parts[0]
    for part in parts[1:]:
        says = message("then", first=says, rest=part)
    return says


def _several(subjects: tuple[Subject, ...], partitions: Sequence[Partition]) -> Message:
    if len(partitions) == 1:
        return _difference(partitions[0])
    items = []
    for each in partitions[:_TOPICS_AT_MOST]:
        value, common = shown_value(next(iter(each.outliers))), shown_value(each.majority or "")
        items.append(message("instead", topic=each.topic, value=value, common=common))
    if len(partitions) > _TOPICS_AT_MOST:
        items.append(message("more", count=len(partitions) - _TOPICS_AT_MOST))
    return message("said", who=fold_subjects(subjects), value=tuple(items))


def _difference(partition: Partition) -> Message:
    odd = {value: fold_subjects(whose) for value, whose in partition.outliers.items()}
    groups = shorten([message("said", who=who, value=shown_value(value)) for value, who in odd.items()])
    if len(groups) < len(odd):
        rest = [subject for whose in list(partition.outliers.values())[GROUPS_AT_MOST:] for subject in whose]
        groups = (*groups[:-1], message("more-on", count=len(odd) - GROUPS_AT_MOST, who=fold_subjects(rest)))
    if partition.majority is None:
        says = message("tied", groups=groups)
    else:
        count, common = len(partition.holders[partition.majority]), shown_value(partition.majority)
        says = message("odd", odd=groups, count=count, common=common)
    return message("of", topic=partition.topic, says=says) if partition.topic else says


def shorten(groups: Sequence[Message]) -> tuple[Message, ...]:
    """The first groups, and how many more there are."""
    if len(groups) <= GROUPS_AT_MOST + 1:  # the last one takes no more room than its number
        return tuple(groups)
    return (*groups[:GROUPS_AT_MOST], message("more", count=len(groups) - GROUPS_AT_MOST))


def _same(partitions: Sequence[Partition]) -> Message:
    united = [partition for partition in partitions if partition.is_unanimous]
    if len(partitions) == 1 and united and not partitions[0].topic:
        value, whose = next(iter(partitions[0].holders.items()))
        return message("same", value=shown_value(value), count=len(whose))
    if len(united) < len(partitions):
        return message("layout", count=max(len(partition.holders) for partition in partitions))
    return message("same-topics", count=len(partitions))


def _lines(partitions: Sequence[Partition]) -> list[tuple[str, Evidence]]:
    """The deciding lines: first of those that differ, then one of the majority."""
    found = []
    for partition in partitions:
        shown = [subject for whose in partition.outliers.values() for subject in whose[:2]]
        shown += list(partition.holders.get(partition.majority or "", ()))[:1]
        found += [(subject.node, partition.lines[subject]) for subject in shown]
    return found


def message(name: str, /, **args: object) -> Message:
    return Message(f"{AREA}.{name}", args)
