"""The rules under which a host is asked: levels, captures that lack an answer, and readers that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.facts import Evidence, Fact, State, known
from npuenv.facts.collector import Asker, was_asked
from tests.support.scripted_host import ScriptedHost

if TYPE_CHECKING:
    from npuenv.host.base import Host


def asker(level: int, host: ScriptedHost | None = None) -> Asker:
    return Asker(host or ScriptedHost(commands={"npu-smi info": "table"}), level, "python3")


def smi(host: Host) -> Fact[str]:
    return known(host.run(("npu-smi", "info")).out, Evidence("npu-smi info", "table"))


def test_level_0_runs_no_program_and_says_from_which_level_on_it_is_asked() -> None:
    host = ScriptedHost(commands={"npu-smi info": "table"})
    fact = asker(0, host)(smi)
    assert (fact.state, was_asked(fact), host.asked) == (State.ABSENT, False, [])
    assert fact.evidence[0].line == "needs --level 1"
    assert asker(1)(smi).value == "table"


@pytest.mark.parametrize(("level", "asked"), [(1, False), (2, True), (3, True)])
def test_a_fact_is_asked_from_its_level_on(level: int, asked: bool) -> None:
    assert was_asked(asker(level).at(2, smi)) is asked


def test_a_reader_that_fails_is_an_unknown_fact_and_names_its_place() -> None:
    def broken(host: Host) -> Fact[str]:
        raise ValueError("no such row")

    fact = asker(1)(broken)
    assert fact.state is State.UNKNOWN
    assert fact.evidence[0].line.startswith("ValueError: no such row (broken, line ")


def test_an_interruption_is_not_taken_for_a_failure() -> None:
    def interrupted(host: Host) -> Fact[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asker(1)(interrupted)


def test_time_limits_are_short_where_an_answer_is_promised_soon() -> None:
    assert [asker(level).timeout(4.0, 20.0) for level in (0, 1, 2, 3)] == [4.0, 4.0, 20.0, 20.0]
