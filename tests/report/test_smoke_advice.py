"""Advice of a run in both languages: every id that the trainer knows has its sentence, with the arguments it gives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npuenv.core.messages import say
from npuenv.report.smoke import IDS, advice

TRAINER = Path(__file__).parents[2] / "trainer" / "metrics" / "advice.py"


def known_to_the_trainer() -> set[str]:
    """First elements of the pairs that its rules give back."""
    tree = ast.parse(TRAINER.read_text(encoding="utf-8"))
    pairs = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    firsts = [pair.elts[0] for pair in pairs if pair.elts]
    return {str(first.value) for first in firsts if isinstance(first, ast.Constant)}


def test_every_id_of_the_trainer_has_a_sentence() -> None:
    assert known_to_the_trainer() == set(IDS)


ARGUMENTS: dict[str, dict[str, object]] = {
    "memory-full": {"used": 95, "device": "npu:0", "settings": "micro_batch_rows, max_new_tokens"},
    "micro-batch": {"used": 45, "device": "npu:0", "now": 2, "value": 4},
    "memory-fraction": {"used": 45, "device": "npu:0", "now": 0.4, "value": 0.5},
    "length-clipped": {"share": 40, "limit": 64, "value": 128},
    "length-unused": {"longest": 32, "limit": 64, "value": 40},
    "generation-slow": {"share": 75, "engine": "transformers"},
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", sorted(IDS))
def test_a_sentence_names_every_argument(name: str, lang: str) -> None:
    (message,) = advice([{"kind": "advice", "id": name, "args": ARGUMENTS[name]}])
    text = say(message, lang)
    assert [value for value in ARGUMENTS[name].values() if str(value) not in text] == []


def test_records_of_other_kinds_and_unknown_advice_are_left_out() -> None:
    assert (
        advice([{"kind": "step", "id": "micro-batch"}, {"kind": "advice", "id": "from-the-future", "args": {}}]) == []
    )
