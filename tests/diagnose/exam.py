"""How well pasted reports are diagnosed: counts over a folder of labelled cases.

    python -m tests.diagnose.exam FOLDER [--from NUMBER] [--to NUMBER] [--show]

A failure is right when the first cause is its label or an accepted one, or when the label says that nobody could tell
and the diagnosis says so too. Else it is unknown when no cause is claimed, wrong when another one is. A healthy case is
right when nothing is called a cause, or only what the case may also report, an alarm otherwise; a claim is an alarm
that the case forbids by name. Grades A and B are counted apart from C. Results are kept in EXAMS.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import load_toml
from npuenv.diagnose import Diagnosis, Verdict, diagnose
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Iterable


def accepted(case: dict[str, Any]) -> set[str]:
    """The causes that are right for a case."""
    return {case["cause"], *case.get("also_acceptable", ())}


@dataclass(frozen=True)
class Score:
    """How one case came out."""

    name: str
    case: dict[str, Any]
    diagnosis: Diagnosis

    @property
    def outcome(self) -> str:
        """right, unknown or wrong for a failure; right, alarm or claim for a healthy case."""
        named = [cause.id for cause in self.diagnosis.causes]
        is_sure = self.diagnosis.verdict is Verdict.CAUSE
        if self.case["kind"] == "healthy":
            claimed = {*named} & {*self.case.get("must_not_claim", ())}
            is_alarm = is_sure and named[0] not in self.case.get("may_also_report", ())
            return "claim" if claimed else "alarm" if is_alarm else "right"
        if not is_sure:
            is_label = "cannot-tell" in accepted(self.case) and self.diagnosis.verdict is Verdict.CANNOT_TELL
            return "right" if is_label else "unknown"
        return "right" if named[0] in accepted(self.case) else "wrong"

    @property
    def is_named(self) -> bool:
        """Whether a right cause is among the first three."""
        return bool(accepted(self.case) & {cause.id for cause in self.diagnosis.causes[:3]})

    def __str__(self) -> str:
        found = ", ".join(f"{cause.id} {cause.confidence:.2f}" for cause in self.diagnosis.causes) or "-"
        return f"{self.name} [{self.case['grade']}] {self.case['cause']}: {self.outcome}: {found}"


def score(path: Path) -> Score:
    """Diagnoses the report of one case file."""
    case = load_toml(path)
    return Score(path.stem, case, diagnose(read_paste(case["report"].encode(), Redactor().text)))


def score_files(paths: Iterable[Path]) -> list[Score]:
    """All cases, by name."""
    return [score(path) for path in sorted(paths)]


def table(scores: list[Score]) -> str:
    """The counts, failures by grade, healthy ones apart."""
    lines = []
    for title, grades in (("A+B", "AB"), ("C", "C")):
        group = [each for each in scores if each.case["kind"] == "failure" and each.case["grade"] in grades]
        counts = Counter(each.outcome for each in group)
        lines.append(
            f"failures {title}: {len(group)}  right {counts['right']}  unknown {counts['unknown']}  "
            f"wrong {counts['wrong']}  named among three {sum(each.is_named for each in group)}"
        )
    healthy = [each for each in scores if each.case["kind"] == "healthy"]
    counts = Counter(each.outcome for each in healthy)
    lines.append(
        f"healthy: {len(healthy)}  right {counts['right']}  alarms {counts['alarm'] + counts['claim']}  "
        f"forbidden claims {counts['claim']}"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts over a folder of labelled cases.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="first", type=int, help="lowest number of a case file NUMBER.toml")
    parser.add_argument("--to", dest="last", type=int, help="highest number")
    parser.add_argument("--show", action="store_true", help="the lines that speak for each cause too")
    options = parser.parse_args()
    paths = sorted(options.folder.glob("*.toml"))
    if options.first is not None:
        paths = [path for path in paths if int(path.stem) >= options.first]
    if options.last is not None:
        paths = [path for path in paths if int(path.stem) <= options.last]
    if not paths:
        print(f"no cases in {options.folder}")
        return 2
    scores = score_files(paths)
    for each in scores:
        print(each)
        for cause in each.diagnosis.causes if options.show else ():
            print(f"    {cause.confidence:.2f} {cause.rules[0]}  {cause.line.number}: {cause.line.shown[:110]}")
    print(table(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
