"""Rollouts, from prompts to groups with rewards: which prompts a step has, their answers, the answers' rewards.

With an environment an answer is an episode of several turns, sampled or from prepared answers. Its tokens are those
that were sampled, with the environment's replies appended as tokens: nothing is decoded and encoded again, so that the
learner sees exactly the tokens that the engine's log-probabilities belong to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.tasks.base import group_rewards
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.engine import Engine, Sampling
    from trainer.tasks.base import Environment, Task
    from trainer.tasks.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class GeneratedGroups:
    """Rollouts without rewards yet."""

    groups: list[Group]
    reference_BT: Tensor | None = None  # as in `RolloutBatch`


@dataclass(frozen=True, slots=True)
class RewardedGroups:
    """One rank's groups of a step with their rewards, and how many batches were drawn for them."""

    groups: list[Group] = field(default_factory=list)
    rewards_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    num_batches: int = 0
    reference_BT: Tensor | None = None  # as in `RolloutBatch`
    is_partial: bool = False  # not the groups that the reference has evaluated

    def where(self, is_useful_P: Tensor) -> RewardedGroups:
        """Some of the groups."""
        groups = [group for group, is_useful in zip(self.groups, is_useful_P.tolist(), strict=True) if is_useful]
        return RewardedGroups(groups, self.rewards_PG[is_useful_P], self.num_batches, is_partial=True)

    def extended(self, others: RewardedGroups) -> RewardedGroups:
        """These groups and others, that were drawn later."""
        if not self.groups:
            return others
        rewards_PG = torch.cat((self.rewards_PG, others.rewards_PG))
        return RewardedGroups(self.groups + others.groups, rewards_PG, others.num_batches, is_partial=True)

    def first(self, count: int) -> RewardedGroups:
        """At most so many of the groups."""
        return replace(self, groups=self.groups[:count], rewards_PG=self.rewards_PG[:count])


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rollouts of one step, with rewards, filtered."""

    groups: list[Group]
    rewards_PG: Tensor
    num_generated: int  # groups generated for them
    step: int  # after which the engine got the weights that they were drawn with
    # What a reference policy in the generators says of them, on the CPU, rows and tokens as they are packed; None: the
    # learner has the reference, or nobody.
    reference_BT: Tensor | None = None


class PromptSampler:
    """The prompts of each step: at random, or by epochs.

    An epoch has all prompts in a random order, from which each step takes the next ones; if too few are left, a new
    order starts. So an epoch uses each prompt once, and drops the incomplete step at its end, as verl's loader does.
    """

    def __init__(self, prompts: Sequence[Prompt], count: int, generator: torch.Generator, *, by_epoch: bool) -> None:
        self._prompts, self._count, self._by_epoch = prompts, count, by_epoch
        self.generator = generator
        self._order: list[int] = []
        self._before: Tensor = generator.get_state()  # the random numbers that this epoch's order was made from
        self._num_taken = 0

    def next_prompts(self) -> list[Prompt]:
        """Those of the next step, of all ranks."""
        if not self._by_epoch:
            return sample_prompts(self._prompts, self._count, self.generator)
        if len(self._order) - self._num_taken < self._count:
            self._begin()
        first, self._num_taken = self._num_taken, self._num_taken + self._count
        return [self._prompts[index] for index in self._order[first : self._num_taken]]

    def state(self) -> dict[str, Any]:
        """The state that the next prompts depend on."""
        if not self._by_epoch:
            return {"prompts_random": self.generator.get_state()}
        return {"prompts_random": self._before, "prompts_taken": self._num_taken}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Draws next what came after `state` gave that."""
        self.generator.set_state(state["prompts_random"].cpu())
        if self._by_epoch:
            self._begin()
            self._num_taken = int(state.get("prompts_taken", 0))

    def _begin(self) -> None:
        self._before, self._num_taken = self.generator.get_state(), 0
        self._order = torch.randperm(len(self._prompts), generator=self.generator).tolist()


