"""What a break has to lead to, read from `breaks.toml`, and what a run of the doctor lacks of it.

Each function returns complaints, none when everything is as expected.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.checks import CHECKS
from npuenv.core.documents import load_toml
from npuenv.core.messages import Message, say
from tests.doctor.broken import damage, real, sets, starting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.doctor.broken.bench import Bench, Seen

LONGEST_S = 55.0  # below the shortest limit of an import: a run that waits for one is noticed, a busy machine is not
SLOW_S = 180.0  # where a limit of time has to pass, or a real torch is read from a cold disk, on a busy machine
LONGEST_LINE = 2000  # of evidence: what a damaged environment prints must not fill the report
_PROBLEMS = ("fail", "warn")


@dataclass(frozen=True, slots=True)
class Named:
    """A check that names the fault."""

    check: str
    words: tuple[str, ...]  # all of them stand in its sentence or its evidence
    status: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """One row."""

    name: str
    base: str
    options: tuple[str, ...]
    must: tuple[Named, ...]  # empty: the environment works in spite of the break
    also: frozenset[str]  # checks that may speak of it too
    is_slow: bool  # the doctor has to wait for a limit of time
    like: str  # a row that shows nearly the same sooner; "": there is none

    @property
    def is_real(self) -> bool:
        """Made of wheels from an index."""
        return self.base.startswith("real-")


def expected() -> list[Expected]:
    """All rows."""
    return [
        Expected(
            row["name"],
            row["base"],
            tuple(row.get("options", ())),
            tuple(
                Named(each["check"], tuple(each["words"]), tuple(each.get("status", _PROBLEMS)))
                for each in row.get("must", ())
            ),
            frozenset(row.get("also", ())),
            row.get("slow", False),
            row.get("like", ""),
        )
        for row in load_toml(Path(__file__).parent / "breaks.toml")["break"]
    ]


def breaks() -> dict[str, Callable[[Bench], None]]:
    """The functions by the names that the rows give them; those of real wheels begin with `real.`."""
    found: dict[str, Callable[[Bench], None]] = {}
    for module in (damage, starting, sets, real):
        prefix = "real." if module is real else ""
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
                found[prefix + name] = function
    return found


def incomplete(seen: Seen, longest_s: float = LONGEST_S) -> Iterator[str]:
    """What a report lacks to be complete."""
    if seen.code not in (0, 1, 3):
        yield f"exit code {seen.code}: {seen.err[-800:]}"
    if "Traceback" in seen.err:
        yield f"traceback: {seen.err[-800:]}"
    if seen.seconds > longest_s:
        yield f"{seen.seconds:.0f} seconds"
    try:
        report = seen.report
    except json.JSONDecodeError as error:
        yield f"no JSON: {error}: {seen.out[:200]!r}"
        return
    if [each["check"] for each in report["findings"]] != [check.id for check in CHECKS]:
        yield "not one finding per check"
    if report["exit"] != seen.code:
        yield f"exit code {seen.code}, the report says {report['exit']}"
    for each in report["findings"]:
        if each["says"] == say(Message("checks.crashed", {"check": each["check"]})):
            yield f"{each['check']} crashed: {each['evidence']}"
        if any(len(item["line"]) > LONGEST_LINE for item in each["evidence"]):
            yield f"{each['check']} holds a line without end"


def unnamed(row: Expected, seen: Seen) -> Iterator[str]:
    """Checks that should name the fault and do not, or without the deciding words."""
    found = {each["check"]: each for each in seen.report["findings"]}
    for named in row.must:
        finding = found[named.check]
        if finding["status"] not in named.status:
            yield f"{named.check} is {finding['status']}: {finding['says']}"
            continue
        lacking = [word for word in named.words if word not in _text(finding)]
        if lacking:
            yield f"{named.check} does not say {lacking}: {_text(finding)}"


def _text(finding: dict[str, Any]) -> str:
    lines = [f"{each['command']} | {each['line']}" for each in finding["evidence"]]
    return "\n".join([finding["says"], *lines])


def alarms(row: Expected, seen: Seen, healthy: Seen) -> Iterator[str]:
    """Checks of the target Python that speak though they have nothing to do with the break.

    Where the Python itself does not run, that nothing else of it is known is no alarm.
    """
    wanted = {named.check for named in row.must} | row.also
    before, now = healthy.troubles, seen.troubles
    runs = "python.found" not in now
    for check, status in now.items():
        if check not in wanted and before.get(check) != status and (runs or status != "unknown"):
            finding = next(each for each in seen.report["findings"] if each["check"] == check)
            yield f"{check} is {status}: {_text(finding)}"
