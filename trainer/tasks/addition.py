"""Add two digits: `7+5=` -> `12`. A random model needs far more than a smoke test's time for it."""

from __future__ import annotations

from trainer.tasks.base import Task, prompt, split


def addition() -> Task:
    """100 prompts, of which 20 are held out: each digit twice on either side."""
    every = [prompt(f"{left}+{right}=", str(left + right)) for left in range(10) for right in range(10)]
    heldout = [each for each in every if (int(each.text[2]) - int(each.text[0])) % 10 in (3, 8)]
    train, held = split(every, heldout)
    return Task("addition", train, held, max_new_tokens=3)
