"""Mathematics with one right answer, compared by value with the package math-verify.

`\\frac{1}{2}` and `0.5` are the same answer. There is no fallback without the package: comparing texts would reject
right answers. The comparison runs in its own process, since an answer such as `9^{9^{9^9}}` can keep the algebra busy
forever; such an answer scores 0.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.tasks.base import RewardBroken
from trainer.tasks.data import task_of_texts
from trainer.tasks.worker import Worker, WorkerError, WorkerTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.config import Config
    from trainer.tasks.base import Task

_ANSWER_S = 10.0


def task(config: Config) -> Task:
    """Questions of `train_files` and `val_files` in verl's layout; 1 for an answer of the right value, else 0.

    Raises BadSetting if the package math-verify is missing.
    """
    judge = judged(min(_ANSWER_S, config.task.reward_timeout_s))
    return task_of_texts("math", config, judge, max_new_tokens=512)


def judged(timeout_s: float) -> Callable[[str, str], float]:
    """A judge of (answer, ground truth): 1 for the same value, 0 otherwise or when it takes longer than that."""
    if importlib.util.find_spec("math_verify") is None:
        raise BadSetting("task=math needs the package math-verify: install math-verify")
    worker = Worker(Path(__file__).resolve().with_name("math_score.py"), "score")

    @lru_cache(maxsize=4096)
    def judge(answer: str, ground_truth: str) -> float:
        named: dict[str, Any] = {"data_source": "", "extra_info": {}, "prompt": ""}
        try:
            return worker.call(named | {"solution_str": answer, "ground_truth": ground_truth}, timeout_s=timeout_s)
        except WorkerTimeout:
            return 0.0
        except WorkerError as error:
            raise RewardBroken(f"math-verify {error}") from error

    return judge
