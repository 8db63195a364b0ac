"""Push every box onto a target; a new room for each seed, solvable because it was made by playing backwards.

With `maps=roll` the rooms are ROLL's for the same seed (`_draw_as_roll`), of which those are used that can be solved
within `max_turns`. Else:

A room is an open square with a few inner walls, closed all around. From the solved room, boxes on their targets, all
ways to pull them are followed breadth first up to `max_turns` moves; a start is drawn from what they reach, and the
way back is its shortest solution. Rewards are gym-sokoban's over ten, without its charge for each move: 0.1 for a box
pushed onto a target, -0.1 for one pushed off, 1 for the last box.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from trainer.config import BadSetting
from trainer.tasks.grids import MOVES, Level, assemble, find_levels, observation_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trainer.config import Config
    from trainer.tasks.base import Task

_WALLS = 0.15  # share of inner places that are walls
_SMALLEST = 3
_NUM_ROOMS = 1024
_TWO_BOXES_FROM = 5  # places on a side
_TRIES = 100  # rooms drawn for a seed before it is given up
_MOST_STATES = 500  # of the backward search: some 2 ms
_MOST_SOLVED = 20_000  # of the forward search through ROLL's rooms

_T = TypeVar("_T")
Place = tuple[int, int]
State = tuple[Place, frozenset[Place]]  # player, boxes

RULES = (
    "You are in a room and want to push every box onto a target. P is you, # is a wall, _ is floor, O is a target, "
    "X is a box, V is a box on a target, S is you on a target. You push a box by walking into it; you cannot pull, "
    "and cannot push two at once."
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What stays the same in a room: its size without the outer wall, the inner walls, the targets."""

    size: int
    walls: frozenset[Place]
    targets: frozenset[Place]

    def is_open(self, place: Place) -> bool:
        return 0 <= place[0] < self.size and 0 <= place[1] < self.size and place not in self.walls

    def places(self) -> list[Place]:
        """Every place that is no wall, row by row."""
        every = ((row, column) for row in range(self.size) for column in range(self.size))
        return [place for place in every if place not in self.walls]


def _shifted(place: Place, name: str, times: int = 1) -> Place:
    down, right = MOVES[name]
    return place[0] + times * down, place[1] + times * right


def pulls(layout: Layout, state: State) -> Iterator[tuple[str, State]]:
    """Each state that one move leads from to the given one, with that move."""
    player, boxes = state
    for name in MOVES:
        before, ahead = _shifted(player, name, -1), _shifted(player, name)
        if not layout.is_open(before) or before in boxes:
            continue
        yield name, (before, boxes)
        if ahead in boxes:
            yield name, (before, boxes - {ahead} | {player})


def generate(
    seed: int, size: int, *, max_moves: int, maps: str = "own"
) -> tuple[Layout, State, tuple[str, ...]] | None:
    """The seed's room, its start and a shortest solution of at most `max_moves`; None if there is none.

    Of `own` rooms the first of 100 tries that has one; of `roll` the room that ROLL makes of the seed.
    """
    if maps != "own":
        return _drawn_by_roll(seed, size, max_moves)
    random = Random(seed)
    for _ in range(_TRIES):
        layout = _draw(random, size)
        if layout is None:
            continue
        ways = _backwards(layout, max_moves)
        by_length: dict[int, list[State]] = {}
        for state, way in ways.items():
            by_length.setdefault(len(way), []).append(state)
        if by_length:
            # A length first: most states are far away, and easy starts are what a beginner learns from.
            starts = by_length[_one_of(random, sorted(by_length))]
            start = _one_of(random, starts)
            return layout, start, ways[start]
    return None


def _drawn_by_roll(seed: int, size: int, max_moves: int) -> tuple[Layout, State, tuple[str, ...]] | None:
    num_boxes = _num_boxes(size)
    drawn = _draw_as_roll(seed, size + 2, num_boxes, depth=300 if num_boxes == 1 else 10)
    if drawn is None:
        return None
    floor, targets, player, boxes = drawn
    inner = [(row + 1, column + 1) for row in range(size) for column in range(size)]
    layout = Layout(size, _inside(place for place in inner if place not in floor), _inside(targets))
    start = (player[0] - 1, player[1] - 1), _inside(boxes)
    solution = solve(layout, start, max_moves)
    return None if solution is None else (layout, start, solution)


