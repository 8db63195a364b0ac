"""The learning rate over a run."""

from __future__ import annotations

import math


def learning_rate(shape: str, done: int, total: int, *, warmup: int = 0) -> float:
    """The share of the highest rate for the optimizer step after `done` of `total` steps.

    It rises linearly over the first `warmup` steps, then stays (`constant`) or falls to 0 at `total` (`linear`,
    `cosine`). Example: linear, 50 of 100, no warm-up -> 0.5.
    """
    if done < warmup:
        return (done + 1) / warmup
    if shape == "constant":
        return 1.0
    share = min(1.0, (done - warmup) / max(1, total - warmup))
    return 0.5 * (1 + math.cos(math.pi * share)) if shape == "cosine" else 1.0 - share
