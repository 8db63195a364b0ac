"""The rules under which a host is asked: levels, captures that lack an answer, and readers that fail."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from npuenv.core.fact import Evidence, Fact, State, known
from npuenv.facts.collect import GROUPS, collect
from npuenv.facts.collector import Collector, FactGroup, fact, not_asked, was_asked
from tests.support.scripted_host import ScriptedHost

if TYPE_CHECKING:
    from npuenv.host import Host


def smi(host: Host) -> Fact[str]:
    return known(host.run(("npu-smi", "info")).out, Evidence("npu-smi info", "table"))


class Cards(FactGroup):
    """Two facts, of which the second takes the first."""

    late: Fact[str] = fact(smi, level=2)
    length: Fact[int] = fact(lambda _, smi: known(len(smi.value), *smi.evidence), "cards.smi")
    smi: Fact[str] = fact(smi)


def collector(level: int, host: ScriptedHost | None = None) -> Collector:
    return Collector(
        host or ScriptedHost(commands={"npu-smi info": "table"}), level, "python3", groups={"cards": Cards}
    )


def test_level_0_runs_no_program_and_says_from_which_level_on_it_is_asked() -> None:
    host = ScriptedHost(commands={"npu-smi info": "table"})
    found = collector(0, host).get("cards.smi")
    assert (found.state, was_asked(found), host.asked) == (State.ABSENT, False, [])
    assert found.evidence[0].line == "needs --level 1"
    assert collector(1).get("cards.smi").value == "table"


@pytest.mark.parametrize(("level", "asked"), [(1, False), (2, True), (3, True)])
def test_a_fact_is_asked_from_its_level_on(level: int, asked: bool) -> None:
    assert was_asked(collector(level).get("cards.late")) is asked


def test_a_fact_that_another_one_needs_is_read_once_whatever_the_order() -> None:
    host = ScriptedHost(commands={"npu-smi info": "table"})
    found = collector(1, host)
    assert (found.get("cards.length").value, found.get("cards.smi").value) == (5, "table")
    assert host.asked == ["npu-smi info"]


def test_a_fact_of_a_group_that_is_not_wanted_is_not_asked() -> None:
    assert collector(1).get("machine.arch") == not_asked(1)
    facts = collect(ScriptedHost(), only=frozenset({"machine"}))
    assert was_asked(facts.machine.arch) and not was_asked(facts.npu.smi)


def test_what_a_fact_needs_is_declared() -> None:
    declared = {f"{name}.{field.name}": field for name, kind in GROUPS.items() for field in dataclasses.fields(kind)}
    needs = {need for field in declared.values() for need in field.metadata["needs"]}
    assert needs <= set(declared)


def test_a_reader_that_fails_is_an_unknown_fact_and_names_its_place() -> None:
    def broken(host: Host) -> Fact[str]:
        raise ValueError("no such row")

    found = collector(1).read(broken)
    assert found.state is State.UNKNOWN
    assert found.evidence[0].line.startswith("ValueError: no such row (broken, line ")


def test_an_interruption_is_not_taken_for_a_failure() -> None:
    def interrupted(host: Host) -> Fact[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collector(1).read(interrupted)


def test_time_limits_are_short_where_an_answer_is_promised_soon() -> None:
    assert [collector(level).timeout(4.0, 20.0) for level in (0, 1, 2, 3)] == [4.0, 4.0, 20.0, 20.0]
