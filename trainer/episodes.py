"""Episodes: rollouts of several turns with an environment, sampled or from prepared answers.

An episode's tokens are those that were sampled, with the environment's replies appended as tokens: nothing is decoded
and encoded again, so that the learner sees exactly the tokens that the engine's log-probabilities belong to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainer.config import BadSetting
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.engines.engine import Engine, Sampling
    from trainer.tasks.base import Environment, Task
    from trainer.tasks.tokenizers import Tokenizer


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
