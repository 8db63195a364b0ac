"""What an answer is worth by its tokens, and the error of a reward that could not be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainer.tasks.base import Tokenizer
    from trainer.types import Prompt, Rollout

    Reward = Callable[[Prompt, Rollout], float]


class RewardBroken(RuntimeError):
    """A reward function that raised, hung, died or gave back no number; the text names it and the line in its file."""


class RewardHung(RewardBroken):
    """A reward function that did not come back in time."""


def exact(tokenizer: Tokenizer) -> Reward:
    """A reward: 1 for exactly the expected text followed by the end token, else 0."""

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        return float(rollout.tokens == _wanted(prompt, tokenizer))

    return reward


def partial(tokenizer: Tokenizer) -> Reward:
    """A reward: the share of the expected tokens, end token included, at their right position; divided by the longer
    length.

    Example: expected `12` and end; `13` and end -> 2/3; `1` and end -> 1/3; `12` without end -> 2/3.
    """

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        wanted = _wanted(prompt, tokenizer)
        hits = sum(1 for said, right in zip(rollout.tokens, wanted, strict=False) if said == right)
        return hits / max(len(wanted), len(rollout.tokens))

    return reward


REWARDS: Mapping[str, Callable[[Tokenizer], Reward]] = {"exact": exact, "partial": partial}


def by_tokens(
    name: str,
    lists: tuple[Sequence[Prompt], Sequence[Prompt]],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    reward: str,
) -> Task:
    """A task with one right answer, judged token by token; `lists` are the prompts to train on and those held out.

    `reward` is a key of REWARDS. Right is what the exact reward pays for.
    """
    judge = exact(tokenizer)
    return Task(
        name,
        tokenizer,
        *lists,
        max_new_tokens=max_new_tokens,
        reward=REWARDS[reward](tokenizer),
        is_right=lambda prompt, rollout: judge(prompt, rollout) == 1.0,
    )


def _wanted(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    expected = tokenizer.encode(prompt.expected)
    return expected if tokenizer.end is None else (*expected, tokenizer.end)
