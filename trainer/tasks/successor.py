"""Say the digit after the last one shown: `4=` -> `5`, `9=` -> `0`; digits in front of it only distract.

Small enough that a randomly started model learns it in seconds, and with distractors it has prompts to hold out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import Characters, prompt, split
from trainer.tasks.rewards import by_tokens

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks.base import Task
    from trainer.types import Prompt

# Held out for deciding digit d: distractors d+1, d+4, d+8 (then on by 3), so that every digit stands three times in
# each place, and seven times or more in training.
_OFFSETS = (1, 4, 8)
_WORDS = Characters()


def successor(distractors: int, *, reward: str = "partial") -> Task:
    """The task with `distractors` leading digits; 30 prompts are held out, or all ten prompts are both lists at 0."""
    return by_tokens("successor", _lists(distractors), _WORDS, max_new_tokens=3, reward=reward)


def task(config: Config) -> Task:
    """The task as a configuration wants it."""
    return successor(config.task.distractors, reward=config.task.reward)


def _lists(distractors: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    if distractors == 0:
        every = tuple(_ask(str(digit)) for digit in range(10))
        return every, every
    every = tuple(_ask(f"{number:0{distractors + 1}d}") for number in range(10 ** (distractors + 1)))
    heldout = [_ask(_leading(digit + offset, distractors) + str(digit)) for digit in range(10) for offset in _OFFSETS]
    return split(every, heldout)


def _ask(digits: str) -> Prompt:
    return prompt(f"{digits}=", str((int(digits[-1]) + 1) % 10), _WORDS)


def _leading(first: int, count: int) -> str:
    return "".join(str((first + 3 * place) % 10) for place in range(count))
