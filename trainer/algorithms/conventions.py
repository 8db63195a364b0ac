"""What settings mean before there is any tensor: conventions of frameworks, bounds of a rejection. Imports no torch.

Papers leave open the advantage of a group of one, what is added to a deviation before dividing, and how far a log ratio
may go before `exp`. verl, TRL and ROLL decided differently, and runs can be compared only if both state their choice.
A field of `Convention` is one such difference; `CONVENTIONS["verl"]` and its two neighbours are the choices, and
`dataclasses.asdict` prints them.

The other modules of this package read the fields. All three frameworks divide squared deviations by n-1 and clip the
ratio before multiplying with the weight of a correction; they agree wherever there is no field and no docstring names
one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Convention:
    """One framework's decisions. A limit of None: no limit."""

    name: str

    # groups of answers
    group_of_one: Literal["reward", "zero"]  # its advantage: the bare reward (mean 0, deviation 1), or no signal
    deviation_epsilon: float  # added to a group's deviation before it divides
    smallest_deviation: float  # a group whose deviation is not above this gives 0
    skips_nan_rewards: bool  # a reward of NaN is left out of its group's mean and deviation, and gives 0
    discounts_groups: bool  # a group's advantage is on the last token and is discounted backwards by gamma

    # advantages per token
    skips_observations: bool  # returns pass unchanged over observation tokens; else they are discounted
    whitens_gae: bool
    whitening_of_few: Literal["error", "skip"]  # with fewer than two tokens in the mask

    # policy losses
    log_ratio_limit: float | None  # log of new to old probability, both signs, before exp; no gradient beyond
    dual_clip: Literal["constant", "ratio", "double"]  # see LossSettings.dual
    gspo_ratio: Literal["token", "sequence"]  # gradient straight to each token, or through the mean of the row
    gspo_log_ratio_limit: float | None  # upper side only
    gspo_aggregation: str | None  # of its policy loss only, overriding the setting; None: the setting applies
    cispo_bounds: Literal["around-one", "cap"]  # 1 - low to 1 + high, or at most `high` itself

    # divergence from the reference
    kl_log_ratio_limit: float | None  # of k3, before exp
    kl_value_limit: float | None  # of k3, after
    kl_times_ratio: bool  # k3 in the loss is multiplied by the ratio of new to old probability, gradient included

    # correction of the engine's probabilities
    correction_log_ratio_limit: float | None
    sequence_ratio: Literal["product", "mean"]  # a row's ratio: product of its tokens', or their geometric mean

    # aggregation
    counts_empty_rows: bool  # a row without tokens of its own counts in a mean over rows
    aggregates_entropy: bool  # the entropy bonus is averaged as the policy loss is; else over tokens
    norm_by_rows: bool  # seq-mean-token-sum-norm divides by the number of rows too, not by the scale alone


CONVENTIONS: Mapping[str, Convention] = {
    # verl/trainer/ppo: core_algos.py, rollout_corr_helper.py
    "verl": Convention(
        name="verl",
        group_of_one="reward",
        deviation_epsilon=1e-6,
        smallest_deviation=-1.0,
        skips_nan_rewards=False,
        discounts_groups=False,
        skips_observations=True,
        whitens_gae=True,
        whitening_of_few="error",
        log_ratio_limit=20.0,
        dual_clip="constant",
        gspo_ratio="token",
        gspo_log_ratio_limit=10.0,
        gspo_aggregation="seq-mean-token-mean",
        cispo_bounds="around-one",
        kl_log_ratio_limit=20.0,
        kl_value_limit=10.0,
        kl_times_ratio=False,
        correction_log_ratio_limit=20.0,
        sequence_ratio="product",
        counts_empty_rows=False,
        aggregates_entropy=True,
        norm_by_rows=True,
    ),
    # trl/trainer: grpo_trainer.py with scale_rewards="group", rloo_trainer.py
    "trl": Convention(
        name="trl",
        group_of_one="zero",
        deviation_epsilon=1e-4,
        smallest_deviation=-1.0,
        skips_nan_rewards=True,
        discounts_groups=False,
        skips_observations=True,
        whitens_gae=True,
        whitening_of_few="skip",
        log_ratio_limit=None,
        dual_clip="ratio",
        gspo_ratio="sequence",
        gspo_log_ratio_limit=None,
        gspo_aggregation=None,
        cispo_bounds="cap",
        kl_log_ratio_limit=None,
        kl_value_limit=None,
        kl_times_ratio=True,
        correction_log_ratio_limit=None,
        sequence_ratio="product",
        counts_empty_rows=True,
        aggregates_entropy=False,
        norm_by_rows=True,
    ),
    # roll/utils/functionals.py, roll/pipeline: base_worker.py, rlvr/actor_worker.py, agentic/utils.py (mean_std)
    "roll": Convention(
        name="roll",
        group_of_one="zero",
        deviation_epsilon=1e-6,
        smallest_deviation=1e-6,
        skips_nan_rewards=False,
        discounts_groups=True,
        skips_observations=False,
        whitens_gae=False,
        whitening_of_few="skip",
        log_ratio_limit=None,
        dual_clip="double",
        gspo_ratio="sequence",
        gspo_log_ratio_limit=None,
        gspo_aggregation=None,
        cispo_bounds="around-one",
        kl_log_ratio_limit=None,
        kl_value_limit=10.0,
        kl_times_ratio=False,
        correction_log_ratio_limit=None,
        sequence_ratio="mean",
        counts_empty_rows=True,
        aggregates_entropy=True,
        norm_by_rows=False,
    ),
}


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
