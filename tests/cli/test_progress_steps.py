"""The lines of an installation where nothing is drawn."""

from __future__ import annotations

import re

import pytest

from npuenv.cli.common import Ui
from npuenv.cli.progress import StepProgress
from npuenv.core.messages import Message
from npuenv.core.plan import Step
from npuenv.install.executor import Event, StepEvent


def told(states: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is printed of steps that were done (d) or had nothing to do (s)."""
    progress = StepProgress(Ui("en"))
    with progress.executing():
        for number, letter in enumerate(states, 1):
            step = Step(f"step{number}", Message("cli.yes"), (), ())
            progress.step(Event(StepEvent.START, step, number, len(states)))
            progress.step(Event(StepEvent.DONE if letter == "d" else StepEvent.SKIPPED, step, number, len(states)))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("states", ["ddd", "sdd", "ssdsd", "dss", "sds"])
def test_the_numbers_of_the_steps_have_no_gaps(states: str, capsys: pytest.CaptureFixture[str]) -> None:
    numbers: list[int] = []
    for line in told(states, capsys):
        first, last = re.findall(r"\d+", line.partition("/")[0])[0], re.findall(r"\d+", line.partition("/")[0])[-1]
        numbers += range(int(first), int(last) + 1)
    assert numbers == list(range(1, len(states) + 1))


def test_where_nothing_was_to_be_done_nothing_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert told("sss", capsys) == []
