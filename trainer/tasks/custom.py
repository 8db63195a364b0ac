"""A reward function of the user's, `FILE.py:NAME`, and the task of questions from a file that it scores.

The function is called with verl's keywords `data_source`, `solution_str`, `ground_truth`, `extra_info`, or, if it takes
none of these, with the prompt's text and the answer's text. It returns a number, or a dict with a number `score`. It
runs in its own process (`trainer.tasks.worker`): if it raises, hangs, even in C code, or crashes, the run fails with a
message that names its line, within `reward_timeout_s` for each answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.config import BadSetting, locate
from trainer.tasks import tokenizers
from trainer.tasks.base import RewardBroken, RewardHung, Task
from trainer.tasks.data import questions
from trainer.tasks.worker import Worker, WorkerError, WorkerTimeout

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.sections import TaskSettings
    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Prompt, Rollout


def task(config: Config) -> Task:
    """Questions of `train_files` and `val_files` in verl's layout; an answer is right if the function returns 1 or
    more.
    """
    if not config.task.reward_function:
        raise BadSetting("task=file needs reward_function=FILE.py:NAME to judge the answers")
    tokenizer = tokenizers.choose(config.model.path)
    train, heldout = questions(config.task, tokenizer)
    reward = CustomReward(config.task, tokenizer)
    return Task(
        "file",
        tokenizer,
        train,
        heldout,
        max_new_tokens=256,
        reward=reward,
        is_right=lambda prompt, rollout: reward.judge(prompt, rollout)[0] >= 1.0,
        parts=reward.take_parts,
    )


def with_reward(task: Task, settings: TaskSettings) -> Task:
    """The task with the user's reward. The task itself still decides which answers are right, and an environment its
    rewards.
    """
    reward = CustomReward(settings, task.tokenizer)
    return replace(task, reward=reward, parts=reward.take_parts)


class CustomReward:
    """The reward of `reward_function`, with the components that `reward_parts` names."""

    def __init__(self, settings: TaskSettings, tokenizer: Tokenizer) -> None:
        """Raises BadSetting if it cannot be loaded."""
        self._settings, self._tokenizer = settings, tokenizer
        self._given, parts = settings.reward_function, settings.part_names
        self._parts: dict[int, tuple[float, ...]] = {}  # of answers, by identity, until they are taken
        self._worker = Worker(*locate("reward_function", self._given), parts=parts)
        try:
            self._worker.start()
        except (WorkerError, WorkerTimeout) as error:
            self._worker.close()
            raise BadSetting(f"reward_function={self._given} cannot be loaded: it {error}") from error

    def __call__(self, prompt: Prompt, rollout: Rollout) -> float:
        """Raises RewardBroken."""
        reward, *parts = self.judge(prompt, rollout)
        if parts:
            self._parts[id(rollout)] = tuple(parts)
        return reward

    def take_parts(self, rollout: Rollout) -> tuple[float, ...]:
        """The components of an answer that has been scored; 0 each where its reward could not be had."""
        return self._parts.pop(id(rollout), (0.0,) * len(self._settings.part_names))

    def judge(self, prompt: Prompt, rollout: Rollout) -> list[float]:
        """The reward, then its components. Raises RewardBroken."""
        try:
            return self._worker.call_with_parts(
                {
                    "data_source": prompt.extra.get("data_source", ""),
                    "solution_str": self._tokenizer.decode(rollout.tokens),
                    "ground_truth": prompt.expected,
                    "extra_info": prompt.extra.get("extra_info", {}),
                    "prompt": prompt.text,
                },
                timeout_s=self._settings.reward_timeout_s,
            )
        except (WorkerError, WorkerTimeout) as error:
            kind = RewardHung if isinstance(error, WorkerTimeout) else RewardBroken
            raise kind(f"reward_function={self._given} {error}") from error