def sample_prompts(prompts: Sequence[Prompt], count: int, generator: torch.Generator) -> list[Prompt]:
    """Prompts at random; none twice before each was drawn once."""
    order: list[int] = []
    while len(order) < count:
        order += torch.randperm(len(prompts), generator=generator).tolist()
    return [prompts[index] for index in order[:count]]


def collect(engine: Engine, prompts: Sequence[Prompt], task: Task, sampling: Sampling) -> list[Group]:
    """A group for each prompt, in order.

    With an environment each rollout is an episode: see `collect_episodes`.
    """
    if task.environment is not None:
        return collect_episodes(engine, prompts, task, sampling)
    answers = engine.generate([prompt.tokens for prompt in prompts], sampling)
    return [Group(prompt, rollouts) for prompt, rollouts in zip(prompts, answers, strict=True)]


def compute_rewards(
    groups: Sequence[Group], *, task: Task, config: Config, device: torch.device, errors: list[str] | None = None
) -> Tensor:
    """Rewards [P, G]: the environment's, else the task's; less the penalty for answers near the length limit.

    For a failed reward `on_reward_error` decides: raise RewardBroken, 0 or NaN; `errors` gets its reason.
    """
    algorithm, on_error = config.algorithm, config.task.on_reward_error
    if on_error == "stop":
        errors = None
    elif errors is None:
        errors = []
    rewards = group_rewards(groups, task, limit_s=reward_limit_s(config), errors=errors)
    dtype = torch.promote_types(getattr(torch, config.run.dtype), torch.float32)
    rewards_PG = torch.tensor(rewards, dtype=dtype, device=device)
    if on_error == "zero":
        rewards_PG = rewards_PG.nan_to_num(nan=0.0)
    if algorithm.overlong_buffer == 0:
        return rewards_PG
    lengths_PG = torch.tensor([[len(each.tokens) for each in group.rollouts] for group in groups], device=device)
    return rewards_PG + overlong_penalty(
        lengths_PG, limit=task.max_new_tokens, buffer=algorithm.overlong_buffer, factor=algorithm.overlong_factor
    )


def overlong_penalty(lengths_B: Tensor, *, limit: int, buffer: int, factor: float) -> Tensor:
    """The penalty added to each answer's reward: 0 up to limit - buffer tokens, then falling to -factor at the limit.

    Shapes: lengths_B, tokens per answer -> [B], float32. A buffer of 0 costs nothing at any length.
    Source: Yu et al. 2025, DAPO; verl DAPO reward manager, min(-(length - (limit - buffer)) / buffer * factor, 0).
    Example: limit 10, buffer 4, factor 1: lengths 6, 7, 10 -> 0, -0.25, -1
    """
    over_B = (lengths_B - (limit - buffer)).float()
    if buffer <= 0:
        return over_B * 0
    return (-over_B / buffer * factor).clamp(max=0.0)


def reward_limit_s(config: Config) -> float | None:
    """Seconds for all rewards of a step; None if each answer is scored in a process with its own limit."""
    task = config.task
    return None if task.reward_function or task.task in ("code", "math") else task.reward_timeout_s


# Episodes of several turns.


