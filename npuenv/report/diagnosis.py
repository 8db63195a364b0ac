"""What a pasted report shows, as lines for people and as the `npuenv.diagnosis/1` document.

Nothing is judged here; the judgement is `npuenv.diagnose`'s.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.core.messages import Message, say
from npuenv.diagnose import Verdict
from npuenv.matrix.error_patterns import load_error_patterns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from npuenv.diagnose import Diagnosis
    from npuenv.diagnose.types import Cause, Discriminator, ReportFacts
    from npuenv.host.report import Paste

SCHEMA = "npuenv.diagnosis/1"
_VERDICT_STYLES = {
    Verdict.CAUSE: "bold red",
    Verdict.NOT_ENVIRONMENT: "bold green",
    Verdict.CANNOT_TELL: "bold magenta",
}
_LIKELY = 0.65  # from here on a cause is called found
_SHELL_WORDS = ("export", "unset", "source", "ulimit")
_QUOTED = 300  # characters of a line that are shown
_NAMED_PACKAGES = ("torch", "torch-npu", "vllm", "vllm-ascend", "triton-ascend", "numpy", "ray", "transformers")
_MANY_SEEN = 4  # harmless lines that are shown without being asked for all


@dataclass(frozen=True, slots=True)
class Said:
    """One line of the report for people."""

    depth: int
    text: str
    style: str = ""


def document(diagnosis: Diagnosis, *, lang: str = "en") -> dict[str, Any]:
    """The JSON document. Keys and ids do not depend on the language, sentences do."""
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(diagnosis.exit_code),
        "verdict": diagnosis.verdict.value,
        "observations": [{"id": seen.id, "line": seen.line.shown} for seen in diagnosis.observations],
        "causes": [_cause_json(cause, lang) for cause in diagnosis.causes],
        "because": _because_json(diagnosis, lang),
        "missing": list(diagnosis.missing),
    }


def _cause_json(cause: Cause, lang: str) -> dict[str, Any]:
    row = load_error_patterns().causes[cause.id]
    return {
        "id": cause.id,
        "confidence": cause.confidence,
        "says": row.says[lang],
        "line": cause.line.shown,
        "line_number": cause.line.number,
        "fix": {
            "says": row.fix_for(cause.line.text)[lang],
            "commands": [list(argv) for argv in cause.commands or row.commands],
            "dangerous": row.is_dangerous,
        },
        "separate_by": _discriminator_json(cause.separate_by, lang),
    }


def _discriminator_json(discriminator: Discriminator | None, lang: str) -> dict[str, str] | None:
    if discriminator is None:
        return None
    return {"command": discriminator.command, "expect": discriminator.expect[lang]}


def _because_json(diagnosis: Diagnosis, lang: str) -> dict[str, Any] | None:
    reason = diagnosis.because
    if reason is None:
        return None
    says = _say(f"not-{reason.id}", lang)
    return {"id": reason.id, "says": says, "line": reason.line.shown, "line_number": reason.line.number}


def print_diagnosis(
    console: Console, diagnosis: Diagnosis, paste: Paste, *, lang: str = "en", is_verbose: bool = False
) -> None:
    """The report for people; on anything but a terminal no line is folded, so that commands stay whole."""
    from rich.text import Text

    for said in lines(diagnosis, paste, lang=lang, is_verbose=is_verbose):
        console.print(Text("  " * said.depth + said.text, said.style), soft_wrap=not console.is_terminal)


def lines(diagnosis: Diagnosis, paste: Paste, *, lang: str = "en", is_verbose: bool = False) -> list[Said]:
    """The verdict, the causes with their lines and cures, what is harmless, and what would tell more."""
    return [
        _head(diagnosis, lang),
        *_because(diagnosis, lang),
        *_causes(diagnosis, lang),
        *_harmless(diagnosis, lang, is_verbose),
        *_facts(diagnosis.facts, lang),
        *_missing(diagnosis.missing, lang),
        *_counts(paste, lang, is_verbose),
    ]


def _head(diagnosis: Diagnosis, lang: str) -> Said:
    """The verdict; a cause that is no more than possible is not called found."""
    if diagnosis.verdict is Verdict.CAUSE and diagnosis.causes[0].confidence < _LIKELY:
        return Said(0, _say("verdict-possible", lang), "bold yellow")
    return Said(0, _say(f"verdict-{diagnosis.verdict.value}", lang), _VERDICT_STYLES[diagnosis.verdict])


def _because(diagnosis: Diagnosis, lang: str) -> Iterator[Said]:
    if diagnosis.because is not None:
        yield Said(1, _say(f"not-{diagnosis.because.id}", lang))
        yield _quote(diagnosis.because.line.shown, diagnosis.because.line.number, lang)


def _causes(diagnosis: Diagnosis, lang: str) -> Iterator[Said]:
    for at, cause in enumerate(diagnosis.causes):
        if at == 1:
            yield Said(0, _say("also", lang), "dim")
        confidence = _confidence(cause.confidence, lang, is_claimed=diagnosis.verdict is Verdict.CAUSE)
        says = load_error_patterns().causes[cause.id].says[lang]
        yield Said(1, f"{says} ({confidence}, {cause.id})", "bold")
        yield _quote(cause.line.shown, cause.line.number, lang)
        yield from _cure(cause, lang, is_first=at == 0)


def _cure(cause: Cause, lang: str, *, is_first: bool) -> Iterator[Said]:
    row = load_error_patterns().causes[cause.id]
    key = "fix-dangerous" if row.is_dangerous else "fix"
    yield Said(2, _say(key, lang, says=row.fix_for(cause.line.text)[lang]))
    if is_first:
        for argv in cause.commands or row.commands:
            yield Said(3, f"$ {_shell_line(argv)}", "bold")
    if cause.separate_by is not None:
        other = cause.separate_by.other
        yield Said(2, _say("separate", lang, other=other) if other else _say("check", lang))
        yield Said(3, f"$ {cause.separate_by.command}", "bold")
        yield Said(3, cause.separate_by.expect[lang])


def _harmless(diagnosis: Diagnosis, lang: str, is_verbose: bool) -> Iterator[Said]:
    shown = diagnosis.observations if is_verbose else diagnosis.observations[:_MANY_SEEN]
    if shown:
        yield Said(0, _say("seen", lang), "dim")
    for seen in shown:
        number = _say("line", lang, number=seen.line.number)
        yield Said(1, f"{_say(f'seen-{seen.id}', lang)} ({number})", "dim")


def _facts(facts: ReportFacts, lang: str) -> Iterator[Said]:
    named = [f"{name} {facts.packages[name].value}" for name in _NAMED_PACKAGES if name in facts.packages]
    above = [("chip", facts.chip), ("driver", facts.driver), ("CANN", facts.cann), ("Python", facts.python)]
    read = [f"{name} {seen.value}" if name != "chip" else seen.value for name, seen in above if seen] + named
    if read:
        yield Said(0, _say("facts", lang, facts="  ".join(read)), "cyan")


def _missing(missing: Sequence[str], lang: str) -> Iterator[Said]:
    if missing:
        what = tuple(Message(f"diagnose.missing-{name}") for name in missing)
        yield Said(0, say(Message("diagnose.missing", {"what": what}), lang))


def _counts(paste: Paste, lang: str, is_verbose: bool) -> Iterator[Said]:
    if paste.dropped or is_verbose:
        yield Said(0, _say("lines-read", lang, count=paste.total, dropped=paste.dropped), "dim")


def _quote(line: str, number: int, lang: str) -> Said:
    text = line if len(line) <= _QUOTED else f"{line[:_QUOTED]}..."
    return Said(2, f"{_say('line', lang, number=number)}: {text}", "cyan")


def _confidence(value: float, lang: str, *, is_claimed: bool) -> str:
    words = ((0.85, "surely"), (_LIKELY, "likely"), (0.5, "possibly"))[0 if is_claimed else 2 :]
    return _say(next((word for floor, word in words if value >= floor), "weakly"), lang)


def _shell_line(argv: Sequence[str]) -> str:
    """A command as it is typed; words of the shell itself keep their arguments as they are."""
    return " ".join(argv) if argv[0] in _SHELL_WORDS else shlex.join(argv)


def _say(name: str, lang: str, **args: object) -> str:
    return say(Message(f"diagnose.{name}", args), lang)
