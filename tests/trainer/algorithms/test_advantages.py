"""The estimators on hand-worked groups, with the edge cases in which the frameworks differ."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace

import pytest
import torch

from tests.trainer.algorithms.algorithm_cases import advantages
from trainer.algorithms.advantages import EstimatorInputs
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.estimators import whiten

NAN = float("nan")


def outcome(
    rewards: list[float], groups: list[int], lengths: list[int] | None = None, width: int = 2
) -> EstimatorInputs:
    """Answers whose reward stands on their last token; a length of 0 puts it on the last column, as verl does."""
    lengths_B = torch.tensor(lengths or [width] * len(rewards))
    mask_BT = torch.arange(width) < lengths_B.unsqueeze(1)
    token_rewards_BT = torch.zeros(len(rewards), width)
    token_rewards_BT[torch.arange(len(rewards)), (lengths_B - 1) % width] = torch.tensor(rewards)
    return EstimatorInputs(token_rewards_BT, mask_BT, torch.tensor(groups))


def first(scores: EstimatorInputs, name: str, convention: str = "verl", **settings: float) -> list[float]:
    """The advantage of each answer's first token."""
    return advantages(name, scores, CONVENTIONS[convention], **settings).advantages_BT[:, 0].tolist()


def test_grpo_takes_the_mean_off_and_divides_by_the_sample_deviation() -> None:
    scores = outcome([1.0, 0.0, 0.0, 1.0], [0, 0, 0, 0])
    deviation = (4 * 0.25 / 3) ** 0.5
    assert first(scores, "grpo") == pytest.approx([x / (deviation + 1e-6) for x in (0.5, -0.5, -0.5, 0.5)])
    assert first(scores, "grpo", "trl") == pytest.approx([x / (deviation + 1e-4) for x in (0.5, -0.5, -0.5, 0.5)])
    assert first(scores, "grpo", scale_by_std=False) == [0.5, -0.5, -0.5, 0.5]


def test_the_deviation_of_a_step_of_two_rewards_is_their_sample_deviation() -> None:
    scores = outcome([1.0, 0.0], [0, 0])
    assert first(scores, "grpo", scale_by_batch=True) == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)


def test_every_token_of_an_answer_gets_its_advantage_and_no_other() -> None:
    result = advantages("grpo", outcome([1.0, 0.0], [3, 3], [1, 2]), CONVENTIONS["verl"], scale_by_std=False)
    assert result.advantages_BT.tolist() == [[0.5, 0.0], [-0.5, -0.5]]
    assert result.returns_BT is None


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo"])
def test_a_group_of_one_keeps_its_reward_or_says_nothing(name: str) -> None:
    scores = outcome([0.7, 1.0, 0.0], [5, 2, 2])
    assert first(scores, name)[0] == pytest.approx(0.7, rel=2e-6)
    assert first(scores, name, "trl")[0] == 0.0
    assert first(scores, name, "roll")[0] == 0.0


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_equal_rewards_say_nothing(convention: str) -> None:
    scores = outcome([0.5, 0.5, 0.5], [0, 0, 0])
    for name in ("grpo", "rloo", "opo"):
        assert first(scores, name, convention) == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)


def test_roll_calls_a_tiny_spread_none() -> None:
    scores = outcome([0.0, 1e-6], [0, 0])
    assert first(scores, "grpo", "roll") == [0.0, 0.0]
    assert first(scores, "grpo", "verl")[1] == pytest.approx(0.5e-6 / (0.5e-6 * 2**0.5 + 1e-6), rel=1e-4)


def test_a_row_without_tokens_counts_in_its_group() -> None:
    scores = outcome([1.0, 0.0, 0.5], [0, 0, 0], [2, 2, 0])
    assert first(scores, "grpo", scale_by_std=False) == [0.5, -0.5, 0.0]
    assert first(outcome([1.0, 0.0, 2.0], [0, 0, 0], [2, 2, 0]), "grpo", scale_by_std=False) == [0.0, -1.0, 0.0]


def test_large_rewards_close_together_keep_their_spread() -> None:
    scores = outcome([10_000.0, 10_001.0, 10_000.0, 10_001.0], [0, 0, 0, 0])
    assert first(scores, "grpo") == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)


