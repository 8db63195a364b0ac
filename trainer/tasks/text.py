"""Tasks of questions in words: GSM8K, mathematics compared by value, and what a reward function of the user's scores.

GSM8K is school arithmetic, the answer after `####`, scored as verl does it, or with more tolerance.

Mathematics is compared with the package math-verify: `\\frac{1}{2}` and `0.5` are the same answer. There is no fallback
without the package: comparing texts would reject right answers. The comparison runs in its own process, since an answer
such as `9^{9^{9^9}}` can keep the algebra busy forever; such an answer scores 0.

The user's function, `FILE.py:NAME`, is called with verl's keywords `data_source`, `solution_str`, `ground_truth`,
`extra_info`, or, if it takes none of these, with the prompt's text and the answer's text. It returns a number, or a
dict with a number `score`. It runs in its own process (`trainer.tasks.worker`): if it raises, hangs, even in C code, or
crashes, the run fails with a message that names its line, within `reward_timeout_s` for each answer.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting, locate
from trainer.tasks.base import RewardBroken, RewardHung, Task
from trainer.tasks.data import questions, task_of_texts
from trainer.tasks.tokenizers import choose_tokenizer
from trainer.tasks.worker import Worker, WorkerError, WorkerTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.config import Config
    from trainer.sections import TaskSettings
    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Prompt, Rollout


# GSM8K.

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_WINDOW = 300  # characters at the end of an answer in which the strict score looks
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
# A minus is a sign only if no number precedes it: `10-5` ends in 5.
_NUMBER = re.compile(r"((?<![\w)])-\$?|\$-)?(\d[\d,]*(?:\.\d+)?|\.\d+)")


def gsm8k(config: Config) -> Task:
    """The questions of `train_files` and `val_files`, verl's parquet or the raw jsonl; 1 for a right answer, else 0."""
    score = strict if config.task.strict_answers else tolerant
    return task_of_texts("gsm8k", config, score, max_new_tokens=256, raw=gsm8k_row)


def strict(answer: str, ground_truth: str) -> float:
    """1 if the last `#### number` of the answer's last 300 characters is the ground truth, letter by letter, else 0.

    Commas do not count; everything else does: `#### 72.`, `#### 72.0` and `#### $72` are 0 against `72`.
    Source: verl, utils/reward_score/gsm8k.py, method strict.
    """
    found = _STRICT.findall(answer[-_WINDOW:])
    return float(bool(found) and found[-1].replace(",", "") == ground_truth)


def tolerant(answer: str, ground_truth: str) -> float:
    """1 if the last number of the answer has the value of the ground truth, else 0.

    A full stop after it, a dollar sign, thousands by comma and zeros after the point do not matter: `72.`, `$72`,
    `72.00` are 72, `1,234` is 1234. Percent signs and units are not read: `50%` is 50.
    """
    number, right = _last_number(answer), _last_number(ground_truth)
    return float(number is not None and number == right)


def gsm8k_row(raw: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
    """A raw row (`question`, `answer`) in the layout and column order that verl's preprocessing writes.

    The ground truth is the text after `#### ` without commas. Raises ValueError if there is none.
    """
    question, answer = raw.get("question"), raw.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise ValueError(f"row {index} lacks a text 'question' or 'answer'; it has {', '.join(map(repr, raw))}")
    found = re.search(r"#### (-?[0-9.,]+)", answer)
    if found is None:
        raise ValueError(f"row {index} has an answer without '#### number': {answer[-40:]!r}")
    return {
        "data_source": SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": found.group(1).replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(("-" if found[-1][0] else "") + found[-1][1].replace(",", "")) if found else None


# Mathematics.

_ANSWER_S = 10.0


def mathematics(config: Config) -> Task:
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


# A reward function of the user's.


def scored_by_user(config: Config) -> Task:
    """Questions of `train_files` and `val_files` in verl's layout; an answer is right if the function returns 1 or
    more.
    """
    if not config.task.reward_function:
        raise BadSetting("task=file needs reward_function=FILE.py:NAME to judge the answers")
    tokenizer = choose_tokenizer(config.model.path)
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