def _inside(places: Iterable[Place]) -> frozenset[Place]:
    """The same places without the outer wall."""
    return frozenset((row - 1, column - 1) for row, column in places)


def solve(layout: Layout, start: State, max_moves: int) -> tuple[str, ...] | None:
    """A shortest way to push every box onto a target; None if `max_moves` are too few, or it takes too long to find."""
    ways: dict[State, tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue and len(ways) < _MOST_SOLVED:
        state = queue.popleft()
        if state[1] == layout.targets:
            return ways[state]
        for name in MOVES if len(ways[state]) < max_moves else ():
            room = Room(layout, *state)
            room.move(name)
            after = room.player, room.boxes
            if after not in ways:
                ways[after] = (*ways[state], name)
                queue.append(after)
    return None


def _num_boxes(size: int) -> int:
    return 2 if size >= _TWO_BOXES_FROM else 1


def _one_of(random: Random, things: list[_T]) -> _T:
    # Only `random()` is used: what else Random makes of a seed has changed between versions of Python.
    return things[int(random.random() * len(things))]


def _draw(random: Random, size: int) -> Layout | None:
    every = [(row, column) for row in range(size) for column in range(size)]
    walls = frozenset(place for place in every if random.random() < _WALLS)
    free = [place for place in every if place not in walls]
    count = _num_boxes(size)
    if len(free) < 2 * count + 1:
        return None
    targets: set[Place] = set()
    while len(targets) < count:
        targets.add(_one_of(random, free))
    return Layout(size, walls, frozenset(targets))


def _backwards(layout: Layout, max_moves: int) -> dict[State, tuple[str, ...]]:
    """Starts from which the room can be solved, no box on a target, each with its shortest solution.

    Only the nearest states are searched. The last move pushes, so the search begins with pulls, not with every final
    position of the player.
    """
    solved = [(player, layout.targets) for player in layout.places() if player not in layout.targets]
    came: dict[State, tuple[str, State]] = {}
    edge = solved
    for _ in range(max_moves):
        reached: list[State] = []
        for state in edge:
            for name, before in pulls(layout, state):
                if before not in came and before[1] != layout.targets and len(came) < _MOST_STATES:
                    came[before] = (name, state)
                    reached.append(before)
        edge = reached
    return {state: _way(state, came) for state in came if not state[1] & layout.targets}


def _way(state: State, came: Mapping[State, tuple[str, State]]) -> tuple[str, ...]:
    way: list[str] = []
    while state in came:
        name, state = came[state]
        way.append(name)
    return tuple(way)


@dataclass(slots=True)
class Room:
    """A room being played in."""

    layout: Layout
    player: Place
    boxes: frozenset[Place]
    is_solved: bool = False

    def rows(self) -> tuple[str, ...]:
        """The room with its outer wall."""
        size = self.layout.size
        inner = ("".join(self._symbol((row, column)) for column in range(size)) for row in range(size))
        wall = "#" * (size + 2)
        return (wall, *(f"#{line}#" for line in inner), wall)

    def _symbol(self, place: Place) -> str:
        is_target = place in self.layout.targets
        if place in self.layout.walls:
            return "#"
        if place == self.player:
            return "S" if is_target else "P"
        if place in self.boxes:
            return "V" if is_target else "X"
        return "O" if is_target else "_"

    def move(self, name: str) -> tuple[float, bool]:
        """A move into a wall, or of a box that something stops, changes nothing."""
        there, beyond = _shifted(self.player, name), _shifted(self.player, name, 2)
        reward = 0.0
        if there in self.boxes:
            if not self.layout.is_open(beyond) or beyond in self.boxes:
                return 0.0, False
            self.boxes = self.boxes - {there} | {beyond}
            reward = ((beyond in self.layout.targets) - (there in self.layout.targets)) / 10
        if self.layout.is_open(there):
            self.player = there
        self.is_solved = self.boxes == self.layout.targets
        return reward + self.is_solved, self.is_solved


def task(config: Config) -> Task:
    """The task at a size: the short format for the built-in model, words for any other.

    Raises BadSetting for a size in which no box can be pushed.
    """
    size = config.task.map_size
    if size < _SMALLEST:
        raise BadSetting(f"map_size={size} is too small to push a box in. Accepted for sokoban: {_SMALLEST} and more")
    if config.task.maps == "gymnasium":
        raise BadSetting("maps=gymnasium: gymnasium has no Sokoban. Accepted: own, roll")
    levels = _levels(size, config.task.max_turns, config.task.maps)
    return assemble("sokoban", config, *observation_format(config, "#P_OXVS", RULES), levels)


@lru_cache(maxsize=4)  # searched for once, however often a process makes the task
def _levels(size: int, max_turns: int, maps: str) -> Mapping[int, Level]:
    def level(seed: int) -> Level | None:
        made = generate(seed, size, max_moves=max_turns, maps=maps)
        if made is None:
            return None
        layout, (player, boxes), solution = made
        ground = f"{sorted(layout.walls)} {sorted(layout.targets)}"
        return Level(partial(Room, layout, player, boxes), solution, ground)

    return find_levels(level, _NUM_ROOMS)


# The rooms that ROLL makes of a seed: a random walk cuts the floor, then boxes are pulled off their targets. Every
# random number is drawn as there, so that a seed gives the same room.
# Source: ROLL 8eb27cc2, roll/pipeline/agentic/env/sokoban/utils.py generate_room, which extends gym-sokoban 0.0.6;
# sizes and depths as in its examples, `dim_room` 6 with one box, 10 with two and `search_depth` 10.

_ROLL_TURN = 0.35  # chance of another direction at each place of the walk
_ROLL_TRIES = 4
_ROLL_MOST_STATES = 300_000
_ROLL_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_ROLL_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
# What becomes floor around each place of the walk.
_ROLL_BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


def _draw_as_roll(
    seed: int, dim: int, num_boxes: int, *, depth: int
) -> tuple[set[Place], list[Place], Place, frozenset[Place]] | None:
    """The seed's floor, targets, player and boxes, counted with the outer wall; None where ROLL goes on with another
    seed, which depends on its process.

    Raises BadSetting where numpy is missing.
    """
    try:
        import numpy
    except ImportError as error:
        raise BadSetting("maps=roll needs the package numpy, whose random numbers they are") from error
    random, places = Random(seed), numpy.random.RandomState(seed)
    for _ in range(_ROLL_TRIES):
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
            return floor, targets, player, boxes
    return None


def _walk(random: Random, dim: int) -> set[Place]:
    direction = random.sample(_ROLL_DIRECTIONS, 1)[0]
    row, column = random.randint(1, dim - 1), random.randint(1, dim - 1)
    floor = set()
    for _ in range(int(1.7 * (dim + dim))):
        if random.random() < _ROLL_TURN:
            direction = random.sample(_ROLL_DIRECTIONS, 1)[0]
        row = max(min(row + direction[0], dim - 2), 1)
        column = max(min(column + direction[1], dim - 2), 1)
        brush: Any = random.sample(_ROLL_BRUSHES, 1)[0]
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
        if depth <= 1 or len(self.seen) >= _ROLL_MOST_STATES or key in self.seen:
            return
        self.seen.add(key)
        pairs = zip(self.targets, boxes, strict=True)
        score = turns * sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in pairs)
        if {player, *boxes} & set(self.targets):
            score = 0
        if score > self.best_score:
            self.best_score, self.best_player, self.best_boxes = score, player, boxes
        for down, right in _ROLL_MOVES:
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
        ways = [(player[0] + down, player[1] + right) for down, right in _ROLL_MOVES]
        ways = [place for place in ways if place in free and place not in visited]
        if not ways:
            break
        player = random.choice(ways)
        visited.append(player)
        if len(visited) > 3 or random.random() > 0.5:
            break
    return player
