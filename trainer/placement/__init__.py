"""Which cards of a cluster learn and which generate; the other modules start the processes on them, through Ray.

Cards are counted over the nodes: with 8 a node, card 11 is the fourth of the second. Nothing here connects to Ray:
`read` parses the settings, `place_workers` matches them with the nodes. If no node has a card the numbers count
processes on CPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.device import RAY_GPU, RAY_NPU
from trainer.overrides.device_mapping import parse_device_mapping
from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer.config import Config


# Ray's names for kinds of cards, in the order in which a run takes them.
KINDS = (RAY_NPU, RAY_GPU)
CPU = "CPU"
_SMALL = 1e-6  # Ray counts in ten-thousandths


class PlacementError(BadSetting):
    """The cluster cannot hold the run; the text names the missing resources and the nodes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The requested placement."""

    learners: tuple[int, ...]  # the card of each rank
    generators: tuple[tuple[int, ...], ...]  # the cards of each; none: every rank generates for itself
    nodes: int  # 0: as many as the cards fill
    cards_per_node: int  # 0: as Ray counts them
    has_cards: bool = True  # False: the numbers count processes on this machine, whatever cards it has

    @property
    def is_split(self) -> bool:
        return bool(self.generators)

    @property
    def num_seats(self) -> int:
        """How many processes there are."""
        return len(self.learners) + len(self.generators)

    @property
    def cards(self) -> tuple[int, ...]:
        """Every card, in order."""
        return tuple(sorted({*self.learners, *(card for cards in self.generators for card in cards)}))

    def describe(self) -> str:
        """Example: `split: learns on 0-3, generates on 4-7 (4 engines)`."""
        if not self.has_cards:
            return f"on this machine: ranks {len(self.learners)}, generators {len(self.generators)}"
        if not self.is_split:
            return f"colocated: learns and generates on {spans(self.learners)}"
        generating = [card for cards in self.generators for card in cards]
        engines = f"{len(self.generators)} engine{'s' if len(self.generators) > 1 else ''}"
        return f"split: learns on {spans(self.learners)}, generates on {spans(generating)} ({engines})"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray has registered it."""

    key: str  # Ray's own name for it
    address: str
    total: Mapping[str, float]  # of each resource
    is_home: bool = False  # this process's node: rank 0 belongs there, whose records the user reads


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """The place of one process."""

    name: str  # `rank 0`, `generator 1`
    cards: tuple[int, ...]  # as the settings count them
    node: int  # index among the nodes
    local: tuple[int, ...]  # the same cards as their node counts them, from 0


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for every process of a layout."""

    resource: str  # `NPU`, `GPU`, or `CPU` without cards
    nodes: tuple[Node, ...]  # those that are used, in the order in which their cards are counted
    learners: tuple[WorkerSlot, ...]
    generators: tuple[WorkerSlot, ...]

    @property
    def slots(self) -> tuple[WorkerSlot, ...]:
        """Of all processes."""
        return (*self.learners, *self.generators)

    def bundles(self) -> list[dict[str, float]]:
        """The resources to reserve on each node: a CPU per process, and its cards; each bundle is bound to its node."""
        found = []
        for index, node in enumerate(self.nodes):
            own = [each for each in self.slots if each.node == index]
            bundle = {CPU: float(len(own)), f"node:{node.address}": 0.001}
            if self.resource != CPU:
                bundle[self.resource] = float(sum(len(each.local) for each in own))
            found.append(bundle)
        return found


def read(config: Config) -> Layout | None:
    """The requested placement; None for a run without Ray. Raises BadSetting."""
    given = config.placement
    if not given.train_cards:
        if given.infer_cards:
            raise BadSetting(f"infer_cards={given.infer_cards} needs train_cards too: the cards that learn")
        return _without_cards(config.run.ranks, config.rollout.generators) if config.rollout.generators else None
    learners = _numbers("train_cards", given.train_cards)
    others = _numbers("infer_cards", given.infer_cards) if given.infer_cards else learners
    _check_cards(learners, others, given.infer_cards, given.train_cards)
    size = config.rollout.tensor_parallel if config.rollout.engine == "vllm" else 1
    is_split = set(others) != set(learners)
    if not is_split and size > 1:
        raise BadSetting(
            f"tensor_parallel={size} needs infer_cards apart from train_cards: a rank generates on its own card"
        )
    if len(others) % size:
        raise BadSetting(
            f"infer_cards={given.infer_cards} are {len(others)} cards, no multiple of tensor_parallel={size}"
        )
    generators = tuple(others[at : at + size] for at in range(0, len(others), size)) if is_split else ()
    layout = Layout(learners, generators, given.nodes, given.cards_per_node)
    if config.run.ranks not in (1, len(learners)):
        raise BadSetting(
            f"ranks={config.run.ranks} contradicts train_cards={given.train_cards}: {len(learners)} cards learn"
        )
    _check_nodes(layout)
    return layout


def _without_cards(ranks: int, generators: int) -> Layout:
    size = ranks + generators
    others = tuple((number,) for number in range(ranks, size))
    return Layout(tuple(range(ranks)), others, nodes=1, cards_per_node=size, has_cards=False)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return parse_device_mapping(text)
    except BadSetting as error:
        raise BadSetting(str(error).replace("device_mapping", name).replace("device ", "card ")) from None


def _check_cards(learners: Sequence[int], others: Sequence[int], infer: str, train: str) -> None:
    """Raises BadSetting for lists that overlap in part, and for cards in their midst that nothing uses."""
    common = sorted(set(learners) & set(others))
    if common and set(learners) != set(others):
        raise BadSetting(
            f"train_cards={train} and infer_cards={infer} share {_cards(common)} and not the rest: "
            "give the same cards (they take turns) or cards apart"
        )
    used = {*learners, *others}
    missing = [card for card in range(min(used), max(used)) if card not in used]
    if missing:
        raise BadSetting(
            f"train_cards={train}{f' and infer_cards={infer}' if infer else ''} leave out {_cards(missing)}: "
            "numbers run on without a gap; cards that must stay free are hidden with ASCEND_RT_VISIBLE_DEVICES"
        )


def _check_nodes(layout: Layout) -> None:
    """Raises BadSetting if the given numbers leave no room for the highest card or split an engine."""
    highest, each = max(layout.cards), layout.cards_per_node
    if layout.nodes and each and highest >= layout.nodes * each:
        raise BadSetting(
            f"there is no card {highest}: nodes={layout.nodes} with cards_per_node={each} "
            f"have 0-{layout.nodes * each - 1}"
        )
    if layout.nodes > highest + 1:
        raise BadSetting(f"nodes={layout.nodes} is more than the cards that are named")
    if each:
        _check_engines(layout, each)


def _check_engines(layout: Layout, cards_per_node: int) -> None:
    for cards in layout.generators:
        if len({card // cards_per_node for card in cards}) > 1:
            raise BadSetting(
                f"tensor_parallel={len(cards)} puts cards {spans(cards)} into one engine, and they are on two nodes"
            )


def place_workers(layout: Layout, nodes: Sequence[Node], *, kind: str | None) -> Placement:
    """A location for every process on these nodes: this node first, the others by address.

    `kind` is the required resource, None for what the nodes have: cards, else CPUs. Raises PlacementError, which
    compares every resource with single nodes: a cluster with enough of a resource in total may still have no node with
    enough of it, and Ray would wait forever.
    """
    ordered = sorted(nodes, key=lambda node: (not node.is_home, _by_number(node.address), node.key))
    resource = _resource(ordered, kind)
    each = layout.cards_per_node or _cards_per_node(layout, ordered, resource)
    _check_engines(layout, each)
    num_needed = max(layout.nodes, max(layout.cards) // each + 1)
    if resource != CPU:
        ordered = [node for node in ordered if node.total.get(resource, 0.0) > _SMALL]
    if len(ordered) < num_needed:
        raise PlacementError(_too_few(layout, ordered, num_needed, resource, each))
    used = tuple(ordered[:num_needed])
    learners = tuple(_slot(f"rank {number}", (card,), each) for number, card in enumerate(layout.learners))
    generators = tuple(_slot(f"generator {number}", cards, each) for number, cards in enumerate(layout.generators))
    if used[learners[0].node].is_home is not True and any(node.is_home for node in used):
        used = _home_first(used, learners[0].node)
    placement = Placement(resource, used, learners, generators)
    _check_room(placement)
    return placement


def _by_number(address: str) -> tuple[object, ...]:
    """So that 10.0.0.9 comes before 10.0.0.10."""
    parts = address.split(".")
    return (0, *(int(part) for part in parts)) if all(part.isdigit() for part in parts) else (1, address)


def _home_first(nodes: tuple[Node, ...], wanted_at: int) -> tuple[Node, ...]:
    """The nodes with this process's own where rank 0 is: with `train_cards=8-15` that is the second."""
    others = [node for node in nodes if not node.is_home]
    home = next(node for node in nodes if node.is_home)
    return (*others[:wanted_at], home, *others[wanted_at:])


