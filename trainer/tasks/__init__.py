"""Tasks: prompts and rewards. `choose` returns the task of a configuration.

A task's module is imported when it is chosen: some need packages that a small run does not.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config
    from trainer.tasks.base import Task

# The `MODULE:FUNCTION` of each task, which makes it from a configuration.
MAKERS: Mapping[str, str] = {
    **dict.fromkeys(("successor", "addition", "copy"), "digits:task"),
    "gsm8k": "text:gsm8k",
    "math": "text:mathematics",
    "code": "code:task",
    "file": "text:scored_by_user",
    "frozen_lake": "grids:frozen_lake",
    "sokoban": "sokoban:task",
}


def choose(config: Config) -> Task:
    """The task of a configuration, with the user's reward function if one is named.

    Raises BadSetting for files, packages or functions that cannot be used.
    """
    module, _, function = MAKERS[config.task.task].partition(":")
    task: Task = getattr(import_module(f"trainer.tasks.{module}"), function)(config)
    if config.task.max_new_tokens:
        task = replace(task, max_new_tokens=config.task.max_new_tokens)
    if config.task.reward_function and config.task.task != "file":
        from trainer.tasks.text import with_reward

        task = with_reward(task, config.task)
    return task
