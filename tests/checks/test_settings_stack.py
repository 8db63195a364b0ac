"""What `--stack NAME` adds: CANN, Python and settings of a named stack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.checks import check_all
from npuenv.checks.session.settings import CHECKS
from npuenv.core.fact import Evidence, Fact, known, unknown
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from npuenv.facts.cann.toolkit import Cann
from npuenv.facts.collect import Facts, collect
from npuenv.facts.npu.driver import VersionInfo
from npuenv.facts.python import Python
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

NAME = "verl-0.7.1-cann8.5.0"
STACK = tuple(check for check in CHECKS if check.id.startswith("stack."))
SEEN = Evidence("a file", "a line")


def stack(name: str = NAME) -> Stack:
    found = resolve(Request(stack=name), load_matrix())
    assert isinstance(found, Stack)
    return found


def python(version: str) -> Fact[Python]:
    return known(Python("/env/bin/python", version, "venv", "/env", "glibc 2.35", {}, {}, (), ()), SEEN)


def cann(version: str) -> Fact[Cann]:
    return known(Cann("/cann", version, "", "aarch64", "cann", "x", "/cann/set_env.sh", (), True), SEEN)


def judged(named: Stack | None, *, has_cann: Fact[Cann], has_python: Fact[Python], **variables: str) -> list[Finding]:
    from tests.support.scripted_host import ScriptedHost

    blank = collect(ScriptedHost(), only=frozenset())
    facts: Facts = replace(
        blank,
        environment=known(variables, SEEN),
        npu=replace(blank.npu, driver=known(VersionInfo("25.2.0", "/driver/version.info", ""), SEEN)),
        cann=replace(blank.cann, toolkit=has_cann),
        python=replace(blank.python, interpreter=has_python),
    )
    return list(check_all(facts, stack=named, checks=STACK))


def test_a_machine_that_is_as_the_stack_wants_it_is_fine() -> None:
    named = stack()
    found = judged(named, has_cann=cann("8.5.0.B160"), has_python=python("3.11.14"), **named.env)
    assert [finding.status for finding in found[:2]] == [Status.OK, Status.OK]
    assert found[2].status in (Status.OK, Status.SKIP)


@pytest.mark.parametrize(
    ("version", "status"),
    [("8.5.1", Status.WARN), ("8.3.RC1", Status.FAIL), ("9.0.0", Status.FAIL), ("of today", Status.UNKNOWN)],
)
def test_another_cann_is_told_with_both_versions(version: str, status: Status) -> None:
    finding = judged(stack(), has_cann=cann(version), has_python=python("3.11.14"))[0]
    assert (finding.check, finding.status) == ("stack.cann", status)
    assert version in say(finding.says) and "8.5.0" in say(finding.says)
    assert (finding.fix is None) == (status is Status.UNKNOWN)


def test_another_python_fails_and_an_unread_one_is_unknown() -> None:
    bad = judged(stack(), has_cann=cann("8.5.0"), has_python=python("3.10.2"))[1]
    assert (bad.status, bad.fix and bad.fix.commands) == (Status.FAIL, (("npuenv", "install", NAME),))
    blind = judged(stack(), has_cann=unknown(SEEN), has_python=unknown(SEEN))
    assert [finding.status for finding in blind[:2]] == [Status.UNKNOWN, Status.UNKNOWN]


def test_settings_that_differ_or_are_not_there_can_be_written_down() -> None:
    named = replace(stack(), env={"HCCL_CONNECT_TIMEOUT": "3600", "OMP_NUM_THREADS": "1", "JAVA_HOME": "/x"})
    finding = judged(named, has_cann=cann("8.5.0"), has_python=python("3.11.1"), OMP_NUM_THREADS="8")[2]
    assert finding.status is Status.WARN and finding.fix is not None
    assert finding.fix.commands == (("export", "HCCL_CONNECT_TIMEOUT=3600"), ("export", "OMP_NUM_THREADS=1"))
    assert finding.evidence[1] == Evidence("$OMP_NUM_THREADS", f"8, {NAME}: 1")
    good = judged(
        named, has_cann=cann("8.5.0"), has_python=python("3.11.1"), HCCL_CONNECT_TIMEOUT="3600", OMP_NUM_THREADS="1"
    )[2]
    assert good.status is Status.OK
    nothing = judged(replace(named, env={"JAVA_HOME": "/x"}), has_cann=cann("8.5.0"), has_python=python("3.11.1"))[2]
    assert nothing.status is Status.SKIP


def test_without_a_named_stack_nothing_is_held_against_one() -> None:
    found = judged(None, has_cann=cann("8.5.0"), has_python=python("3.11.1"))
    assert {finding.status for finding in found} == {Status.SKIP}


def test_a_cpu_stack_has_no_cann_to_compare() -> None:
    found = judged(stack("cpu"), has_cann=cann("8.5.0"), has_python=python("3.11.1"))
    assert found[0].status is Status.SKIP
