"""The tasks: right answers, fixed held-out lists, rewards."""

from __future__ import annotations

from collections import Counter

import pytest

from trainer.tasks.addition import addition
from trainer.tasks.base import ALPHABET, END, PAD, VOCABULARY_SIZE, Task, decode, encode, prompt
from trainer.tasks.copy import copy
from trainer.tasks.rewards import exact, partial
from trainer.tasks.successor import successor
from trainer.types import Rollout, Stop


def said(*tokens: int) -> Rollout:
    return Rollout(tokens, (-1.0,) * len(tokens), Stop.END if END in tokens else Stop.LENGTH)


def test_the_alphabet_has_seventeen_characters_a_pad_and_an_end() -> None:
    assert (len(ALPHABET), PAD, END, VOCABULARY_SIZE) == (17, 17, 18, 19)
    assert decode(encode("0123456789+=*-#. ")) == "0123456789+=*-#. "
    assert decode((1, PAD, 2, END)) == "1_2"


def test_a_character_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        encode("7x")


def test_the_plain_successor_task_asks_all_ten_digits_in_both_lists() -> None:
    task = successor(0)
    assert [(each.text, each.expected) for each in task.heldout][:2] == [("0=", "1"), ("1=", "2")]
    assert (task.heldout[9].text, task.heldout[9].expected) == ("9=", "0")
    assert task.train == task.heldout
    assert not task.is_disjoint
    assert task.max_new_tokens == 3


@pytest.mark.parametrize("distractors", [1, 2, 3])
def test_successor_holds_out_thirty_prompts_with_every_digit_in_both_lists(distractors: int) -> None:
    task = successor(distractors)
    assert task.is_disjoint
    assert (len(task.heldout), len(task.train)) == (30, 10 ** (distractors + 1) - 30)
    assert Counter(each.text[-2] for each in task.heldout) == dict.fromkeys("0123456789", 3)
    assert Counter(each.text[0] for each in task.heldout) == dict.fromkeys("0123456789", 3)
    assert min(Counter(each.text[-2] for each in task.train).values()) >= 7
    for each in (*task.train, *task.heldout):
        assert each.expected == str((int(each.text[-2]) + 1) % 10)
        assert each.text[-1] == "="


def test_the_held_out_list_of_successor_is_fixed() -> None:
    assert [each.text for each in successor(1).heldout[:6]] == ["10=", "40=", "80=", "21=", "51=", "91="]
    assert successor(2).heldout[0].text == "140="


@pytest.mark.parametrize("task", [addition(), copy()], ids=["addition", "copy"])
def test_addition_and_copy_hold_out_twenty_prompts(task: Task) -> None:
    assert task.is_disjoint
    assert (len(task.heldout), len(task.train)) == (20, 80)
    for place in {"addition": (0, 2), "copy": (0, 1)}[task.name]:
        assert Counter(each.text[place] for each in task.heldout) == dict.fromkeys("0123456789", 2)
    assert max(len(each.expected) for each in task.train) + 1 == task.max_new_tokens


def test_addition_and_copy_expect_the_right_answer() -> None:
    sums = {each.text: each.expected for each in (*addition().train, *addition().heldout)}
    assert (sums["7+5="], sums["0+0="], sums["9+9="]) == ("12", "0", "18")
    assert {each.text: each.expected for each in copy().train}["04="] == "04"


def test_the_exact_reward_wants_the_answer_and_the_end() -> None:
    asked = prompt("7+5=", "12")
    assert exact(asked, said(1, 2, END)) == 1.0
    for wrong in ((1, 2), (1, 2, 2), (1, END), (1, 3, END), (END,), (2, 1, END)):
        assert exact(asked, said(*wrong)) == 0.0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((1, 2, END), 1.0), ((1, 3, END), 2 / 3), ((1, END), 1 / 3), ((1, 2), 2 / 3), ((3, 3, 3), 0.0), ((END,), 0.0)],
)
def test_the_partial_reward_counts_tokens_in_place(tokens: tuple[int, ...], expected: float) -> None:
    assert partial(prompt("7+5=", "12"), said(*tokens)) == pytest.approx(expected)


def test_a_partial_answer_that_runs_on_is_worth_less() -> None:
    assert partial(prompt("3=", "4"), said(4, 4, END)) == pytest.approx(1 / 3)
