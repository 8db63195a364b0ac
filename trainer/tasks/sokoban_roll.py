"""The Sokoban rooms that ROLL makes of a seed: a random walk cuts the floor, then boxes are pulled off their targets.

Every random number is drawn as there, so that a seed gives the same room.
Source: ROLL 8eb27cc2, roll/pipeline/agentic/env/sokoban/utils.py generate_room, which extends gym-sokoban 0.0.6; sizes
and depths as in its examples, `dim_room` 6 with one box, 10 with two and `search_depth` 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

Place = tuple[int, int]

_TURN = 0.35  # chance of another direction at each place of the walk
_TRIES = 4
_MOST_STATES = 300_000
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
# What becomes floor around each place of the walk.
_BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A room, counted with its outer wall."""

    floor: frozenset[Place]
    targets: tuple[Place, ...]
    player: Place
    boxes: frozenset[Place]


def draw(seed: int, dim: int, num_boxes: int, *, depth: int) -> Drawn | None:
    """The seed's room; None where ROLL goes on with another seed, which depends on its process.

    Raises BadSetting where numpy is missing.
    """
    try:
        import numpy
    except ImportError as error:
        raise BadSetting("maps=roll needs the package numpy, whose random numbers they are") from error
    random, places = Random(seed), numpy.random.RandomState(seed)
    for _ in range(_TRIES):
        floor = _walk(random, dim)
        if len(floor) <= num_boxes + 1:
            return None
        free = sorted(floor)
        player = free.pop(places.randint(len(free)))
        targets = sorted(free.pop(places.randint(len(free))) for _ in range(num_boxes))
        search = _Search(floor, tuple(targets), depth)
        search.run(player)
        moved = sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(targets, search.best_boxes, strict=True))
        if moved:
            boxes = frozenset(search.best_boxes)
            player = _stroll(random, floor - boxes, search.best_player, 0.8 if moved == 1 else 0.5)
            return Drawn(frozenset(floor), tuple(targets), player, boxes)
    return None


def _walk(random: Random, dim: int) -> set[Place]:
    direction = random.sample(_DIRECTIONS, 1)[0]
    row, column = random.randint(1, dim - 1), random.randint(1, dim - 1)
    floor = set()
    for _ in range(int(1.7 * (dim + dim))):
        if random.random() < _TURN:
            direction = random.sample(_DIRECTIONS, 1)[0]
        row = max(min(row + direction[0], dim - 2), 1)
        column = max(min(column + direction[1], dim - 2), 1)
        brush: Any = random.sample(_BRUSHES, 1)[0]
        floor |= {(row + down, column + right) for down, right in brush}
    return {(row, column) for row, column in floor if 0 < row < dim - 1 and 0 < column < dim - 1}


@dataclass
class _Search:
    """Depth first through what pulling leads to; the best room has its boxes far away, pulled in many turns.

    A box is told from one that has been pulled back to where it was.
    """

    floor: set[Place]
    targets: tuple[Place, ...]
    depth: int
    best_score: int = -1
    best_player: Place = (0, 0)
    best_boxes: Sequence[Place] = ()  # one for each target
    seen: set[Any] = field(default_factory=set)

    def run(self, player: Place) -> None:
        self._visit(player, self.targets, frozenset(), None, 0, self.depth)

    def _visit(
        self,
        player: Place,
        boxes: tuple[Place, ...],
        pulled: frozenset[Place],
        last: int | None,
        turns: int,
        depth: int,
    ) -> None:
        key = player, frozenset(boxes), pulled
        if depth <= 1 or len(self.seen) >= _MOST_STATES or key in self.seen:
            return
        self.seen.add(key)
        pairs = zip(self.targets, boxes, strict=True)
        score = turns * sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in pairs)
        if {player, *boxes} & set(self.targets):
            score = 0
        if score > self.best_score:
            self.best_score, self.best_player, self.best_boxes = score, player, boxes
        for down, right in _MOVES:
            to, behind = (player[0] + down, player[1] + right), (player[0] - down, player[1] - right)
            if to not in self.floor or to in boxes:
                continue
            if behind not in boxes:
                self._visit(to, boxes, pulled, last, turns, depth - 1)
                continue
            which = boxes.index(behind)
            after = (*boxes[:which], player, *boxes[which + 1 :])
            self._visit(to, after, pulled - {behind} | {player}, which, turns + (which != last), depth - 1)


def _stroll(random: Random, free: set[Place], player: Place, chance: float) -> Place:
    """Where the player stands after up to three steps away from the boxes."""
    if random.random() > chance:
        return player
    visited = [player]
    while len(visited) <= 3:
        ways = [(player[0] + down, player[1] + right) for down, right in _MOVES]
        ways = [place for place in ways if place in free and place not in visited]
        if not ways:
            break
        player = random.choice(ways)
        visited.append(player)
        if len(visited) > 3 or random.random() > 0.5:
            break
    return player
