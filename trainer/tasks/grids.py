"""What the worlds on a grid share: how a map is shown, how an action is read, and the task made of many maps.

A world knows only its rules (`World`). `Player` turns one into an environment; `assemble` into a task, with a map for
each seed and no ground both trained on and held out. There are two forms: a short one of single characters, that a tiny
model learns in seconds, and a wordy one for language models, answered as `<answer>Right</answer>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from trainer.config import BadSetting
from trainer.tasks.base import Characters, Observation, Task, Tokenizer, choose_tokenizer
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