def test_trl_leaves_a_reward_of_nan_out_and_the_others_do_not() -> None:
    scores = outcome([1.0, 0.0, NAN], [0, 0, 0])
    assert first(scores, "grpo", "trl", scale_by_std=False) == [0.5, -0.5, 0.0]
    assert first(scores, "rloo", "trl") == [1.0, -1.0, 0.0]
    assert torch.tensor(first(scores, "grpo", "verl")).isnan().all()


def test_rloo_compares_with_the_others() -> None:
    assert first(outcome([1.0, 0.0, 0.0, 1.0], [0] * 4), "rloo") == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_opo_weighs_the_mean_by_length() -> None:
    assert first(outcome([1.0, 0.0], [0, 0], [1, 3], width=3), "opo") == [0.75, -0.25]


def test_a_group_without_any_token_does_not_spoil_opo() -> None:
    result = first(outcome([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], [0, 0, 2, 2]), "opo")
    assert result == [0.0, 0.0, 0.5, -0.5]


def test_reinforce_sums_what_is_still_to_come() -> None:
    scores = outcome([1.0], [0], [3], width=4)
    assert advantages("reinforce", scores, CONVENTIONS["verl"], gamma=0.5).advantages_BT.tolist() == [[0.25, 0.5, 1, 0]]


def test_an_environments_words_cost_a_discount_only_where_the_convention_says_so() -> None:
    scores = outcome([1.0], [0], [3], width=3)
    hole = EstimatorInputs(scores.token_rewards_BT, torch.tensor([[True, False, True]]), scores.group_B)
    assert advantages("reinforce", hole, CONVENTIONS["verl"], gamma=0.5).advantages_BT.tolist() == [[0.5, 0.0, 1.0]]
    assert advantages("reinforce", hole, CONVENTIONS["roll"], gamma=0.5).advantages_BT.tolist() == [[0.25, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "rewards", "groups", "expected"),
    [
        ("maxrl", [1.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], [3.0, -1.0, -1.0, -1.0]),
        ("maxrl", [0.0, 0.0, -1.0], [0, 0, 0], [0.0, 0.0, 0.0]),  # no success: no signal
        ("maxrl", [0.5], [0], [0.5]),
        ("grpo_passk", [1.0, 0.5, 0.0], [0, 0, 0], [1.0, 0.0, 0.0]),
        ("grpo_passk", [1.0, 1.0, 0.0], [0, 0, 0], [0.0, 0.0, 0.0]),  # two are best
        ("grpo_passk", [1.0], [0], [0.0]),
        ("gpg", [1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1], [2.0, -2.0, 0.0, 0.0]),
    ],
)
def test_by_hand(name: str, rewards: list[float], groups: list[int], expected: list[float]) -> None:
    scores = outcome(rewards, groups, [2] * len(rewards), width=2)
    assert first(scores, name) == pytest.approx(expected, abs=1e-4)


def test_a_baseline_is_taken_at_each_token_by_what_the_answers_have_moved_until_there() -> None:
    scores = outcome([1.0, 0.0, 0.5], [0, 0, 1], [2, 1, 2], width=2)
    logprobs_BT, sum_pi_squared_BT = torch.full((3, 2), 0.5).log(), torch.full((3, 2), 0.5)
    given = replace(scores, logprobs_BT=logprobs_BT, sum_pi_squared_BT=sum_pi_squared_BT)
    found = advantages("optimal_token_baseline", given, CONVENTIONS["verl"]).advantages_BT
    # Both have moved as far at the first token; at the second, and in a group of one, there is nobody else.
    assert found.tolist() == [[pytest.approx(0.5), 1.0], [pytest.approx(-0.5), 0.0], [0.5, 0.5]]


def test_roll_discounts_a_groups_advantage_backwards() -> None:
    scores = outcome([1.0, 0.0], [0, 0], [3, 1], width=3)
    settings = {"scale_by_std": False, "gamma": 0.5}
    found = advantages("grpo", scores, CONVENTIONS["roll"], **settings).advantages_BT
    assert found.tolist() == [[0.125, 0.25, 0.5], [-0.5, 0.0, 0.0]]
    found = advantages("grpo", scores, CONVENTIONS["verl"], **settings).advantages_BT
    assert found.tolist() == [[0.5, 0.5, 0.5], [-0.5, 0.0, 0.0]]


