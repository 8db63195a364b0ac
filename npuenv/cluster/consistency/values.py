"""What each node reports about one topic, and how the nodes group by it. Pure values.

A topic is compared by itself: a package, a limit; "" if a rule has only one. All values of a topic, over all nodes and
cards, make one partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from npuenv.cluster.nodeset import grouped
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
    level: str = ""  # the level from which it is collected, if it was not
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
