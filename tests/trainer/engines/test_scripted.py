"""The engine that says what a file prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from trainer.config import BadSetting, parse
from trainer.engines.engine import Sampling
from trainer.engines.scripted import read, start
from trainer.tasks.base import Task
from trainer.tasks.tokenizers import Characters
from trainer.types import Stop

if TYPE_CHECKING:
    from pathlib import Path

WORDS = Characters()
FILE = """["12", {"text": "3", "logprobs": [-0.5, -1]}]

[{"text": "45", "stop": "length"}]
"""


def script(folder: Path, text: str = FILE) -> Path:
    path = folder / "answers.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def task() -> Task:
    return Task("none", WORDS, (), (), 4, reward=lambda *_: 0.0, is_right=lambda *_: False)


def test_answers_come_in_order_repeat_in_a_large_group_and_begin_again(tmp_path: Path) -> None:
    engine = start(parse([f"script={script(tmp_path)}"], devices=("cpu",)), task())
    one, two, three = engine.generate([(1,), (2,), (3,)], Sampling(3, 4, 1.0))
    assert [rollout.tokens for rollout in one] == [(1, 2, WORDS.end), (3, WORDS.end), (1, 2, WORDS.end)]
    assert [(rollout.logprobs, rollout.stop) for rollout in one[:2]] == [
        ((0.0, 0.0, 0.0), Stop.END),
        ((-0.5, -1.0), Stop.END),
    ]
    assert {(rollout.tokens, rollout.stop) for rollout in two} == {((4, 5), Stop.LENGTH)}
    assert three == one


def test_answers_are_cut_to_the_longest_length(tmp_path: Path) -> None:
    engine = start(parse([f"script={script(tmp_path)}"], devices=("cpu",)), task())
    ((rollout,),) = engine.generate([(1,)], Sampling(1, 2, 1.0))
    assert (rollout.tokens, rollout.logprobs, rollout.stop) == ((1, 2), (0.0, 0.0), Stop.LENGTH)


def test_a_restored_state_goes_on_at_the_same_answer(tmp_path: Path) -> None:
    engine = start(parse([f"script={script(tmp_path)}"], devices=("cpu",)), task())
    engine.generate([(1,)], Sampling(1, 4, 1.0))
    state = engine.random_state()
    second = engine.generate([(1,)], Sampling(1, 4, 1.0))
    engine.restore_random_state(state)
    assert engine.generate([(1,)], Sampling(1, 4, 1.0)) == second
    assert second[0][0].tokens == (4, 5)


def test_weights_are_kept_as_copies(tmp_path: Path) -> None:
    engine = start(parse([f"script={script(tmp_path)}"], devices=("cpu",)), task())
    weight = torch.ones(2)
    engine.load_weights({"w": weight})
    weight.zero_()
    assert engine.weights()["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["1"]\n{"text": "1"}', "answers.jsonl:2: "),
        ("[]", "one answer"),
        ("[1]", ", not 1"),
        ('[{"text": "1", "logprob": 0}]', "not {'text': '1', 'logprob': 0}"),
        ('[{"text": "1", "stop": "soon"}]', "stop='soon' "),
        ('[{"text": "1", "logprobs": [0]}]', "has 1 logprobs for 2 tokens"),
        ('[{"text": "1", "logprobs": ["x", 0]}]', "be said"),
        ('["abc"]', "be said"),
        ("nothing", "no JSON"),
        pytest.param("[" * 100_000, "no JSON", id="deep"),
        ("\n", "no answers"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadSetting) as error:
        read(script(tmp_path, text), WORDS)
    assert said in str(error.value)


def test_no_file_and_a_missing_file_are_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="script=FILE"):
        start(parse([], devices=("cpu",)), task())
    with pytest.raises(BadSetting, match="nowhere"):
        read(tmp_path / "nowhere", WORDS)
