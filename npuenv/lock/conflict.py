"""Why a set does not resolve: the fewest of the stack's own lines that clash.

uv's complaint names packages; what is wanted are the lines that were asked and who asked for them. Lines are dropped
one after the other as long as uv still finds no solution. Each complaint names the packages of one contradiction, so
that most lines fall away at once and few runs are needed.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from npuenv.lock.file import Proof
from npuenv.lock.inputs import CONSTRAIN, NEWEST, REPLACE, REQUIRE, Inputs, Line
from npuenv.lock.uv import Resolver, Supply, ask, is_cache_miss, is_out_of_reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npuenv.resolve.types import Platform

MAX_RUNS = 80
MAX_SECONDS = 120.0
_MAX_WAYS = 8  # overrides that are tried; each costs a resolution of the whole set
_ANY_GLIBC = "2.40"
_PYTHONS = ("3.14", "3.13", "3.12", "3.11", "3.10", "3.9")
_ARCHES = ("aarch64", "x86_64")


class _Spent(Exception):
    """The search has used up its runs or its time, or cannot ask any more."""


@dataclass
class _Trials:
    """uv on subsets of the inputs, from its cache where that is enough. Keeps count and what it has heard."""

    supply: Supply
    resolver: Resolver
    max_runs: int = MAX_RUNS
    ends: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    heard: dict[Inputs, str | None] = field(default_factory=dict)

    def complaint(self, inputs: Inputs) -> str | None:
        """uv's words when the inputs do not resolve; None when they do."""
        if inputs not in self.heard:
            self.heard[inputs] = self._asked(inputs)
        return self.heard[inputs]

    def _asked(self, inputs: Inputs) -> str | None:
        for is_offline in dict.fromkeys((True, self.resolver.is_offline)):
            if len(self.heard) >= self.max_runs or time.monotonic() > self.ends:
                raise _Spent
            with tempfile.TemporaryDirectory(prefix="npuenv-conflict-") as folder:
                ran = ask(inputs, self.supply, replace(self.resolver, is_offline=is_offline), Path(folder))
            if ran.code == 0:
                return None
            if not is_cache_miss(ran.err):
                break
        if ran.timed_out or is_out_of_reach(ran.err):
            raise _Spent
        return ran.err


def prove(inputs: Inputs, supply: Supply, resolver: Resolver, complaint: str) -> tuple[Proof, ...]:
    """The smallest clashing set of lines; without any one of them uv finds a solution or stumbles over something else.

    `complaint`: uv's words for the whole set. Empty where the search ran out of runs or of time, or could not ask.
    """
    trials = _Trials(supply, resolver)
    fixed = [line for line in inputs.lines if line.kind not in (REQUIRE, CONSTRAIN, NEWEST)]
    loose = [line for line in inputs.lines if line.kind in (REQUIRE, CONSTRAIN, NEWEST)]
    try:
        lines = smallest(lambda some: trials.complaint(_only(inputs, some, fixed)), loose, complaint)
        clash = _only(inputs, lines, fixed)
        members = [line.proof for line in lines] + [line.proof for line in _guilty_overrides(clash, trials)]
        return (*members, *_guilty_platform(clash, trials))
    except _Spent:
        return ()


def smallest(complain: Callable[[Sequence[Line]], str | None], lines: Sequence[Line], complaint: str) -> list[Line]:
    """The fewest of the lines that still clash, in their order.

    `complain` gives the resolver's words about some lines, None when they resolve; `complaint` is what it says about
    all of them. Holds when fewer lines never clash more.
    """
    kept: list[Line] = []
    rest = _narrowed(complain, kept, lines, complaint)
    while rest:
        # From the end: where several lines would do, the stack's pins stay, which come first and say most.
        *others, last = rest
        words = complain([*others, *kept])
        if words is None:
            kept.insert(0, last)
            rest = others
        else:
            rest = _narrowed(complain, kept, others, words)
    return kept


