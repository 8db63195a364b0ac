"""Say two digits again: `47=` -> `47`. With the partial reward a random model learns half of it in a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import Characters, prompt, split
from trainer.tasks.rewards import by_tokens

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks.base import Task


def copy(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice in either place."""
    words = Characters()
    every = [prompt(f"{number:02d}=", f"{number:02d}", words) for number in range(100)]
    heldout = [each for each in every if (int(each.text[1]) - int(each.text[0])) % 10 in (3, 8)]
    return by_tokens("copy", split(every, heldout), words, max_new_tokens=3, reward=reward)


def task(config: Config) -> Task:
    """The task as a configuration wants it."""
    return copy(reward=config.task.reward)
