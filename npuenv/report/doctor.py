"""What the doctor found, as values that every form of the report is made from, and as the `npuenv.doctor/1` document.

Nothing is judged here; findings come from `npuenv.checks`. Other formats: `terminal` and `doctor_forms` beside this
file.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv import __version__
from npuenv.checks import by_severity, exit_code
from npuenv.core.finding import PROBLEMS, Status
from npuenv.core.messages import Message, clean, say
from npuenv.core.shell import can_be_written_down, shell_line
from npuenv.facts.collect import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.core.finding import Finding, Fix
    from npuenv.facts.collect import Facts

SCHEMA = "npuenv.doctor/1"
_UNREAD = "checks.unknown-input"
_NOT_HELD = "not in the capture"  # of an older npuenv, or of a lower level: one thing for all facts that need it
# From the ground up: what is wrong further down explains what is wrong above it.
LAYERS = (
    *("machine", "container", "devices", "driver", "cards", "cann", "nnal", "session", "python", "stack"),
    *("network", "ray"),
)
_LAST = ("devices.computes",)  # needs all of the layers, so it is the consequence wherever another one is ill


class Scope(NamedTuple):
    """What a run was asked to judge, and how far it went."""

    level: int = 1
    framework: str | None = None  # --for
    stack: str | None = None  # --stack


class FindingGroup(NamedTuple):
    """Findings that are told together: one, or several that could not be judged for one and the same reason."""

    findings: tuple[Finding, ...]
    because: str | None = None  # the id of a check that is told before and has the same evidence

    @property
    def first(self) -> Finding:
        return self.findings[0]


def document(
    findings: Sequence[Finding], facts: Facts, *, lang: str = "en", framework: str | None = None, **asked: Any
) -> dict[str, Any]:
    """The JSON document. Keys, ids and evidence do not depend on the language, `says` does.

    `asked` takes the other fields of `Scope`: `level`, `stack`.
    """
    wanted = Scope(framework=framework, **asked)
    number = counts(findings)
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(exit_code(findings, framework=framework)),
        "asked": {"for": wanted.framework, "stack": wanted.stack, "level": wanted.level},
        "summary": {status.value: number[status] for status in Status},
        "facts": to_json(facts),
        "findings": [finding_json(finding, lang) for finding in findings],
    }


def finding_json(finding: Finding, lang: str) -> dict[str, Any]:
    """One finding of a `--json` document."""
    return {
        "check": finding.check,
        "status": finding.status.value,
        "says": say(finding.says, lang),
        "evidence": [{"command": item.command, "line": item.line} for item in finding.evidence],
        "source": finding.source,
        "fix": _fix_to_json(finding.fix, lang) if finding.fix else None,
    }


def detail_lines(finding: Finding, lang: str) -> Iterator[str]:
    """What a finding rests on and what fixes it, as plain lines."""
    for item in finding.evidence:
        yield f"{clean(item.command)} -> {clean(item.line)}"
    if finding.fix is not None:
        yield fix_text(finding.fix, lang)
        yield from (f"$ {shell_line(argv)}" for argv in finding.fix.commands)


def fix_text(fix: Fix, lang: str) -> str:
    """The sentence of a fix, with its warning where it is dangerous."""
    return say(Message("doctor.fix-dangerous" if fix.is_dangerous else "doctor.fix", {"says": fix.says}), lang)


def counts(findings: Iterable[Finding]) -> Mapping[Status, int]:
    """How many findings there are of each status."""
    return Counter(finding.status for finding in findings)


def by_area(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """The findings of each area of checks, areas and findings in their order."""
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.check.partition(".")[0], []).append(finding)
    return areas


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first; among equals, what lies further down in the machine first, because the rest may follow from it."""
    return by_severity(sorted(findings, key=lambda finding: _layer(finding.check)))


