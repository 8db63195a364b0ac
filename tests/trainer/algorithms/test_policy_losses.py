"""Which tokens do not learn: rejected, too far off policy, too certain. The frameworks' numbers: `test_vectors`."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.algorithms.conventions import CONVENTIONS, Rejection
from trainer.algorithms.policy_losses import correction, entropy_mask, off_policy_mask, rejection_mask
from trainer.sections import BadSetting

MASK_BT = torch.tensor([[True, True, False], [True, True, True]])

# Learner over sampler: 1, 3 and nothing; 1/3, 1, 1.
RATIOS_BT = torch.tensor([[1.0, 3.0, math.nan], [1 / 3, 1.0, 1.0]])


def remaining(forms: str, thresholds: str) -> list[list[bool]]:
    rejections, rollout_BT = Rejection.of(forms, thresholds), torch.zeros(2, 3)
    return rejection_mask(RATIOS_BT.log(), rollout_BT, MASK_BT, CONVENTIONS["verl"], rejections).tolist()


@pytest.mark.parametrize(
    ("forms", "thresholds", "expected"),
    [
        ("", "2", [[True, True, False], [True, True, True]]),
        ("token_k1", "2", [[True, False, False], [False, True, True]]),
        ("token_k1", "0.5_4", [[True, False, False], [True, True, True]]),  # sampler over learner: 1/3, and 3
        ("seq_mean_k1", "2", [[True, True, False], [True, True, True]]),
        ("seq_max_k2", "0.5", [[False, False, False], [False, False, False]]),
        ("seq_sum_k3", "0.7", [[False, False, False], [True, True, True]]),  # 3 - 1 - log 3 = 0.90, 1/3 - 1 + log 3
        ("seq_sum_k3,token_k1", "0.7,2", [[False, False, False], [False, True, True]]),
    ],
)
def test_a_rejection_leaves_out_tokens_or_answers_beyond_its_bounds(
    forms: str, thresholds: str, expected: list[list[bool]]
) -> None:
    assert remaining(forms, thresholds) == expected


@pytest.mark.parametrize(
    ("forms", "thresholds", "says"),
    [
        ("seq_max_k1", "2", "rejection=seq_max_k1 is not accepted. Accepted: token_k1, "),
        ("token_k1,token_k2", "1,2,3", "one for each of token_k1,token_k2"),
        ("token_k1", "2_1", "token_k1 takes LOW_HIGH"),
        ("token_k1", "0", "ratios above 0"),
        ("token_k3", "0.1_1", "token_k3 takes one number above 0"),
        ("token_k3", "nan", "one number above 0"),
        ("token_k3", "few", "rejection_threshold=few is not accepted"),
    ],
)
def test_what_is_no_rejection_is_refused(forms: str, thresholds: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        Rejection.of(forms, thresholds)


def test_a_bad_answer_far_from_the_learner_does_not_learn_and_a_good_one_does() -> None:
    advantages_BT = torch.tensor([[-1.0, 1.0, -1.0], [-1.0, 1.0, -1.0]])
    gap_BT = torch.tensor([[0.0, 0.5, math.nan], [0.1, math.nan, 0.1]])  # a sampler's NaN tells nothing

    def learns(limit: float) -> list[list[bool]]:
        return off_policy_mask(torch.zeros(2, 3), gap_BT, advantages_BT, MASK_BT, limit=limit).tolist()

    assert learns(0.2) == [[False, True, False], [True, True, True]]
    assert learns(0.05) == [[False, True, False], [False, True, False]]


def test_the_most_uncertain_tokens_learn() -> None:
    entropy_BT = torch.tensor([[0.1, 0.2, math.nan], [0.3, 0.4, 0.5]])
    assert entropy_mask(entropy_BT, MASK_BT, share=0.4).tolist() == [[False, False, False], [False, True, True]]
    assert entropy_mask(entropy_BT, MASK_BT, share=1.0).tolist() == MASK_BT.tolist()
    assert not entropy_mask(entropy_BT, MASK_BT & False, share=0.4).any()


# Weights of tokens whose ratio lies exactly on a bound.


@pytest.mark.parametrize(("cap", "floor"), [(1.0, 0.0), (2.0, 1.0)])
def test_a_ratio_on_a_bound_is_not_beyond_it(cap: float, floor: float) -> None:
    same_BT, mask_BT = torch.tensor([[-0.5, -0.25]]), torch.tensor([[True, True]])
    found = correction(
        same_BT, same_BT, mask_BT, CONVENTIONS["verl"], level="token", cap=cap, floor=floor, bound="mask"
    )
    assert found.weights_BT.tolist() == [[1.0, 1.0]]
