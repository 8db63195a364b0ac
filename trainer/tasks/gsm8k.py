"""GSM8K: school arithmetic in words, the answer after `####`. Scored as verl does it, or with more tolerance."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from trainer.tasks.data import task_of_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config
    from trainer.tasks.base import Task

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_WINDOW = 300  # characters at the end of an answer in which the strict score looks
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
# A minus is a sign only if no number precedes it: `10-5` ends in 5.
_NUMBER = re.compile(r"((?<![\w)])-\$?|\$-)?(\d[\d,]*(?:\.\d+)?|\.\d+)")


def task(config: Config) -> Task:
    """The questions of `train_files` and `val_files`, verl's parquet or the raw jsonl; 1 for a right answer, else 0."""
    score = strict if config.task.strict_answers else tolerant
    return task_of_texts("gsm8k", config, score, max_new_tokens=256, raw=row)


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


def row(raw: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
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
