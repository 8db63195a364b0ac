"""What an answer is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import END, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.types import Prompt, Rollout


def exact(prompt: Prompt, rollout: Rollout) -> float:
    """1 for exactly the expected text followed by the end token, else 0."""
    return float(rollout.tokens == (*encode(prompt.expected), END))


def partial(prompt: Prompt, rollout: Rollout) -> float:
    """The share of the expected tokens, end token included, that stand in their place; the longer of the two counts.

    Example: expected `12` and end; `13` and end -> 2/3; `1` and end -> 1/3; `12` without end -> 2/3.
    """
    expected = (*encode(prompt.expected), END)
    hits = sum(1 for said, wanted in zip(rollout.tokens, expected, strict=False) if said == wanted)
    return hits / max(len(expected), len(rollout.tokens))


REWARDS: Mapping[str, Callable[[Prompt, Rollout], float]] = {"exact": exact, "partial": partial}
