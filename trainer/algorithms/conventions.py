"""Differences between verl, TRL and ROLL in the same algorithm, one field per difference.

Papers leave open the advantage of a group of one, what is added to a deviation before dividing, and how far a log ratio
may go before `exp`. Each framework decided differently, and runs can be compared only if both state their choice.
`CONVENTIONS["verl"]` and its two neighbours are these choices; `dataclasses.asdict` prints them.

No behaviour here: the other modules of this package read the fields. All three frameworks divide squared deviations by
n-1 and clip the ratio before multiplying with the weight of a correction; they agree wherever there is no field and no
docstring names one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
