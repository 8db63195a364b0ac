"""A pasted report -> what is wrong, the line that shows it, and what would tell more.

Fixed text of messages is dropped (`boilerplate`), facts are read (`packages`, `machine`, `session`), signs are derived
from them (`compatibility`, `signals`, `container`, `outcome`, `role`, `tracebacks`), the error patterns of the matrix
are matched against texts and signs (`match`) and ranked (`rank`). No rule here decides on an error code alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.diagnose.compatibility import fix_commands, model_signs, version_signs
from npuenv.diagnose.machine import read_codes, read_docker, read_environ, read_machine
from npuenv.diagnose.outcome import outcome_signs, role_signs
from npuenv.diagnose.packages import read_packages
from npuenv.diagnose.ranking import MatchContext, match, observations, rank, verdict, with_discriminators
from npuenv.diagnose.signals import machine_signs
from npuenv.diagnose.text import Text, drop_boilerplate, strip_prefixes
from npuenv.diagnose.types import Cause, Diagnosis, Observation, ReportFacts, Sighting, Verdict
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.error_patterns import ErrorPatterns, load_error_patterns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    facts = read_facts(Text(tuple(map(_plain, text.lines))), matrix)
    signs = signs_of(facts, text, matrix, patterns)
    matches = tuple(match(patterns.rows, MatchContext(text, signs, facts.codes)))
    judged, causes, because = verdict(*rank(matches, patterns.causes), patterns.causes)
    fixed = tuple(replace(cause, commands=fix_commands(cause.id, facts, matrix)) for cause in causes)
    return Diagnosis(
        verdict=judged,
        causes=with_discriminators(fixed, patterns, judged),
        observations=(*_own(paste), *observations(matches)),
        because=Observation(because.id, because.line) if because else None,
        missing=_missing(facts, signs, judged, causes) if paste.own is None else _missing_in_own(signs, judged),
        facts=facts,
        exit_code=_EXIT[judged],
    )


def _own(paste: Paste) -> tuple[Observation, ...]:
    """That the paste holds a report of npuenv's doctor, which names its findings itself."""
    return () if paste.own is None else (Observation("own-report", paste.own),)


def _missing_in_own(signs: Mapping[str, PasteLine], judged: Verdict) -> tuple[str, ...]:
    """What tells more than a report of the doctor: it has seen the machine, not what failed."""
    return ("error",) if judged is Verdict.CANNOT_TELL and "failed" not in signs else ()


# How people write versions around what programs print: full-width marks, emphasis, and the Chinese words.
_MARKS = str.maketrans({"：": ": ", "，": ", ", "（": " (", "）": ") ", "＝": "=", "`": None, "*": None, "、": ", "})
_WORDS = (
    ("版本号", " version "),
    ("版本", " version "),
    ("驱动", " driver "),
    ("昇腾", " Ascend "),
    ("芯片", " chip "),
)
_HAS_WORDS = re.compile("[：，（）＝`*、\u4e00-\u9fff]")
_IS = re.compile(r"\s*[是为]\s*(?=v?\d)")
_BESIDE = re.compile("(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])")


def _plain(line: PasteLine) -> PasteLine:
    """The same line as the readers of facts know it. Example: `CANN版本：8.0.RC3` -> `CANN version: 8.0.RC3`."""
    if not _HAS_WORDS.search(line.text):
        return line
    text = line.text
    for word, other in _WORDS:
        text = text.replace(word, other)
    text = _BESIDE.sub(" ", _IS.sub(": ", text))
    return replace(line, text=re.sub(" +", " ", text.translate(_MARKS)).replace(" :", ":").strip())


def read_facts(text: Text, matrix: Matrix) -> ReportFacts:
    """Everything that the report says of the machine."""
    lines = text.lines
    packages, machine = read_packages(lines), read_machine(text, matrix)
    return ReportFacts(
        packages=_with_images(packages.best(), machine.images),
        listed=frozenset(packages.listed),
        changed=packages.changed,
        cann=machine.cann,
        driver=machine.driver,
        generation=machine.generation,
        chip=machine.chip,
        arch=machine.arch,
        python=machine.python,
        glibc=machine.glibc,
        gcc=machine.gcc,
        images=tuple(machine.images),
        environ=read_environ(lines),
        docker=read_docker(lines),
        table=machine.table,
        codes=read_codes(text),
    )


def _with_images(packages: dict[str, Sighting[str]], images: Sequence[Sighting[str]]) -> dict[str, Sighting[str]]:
    """A vllm-ascend image says its version where no list does."""
    for image in images:
        name, _, tag = image.value.rpartition("/")[2].partition(":")
        version = re.match(r"v(\d+\.\d+[\w.]*)", tag)
        if name == "vllm-ascend" and version and "vllm-ascend" not in packages:
            packages["vllm-ascend"] = Sighting(version.group(1), image.line)
    return packages


def signs_of(facts: ReportFacts, text: Text, matrix: Matrix, patterns: ErrorPatterns) -> Mapping[str, PasteLine]:
    """Every sign of a report, with the line that shows it."""
    signs = {**version_signs(facts, matrix, patterns), **machine_signs(facts, text, matrix)}
    signs.update(model_signs(facts, text, matrix, patterns))
    signs.update(outcome_signs(text))
    signs.update(role_signs(text.lines, patterns.roles))
    if facts.arch:
        signs[f"arch-{facts.arch.value}"] = facts.arch.line
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
    "differs",
    "too-old",
    "too-new",
    "below",
    "above",
    "twice",
    "not-accepted",
    "out-of-range",
    "other-chip",
    "not-the-pair",
    "for-plugin",
)


def _all_agrees(signs: Mapping[str, PasteLine]) -> bool:
    known = "torch-pair-agrees" in signs and ("cann-agrees" in signs or "vllm-pair-agrees" in signs)
    return known and not any(name.endswith(_DISAGREE) for name in signs if name != "torchaudio-differs")


def _missing(
    facts: ReportFacts, signs: Mapping[str, PasteLine], judged: Verdict, causes: Sequence[Cause]
) -> tuple[str, ...]:
    """What would tell more; nothing where the cause is certain."""
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
