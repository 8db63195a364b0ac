"""Say two digits again: `47=` -> `47`. With the partial reward a random model learns half of it in a minute."""

from __future__ import annotations

from trainer.tasks.base import Task, prompt, split


def copy() -> Task:
    """100 prompts, of which 20 are held out: each digit twice in either place."""
    every = [prompt(f"{number:02d}=", f"{number:02d}") for number in range(100)]
    heldout = [each for each in every if (int(each.text[1]) - int(each.text[0])) % 10 in (3, 8)]
    train, held = split(every, heldout)
    return Task("copy", train, held, max_new_tokens=3)
