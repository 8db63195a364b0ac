"""Tasks: prompts and rewards. `choose` returns the task of a configuration.

A task's module is imported when it is chosen: some need packages that a small run does not.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.config import Config
    from trainer.tasks.base import Task

# Module and function that makes each task from a configuration.
MAKERS: Mapping[str, tuple[str, str]] = {
    "successor": ("trainer.tasks.digits", "successor_task"),
    "addition": ("trainer.tasks.digits", "addition_task"),
    "copy": ("trainer.tasks.digits", "copy_task"),
    "gsm8k": ("trainer.tasks.gsm8k", "task"),
    "math": ("trainer.tasks.math", "task"),
    "code": ("trainer.tasks.code", "task"),
    "file": ("trainer.tasks.custom", "task"),
    "frozen_lake": ("trainer.tasks.frozen_lake", "task"),
    "sokoban": ("trainer.tasks.sokoban", "task"),
}


def choose(config: Config) -> Task:
    """The task of a configuration, with the user's reward function if one is named.

    Raises BadSetting for files, packages or functions that cannot be used.
    """
    module, maker = MAKERS[config.task.task]
    make: Callable[[Config], Task] = getattr(import_module(module), maker)
    task = make(config)
    if config.task.max_new_tokens:
        task = replace(task, max_new_tokens=config.task.max_new_tokens)
    if config.task.reward_function and config.task.task != "file":
        from trainer.tasks.custom import with_reward

        task = with_reward(task, config.task)
    return task
