"""A pasted report -> what is wrong, the line that shows it, and what would tell more. Start from `diagnose`.

Errors that were mended further down are set aside (`reruns`). Facts are read first (`packages`, `machine`, `session`),
then signs are worked out of them (`agree`, `circumstances`, `outcome`), then the known problems of the matrix are held
against texts and signs (`match`) and ranked (`rank`). No rule here decides on an error code alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.diagnose.agree import agreement
from npuenv.diagnose.fix_commands import cure
from npuenv.diagnose.log_prefixes import bare
from npuenv.diagnose.machine import read_machine
from npuenv.diagnose.match import Ground, match
from npuenv.diagnose.outcome import outcome, recovery
from npuenv.diagnose.packages import read_packages
from npuenv.diagnose.quoted import unmentioned
from npuenv.diagnose.rank import LEAST, SURE, observations, rank, separated, verdict
from npuenv.diagnose.resolved import mended
from npuenv.diagnose.search import Text
from npuenv.diagnose.session import read_codes, read_docker, read_environ
from npuenv.diagnose.signals import circumstances
from npuenv.diagnose.types import Cause, Diagnosis, Facts, Observation, Seen, Verdict
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.error_patterns import Problems, load_problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.diagnose.recovered import Recovery
    from npuenv.host.report import Line, Paste

__all__ = ["Diagnosis", "Verdict", "diagnose", "read_facts", "signs_of"]

_EXIT = {
    Verdict.CAUSE: ExitCode.PROBLEMS,
    Verdict.NOT_ENVIRONMENT: ExitCode.FINE,
    Verdict.CANNOT_TELL: ExitCode.UNKNOWN,
}


def diagnose(paste: Paste, matrix: Matrix | None = None, problems: Problems | None = None) -> Diagnosis:
    """What a report shows. Raises nothing for any text."""
    matrix, problems = matrix or load_matrix(), problems or load_problems()
    lines = unmentioned(bare(paste.lines))
    history = mended(lines)
    text = Text(tuple(line for at, line in enumerate(lines) if at not in history))
    facts = read_facts(Text(tuple(map(_plain, lines))), matrix)
    facts = _with_codes_of(text, facts) if history else facts
    recovered = recovery(text)
    signs = dict(signs_of(facts, text, matrix, problems, recovered))
    if history:
        signs.pop("all-agrees", None)  # it says that nothing failed
    matches = match(problems.rows, Ground(text, signs, facts.codes, recovered.lines))
    causes, other = rank(matches)
    said = verdict(causes, other)
    if said is Verdict.NOT_ENVIRONMENT:
        causes, history = (), frozenset()
    cured = tuple(replace(cause, commands=cure(cause.id, facts, matrix)) for cause in causes)
    past = Text(tuple(line for at, line in enumerate(lines) if at in history))
    return Diagnosis(
        verdict=said,
        causes=(*separated(cured, problems), *_past(past, facts, causes, matrix, problems)),
        observations=(*_own(paste), *observations(matches)),
        because=Observation(other.id, other.line) if other and said is Verdict.NOT_ENVIRONMENT else None,
        missing=_missing(facts, signs, said, causes) if paste.own is None else _missing_in_own(signs, said),
        facts=facts,
        exit_code=_EXIT[said],
    )


def _with_codes_of(text: Text, facts: Facts) -> Facts:
    """The facts with the error codes of a part of the report."""
    return replace(facts, codes=read_codes(Text(tuple(map(_plain, text.lines)))))


def _past(past: Text, facts: Facts, causes: Sequence[Cause], matrix: Matrix, problems: Problems) -> Iterator[Cause]:
    """What a mended error had come from, as the weakest candidate: who looks for it finds it. One at most."""
    if not past.lines:
        return
    facts = _with_codes_of(past, facts)
    signs = signs_of(facts, past, matrix, problems)
    known = {cause.id for cause in causes}
    found, _ = rank(match(problems.rows, Ground(past, signs, facts.codes)))
    for cause in found[:1]:
        if cause.confidence >= SURE and cause.id not in known:
            yield replace(cause, confidence=LEAST, commands=cure(cause.id, facts, matrix))


def _own(paste: Paste) -> tuple[Observation, ...]:
    """That the paste holds a report of npuenv's doctor, which names its findings itself."""
    return () if paste.own is None else (Observation("own-report", paste.own),)


