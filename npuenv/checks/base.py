"""What a check is and what it finds. A check reads facts and the matrix; it never runs a command, prints or exits."""

from __future__ import annotations

import enum
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npuenv.core.fact import Evidence
    from npuenv.core.plan import Want
    from npuenv.facts.collect import Facts
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Stack

NPU_FRAMEWORKS = frozenset({"verl", "roll", "vllm-ascend", "torch-npu"})
FRAMEWORKS = NPU_FRAMEWORKS | {"cpu"}
# First part of a check's id -> the catalogue `check_NAME` that holds its title.
CATALOGUES = {
    "machine": "machine",
    "container": "machine",
    "cards": "npu",
    "devices": "npu",
    "driver": "npu",
    "network": "network",
    "cann": "cann",
    "nnal": "cann",
    "session": "session",
    "python": "python",
    "ray": "ray",
    "stack": "stack",
}


class Status(enum.Enum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"  # works, but is worth knowing
    FAIL = "fail"
    UNKNOWN = "unknown"  # an input could not be read
    SKIP = "skip"  # does not apply here, with the reason


SEVERITY = {Status.FAIL: 0, Status.UNKNOWN: 1, Status.WARN: 2, Status.OK: 3, Status.SKIP: 4}
_PROBLEMS = (Status.FAIL, Status.UNKNOWN, Status.WARN)


@dataclass(frozen=True, slots=True)
class Fix:
    """What mends it. Each command is an argv; one that starts with `source` or `export` is for the user's own shell."""

    says: Message
    commands: tuple[tuple[str, ...], ...] = ()
    is_dangerous: bool = False  # touches other users, other processes or security: shown with its cost, never run
    is_automatic: bool = False  # `doctor --fix` may run the commands: programs, safe to run twice
    needs_root: bool = False
    undo: tuple[tuple[str, ...], ...] = ()  # what takes an automatic one back; empty: it cannot be taken back
    done_when: tuple[Want, ...] = ()  # what holds once it is mended; empty: only the check itself can tell


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check's function gives back; the runner adds the id, the source and the evidence of what was read."""

    status: Status
    says: Message
    fix: Fix | None = None
    evidence: tuple[Evidence, ...] = ()  # the deciding lines; empty: those of the facts that the check reads


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome."""

    check: str
    status: Status
    says: Message
    evidence: tuple[Evidence, ...]
    source: str
    fix: Fix | None


@dataclass(frozen=True, slots=True)
class Context:
    """What a check may read besides the host's facts."""

    facts: Facts
    matrix: Matrix
    framework: str | None  # what the host is for; None: not said
    stack: Stack | None = None  # the stack that it is judged against; None: not said


@dataclass(frozen=True, slots=True)
class Check:
    """A declared check. `reads` names the facts without which it cannot judge: one of them unknown makes it unknown."""

    id: str  # area.what; never changes its meaning
    reads: tuple[str, ...]  # dotted paths into `Facts`: npu.smi
    source: str
    judge: Callable[[Context], Verdict]
    is_about_cards: bool = False  # skipped for cpu, and where nothing hints at a card
    level: int = 0  # the level from which its facts are collected
    required_for: frozenset[str] = frozenset()  # with --for one of these, unknown means: cannot tell


def message(name: str, /, **args: object) -> Message:
    """`area.name` of the catalogue `check_area`; a name without an area is one of the runner's own, in `checks`."""
    area, _, rest = name.rpartition(".")
    return Message(f"check_{area}.{rest}" if area else f"checks.{name}", args)


def ok(name: str, /, *evidence: Evidence, **args: object) -> Verdict:
    """All is well."""
    return Verdict(Status.OK, message(name, **args), None, evidence)


def warn(name: str, /, *evidence: Evidence, fix: Fix | None = None, **args: object) -> Verdict:
    """Worth knowing."""
    return Verdict(Status.WARN, message(name, **args), fix, evidence)


def fail(name: str, /, *evidence: Evidence, fix: Fix | None = None, **args: object) -> Verdict:
    """A problem, with what mends it."""
    return Verdict(Status.FAIL, message(name, **args), fix, evidence)


def unsure(name: str, /, *evidence: Evidence, fix: Fix | None = None, **args: object) -> Verdict:
    """Could not tell."""
    return Verdict(Status.UNKNOWN, message(name, **args), fix, evidence)


def skip(name: str, /, *evidence: Evidence, **args: object) -> Verdict:
    """Does not apply."""
    return Verdict(Status.SKIP, message(name, **args), None, evidence)


def unread(cards: Mapping[Any, Evidence]) -> Verdict | None:
    """Unknown for the cards of which nothing could be read, each with the line that says why; None for no card."""
    return unsure("cards-unread", *cards.values(), cards=tuple(cards)) if cards else None


def worst(outcomes: Iterable[Verdict | None], *, otherwise: Verdict) -> Verdict:
    """The verdict of a check over several cards: as grave as the gravest outcome, with what each of them says.

    No outcome hides another: those that fail, warn or could not be judged are all told, the gravest first, with their
    fixes. Without any of these it is `otherwise`, unless an outcome was left to another check.
    """
    found = sorted(filter(None, outcomes), key=lambda verdict: SEVERITY[verdict.status])
    told = [verdict for verdict in found if verdict.status in _PROBLEMS]
    problems = [
        verdict for place, verdict in enumerate(told) if verdict.says not in [item.says for item in told[:place]]
    ]
    if not problems:
        return next((verdict for verdict in found if verdict.status is Status.SKIP), otherwise)
    return functools.reduce(_joined, problems)


def _joined(first: Verdict, other: Verdict) -> Verdict:
    """Two outcomes as one; of their lines in turn, as only the first ones are shown."""
    lines = itertools.chain.from_iterable(itertools.zip_longest(first.evidence, other.evidence))
    says = message("both", first=first.says, other=other.says)
    fixes = [verdict.fix for verdict in (first, other) if verdict.fix]
    cure = functools.reduce(_both_fixes, fixes) if fixes else None
    return Verdict(first.status, says, cure, tuple(dict.fromkeys(filter(None, lines))))


def _both_fixes(first: Fix, other: Fix) -> Fix:
    if first == other:
        return first
    return Fix(
        message("fix-both", first=first.says, other=other.says),
        first.commands + other.commands,
        is_dangerous=first.is_dangerous or other.is_dangerous,
        needs_root=first.needs_root or other.needs_root,
    )


def fix(
    name: str,
    /,
    *commands: tuple[str, ...],
    is_dangerous: bool = False,
    is_automatic: bool = False,
    needs_root: bool = False,
    undo: tuple[tuple[str, ...], ...] = (),
    done_when: tuple[Want, ...] = (),
    **args: object,
) -> Fix:
    """A cure; the sentence of `fix("area.name")` has the key `fix-name` in the catalogue `check_area`."""
    area, dot, rest = name.rpartition(".")
    says = message(f"{area}{dot}fix-{rest}", **args)
    return Fix(says, commands, is_dangerous, is_automatic, needs_root, undo, done_when)


def title(check_id: str) -> Message:
    """The name of a check for people."""
    return message(f"{CATALOGUES[check_id.partition('.')[0]]}.title-{check_id.replace('.', '-')}")
