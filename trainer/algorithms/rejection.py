"""Bounds of `policy_losses.rejection_mask`, parsed from the settings. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.sections import BadSetting


@dataclass(frozen=True, slots=True)
class Rejection:
    """A bound on a divergence between learner and engine, beyond which a token or an answer is left out.

    Example: `seq_mean_k3` within 0.01 -> level seq_mean, divergence k3, low -inf, high 0.01
    """

    level: str  # token, seq_sum, seq_mean, seq_max
    divergence: str  # k1, k2, k3
    low: float
    high: float

    @classmethod
    def of(cls, forms: str, thresholds: str) -> tuple[Rejection, ...]:
        """Those of `rejection` and `rejection_threshold`, as verl writes them. Raises BadSetting.

        Of k1 the bounds are ratios of engine to learner, `LOW_HIGH`, or `HIGH` and its inverse; of the others the
        largest divergence. One threshold may be for all.
        """
        names = list(dict.fromkeys(name.strip() for name in forms.split(",") if name.strip()))
        bounds = [each.strip() for each in thresholds.split(",") if each.strip()]
        if len(bounds) not in (1, len(names)) and names:
            raise BadSetting(
                f"rejection_threshold={thresholds} is not accepted: give one number, or one for each of {forms}"
            )
        return tuple(map(cls._one, names, bounds * len(names) if len(bounds) == 1 else bounds))

    @classmethod
    def _one(cls, name: str, bound: str) -> Rejection:
        if name not in REJECTIONS:
            raise BadSetting(f"rejection={name} is not accepted. Accepted: {', '.join(REJECTIONS)}")
        level, _, divergence = name.rpartition("_")
        low, has_low, high = bound.rpartition("_")
        try:
            numbers = [float(each) for each in ((low, high) if has_low else (high,))]
        except ValueError:
            numbers = []
        are_positive = bool(numbers) and all(number > 0 for number in numbers)
        if not are_positive or numbers != sorted(numbers) or (has_low and divergence != "k1"):
            takes = "LOW_HIGH or one number, ratios above 0" if divergence == "k1" else "one number above 0"
            raise BadSetting(f"rejection_threshold={bound} is not accepted: {name} takes {takes}")
        if divergence != "k1":
            return cls(level, divergence, -math.inf, numbers[0])
        return cls(level, divergence, math.log(numbers[0] if has_low else 1 / numbers[0]), math.log(numbers[-1]))


REJECTIONS = (
    *(f"{level}_{divergence}" for level in ("token", "seq_sum", "seq_mean") for divergence in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
)
