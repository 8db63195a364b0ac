"""The judge of mathematics, for the process of `trainer.tasks.text`: the only module that imports math-verify."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

_verify: Any = import_module("math_verify")  # at import: 2 s of algebra that no answer's time limit should pay
# It warns for each answer that its own limits are off; they are, since the caller ends this process instead.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    """1 if the last boxed or plain expression of the answer has the value of the ground truth, LaTeX or number, else 0.

    Source: math-verify's parse and verify, with the gold answer in a box as verl's math_verify score puts it.
    """
    gold = _verify.parse("\\boxed{" + ground_truth + "}", parsing_timeout=None)
    answer = _verify.parse(solution_str, parsing_timeout=None)
    return float(_verify.verify(gold, answer, timeout_seconds=None))
