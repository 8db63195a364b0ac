"""A reward function of the user's, `FILE.py:NAME`, and the task of questions from a file that it scores.

The function is called with verl's keywords `data_source`, `solution_str`, `ground_truth`, `extra_info`, or, if it takes
none of these, with the prompt's text and the answer's text. It returns a number, or a dict with a number `score`. It
runs in its own process (`trainer.tasks.worker`): if it raises, hangs, even in C code, or crashes, the run fails with a
message that names its line, within `reward_timeout_s` for each answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import BadSetting
from trainer.tasks import tokenizers
from trainer.tasks.base import Task
from trainer.tasks.data import questions
from trainer.tasks.rewards import RewardBroken, RewardHung
from trainer.tasks.worker import Worker, WorkerError, WorkerTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.config import Config
    from trainer.sections import TaskSettings
    from trainer.tasks.base import Tokenizer
    from trainer.types import Prompt, Rollout


def task(config: Config) -> Task:
    """Questions of `train_files` and `val_files` in verl's layout; an answer is right if the function returns 1 or
    more.
    """
    if not config.task.reward_function:
        raise BadSetting("task=file needs reward_function=FILE.py:NAME to judge the answers")
    tokenizer = tokenizers.choose(config.model.path)
    train, heldout = questions(config.task, tokenizer)
    reward = custom(config.task, tokenizer)
    return Task(
        "file",
        tokenizer,
        train.prompts,
        heldout.prompts,
        max_new_tokens=256,
        reward=reward,
        is_right=lambda prompt, rollout: reward(prompt, rollout) >= 1.0,
    )


def with_reward(task: Task, settings: TaskSettings) -> Task:
    """The task with the user's reward. The task itself still decides which answers are right, and an environment its
    rewards.
    """
    return replace(task, reward=custom(settings, task.tokenizer))


def custom(settings: TaskSettings, tokenizer: Tokenizer) -> Callable[[Prompt, Rollout], float]:
    """The reward of `reward_function`. Raises BadSetting if it cannot be loaded; the reward raises RewardBroken."""
    given = settings.reward_function
    path, colon, name = given.rpartition(":")
    file = Path(path).expanduser().resolve()
    if not colon or not name.isidentifier() or not file.is_file():
        raise BadSetting(f"reward_function={given} is not accepted. Accepted: FILE.py:NAME of a file that is there")
    worker = Worker(file, name)
    try:
        worker.start()
    except (WorkerError, WorkerTimeout) as error:
        worker.close()
        raise BadSetting(f"reward_function={given} cannot be loaded: it {error}") from error

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        try:
            return worker.call(
                {
                    "data_source": prompt.extra.get("data_source", ""),
                    "solution_str": tokenizer.decode(rollout.tokens),
                    "ground_truth": prompt.expected,
                    "extra_info": prompt.extra.get("extra_info", {}),
                    "prompt": prompt.text,
                },
                timeout_s=settings.reward_timeout_s,
            )
        except (WorkerError, WorkerTimeout) as error:
            kind = RewardHung if isinstance(error, WorkerTimeout) else RewardBroken
            raise kind(f"reward_function={given} {error}") from error

    return reward
