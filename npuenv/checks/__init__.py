"""Checks over facts: all of them in order, how they are run and summarised.

The order is that in which a person would check: machine, cards, driver, CANN, Python, session, network.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from npuenv.checks import machine, ray
from npuenv.checks.base import Check, CheckResult, Context, skip, title, unknown
from npuenv.checks.cann import toolkit
from npuenv.checks.network import hccn, host
from npuenv.checks.npu import boards, cards, devices, driver
from npuenv.checks.npu.boards import has_sign_of_cards
from npuenv.checks.python import environment, imports, limits, torch_family, vllm
from npuenv.checks.session import settings
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence, State
from npuenv.core.finding import WORST_FIRST, Finding, Fix, Status
from npuenv.facts.collector import was_asked
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.facts.collect import Facts
    from npuenv.resolve.types import Stack


__all__ = ["Context", "Finding", "Fix", "Status", "by_severity", "check_all", "exit_code", "title"]

NPU = (*cards.CHECKS, *boards.CHECKS, *devices.CHECKS, *driver.CHECKS)
_PACKAGES = (*torch_family.TORCH, *imports.CHECKS, *limits.CHECKS, *torch_family.CHECKS, *imports.LOADER)
PYTHON = (*environment.CHECKS, *_PACKAGES, *vllm.CHECKS, *limits.RAY_TOKEN)
NETWORK = (*hccn.CHECKS, *host.CHECKS)
CHECKS = (*machine.CHECKS, *NPU, *toolkit.CHECKS, *PYTHON, *settings.CHECKS, *NETWORK, *ray.CHECKS)

_EVIDENCE_AT_MOST = 6
# Facts that are unknown whenever the first one is, and the check that reports it; the others only refer to it.
REPORTED_BY = {"python.interpreter": "python.found", "cann.toolkit": "cann.found"}
_OF_CARDS = ("cards.", "devices.", "driver.", "network.")


def check_all(
    facts: Facts,
    *,
    framework: str | None = None,
    level: int = 1,
    stack: Stack | None = None,
    checks: tuple[Check, ...] | None = None,
) -> tuple[Finding, ...]:
    """One finding per check, in the order of declaration. `checks` defaults to those of npuenv."""
    context = Context(facts, load_matrix(), framework, stack)
    asked = checks or CHECKS
    here = {check.id for check in asked}
    owners = {fact: check for fact, check in REPORTED_BY.items() if check in here}
    return tuple(_finding(check, _judge(check, context, level, owners), context) for check in asked)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Failures first, then unknowns, warnings, the rest; within each in the order of declaration."""
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.status))


def exit_code(findings: Iterable[Finding], *, framework: str | None = None) -> ExitCode:
    """1 if anything fails; else 3 if a check that the framework requires is unknown; else 0.

    Without a framework, any framework's requirements of the cards and their tools count; without cards they are
    skipped.
    """
    required = {
        check.id
        for check in CHECKS
        if framework in check.required_for
        or (framework is None and check.required_for and check.id.startswith(_OF_CARDS))
    }
    statuses = [(finding.status, finding.check) for finding in findings]
    if any(status is Status.FAIL for status, _ in statuses):
        return ExitCode.PROBLEMS
    if any(status is Status.UNKNOWN and check in required for status, check in statuses):
        return ExitCode.UNKNOWN
    return ExitCode.FINE


def _judge(check: Check, context: Context, level: int, owners: Mapping[str, str]) -> CheckResult:
    if check.is_about_cards and context.framework == "cpu":
        return skip("skip-cpu")
    if check.is_about_cards and not has_sign_of_cards(context.facts):
        return skip("skip-no-card")
    if level < check.level:
        return skip("skip-level", level=check.level)
    if check.is_between_nodes and not context.spans_nodes:
        return skip("network.one-node")
    facts = [context.facts.at(name) for name in check.reads]
    left_out = [fact for fact in facts if not was_asked(fact)]
    if left_out:
        return skip("skip-level", level=left_out[0].needs_level)
    blind = [name for name, fact in zip(check.reads, facts) if fact.state is State.UNKNOWN]
    if blind:
        cause = next((owner for name in blind if (owner := _owner(context.facts, name, owners))), None)
        if cause is not None and cause != check.id:
            return skip("because", cause=cause)
        return unknown("unknown-input", *_evidence(context.facts, blind), facts=tuple(blind))
    try:
        return check.judge(context)
    except Exception as error:  # a bug in a check must not hide the findings of the others
        location = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__}: {error} ({location.name}, line {location.lineno})"
        return unknown("crashed", Evidence(check.id, line), check=check.id)


def _owner(facts: Facts, name: str, owners: Mapping[str, str]) -> str | None:
    """The check that reports why a fact is unknown: that of the fact itself, or of one with the same evidence."""
    here = facts.at(name)
    for fact, check in owners.items():
        first = facts.at(fact)
        if first.state is State.UNKNOWN and (name == fact or (first.evidence and here.evidence == first.evidence)):
            return check
    return None


def _finding(check: Check, verdict: CheckResult, context: Context) -> Finding:
    evidence = verdict.evidence or _evidence(context.facts, () if verdict.status is Status.SKIP else check.reads)
    return Finding(check.id, verdict.status, verdict.says, evidence[:_EVIDENCE_AT_MOST], check.source, verdict.fix)


def _evidence(facts: Facts, names: Iterable[str]) -> tuple[Evidence, ...]:
    lines = [item for name in names for item in facts.at(name).evidence if item.line]
    return tuple(dict.fromkeys(lines))
