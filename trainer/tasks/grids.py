"""What the worlds on a grid share: how a map is shown, how an action is read, and the task made of many maps.

A world knows only its rules (`World`). `Player` turns one into an environment; `assemble` into a task, with a map for
each seed and no ground both trained on and held out. There are two forms: a short one of single characters, that a tiny
model learns in seconds, and a wordy one for language models, answered as `<answer>Right</answer>`.

The simplest of them is here: walking over a frozen lake to the goal, around the holes; a new map for each seed. Rules
of gymnasium's FrozenLake without slipping: a move off the edge has no effect, a hole ends the episode with reward 0,
the goal with 1. As in ROLL, start and goal are anywhere, but on gymnasium's own maps from corner to corner. Only maps
that can be solved in `max_turns` moves are used.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from trainer.config import BadSetting
from trainer.tasks.base import Observation, Task
from trainer.tasks.tokenizers import Characters, Tokenizer, choose_tokenizer
from trainer.types import Prompt, Rollout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer.config import Config


# Rows grow downwards.
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
_BY_LETTER = {name[0]: name for name in MOVES}
_SHOWN = "/="  # between the rows, and after the last
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_THINK = re.compile(r"<think>.*?</think>\s*<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)

_NUM_HELDOUT = 64
_MOST_SEEDS = 8192  # small grids have fewer maps than wanted
_WORDY_TOKENS = 128  # of one answer in words


class World(Protocol):
    """One map being played on."""

    is_solved: bool

    def rows(self) -> Sequence[str]:
        """The present map, one symbol per position."""

    def move(self, name: str) -> tuple[float, bool]:
        """Takes one of `MOVES`; the reward, and whether the episode has ended."""


@dataclass(frozen=True, slots=True)
class Level:
    """A start: how to make its world (each time anew), and a solution of the fewest moves."""

    world: Callable[[], World]
    solution: tuple[str, ...]
    ground: str  # what no move changes: two levels that share it are not new to each other


@dataclass(frozen=True, slots=True)
class ActionFormat:
    """How maps and actions are written. Example, short: `P_/OG=` answered by `R`."""

    is_short: bool
    rules: str = ""  # word format only: the meaning of the symbols, and the goal
    thinks: bool = False  # wordy only: an action counts after <think>...</think> alone, as ROLL's think_action_pattern

    def show(self, rows: Sequence[str]) -> str:
        if self.is_short:
            return "/".join(rows) + "="
        grid = "\n".join(rows)
        example = f"{'<think>your reasoning</think>' * self.thinks}<answer>Right</answer>"
        return f"The map:\n{grid}\nAnswer with one of {', '.join(MOVES)}, written as {example}."

    def ask(self, rows: Sequence[str]) -> str:
        return self.show(rows) if self.is_short else f"{self.rules}\n{self.show(rows)}"

    def refuse(self, rows: Sequence[str]) -> str:
        return self.show(rows) if self.is_short else f"That holds no valid action.\n{self.show(rows)}"

    def write(self, name: str) -> str:
        return name[0] if self.is_short else f"{'<think></think>' * self.thinks}<answer>{name}</answer>"

    def read(self, answer: str) -> str | None:
        """The move in an answer; None if there is none. In the word format the first marked one counts, in any case."""
        if self.is_short:
            return _BY_LETTER.get(answer)
        found = (_THINK if self.thinks else _ANSWER).search(answer)
        name = found.group(1).strip().capitalize() if found else ""
        return name if name in MOVES else None


@dataclass(slots=True)
class Player:
    """An episode on a world. An answer without a valid action costs `penalty` and the turn; nothing moves."""

    world: World
    form: ActionFormat
    penalty: float

    def step(self, answer: str) -> Observation:
        name = self.form.read(answer)
        if name is None:
            return Observation(self.form.refuse(self.world.rows()), self.penalty, is_done=False, is_valid=False)
        reward, is_done = self.world.move(name)
        return Observation("" if is_done else self.form.show(self.world.rows()), reward, is_done)


def answers(rollout: Rollout, tokenizer: Tokenizer) -> Iterator[str]:
    """The right answer of each turn of an episode."""
    turn: list[int] = []
    response_mask = rollout.response_mask or (True,) * len(rollout.tokens)
    for token, is_response in zip(rollout.tokens, response_mask, strict=True):
        if is_response:
            turn.append(token)
        elif turn:
            yield tokenizer.decode(turn)
            turn = []
    if turn:
        yield tokenizer.decode(turn)


def assemble(name: str, config: Config, tokenizer: Tokenizer, form: ActionFormat, levels: Mapping[int, Level]) -> Task:
    """The task of a world whose map depends on a seed only, from its levels by seed.

    Prompts carry the seed and the right answers in `extra`. The lists depend on the size and the turns, not on a run's
    seed, and no held-out map is trained on, whatever the positions of player and objects. Raises BadSetting if too few
    maps can be solved within the turns.
    """
    if not all(_parted(levels)):
        raise BadSetting(
            f"max_turns={config.task.max_turns} is too few: {len(levels)} maps of map_size={config.task.map_size} are "
            "solved in so many moves"
        )
    train, heldout = (
        tuple(_prompt(seed, levels[seed], form, tokenizer) for seed in seeds) for seeds in _parted(levels)
    )
    played = partial(_replay, levels=levels, form=form, penalty=config.task.format_penalty, tokenizer=tokenizer)
    return Task(
        name=name,
        tokenizer=tokenizer,
        train=train,
        heldout=heldout,
        max_new_tokens=2 if form.is_short else _WORDY_TOKENS,
        reward=lambda prompt, rollout: played(prompt, rollout)[0],
        is_right=lambda prompt, rollout: played(prompt, rollout)[1],
        environment=lambda prompt: Player(levels[prompt.extra["seed"]].world(), form, config.task.format_penalty),
        max_turns=config.task.max_turns,
    )


def find_levels(level: Callable[[int], Level | None], count: int) -> dict[int, Level]:
    """Levels by seed, no two with the same map; `level` gives None for a seed without one."""
    found: dict[int, Level] = {}
    maps: set[tuple[str, ...]] = set()
    for seed in range(_MOST_SEEDS):
        if len(found) == count:
            break
        made = level(seed)
        if made is not None and (shown := tuple(made.world().rows())) not in maps:
            maps.add(shown)
            found[seed] = made
    return found


def _parted(levels: Mapping[int, Level]) -> tuple[list[int], list[int]]:
    """Seeds to train on and seeds held out: one each of some of the grounds, evenly from the common to the rare."""
    first: dict[str, int] = {}
    for seed, level in levels.items():
        first.setdefault(level.ground, seed)
    grounds = list(first)
    count = min(_NUM_HELDOUT, len(grounds) // 4)
    held = {grounds[at * len(grounds) // count] for at in range(count)}
    return [seed for seed, level in levels.items() if level.ground not in held], [
        first[ground] for ground in grounds if ground in held
    ]


def _replay(
    prompt: Prompt,
    rollout: Rollout,
    *,
    levels: Mapping[int, Level],
    form: ActionFormat,
    penalty: float,
    tokenizer: Tokenizer,
) -> tuple[float, bool]:
    """What an episode's answers are paid, and whether they solve the map."""
    player, reward = Player(levels[prompt.extra["seed"]].world(), form, penalty), 0.0
    for answer in answers(rollout, tokenizer):
        observation = player.step(answer)
        reward += observation.reward
        if observation.is_done:
            break
    return reward, player.world.is_solved