@dataclass(slots=True)
class Episode:
    """An episode so far. Only `step` adds to it; `stop` is None as long as the model has another turn."""

    prompt: Prompt
    environment: Environment
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    response_mask: list[bool] = field(default_factory=list)
    is_valid: list[bool] = field(default_factory=list)  # per turn
    reward: float = 0.0
    stop: Stop | None = None

    @property
    def context(self) -> tuple[int, ...]:
        """The model's input of its next turn."""
        return (*self.prompt.tokens, *self.tokens)

    def step(self, turn: Rollout, task: Task) -> None:
        """Appends the model's turn and, if the episode continues, the environment's reply."""
        observation = self.environment.step(task.tokenizer.decode(turn.tokens))
        self._append(turn.tokens, turn.logprobs, is_response=True)
        self.reward += observation.reward
        self.is_valid.append(observation.is_valid)
        if observation.is_done:
            self.stop = Stop.TERMINATED
        elif len(self.is_valid) == task.max_turns:
            self.stop = Stop.LENGTH
        else:
            between = reply(task.tokenizer, observation.text, is_closed=turn.stop is Stop.END)
            self._append(between, (0.0,) * len(between), is_response=False)

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float], *, is_response: bool) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.response_mask += [is_response] * len(tokens)

    def rollout(self) -> Rollout:
        """The complete episode as one rollout. `stop` is LENGTH if the turns ran out."""
        stop = self.stop or Stop.LENGTH
        actions, valid = tuple(self.response_mask), tuple(self.is_valid)
        return Rollout(tuple(self.tokens), tuple(self.logprobs), stop, actions, self.reward, valid)


def collect_episodes(engine: Engine, prompts: Sequence[Prompt], task: Task, sampling: Sampling) -> list[Group]:
    """A group for each prompt, in order: episodes of at most `task.max_turns` turns of `sampling.max_new_tokens`
    tokens.

    An episode's reward is the sum of the environment's rewards. The first turn is one call for complete groups, each
    later one a call with the contexts, of different lengths, of all unfinished episodes.
    """
    assert task.environment is not None
    size = sampling.rollouts_per_prompt
    episodes = [Episode(prompt, task.environment(prompt)) for prompt in prompts for _ in range(size)]
    first = engine.generate([prompt.tokens for prompt in prompts], sampling)
    for episode, turn in zip(episodes, (turn for turns in first for turn in turns), strict=True):
        episode.step(turn, task)
    alone = replace(sampling, rollouts_per_prompt=1)
    while live := [episode for episode in episodes if episode.stop is None]:
        for episode, (turn,) in zip(live, engine.generate([each.context for each in live], alone), strict=True):
            episode.step(turn, task)
    rollouts = [episode.rollout() for episode in episodes]
    return [Group(prompt, tuple(rollouts[at * size : (at + 1) * size])) for at, prompt in enumerate(prompts)]


def reply(tokenizer: Tokenizer, text: str, *, is_closed: bool) -> tuple[int, ...]:
    """The environment's reply as the tokens that follow a turn of the model, up to its next turn.

    With a chat template they include its markers between the assistant's turn and the next one. `is_closed`: the model
    has sampled the end token, which is then not repeated. Raises BadSetting for a chat template that rewrites earlier
    turns.
    """
    user, assistant = {"role": "user", "content": ""}, {"role": "assistant", "content": ""}
    before = tokenizer.chat([user])
    whole = tokenizer.chat([user, assistant, {"role": "user", "content": text}])
    if whole[: len(before)] != before:
        raise BadSetting("the tokenizer's chat template changes earlier turns when one is added: no episode fits it")
    added = whole[len(before) :]
    return added[1:] if is_closed and added[:1] == (tokenizer.end,) else added


def demonstrate(prompt: Prompt, task: Task) -> Rollout:
    """The right answers to a prompt as a rollout: log-probabilities 0, tokens and masks as in `collect_episodes`.

    The answers are `prompt.extra["answers"]`, one for each turn, else the single `prompt.expected`. Each is closed with
    the end token if the tokenizer has one. Raises ValueError if the answers end before the episode does.
    """
    end = () if task.tokenizer.end is None else (task.tokenizer.end,)
    turns = [
        Rollout(tokens, (0.0,) * len(tokens), Stop.END)
        for answer in prompt.extra.get("answers", (prompt.expected,))
        for tokens in ((*task.tokenizer.encode(answer), *end),)
    ]
    if task.environment is None:
        return turns[0]
    episode = Episode(prompt, task.environment(prompt))
    for turn in turns:
        if episode.stop is None:
            episode.step(turn, task)
    if episode.stop is None:
        raise ValueError(f"the prepared answers to {prompt.text!r} end before the episode does")
    return episode.rollout()