def _missing_in_own(signs: Mapping[str, Line], said: Verdict) -> tuple[str, ...]:
    """What tells more than a report of the doctor: it has seen the machine, not what failed."""
    return ("error",) if said is Verdict.CANNOT_TELL and "failed" not in signs else ()


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


def _plain(line: Line) -> Line:
    """The same line as the readers of facts know it. Example: `CANN版本：8.0.RC3` -> `CANN version: 8.0.RC3`."""
    if not _HAS_WORDS.search(line.text):
        return line
    text = line.text
    for word, other in _WORDS:
        text = text.replace(word, other)
    text = _BESIDE.sub(" ", _IS.sub(": ", text))
    return replace(line, text=re.sub(" +", " ", text.translate(_MARKS)).replace(" :", ":").strip())


def read_facts(text: Text, matrix: Matrix) -> Facts:
    """Everything that the report says of the machine."""
    lines = text.lines
    packages, machine = read_packages(lines), read_machine(text, matrix)
    environ, unset = read_environ(lines)
    return Facts(
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
        environ=environ,
        unset=unset,
        docker=read_docker(lines),
        table=machine.table,
        codes=read_codes(text),
    )


def _with_images(packages: dict[str, Seen[str]], images: Sequence[Seen[str]]) -> dict[str, Seen[str]]:
    """A vllm-ascend image says its version where no list does."""
    for image in images:
        name, _, tag = image.value.rpartition("/")[2].partition(":")
        version = re.match(r"v(\d+\.\d+[\w.]*)", tag)
        if name == "vllm-ascend" and version and "vllm-ascend" not in packages:
            packages["vllm-ascend"] = Seen(version.group(1), image.line)
    return packages


def signs_of(
    facts: Facts, text: Text, matrix: Matrix, problems: Problems, recovered: Recovery | None = None
) -> Mapping[str, Line]:
    """Every sign of a report, with the line that shows it.

    recovered: what went on after an error, where that is known already
    """
    signs = {**agreement(facts, matrix, problems.bounds), **circumstances(facts, text, matrix)}
    signs.update(outcome(text, recovered or recovery(text)))
    if facts.arch:
        signs[f"arch-{facts.arch.value}"] = facts.arch.line
    if facts.cann:
        signs["cann-seen"] = facts.cann.line
    if facts.gcc and int(facts.gcc.value.split(".")[0]) < 10:
        signs["gcc-old"] = facts.gcc.line
    if "torch-npu" in facts.packages:
        signs["torch-npu-seen"] = facts.packages["torch-npu"].line
    if "vllm-ascend" in facts.packages:
        signs["vllm-ascend-seen"] = facts.packages["vllm-ascend"].line
    if not {"failed", "broke-off"} & signs.keys() and _all_agrees(signs):
        signs["all-agrees"] = signs["torch-pair-agrees"]
    return signs


_DISAGREE = ("differs", "too-old", "too-new", "below", "above", "twice", "not-accepted", "out-of-range", "other-chip")


def _all_agrees(signs: Mapping[str, Line]) -> bool:
    known = "torch-pair-agrees" in signs and ("cann-agrees" in signs or "vllm-pair-agrees" in signs)
    return known and not any(name.endswith(_DISAGREE) for name in signs if name != "torchaudio-differs")


def _missing(facts: Facts, signs: Mapping[str, Line], said: Verdict, causes: Sequence[Cause]) -> tuple[str, ...]:
    """What would tell more; nothing where the cause is certain."""
    if said is Verdict.NOT_ENVIRONMENT or (said is Verdict.CAUSE and causes[0].confidence >= 0.8):
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
    return tuple(wanted)
