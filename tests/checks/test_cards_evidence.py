"""Only the first lines of evidence are shown: those of the cards that a finding is about are among them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.fact import Evidence, known
from npuenv.core.finding import Status
from npuenv.facts.npu.queries import Health
from tests.checks.test_cards import BOARD, SPOD, row
from tests.support.changes import HEALTHY, find

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts

CARDS = range(8)


def answered(facts: Facts, name: str, answers: list[Any]) -> Facts:
    """The facts with the answers of all cards, each with a line of its own."""
    fact: Any = known(tuple(answers), *(Evidence(f"-i {card}", "-") for card in CARDS))
    return replace(facts, npu=replace(facts.npu, **{name: fact}))


def test_what_a_failing_card_answers_stands_below_its_row() -> None:
    answers = [Health(at, 0, "Alarm" if at == 7 else "OK", ("A4025021",) * (at == 7), ()) for at in CARDS]
    finding = find(answered(row(7, health="Alarm")(HEALTHY), "health", answers), "cards.healthy")
    assert [item.command for item in finding.evidence[:3]] == ["npu-smi info", "-i 7", "-i 0"]


@pytest.mark.parametrize(
    ("check", "name", "answers"),
    [
        ("cards.alike", "boards", [BOARD._replace(npu=at, firmware=f"7.{at // 7}") for at in CARDS]),
        ("cards.super-pod", "spods", [SPOD._replace(npu=at, sdid=at, server=at // 7) for at in CARDS]),
        ("cards.super-pod", "spods", [SPOD._replace(npu=at, sdid=min(at, 6)) for at in CARDS]),
        ("cards.one-kind", "chips", [BOARD._replace(npu=at, chip_name=f"910B{at // 7}") for at in CARDS]),
    ],
)
def test_the_one_card_that_differs_is_shown_with_another(check: str, name: str, answers: list[Any]) -> None:
    finding = find(answered(HEALTHY, name, answers), check)
    assert finding.status in (Status.WARN, Status.FAIL)
    assert "-i 7" in [item.command for item in finding.evidence[:2]]
