"""What each node reports about one topic, and how the nodes group by it. Pure values.

A topic is compared by itself: a package, a limit; "" if a rule has only one. All values of a topic, over all nodes and
cards, make one partition.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


NONE = ":none"  # a value that begins with a colon is a word of the catalogue

_NAMES_AT_MOST = 256


class ValueKey(NamedTuple):
    """A place on one node."""

    topic: str = ""
    card: int | None = None


class Subject(NamedTuple):
    """Whose value it is."""

    node: str
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it is compared and shown, with the line that says it. `number` is compared where a row tolerates."""

    text: str
    evidence: Evidence
    number: float | None = None


@dataclass(frozen=True, slots=True)
class NodeValues:
    """What one node says. Nothing at all means that there is no such thing there."""

    values: Mapping[ValueKey, Value] = field(default_factory=dict)
    blind: Mapping[int | None, Evidence] = field(default_factory=dict)  # card (None: the node) -> why it cannot tell
    level: str = ""  # the level from which it is asked, where this one leaves it out
    is_list: bool = False  # all topics of the node are there: one that is missing does not exist on it
    command: str = ""  # what a list was read from
    hidden: frozenset[str] = frozenset()  # topics whose values are stand-ins, which cannot be compared


@dataclass(frozen=True, slots=True)
class Partition:
    """How the answers about one topic divide."""

    topic: str
    holders: Mapping[str, tuple[Subject, ...]]  # value -> who has it, the most frequent one first
    lines: Mapping[Subject, Evidence]
    expected: tuple[str, ...] = ()  # the values that are right; () where there is no such thing

    @property
    def is_unanimous(self) -> bool:
        return len(self.holders) < 2

    @property
    def majority(self) -> str | None:
        """The right value, where one is right and anybody has it; else the one of more than half, None without any."""
        right = next((value for value in self.expected if value in self.holders), None)
        if right is not None:
            return right
        first = next(iter(self.holders), None)
        total = sum(map(len, self.holders.values()))
        return first if first is not None and 2 * len(self.holders[first]) > total else None

    @property
    def outliers(self) -> dict[str, tuple[Subject, ...]]:
        """The values that are not the common one, with their holders; all of them where none is common."""
        return {value: who for value, who in self.holders.items() if value != self.majority}


def group_values(
    by_node: Mapping[str, NodeValues], *, tolerance: float = 0.0, expected: tuple[str, ...] = ()
) -> list[Partition]:
    """One partition for each topic, in the order in which topics first occur.

    A node whose list has no such topic counts as having none of it. With a `tolerance` numbers that differ by no more
    than that share are one value. `wanted` are the values that are right, whatever most of them say.
    """
    topics: dict[str, dict[str, dict[Subject, Value]]] = {}
    for node, each in by_node.items():
        for key, value in each.values.items():
            topics.setdefault(key.topic, {}).setdefault(node, {})[Subject(node, key.card)] = value
    return [_partition(topic, values, by_node, tolerance, expected) for topic, values in topics.items()]


def is_layout(by_node: Mapping[str, NodeValues]) -> bool:
    """Whether every node says the same as every other one, card by card, although its cards differ among themselves."""
    each = [{key: value.text for key, value in one.values.items()} for one in by_node.values()]
    return all(one == each[0] for one in each) and not any(one.blind for one in by_node.values())


def _partition(
    topic: str,
    values: Mapping[str, Mapping[Subject, Value]],
    by_node: Mapping[str, NodeValues],
    tolerance: float,
    expected: tuple[str, ...],
) -> Partition:
    found: dict[Subject, Value] = {}
    for node, each in by_node.items():
        if node in values:
            found.update(values[node])
        elif each.is_list and topic not in each.hidden:
            found[Subject(node)] = Value(NONE, Evidence(each.command, f"{topic} -"))
    texts = _rounded(found, tolerance) if tolerance else {who: value.text for who, value in found.items()}
    holders: defaultdict[str, list[Subject]] = defaultdict(list)
    for who, text in texts.items():
        holders[text].append(who)
    ordered = sorted(holders.items(), key=lambda item: -len(item[1]))
    return Partition(
        topic,
        {text: tuple(whose) for text, whose in ordered},
        {who: value.evidence for who, value in found.items()},
        expected,
    )


def _rounded(found: Mapping[Subject, Value], tolerance: float) -> dict[Subject, str]:
    """Whose value is shown as which: numbers near to each other as the first of them."""
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
    """How far a node's clock is ahead of the asking one's. The truth lies no further than `within_s` from it."""

    seconds: float
    within_s: float
    evidence: str  # what was asked, and what came back


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """One node as it answered when all were asked. Names are the real ones: nothing of it is kept in a file."""

    hostname: str
    boot: str = ""  # the kernel's number of this start; "" where it could not be read
    offset: ClockOffset | None = None
    # A node's name -> the addresses found for it; a name that nothing answered for is not in it.
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()  # its own
    login: str = ""  # the address by which it was reached


NOT_PROBED: Mapping[str, NodeIdentity] = MappingProxyType(
    {}
)  # where the nodes were not asked at one time; not: none has answered


def names_to_resolve(hostnames: Iterable[str]) -> tuple[str, ...]:
    """The names that every node is to look up, from what the nodes call themselves; of very many the first ones."""
    return tuple(dict.fromkeys(filter(None, hostnames)))[:_NAMES_AT_MOST]