def grouped(findings: Iterable[Finding], *, is_merging: bool = True) -> list[FindingGroup]:
    """The findings in order, those put together that could not be judged for the same reason with the same evidence.

    `because` names another problem with that evidence. Without `is_merging` each finding is a group of its own.
    """
    groups: list[FindingGroup] = []
    ordered = in_order(findings)
    # What says more of it than that it is unknown is the cause, also where it stands further down.
    named = [each for each in ordered if each.status in (Status.FAIL, Status.UNKNOWN) and not _is_mere_unknown(each)]
    causes: dict[object, str] = {}
    for each in named:
        causes.update({item: each.check for item in each.evidence if item not in causes})
    for finding in ordered:
        can_join = is_merging and _is_mere_unknown(finding)
        place = (
            next((at for at, group in enumerate(groups) if _is_like(finding, group.first)), None) if can_join else None
        )
        if place is not None:
            groups[place] = FindingGroup((*groups[place].findings, finding), groups[place].because)
            continue
        groups.append(FindingGroup((finding,), _cause(finding, causes) if can_join else None))
        if finding.status in PROBLEMS:
            for item in finding.evidence:
                causes.setdefault(item, finding.check)
    return groups


def is_mendable(finding: Finding) -> bool:
    """Whether `doctor --fix` does something about it: it runs the cure, or writes it down for the user's shell."""
    fix = finding.fix
    if fix is None or fix.is_dangerous or fix.needs_root or finding.status not in (Status.FAIL, Status.WARN):
        return False
    return bool(fix.commands) and (fix.is_automatic or all(map(can_be_written_down, fix.commands)))


def machine_lines(facts: Facts, lang: str) -> tuple[str, str]:
    """Which machine this is, and what is on it: chips, driver, CANN, torch; what is not known is left out."""
    machine, python = facts.machine, facts.python.interpreter.value
    parts = [machine.system.value.name if machine.system.value else "", machine.arch.value or ""]
    if machine.container.value:
        parts.append(say(Message("doctor.in-container", {"kind": machine.container.value}), lang))
    if python:
        parts.append(f"Python {python.version} ({python.executable})")
    table, cann, driver = facts.npu.smi.value, facts.cann.toolkit.value, facts.npu.driver.value
    names = Counter(card.name or "?" for card in table.cards) if table else Counter[str]()
    versions = [f"{count} x {name}" for name, count in names.items()]
    versions += [f"driver {driver.version}"] if driver else []
    versions += [f"CANN {cann.version}"] if cann else []
    installed = python.distributions if python else {}
    versions += [f"{name} {installed[name]}" for name in ("torch", "torch-npu", "vllm-ascend") if name in installed]
    return " · ".join(filter(None, parts)), "  ".join(versions)


def _fix_to_json(fix: Fix, lang: str) -> dict[str, Any]:
    return {
        "says": say(fix.says, lang),
        "commands": [list(argv) for argv in fix.commands],
        "dangerous": fix.is_dangerous,
        "automatic": fix.is_automatic,
        "needs_root": fix.needs_root,
    }


def _layer(check: str) -> int:
    area = check.partition(".")[0]
    return LAYERS.index(area) if area in LAYERS and check not in _LAST else len(LAYERS)


def _is_mere_unknown(finding: Finding) -> bool:
    """Whether it only says that something could not be read, with nothing to do about it here."""
    return finding.status is Status.UNKNOWN and finding.fix is None and bool(finding.evidence)


def _is_like(finding: Finding, other: Finding) -> bool:
    """Whether two that could not be judged are one thing for a reader.

    The runner's own reason names the facts that were not read; there the evidence decides, not the names.
    """
    if not _is_mere_unknown(other) or finding.says.key != other.says.key:
        return False
    if finding.says.key == _UNREAD:
        lines = {item.line for item in (*finding.evidence, *other.evidence)}
        return lines == {_NOT_HELD} or set(finding.evidence) <= set(other.evidence)
    return finding.says.args == other.says.args and finding.evidence == other.evidence


def _cause(finding: Finding, causes: Mapping[object, str]) -> str | None:
    """An earlier problem whose evidence covers this finding's."""
    named = {causes.get(item) for item in finding.evidence}
    return named.pop() if len(named) == 1 else None
