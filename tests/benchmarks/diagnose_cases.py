"""How well pasted reports are diagnosed: counts over a folder of labelled cases. No timed test; run it by hand.

    python -m tests.benchmarks.diagnose_cases [FOLDER] [--show] [--only FILE_WITH_NAMES]

A failure is right when the first cause is its label or an accepted one, "named" when any is. A healthy case is right
when nothing is called a cause. Grades A and B are counted apart from C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuenv.core.toml_input import load_file
from npuenv.diagnose import Diagnosis, Verdict, diagnose
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste

ROOT = Path(__file__).parent.parent.parent

CASES = ROOT.parent / "shared" / "cases"


@dataclass(frozen=True)
class Score:
    """How one case came out."""

    name: str
    case: dict[str, Any]
    diagnosis: Diagnosis

    @property
    def is_sure(self) -> bool:
        return self.diagnosis.verdict is Verdict.CAUSE

    @property
    def named(self) -> list[str]:
        return [cause.id for cause in self.diagnosis.causes]

    @property
    def outcome(self) -> str:
        """right, named, unknown or wrong for a failure; right, alarm or claim for a healthy case."""
        if self.case["kind"] == "healthy":
            claimed = {*self.named} & {*self.case.get("must_not_claim", ())}
            return "claim" if claimed else "alarm" if self.is_sure else "right"
        accepted = {self.case["cause"], *self.case.get("also_acceptable", ())}
        if self.named and self.named[0] in accepted and self.is_sure:
            return "right"
        if not self.is_sure:
            return "unknown"
        return "named" if accepted & {*self.named} else "wrong"


def score(path: Path) -> Score:
    """Diagnoses the report of one case file."""
    case = load_file(path)
    return Score(path.stem, case, diagnose(read_paste(case["report"].encode(), Redactor().text)))


def score_folder(folder: Path, only: set[str] | None = None) -> list[Score]:
    """All cases of a folder, by name."""
    return [score(path) for path in sorted(folder.glob("*.toml")) if only is None or path.stem in only]


def table(scores: list[Score]) -> str:
    """The counts, failures by grade, healthy ones apart."""
    lines = []
    for title, grades in (("A+B", "AB"), ("C", "C")):
        group = [each for each in scores if each.case["kind"] == "failure" and each.case["grade"] in grades]
        counts = Counter(each.outcome for each in group)
        top3 = sum(bool({e.case["cause"], *e.case.get("also_acceptable", ())} & {*e.named[:3]}) for e in group)
        lines.append(
            f"failures {title}: {len(group)}  top-1 {counts['right']}  named among three {top3}  "
            f"unknown {counts['unknown']}  wrong {counts['wrong'] + counts['named']}"
        )
    healthy = [each for each in scores if each.case["kind"] == "healthy"]
    counts = Counter(each.outcome for each in healthy)
    lines.append(
        f"healthy: {len(healthy)}  right {counts['right']}  false alarms {counts['alarm'] + counts['claim']}  "
        f"must_not_claim {counts['claim']}"
    )
    return "\n".join(lines)


def confusions(scores: list[Score]) -> str:
    """What was not right, by label."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for each in scores:
        if each.outcome != "right":
            found = ", ".join(f"{cause.id} {cause.confidence:.2f}" for cause in each.diagnosis.causes) or "-"
            by_label[each.case["cause"]].append(
                f"  {each.name} [{each.case['grade']}] {each.outcome}: {each.diagnosis.verdict.value}: {found}"
            )
    return "\n".join(line for label in sorted(by_label) for line in (label, *by_label[label]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts over a folder of labelled cases.")
    parser.add_argument("folder", nargs="?", type=Path, default=CASES)
    parser.add_argument("--only", type=Path, help="a file with the names of the cases to take")
    parser.add_argument("--show", action="store_true", help="every case with its causes and lines")
    chosen = parser.parse_args()
    if not chosen.folder.is_dir():
        print(f"no folder {chosen.folder}")
        return 2
    only = {Path(name).stem for name in chosen.only.read_text().split()} if chosen.only else None
    start = time.perf_counter()
    scores = score_folder(chosen.folder, only)
    took = time.perf_counter() - start
    if chosen.show:
        show(scores)
    print(table(scores))
    print(confusions(scores))
    print(f"{len(scores)} cases in {took:.2f} s")
    return 0


def show(scores: list[Score]) -> None:
    for each in scores:
        print(f"{each.name} {each.case['cause']}: {each.outcome} ({each.diagnosis.verdict.value})")
        for cause in each.diagnosis.causes:
            print(f"    {cause.confidence:.2f} {cause.rules[0]}  {cause.line.number}: {cause.line.shown[:110]}")


if __name__ == "__main__":
    sys.exit(main())
