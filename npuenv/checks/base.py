"""The types of a check and its result. A check reads facts and the matrix; it never runs a command, prints or exits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.core.fact import Evidence
from npuenv.core.finding import PROBLEMS, WORST_FIRST, Fix, Status
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.facts.cann.toolkit import Cann
    from npuenv.facts.collect import Facts
    from npuenv.facts.python import Python
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Stack

T = TypeVar("T")
_OfText = Callable[["Context", str], "CheckResult | None"]
NPU_FRAMEWORKS = frozenset({"verl", "roll", "vllm-ascend", "torch-npu"})
FRAMEWORKS = NPU_FRAMEWORKS | {"cpu"}
# The first part of a check's id -> the message catalogue `check_NAME` with its title, where that has another name.
CATALOGUES = {"container": "machine", "cards": "npu", "devices": "npu", "driver": "npu", "nnal": "cann"}


class CheckResult(NamedTuple):
    """What a check's function returns; the runner adds the id, the source and the evidence of what was read."""

    status: Status
    says: Message
    fix: Fix | None = None
    evidence: tuple[Evidence, ...] = ()  # the deciding lines; empty: those of the facts that the check reads


@dataclass(frozen=True, slots=True)
class Context:
    """What a check judges: the host's facts, what they are compared with, and what many checks ask of them."""

    facts: Facts
    matrix: Matrix
    framework: str | None  # the framework in use; None: not given
    stack: Stack | None = None  # the stack to compare with; None: not given

    @property
    def environment(self) -> Mapping[str, str]:
        """The session's variables."""
        return self.facts.environment.value or {}

    def setting(self, name: str) -> str:
        """A variable's value without surrounding blanks; "" if it is not set or empty."""
        return self.environment.get(name, "").strip()

    def line(self, name: str) -> Evidence:
        """A variable as evidence."""
        value = self.environment.get(name)
        return Evidence("environment", f"{name} is not set" if value is None else f"{name}={value}")

    @property
    def loader_path(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH, in order."""
        return [folder.rstrip("/") for folder in self.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]

    @property
    def in_container(self) -> bool:
        return self.facts.machine.container.is_known

    @property
    def cann(self) -> Cann | None:
        """The toolkit that this session uses, else the one that was found."""
        return self.facts.cann.toolkit.value

    @property
    def python(self) -> Python | None:
        """The inspected interpreter."""
        return self.facts.python.interpreter.value

    @property
    def installed(self) -> Mapping[str, str]:
        """The versions of the target's distributions; empty without a Python."""
        return self.python.distributions if self.python else {}

    def version(self, name: str) -> str | None:
        """The installed version of a distribution; None if it is not installed."""
        return self.installed.get(name)

    @property
    def is_for_npu(self) -> bool:
        """Whether the environment is for NPUs: by its framework, else because torch_npu is installed."""
        return self.framework != "cpu" and (self.framework is not None or "torch-npu" in self.installed)

    @property
    def chip_generations(self) -> Mapping[str, str]:
        """The generations of the cards, each with a chip name; {} if no table was read."""
        table = self.facts.npu.smi.value
        found: dict[str, str] = {}
        for card in table.cards if table is not None else ():
            row = self.matrix.hardware_of_chip(card.name) if card.name else None
            if row is not None:
                found.setdefault(row.id, card.name or "")
        return found

    @property
    def generation(self) -> str:
        """The chips' generation, a row id of matrix/hardware.toml; "" if unknown or ambiguous."""
        table = self.facts.npu.smi.value
        names = {card.name for card in table.cards if card.name} if table else set()
        rows = {row.id if row else "" for row in map(self.matrix.hardware_of_chip, names)}
        return rows.pop() if len(rows) == 1 else ""

    @property
    def spans_nodes(self) -> bool:
        """Whether the session's variables name several nodes."""
        return self.facts.network.spans.is_known

    @property
    def own_addresses(self) -> set[str]:
        """The addresses of this host; empty if unknown."""
        return {address for item in self.facts.network.interfaces.value or () for address in item.addresses}


class Check(NamedTuple):
    """A declared check. `reads` names the facts it needs: if one of them is unknown, so is the result."""

    id: str  # area.what; its meaning never changes
    reads: tuple[str, ...]  # dotted paths into `Facts`: npu.smi
    source: str
    judge: Callable[[Context], CheckResult]
    is_about_cards: bool = False  # skipped for cpu, and if there is no sign of a card
    level: int = 0  # the level from which its facts are collected
    required_for: frozenset[str] = frozenset()  # with --for one of these, unknown means: cannot tell
    is_between_nodes: bool = False  # skipped unless the session's variables name several nodes


card_check = functools.partial(Check, is_about_cards=True)
nodes_check = functools.partial(Check, is_between_nodes=True)


def message(name: str, /, **args: object) -> Message:
    """The message `area.name` of the catalogue `check_area`; a name without an area is one of `checks`."""
    area, _, rest = name.rpartition(".")
    return Message(f"check_{area}.{rest}" if area else f"checks.{name}", args)


def result(
    status: Status, name: str, /, *evidence: Evidence, fix: Fix | str | None = None, **args: object
) -> CheckResult:
    """A check's result with the message `area.name`; `fix` may be the name of one without commands."""
    return CheckResult(status, message(name, **args), fix_for(fix) if isinstance(fix, str) else fix, evidence)


ok = functools.partial(result, Status.OK)
warn = functools.partial(result, Status.WARN)
fail = functools.partial(result, Status.FAIL)
unknown = functools.partial(result, Status.UNKNOWN)
skip = functools.partial(result, Status.SKIP)  # the check does not apply


def given(
    value_of: Callable[[Context], T | None], otherwise: str
) -> Callable[[Callable[[Context, T], CheckResult]], Callable[[Context], CheckResult]]:
    """Decorates a check of one value: the function gets it; without one the check is skipped with `otherwise`."""

    def decorate(judge: Callable[[Context, T], CheckResult]) -> Callable[[Context], CheckResult]:
        @functools.wraps(judge)
        def check(context: Context) -> CheckResult:
            value = value_of(context)
            return skip(otherwise) if value is None else judge(context, value)

        return check

    return decorate


def of_variable(name: str, stem: str, *, unset: str = "") -> Callable[[_OfText], Callable[[Context], CheckResult]]:
    """Decorates a check of one variable: the function gets its value, and may leave to this what most results share.

    Without a value, or a result, the check is `STEM-ok` (`unset`: another name for the former). A result shows the
    variable; one of a problem has the fix to unset it, with the message of `STEM`.
    """

    def decorate(judge: _OfText) -> Callable[[Context], CheckResult]:
        @functools.wraps(judge)
        def check(context: Context) -> CheckResult:
            value = context.setting(name)
            if unset and not value:
                return ok(unset)
            found = judge(context, value) if value else None
            if found is None:
                return ok(f"{stem}-ok")
            fix = found.fix or (fix_for(stem, ("unset", name)) if found.status in PROBLEMS else None)
            return CheckResult(found.status, found.says, fix, found.evidence or (context.line(name),))

        return check

    return decorate


def unread(cards: Mapping[Any, Evidence]) -> CheckResult | None:
    """Unknown for the cards that could not be read, each with the line that gives the reason; None without any."""
    return unknown("cards-unread", *cards.values(), cards=tuple(cards)) if cards else None


def worst(outcomes: Iterable[CheckResult | None], *, otherwise: CheckResult) -> CheckResult:
    """The combined result of a check over several cards: as severe as the worst outcome.

    All failures, warnings and unknowns are reported with their fixes, worst first. Without any of these it is
    `otherwise`, unless an outcome was left to another check.
    """
    found = sorted(filter(None, outcomes), key=lambda verdict: WORST_FIRST.index(verdict.status))
    bad = [verdict for verdict in found if verdict.status in PROBLEMS]
    problems = [verdict for at, verdict in enumerate(bad) if verdict.says not in [item.says for item in bad[:at]]]
    if not problems:
        return next((verdict for verdict in found if verdict.status is Status.SKIP), otherwise)
    return functools.reduce(_joined, problems)


def _joined(first: CheckResult, other: CheckResult) -> CheckResult:
    """Two outcomes as one; their evidence alternates, because only the first lines are shown."""
    lines = itertools.chain.from_iterable(itertools.zip_longest(first.evidence, other.evidence))
    says = message("both", first=first.says, other=other.says)
    fixes = [verdict.fix for verdict in (first, other) if verdict.fix]
    fix = functools.reduce(_both_fixes, fixes) if fixes else None
    return CheckResult(first.status, says, fix, tuple(dict.fromkeys(filter(None, lines))))


def _both_fixes(first: Fix, other: Fix) -> Fix:
    if first == other:
        return first
    return Fix(
        message("fix-both", first=first.says, other=other.says),
        first.commands + other.commands,
        is_dangerous=first.is_dangerous or other.is_dangerous,
        needs_root=first.needs_root or other.needs_root,
    )


def fix_for(
    name: str,
    /,
    *commands: tuple[str, ...],
    is_dangerous: bool = False,
    is_automatic: bool = False,
    needs_root: bool = False,
    undo: tuple[tuple[str, ...], ...] = (),
    **args: object,
) -> Fix:
    """A fix; the message of `fix_for("area.name")` has the key `fix-name` in the catalogue `check_area`."""
    area, dot, rest = name.rpartition(".")
    says = message(f"{area}{dot}fix-{rest}", **args)
    return Fix(says, commands, is_dangerous, is_automatic, needs_root, undo)


def title(check_id: str) -> Message:
    """The title of a check."""
    area = check_id.partition(".")[0]
    return message(f"{CATALOGUES.get(area, area)}.title-{check_id.replace('.', '-')}")
