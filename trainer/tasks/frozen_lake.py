"""Walking over a frozen lake to the goal, around the holes; a new map for each seed.

Rules of gymnasium's FrozenLake without slipping: a move off the edge has no effect, a hole ends the episode with reward
0, the goal with 1. As in ROLL, start and goal are anywhere, but on gymnasium's own maps from corner to corner. Only
maps that can be solved in `max_turns` moves are used.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from random import Random
from typing import TYPE_CHECKING

from trainer.config import BadSetting
from trainer.tasks.grids import MOVES, Level, assemble, find_levels, observation_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config
    from trainer.tasks.base import Task

_ICE = 0.8  # share of places that are no hole, before start and goal are put down (gymnasium's `p`)
_NUM_LAKES = 2048
_TRIES = 100  # maps drawn for a seed before it is given up

Place = tuple[int, int]
Map = tuple[str, ...]  # rows of P start, G goal, O hole, _ ice

RULES = (
    "You stand on a frozen lake and want to reach the goal without falling into a hole. "
    "P is you, _ is ice, O is a hole, G is the goal. Each answer moves you one place; off the edge you stay."
)


def generate(seed: int, size: int, *, max_moves: int, maps: str = "own") -> tuple[Map, tuple[str, ...]] | None:
    """The seed's map and its shortest solution; None if there is none within `max_moves`.

    Of `own` maps the first within them of 100 is taken. Of `gymnasium` and `roll` the first with any way: the map that
    these make of the seed, with their S, F and H written as P, _ and O. Raises BadSetting where numpy is missing.
    Source: gymnasium 1.4.0, envs/toy_text/frozen_lake.py generate_random_map(size, p=0.8, seed); ROLL,
    roll/pipeline/agentic/env/frozen_lake/utils.py, the same with start and goal drawn after the holes.
    Example: seed 0, size 3, gymnasium's SFF/FHH/FFG -> P__/_OO/__G
    """
    if maps != "own":
        theirs = _drawn_by_numpy(seed, size, from_corner=maps == "gymnasium")
        way = solve(theirs) or ()
        return (theirs, way) if len(way) <= max_moves else None
    random = Random(seed)
    for _ in range(_TRIES):
        drawn = _draw(random, size)
        solution = solve(drawn)
        if solution is not None and len(solution) <= max_moves:
            return drawn, solution
    return None


def _draw(random: Random, size: int) -> Map:
    # Only `random()` is used: what else Random makes of a seed has changed between versions of Python.
    places = ["_" if random.random() < _ICE else "O" for _ in range(size * size)]
    start = int(random.random() * len(places))
    goal = (start + 1 + int(random.random() * (len(places) - 1))) % len(places)
    places[start], places[goal] = "P", "G"
    return tuple("".join(places[row * size : (row + 1) * size]) for row in range(size))


def _drawn_by_numpy(seed: int, size: int, *, from_corner: bool) -> Map:
    try:
        import numpy
    except ImportError as error:
        raise BadSetting(
            "maps=gymnasium and maps=roll need the package numpy, whose random numbers they are"
        ) from error

    random = numpy.random.Generator(numpy.random.PCG64(seed))  # gymnasium.utils.seeding.np_random
    start, goal = (0, 0), (size - 1, size - 1)
    while True:
        places = random.choice(["_", "O"], (size, size), p=[_ICE, 1 - _ICE])
        if not from_corner:
            start, goal = (tuple(random.integers(size, size=2).tolist()) for _ in range(2))
        places[start], places[goal] = "P", "G"
        rows = tuple("".join(row) for row in places.tolist())
        if start != goal and solve(rows) is not None:
            return rows


def _find(rows: Map, symbol: str) -> Place:
    return next((row, line.index(symbol)) for row, line in enumerate(rows) if symbol in line)


@cache
def _after(place: Place, name: str, size: int) -> Place:
    down, right = MOVES[name]
    return min(max(place[0] + down, 0), size - 1), min(max(place[1] + right, 0), size - 1)


def solve(rows: Map) -> tuple[str, ...] | None:
    """A shortest way from P to G; None if the holes leave none. Equal ways: Left before Down, Right, Up."""
    start = _find(rows, "P")
    ways: dict[Place, tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        if rows[place[0]][place[1]] == "G":
            return ways[place]
        for name in MOVES:
            there = _after(place, name, len(rows))
            if there not in ways and rows[there[0]][there[1]] != "O":
                ways[there] = (*ways[place], name)
                queue.append(there)
    return None


@dataclass(slots=True)
class Lake:
    """A map being walked on."""

    map: Map
    place: Place
    is_solved: bool = False

    @classmethod
    def start(cls, rows: Map) -> Lake:
        return cls(rows, _find(rows, "P"))

    def rows(self) -> Map:
        ice = [line.replace("P", "_") for line in self.map]
        row, column = self.place
        ice[row] = ice[row][:column] + "P" + ice[row][column + 1 :]
        return tuple(ice)

    def move(self, name: str) -> tuple[float, bool]:
        self.place = _after(self.place, name, len(self.map))
        symbol = self.map[self.place[0]][self.place[1]]
        self.is_solved = symbol == "G"
        return float(self.is_solved), symbol in "GO"


def task(config: Config) -> Task:
    """The task at a size: the short format for the built-in model, words for any other."""
    levels = _levels(config.task.map_size, config.task.max_turns, config.task.maps)
    return assemble("frozen_lake", config, *observation_format(config, "P_OG", RULES), levels)


@lru_cache(maxsize=4)  # searched for once, however often a process makes the task
def _levels(size: int, max_turns: int, maps: str) -> Mapping[int, Level]:
    def level(seed: int) -> Level | None:
        made = generate(seed, size, max_moves=max_turns, maps=maps)
        if made is None:
            return None
        rows, solution = made
        return Level(partial(Lake.start, rows), solution, ground="/".join(rows).replace("P", "_"))

    return find_levels(level, _NUM_LAKES)
