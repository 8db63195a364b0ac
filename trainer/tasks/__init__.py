"""Questions with one right answer, made offline: `choose` gives the task that a configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.addition import addition
from trainer.tasks.copy import copy
from trainer.tasks.successor import successor

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.tasks.base import Task


def choose(config: Config) -> Task:
    """The task of a configuration."""
    makers = {"successor": lambda: successor(config.distractors), "addition": addition, "copy": copy}
    return makers[config.task]()
