"""A pasted report -> what is wrong, the line that shows it, and what would tell more.

Fixed text of messages is dropped (`text`), facts are read (`facts`, `machine`), signs are derived from them
(`compatibility`, `signals`, `outcome`), the error patterns of the matrix are matched against texts and signs and ranked
(`ranking`). No rule here decides on an error code alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.diagnose.compatibility import fix_commands, model_signs, version_signs
from npuenv.diagnose.facts import read_facts
from npuenv.diagnose.outcome import outcome_signs
from npuenv.diagnose.ranking import MatchContext, judge
from npuenv.diagnose.signals import machine_signs
from npuenv.diagnose.text import Text, drop_boilerplate, strip_prefixes
from npuenv.diagnose.types import Diagnosis, Observation, Verdict
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.error_patterns import ErrorPatterns, load_error_patterns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.diagnose.types import Cause, ReportFacts
    from npuenv.host.report import Paste, PasteLine

__all__ = ["Diagnosis", "Verdict", "diagnose", "read_facts", "signs_of"]

_EXIT = {
    Verdict.CAUSE: ExitCode.PROBLEMS,
    Verdict.NOT_ENVIRONMENT: ExitCode.FINE,
    Verdict.CANNOT_TELL: ExitCode.UNKNOWN,
}


def diagnose(paste: Paste, matrix: Matrix | None = None, patterns: ErrorPatterns | None = None) -> Diagnosis:
    """What a report shows. Raises nothing for any text."""
    matrix, patterns = matrix or load_matrix(), patterns or load_error_patterns()
    text = Text(drop_boilerplate(strip_prefixes(paste.lines), patterns.boilerplate))
    facts = read_facts(text, matrix)
    signs = signs_of(facts, text, matrix, patterns)
    judged = judge(patterns, MatchContext(text, signs, facts.codes))
    return Diagnosis(
        verdict=judged.verdict,
        causes=tuple(replace(cause, commands=fix_commands(cause.id, facts, matrix)) for cause in judged.causes),
        # A report of npuenv's doctor names its findings itself.
        observations=(*([Observation("own-report", paste.own)] if paste.own else []), *judged.observations),
        because=judged.because,
        missing=_missing(paste, facts, signs, judged.verdict, judged.causes),
        facts=facts,
        exit_code=_EXIT[judged.verdict],
    )


def signs_of(facts: ReportFacts, text: Text, matrix: Matrix, patterns: ErrorPatterns) -> Mapping[str, PasteLine]:
    """Every sign of a report, with the line that shows it."""
    signs = {**version_signs(facts, matrix, patterns), **machine_signs(facts, text, matrix)}
    signs.update(model_signs(facts, text, matrix, patterns))
    signs.update(outcome_signs(text, patterns.roles))
    if facts.cann:
        signs["cann-seen"] = facts.cann.line
    if facts.gcc and int(facts.gcc.value.split(".")[0]) < 10:
        signs["gcc-old"] = facts.gcc.line
    for name in {"torch-npu", "vllm-ascend"} & {*facts.packages}:
        signs[f"{name}-seen"] = facts.packages[name].line
    if "failed" not in signs and _all_agrees(signs):
        signs["all-agrees"] = signs["torch-pair-agrees"]
    return signs


_DISAGREE = (
    "differs", "too-old", "too-new", "below", "above", "twice", "not-accepted", "out-of-range", "other-chip",
    "not-the-pair", "for-plugin",
)  # fmt: skip


def _all_agrees(signs: Mapping[str, PasteLine]) -> bool:
    known = "torch-pair-agrees" in signs and ("cann-agrees" in signs or "vllm-pair-agrees" in signs)
    return known and not any(name.endswith(_DISAGREE) for name in signs)


def _missing(
    paste: Paste, facts: ReportFacts, signs: Mapping[str, PasteLine], judged: Verdict, causes: Sequence[Cause]
) -> tuple[str, ...]:
    """What would tell more; nothing where the cause is certain."""
    if paste.own is not None:  # the doctor has seen the machine, not what failed
        return ("error",) if judged is Verdict.CANNOT_TELL and "failed" not in signs else ()
    if judged is Verdict.NOT_ENVIRONMENT or (judged is Verdict.CAUSE and causes[0].confidence >= 0.8):
        return ()
    wanted = []
    if "failed" not in signs:
        wanted.append("error")
    if not {"torch", "torch-npu"} <= set(facts.packages):
        wanted.append("packages")
    if facts.cann is None:
        wanted.append("cann")
    if facts.table is None:
        wanted.append("npu-smi")
    if any(code.startswith(("EI", "EJ")) for code in facts.codes):
        wanted.append("first-rank")
    if any(code.startswith("5070") for code in facts.codes):
        wanted.append("operator-log")
    return tuple(wanted)