def _prompt(seed: int, level: Level, form: ActionFormat, tokenizer: Tokenizer) -> Prompt:
    text = form.ask(level.world().rows())
    solution = tuple(form.write(name) for name in level.solution)
    tokens = tokenizer.chat([{"role": "user", "content": text}])
    return Prompt(text, tokens, " ".join(solution), {"seed": seed, "answers": solution})


def observation_format(config: Config, symbols: str, rules: str) -> tuple[Tokenizer, ActionFormat]:
    """The short format with its own characters for the built-in model, words for a model from a folder."""
    if config.model.path:
        form = ActionFormat(is_short=False, rules=rules, thinks=config.task.answer_format == "think")
        return choose_tokenizer(config.model.path), form
    letters = "".join(letter for letter in _BY_LETTER if letter not in symbols)
    return Characters(symbols + _SHOWN + letters), ActionFormat(is_short=True)


# The frozen lake.

_ICE = 0.8  # share of places that are no hole, before start and goal are put down (gymnasium's `p`)
_NUM_LAKES = 2048
_TRIES = 100  # maps drawn for a seed before it is given up

Place = tuple[int, int]
Map = tuple[str, ...]  # rows of P start, G goal, O hole, _ ice

LAKE_RULES = (
    "You stand on a frozen lake and want to reach the goal without falling into a hole. "
    "P is you, _ is ice, O is a hole, G is the goal. Each answer moves you one place; off the edge you stay."
)


def generate_lake(seed: int, size: int, *, max_moves: int, maps: str = "own") -> tuple[Map, tuple[str, ...]] | None:
    """The seed's map and its shortest solution; None if there is none within `max_moves`.

    Of `own` maps the first within them of 100 is taken. Of `gymnasium` and `roll` the first with any way: the map that
    these make of the seed, with their S, F and H written as P, _ and O. Raises BadSetting where numpy is missing.
    Source: gymnasium 1.4.0, envs/toy_text/frozen_lake.py generate_random_map(size, p=0.8, seed); ROLL,
    roll/pipeline/agentic/env/frozen_lake/utils.py, the same with start and goal drawn after the holes.
    Example: seed 0, size 3, gymnasium's SFF/FHH/FFG -> P__/_OO/__G
    """
    if maps != "own":
        theirs = _drawn_by_numpy(seed, size, from_corner=maps == "gymnasium")
        way = solve_lake(theirs) or ()
        return (theirs, way) if len(way) <= max_moves else None
    random = Random(seed)
    for _ in range(_TRIES):
        drawn = _draw(random, size)
        solution = solve_lake(drawn)
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
        if start != goal and solve_lake(rows) is not None:
            return rows


def _find(rows: Map, symbol: str) -> Place:
    return next((row, line.index(symbol)) for row, line in enumerate(rows) if symbol in line)


@cache
def _after(place: Place, name: str, size: int) -> Place:
    down, right = MOVES[name]
    return min(max(place[0] + down, 0), size - 1), min(max(place[1] + right, 0), size - 1)


def solve_lake(rows: Map) -> tuple[str, ...] | None:
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


def frozen_lake(config: Config) -> Task:
    """The task at a size: the short format for the built-in model, words for any other."""
    levels = _lakes(config.task.map_size, config.task.max_turns, config.task.maps)
    return assemble("frozen_lake", config, *observation_format(config, "P_OG", LAKE_RULES), levels)


@lru_cache(maxsize=4)  # searched for once, however often a process makes the task
def _lakes(size: int, max_turns: int, maps: str) -> Mapping[int, Level]:
    def level(seed: int) -> Level | None:
        made = generate_lake(seed, size, max_moves=max_turns, maps=maps)
        if made is None:
            return None
        rows, solution = made
        return Level(partial(Lake.start, rows), solution, ground="/".join(rows).replace("P", "_"))

    return find_levels(level, _NUM_LAKES)
