"""Add two digits: `7+5=` -> `12`. A random model needs far more than a smoke test's time for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import Characters, prompt, split
from trainer.tasks.rewards import by_tokens

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks.base import Task


def addition(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice on either side."""
    words = Characters()
    every = [prompt(f"{left}+{right}=", str(left + right), words) for left in range(10) for right in range(10)]
    heldout = [each for each in every if (int(each.text[2]) - int(each.text[0])) % 10 in (3, 8)]
    return by_tokens("addition", split(every, heldout), words, max_new_tokens=3, reward=reward)


def task(config: Config) -> Task:
    """The task as a configuration wants it."""
    return addition(reward=config.task.reward)