def single_overrides(
    inputs: Inputs, supply: Supply, resolver: Resolver, proof: Sequence[Proof]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Overrides of which each alone lets the whole set resolve: (requirement, those whose word it overrules).

    Each was resolved before it is given. numpy is never overridden: it is bounded only.
    """
    trials = _Trials(supply, resolver)
    clash = replace(inputs, lines=tuple(line for line in inputs.lines if line.proof in proof or line.kind == REPLACE))
    found = []
    try:
        for text in list(_ways(clash, trials.complaint(clash) or ""))[:_MAX_WAYS]:
            changed = replace(inputs, lines=(*inputs.lines, Line(REPLACE, text, "")))
            if trials.complaint(changed) is None:
                name = canonicalize_name(Requirement(text).name)
                over = tuple(line.source for line in clash.lines if line.name == name and line.text != text)
                found.append((text, over))
    except _Spent:
        pass  # what was found so far was tried and holds
    return tuple(found)


def _narrowed(
    complain: Callable[[Sequence[Line]], str | None], kept: Sequence[Line], lines: Sequence[Line], words: str
) -> list[Line]:
    """The lines whose packages a complaint names, where those clash by themselves; else all. The day always stays."""
    named = _names(words)
    fewer = [line for line in lines if line.name in named or line.kind == NEWEST]
    if len(fewer) < len(lines) and complain([*fewer, *kept]) is not None:
        return fewer
    return list(lines)


def _names(words: str) -> set[str]:
    return {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", words)}


def _only(inputs: Inputs, lines: Iterable[Line], fixed: Iterable[Line]) -> Inputs:
    return replace(inputs, lines=(*lines, *fixed))


def _guilty_overrides(clash: Inputs, trials: _Trials) -> Iterator[Line]:
    """Replaced requirements without which the rest would resolve."""
    named = _names(trials.complaint(clash) or "")
    for line in clash.lines:
        if line.kind == REPLACE and line.name in named:
            without = replace(clash, lines=tuple(other for other in clash.lines if other != line))
            if trials.complaint(without) is None:
                yield line


def _guilty_platform(clash: Inputs, trials: _Trials) -> Iterator[Proof]:
    """C library, Python and architecture, where the same lines resolve with another one."""
    words, platform = trials.complaint(clash) or "", clash.platform
    if "platform tag" in words:
        if _resolves_on(replace(platform, glibc=_ANY_GLIBC), clash, trials):
            yield Proof(f"glibc<={platform.glibc}", platform.tag)
        elif any(_resolves_on(replace(platform, arch=arch), clash, trials) for arch in _ARCHES):
            yield Proof(f"platform_machine=={platform.arch}", platform.tag)
    elif "Python" in words and any(
        _resolves_on(replace(platform, python=python), clash, trials) for python in _PYTHONS
    ):
        yield Proof(f"python=={platform.python}", platform.tag)


def _resolves_on(platform: Platform, clash: Inputs, trials: _Trials) -> bool:
    return platform != clash.platform and trials.complaint(replace(clash, platform=platform)) is None


def _ways(clash: Inputs, words: str) -> Iterator[str]:
    """Requirements that could overrule the others: the clashing lines themselves, then what dependencies ask, then any
    version of a package whose bound clashes.
    """
    asked = [line.text for line in clash.lines if line.kind in (REQUIRE, CONSTRAIN)]
    asked += re.findall(r"depends? on ([A-Za-z0-9][A-Za-z0-9._-]*[<>=!~][^\s]*)", words)
    bounded = [line.name for line in clash.lines if line.kind == REQUIRE and Requirement(line.text).specifier]
    for text in dict.fromkeys(word.rstrip(",.") for word in (*asked, *bounded)):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # a part of uv's sentence that only looks like a requirement
        if (requirement.specifier or text in bounded) and canonicalize_name(requirement.name) != "numpy":
            yield text
