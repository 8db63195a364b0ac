"""Walk over a frozen lake to the goal, around the holes; a new map for each seed.

Rules of gymnasium's FrozenLake without slipping: a move off the edge stays in place, a hole ends the episode with
nothing, the goal with 1. As in ROLL, start and goal lie anywhere. Only maps that `max_turns` moves solve are asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from random import Random
from typing import TYPE_CHECKING

from trainer.tasks.grids import MOVES, Level, assemble, expert, find_levels, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config
    from trainer.tasks.base import Task

__all__ = ["Lake", "Map", "expert", "generate", "solve", "task"]

_ICE = 0.8  # share of places that are no hole, before start and goal are put down (gymnasium's `p`)
_NUM_LAKES = 2048
_TRIES = 100  # maps drawn for a seed before it is given up

Place = tuple[int, int]
Map = tuple[str, ...]  # rows of P start, G goal, O hole, _ ice

RULES = (
    "You stand on a frozen lake and want to reach the goal without falling into a hole. "
    "P is you, _ is ice, O is a hole, G is the goal. Each answer moves you one place; off the edge you stay."
)


def generate(seed: int, size: int, *, max_moves: int) -> tuple[Map, tuple[str, ...]] | None:
    """The seed's map and its shortest solution; None if no map within `max_moves` was found in 100 tries."""
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
    """The task at a size: the short form for the built-in model, words for any other."""
    levels = _levels(config.task.map_size, config.task.max_turns)
    return assemble("frozen_lake", config, *spoken(config, "P_OG", RULES), levels)


@lru_cache(maxsize=4)  # searched for once, however often a process makes the task
def _levels(size: int, max_turns: int) -> Mapping[int, Level]:
    def level(seed: int) -> Level | None:
        made = generate(seed, size, max_moves=max_turns)
        if made is None:
            return None
        rows, solution = made
        return Level(partial(Lake.start, rows), solution, ground="/".join(rows).replace("P", "_"))

    return find_levels(level, _NUM_LAKES)
