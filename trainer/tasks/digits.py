"""Three tasks on digits, for randomly initialised models: the next digit, the sum of two, a copy of two.

`successor`, small enough to be learnt in seconds: the digit after the last one shown, `4=` -> `5`, `9=` -> `0`; digits
before it only distract, and provide held-out prompts. `copy`: `47=` -> `47`; with the partial reward a random model
learns half of it in a minute. `addition`: `7+5=` -> `12`; a random model needs far more than a smoke test's time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainer.tasks.base import Characters, by_tokens, prompt, split

if TYPE_CHECKING:
    from collections.abc import Callable

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


def addition(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice on either side."""
    every = [prompt(f"{left}+{right}=", str(left + right), _WORDS) for left in range(10) for right in range(10)]
    heldout = [each for each in every if (int(each.text[2]) - int(each.text[0])) % 10 in (3, 8)]
    return by_tokens("addition", split(every, heldout), _WORDS, max_new_tokens=3, reward=reward)


def copy(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice in either place."""
    every = [prompt(f"{number:02d}=", f"{number:02d}", _WORDS) for number in range(100)]
    heldout = [each for each in every if (int(each.text[1]) - int(each.text[0])) % 10 in (3, 8)]
    return by_tokens("copy", split(every, heldout), _WORDS, max_new_tokens=3, reward=reward)


def task(config: Config) -> Task:
    """As a configuration wants it."""
    makers: dict[str, Callable[..., Task]] = {
        "successor": partial(successor, config.task.distractors),
        "addition": addition,
        "copy": copy,
    }
    return makers[config.task.task](reward=config.task.reward)


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
