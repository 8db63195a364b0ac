"""What is offered for the name of a stack that there is not."""

from __future__ import annotations

import pytest

from npuenv.cli import main
from npuenv.matrix import load_matrix
from npuenv.resolve.request import FRAMEWORKS, stack_names
from tests.support.sentences import sentence


def hint_for(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["resolve", name, "--lang", "en"]) == 2
    return capsys.readouterr().err.partition("try: ")[2].strip()


@pytest.mark.parametrize("name", ["nosuchstack", "zzz"])
def test_a_name_like_nothing_gets_a_stack_of_every_use_and_the_uses(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = hint_for(name, capsys)
    offered = [word.strip(",") for word in hint.partition("look like ")[2].partition(", …;")[0].split()]
    assert set(offered) <= set(stack_names(load_matrix()))
    assert [any(word.startswith(use) for word in offered) for use in FRAMEWORKS] == [True] * len(FRAMEWORKS)
    assert ", ".join(FRAMEWORKS) in hint


def test_a_misspelt_use_is_told_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert hint_for("verll", capsys) == sentence("resolve.hint-framework", name="verl")


@pytest.mark.parametrize(
    ("name", "near"), [("cpu-ful", "cpu-full"), ("roll-deepsped-cann8.5.1", "roll-deepspeed-cann8.5.1")]
)
def test_a_misspelt_stack_gets_the_nearest(name: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert near in hint_for(name, capsys)
