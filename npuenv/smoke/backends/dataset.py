"""A handful of made-up word problems in the layout that verl's preparation of GSM8K writes: `rows`."""

from __future__ import annotations

from typing import Any

# The score function of this data source reads the number after four hashes; another name would have none.
_SOURCE = "openai/gsm8k"
_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_THINGS = ("screws", "cables", "trays", "labels", "filters", "valves", "lamps", "tiles")
_PLACES = ("a depot", "a workshop", "a lab", "a kiosk")


def problem(number: int) -> tuple[str, str, str]:
    """Question, worked solution and result of the problem with that number.

    Example: 0 -> ("A depot holds 3 boxes of 2 screws ...", "... #### 5", "5")
    """
    thing, place = _THINGS[number % len(_THINGS)], _PLACES[number // 2 % len(_PLACES)]
    boxes, each = 3 + number % 4, 2 + number % 5
    used = 1 + number % 3
    left = boxes * each - used
    question = (
        f"{place.capitalize()} holds {boxes} boxes of {each} {thing} each. {used} of them are used. How many are left?"
    )
    return question, f"{boxes} * {each} = {boxes * each}\n{boxes * each} - {used} = {left}\n#### {left}", str(left)


def rows(split: str, first: int, count: int) -> list[dict[str, Any]]:
    """`count` rows from problem `first` on. Every number is text: a whole number as ground truth scores 0 in silence.

    Source: verl examples/data_preprocess/gsm8k.py @v0.7.1: columns and their order.
    """
    return [_row(split, at, number) for at, number in enumerate(range(first, first + count))]


def _row(split: str, at: int, number: int) -> dict[str, Any]:
    question, solution, result = problem(number)
    return {
        "data_source": _SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {_INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": result},
        "extra_info": {"split": split, "index": at, "answer": solution, "question": question},
    }