def test_gae_with_lambda_one_is_return_minus_forecast_and_with_zero_one_step_ahead() -> None:
    scores = outcome([1.0], [0], [3], width=3)
    values_BT = torch.tensor([[0.5, 0.25, 0.75]])
    given = EstimatorInputs(scores.token_rewards_BT, scores.mask_BT, scores.group_B, values_BT)
    whole = advantages("gae", given, CONVENTIONS["roll"], gamma=1.0, lam=1.0)
    assert whole.advantages_BT.tolist() == [[0.5, 0.75, 0.25]]
    assert whole.returns_BT is not None
    assert whole.returns_BT.tolist() == [[1.0, 1.0, 1.0]]
    ahead = advantages("gae", given, CONVENTIONS["roll"], gamma=1.0, lam=0.0)
    assert ahead.advantages_BT.tolist() == [[-0.25, 0.5, 0.25]]


def test_whitening_changes_the_advantages_of_gae_and_not_its_returns() -> None:
    scores = outcome([1.0, 0.0], [0, 1], [3, 2], width=3)
    values_BT = torch.tensor([[0.5, 0.25, 0.75], [0.1, 0.2, 9.0]])
    given = EstimatorInputs(scores.token_rewards_BT, scores.mask_BT, scores.group_B, values_BT)
    plain, whitened = (advantages("gae", given, CONVENTIONS[name]) for name in ("roll", "verl"))
    assert plain.returns_BT is not None and whitened.returns_BT is not None
    assert torch.equal(plain.returns_BT, whitened.returns_BT)
    kept = whitened.advantages_BT[scores.mask_BT]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.std().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("reinforce_plus_plus", {}), ("reinforce_plus_plus_baseline", {}), ("gae", {}), ("gdpo", {}), ("gpg", {}),
     ("grpo", {"scale_by_batch": True})],
)  # fmt: skip
def test_two_ranks_count_and_whiten_over_the_answers_of_both(name: str, settings: dict[str, bool]) -> None:
    whole = outcome([1.0, 0.2, 0.5, 0.9, 0.1], [0, 0, 0, 1, 1], [3, 1, 2, 3, 3], width=3)
    parts_BK = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.0, 0.0], [0.2, 0.4], [0.1, 0.9]])
    whole = replace(whole, values_BT=torch.linspace(-1, 1, 15).view(5, 3), parts_BK=parts_BK)
    expected_BT = advantages(name, whole, CONVENTIONS["verl"], **settings).advantages_BT
    exchange = Exchange()

    def rank(rows: slice) -> torch.Tensor:
        tensors = {part.name: getattr(whole, part.name) for part in fields(EstimatorInputs)}
        own = EstimatorInputs(**{name: each[rows] for name, each in tensors.items() if each is not None})
        return advantages(name, own, CONVENTIONS["verl"], add=exchange.add, **settings).advantages_BT

    with ThreadPoolExecutor(2) as ranks:
        found_BT = torch.cat(list(ranks.map(rank, (slice(0, 3), slice(3, 5)))))
    assert torch.allclose(found_BT, expected_BT, atol=1e-6)


class Exchange:
    """Two threads in the place of two ranks: each gets the sum of what both bring."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=240)
        self._brought: dict[int, torch.Tensor] = {}

    def add(self, own: torch.Tensor) -> torch.Tensor:
        self._brought[threading.get_ident()] = own
        self._barrier.wait()
        total = sum(self._brought.values(), torch.zeros_like(own))
        self._barrier.wait()
        return total


def test_fewer_than_two_tokens_cannot_be_whitened() -> None:
    mask_BT = torch.tensor([[True, False]])
    with pytest.raises(ValueError, match=r"tokens.*\b1\b"):
        whiten(torch.tensor([[3.0, NAN]]), mask_BT, CONVENTIONS["verl"])
    assert whiten(torch.tensor([[3.0, NAN]]), mask_BT, CONVENTIONS["roll"]).tolist() == [[3.0, 0.0]]


def test_a_missing_critic_is_refused() -> None:
    scores = outcome([1.0], [0])
    with pytest.raises(ValueError, match="critic"):
        advantages("gae", scores, CONVENTIONS["verl"])


def test_conventions_differ_from_each_other_and_can_be_written_down() -> None:
    written = {name: json.loads(json.dumps(asdict(convention))) for name, convention in CONVENTIONS.items()}
    assert [name for name, row in written.items() if row["name"] != name] == []
    assert written["verl"]["group_of_one"] == "reward"
    assert {row["deviation_epsilon"] for row in written.values()} == {1e-6, 1e-4}
    for one, other in (("verl", "trl"), ("verl", "roll"), ("trl", "roll")):
        assert sum(written[one][field] != written[other][field] for field in written[one]) > 5
