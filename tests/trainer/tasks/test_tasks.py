"""The tasks: right answers, fixed held-out lists, rewards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from trainer import tasks
from trainer.config import parse
from trainer.tasks.digits import addition, copy, exact, partial, prompt, successor
from trainer.tasks.tokenizers import ALPHABET, Characters
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from trainer.tasks.base import Task

WORDS = Characters()
PAD, END = WORDS.pad, WORDS.end


def said(*tokens: int) -> Rollout:
    return Rollout(tokens, (-1.0,) * len(tokens), Stop.END if END in tokens else Stop.LENGTH)


def test_the_alphabet_has_seventeen_characters_a_pad_and_an_end() -> None:
    assert (len(ALPHABET), PAD, END, WORDS.vocabulary_size) == (17, 17, 18, 19)
    assert WORDS.decode(WORDS.encode("0123456789+=*-#. ")) == "0123456789+=*-#. "
    assert WORDS.decode((1, PAD, 2, END)) == "1_2"


def test_a_character_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        WORDS.encode("7x")


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
    asked = prompt("7+5=", "12", WORDS)
    assert exact(WORDS)(asked, said(1, 2, END)) == 1.0
    for wrong in ((1, 2), (1, 2, 2), (1, END), (1, 3, END), (END,), (2, 1, END)):
        assert exact(WORDS)(asked, said(*wrong)) == 0.0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((1, 2, END), 1.0), ((1, 3, END), 2 / 3), ((1, END), 1 / 3), ((1, 2), 2 / 3), ((3, 3, 3), 0.0), ((END,), 0.0)],
)
def test_the_partial_reward_counts_tokens_in_place(tokens: tuple[int, ...], expected: float) -> None:
    assert partial(WORDS)(prompt("7+5=", "12", WORDS), said(*tokens)) == pytest.approx(expected)


def test_a_partial_answer_that_runs_on_is_worth_less() -> None:
    assert partial(WORDS)(prompt("3=", "4", WORDS), said(4, 4, END)) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("name", "paid"), [("exact", 0.0), ("partial", 2 / 3)])
def test_the_reward_setting_decides_what_a_wrong_digit_is_worth_but_not_what_is_right(name: str, paid: float) -> None:
    task = tasks.choose(parse(["task=addition", f"reward={name}"], devices=("auto",)))
    asked = prompt("7+5=", "12", WORDS)
    assert task.reward(asked, said(1, 3, END)) == pytest.approx(paid)
    assert task.reward(asked, said(1, 2, END)) == 1.0
    assert not task.is_right(asked, said(1, 3, END))
    assert task.is_right(asked, said(1, 2, END))


@pytest.mark.parametrize("name", ["successor", "addition", "copy"])
def test_choose_makes_the_task_that_is_named(name: str) -> None:
    task = tasks.choose(parse([f"task={name}"], devices=("auto",)))
    assert (task.name, task.environment, task.max_new_tokens) == (name, None, 3)
    assert [WORDS.decode(each.tokens) for each in task.train] == [each.text for each in task.train]


def test_distractors_reach_the_successor_task() -> None:
    assert tasks.choose(parse(["distractors=2"], devices=("auto",))).heldout[0].text == "140="


def test_without_an_end_token_no_answer_that_runs_on_is_right() -> None:
    class Endless(Characters):
        end = None  # type: ignore[assignment]

    asked = prompt("3=", "4", WORDS)
    assert exact(Endless())(asked, said(4, 4, 4)) == 0.0
    assert exact(Endless())(asked, said(4)) == 1.0
    assert partial(Endless())(asked, said(4, 4, 4)) == pytest.approx(1 / 3)