def _slot(name: str, cards: tuple[int, ...], cards_per_node: int) -> WorkerSlot:
    local = tuple(card % cards_per_node for card in cards)
    return WorkerSlot(name, cards, cards[0] // cards_per_node, local)


def _resource(nodes: Sequence[Node], kind: str | None) -> str:
    found = [name for name in KINDS if any(node.total.get(name, 0.0) > _SMALL for node in nodes)]
    if kind is None:
        return found[0] if found else CPU
    if kind == CPU or kind in found:
        return kind
    raise PlacementError(
        f"no node of the Ray cluster has registered {kind}: {list_nodes(nodes)}{_why_not(kind, nodes)}"
    )


def _why_not(kind: str, nodes: Sequence[Node]) -> str:
    if kind == RAY_NPU and any(node.total.get(RAY_GPU, 0.0) > _SMALL for node in nodes):
        return ". It counts the cards as GPU, as `ray start --num-gpus` makes it: start Ray anew without that option"
    if kind == RAY_NPU:
        return (
            ". Ray counts /dev/davinci* when it starts: none was visible there, or ASCEND_RT_VISIBLE_DEVICES is empty"
        )
    return ""


def _cards_per_node(layout: Layout, nodes: Sequence[Node], resource: str) -> int:
    """The nodes' number of cards, equal on all; for CPUs in place of cards, the layout's cards divided by the nodes."""
    count = max(layout.cards) + 1
    if resource == CPU:
        return -(-count // max(1, layout.nodes))
    numbers = Counter(int(node.total[resource]) for node in nodes if node.total.get(resource, 0.0) > _SMALL)
    if layout.nodes and count % layout.nodes == 0 and min(numbers) >= count // layout.nodes:
        return count // layout.nodes
    if len(numbers) > 1 and count > min(numbers):
        raise PlacementError(
            f"the nodes have different numbers of {resource}, so cards cannot be counted over them: "
            f"{list_nodes(nodes, resource)}. Give cards_per_node, and the numbers that follow from it"
        )
    return min(numbers)


def _too_few(layout: Layout, nodes: Sequence[Node], num_needed: int, resource: str, each: int) -> str:
    have = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    what = "processes" if resource == CPU else resource
    return (
        f"card {max(layout.cards)} is on node {num_needed} at {each} {what} a node, and the Ray cluster has {have}"
        f" with {resource}: {list_nodes(nodes, resource)}"
    )


def _check_room(placement: Placement) -> None:
    for index, bundle in enumerate(placement.bundles()):
        node = placement.nodes[index]
        for name, needed in bundle.items():
            if name.startswith("node:"):
                continue
            there = node.total.get(name, 0.0)
            if needed > there + _SMALL:
                raise PlacementError(_no_room(placement, index, name, needed, there))


def _no_room(placement: Placement, index: int, name: str, needed: float, there: float) -> str:
    node = placement.nodes[index]
    processes = sum(each.node == index for each in placement.slots)
    text = f"node {node.address} has {there:g} {name} in Ray and the {processes} processes there need {needed:g}"
    if name == CPU:
        return f"{text}, one each: start Ray there with --num-cpus={processes} or more"
    return f"{text}{_why_not(name, [node]) if there < _SMALL else ''}"


def lost_node(placement: Placement, alive: Sequence[Node]) -> tuple[Node, str] | None:
    """The first node of a placement that lives no more, and the processes lost with it in a sentence; None: all live.

    Ray would wait for them, because their bundles are bound to their nodes.
    """
    keys = {node.key for node in alive}
    for at, node in enumerate(placement.nodes):
        if node.key not in keys:
            gone = [slot.name for slot in placement.slots if slot.node == at]
            return node, f"node {node.address} was lost, and with it {' and '.join(gone)}"
    return None


def list_nodes(nodes: Sequence[Node], *names: str) -> str:
    """What each node has of some resources, of cards and CPUs by default. Example: `10.0.0.1: 8 NPU, 64 CPU`."""
    names = names or (*KINDS, CPU)
    rows = []
    for node in nodes:
        has = [f"{node.total.get(name, 0.0):g} {name}" for name in names if node.total.get(name, 0.0) > _SMALL]
        rows.append(f"{node.address}: {', '.join(has) or 'nothing'}")
    return "; ".join(rows) or "none"


def spans(numbers: Sequence[int]) -> str:
    """Example: (0, 1, 2, 5) -> `0-2,5`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def _cards(numbers: Sequence[int]) -> str:
    return f"card{'s' if len(numbers) > 1 else ''} {spans(numbers)}"
