"""Why a set of packages may not be: what no NPU environment may contain, and the smallest clashing requirements.

uv's error names packages; users need the requirements and their origins. Requirements are dropped one by one as long as
uv still finds no solution. Each error names the packages of one contradiction, so that most lines can be dropped at
once and few runs are needed.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.shellwords import ARCHES
from npuenv.lock.file import STACK, Proof
from npuenv.lock.inputs import CONSTRAIN, NEWEST, REPLACE, REQUIRE, InputLine, Inputs
from npuenv.lock.uv import Resolver, Supply, is_cache_miss, is_out_of_reach, pip_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npuenv.lock.file import LockedPackage
    from npuenv.resolve.types import Platform


_CUDA = re.compile(r"nvidia-.+|cuda-.+|cupy|cupy-cuda.+|.+-cu1[1-9]\d*")
# Pure Python bindings to a library that comes with the NVIDIA driver; monitoring tools often require them.
_HARMLESS = frozenset({"nvidia-ml-py"})


def unwanted(packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[LockedPackage, ...]:
    """The packages of a set that no NPU environment may contain; () if there are none.

    Packages that the stack's own recipe names are allowed: that is a published choice (nvidia-modelopt, pure Python),
    not a side effect of a dependency.
    """
    own = {line.name for line in inputs.lines if line.kind == REQUIRE and not line.is_dependency}
    bad = [each for each in packages if _CUDA.fullmatch(each.name) and each.name not in own | _HARMLESS]
    if any(each.name == "triton-ascend" for each in packages):
        bad += [each for each in packages if each.name == "triton"]
    return tuple(bad)


def pulled_in_by(bad: Sequence[LockedPackage], packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[Proof, ...]:
    """For each package or line that requires unwanted packages, the first of those. CUDA packages require each other;
    such pairs are left out.
    """
    versions = {package.name: package.version for package in packages}
    others = versions.keys() - {package.name for package in bad}
    proofs: dict[str, Proof] = {}
    for each in bad:
        who = [f"{name}=={versions[name]} (Requires-Dist)" for name in each.why if name in others]
        if STACK in each.why:
            who += [line.source for line in inputs.lines if line.kind == REQUIRE and line.name == each.name]
        for source in who:
            proofs.setdefault(source, Proof(f"{each.name}=={each.version}", source))
    return tuple(proofs.values())


_MAX_RUNS = 80
_MAX_SECONDS = 120.0
_ANY_GLIBC = "2.40"
_PYTHONS = ("3.14", "3.13", "3.12", "3.11", "3.10", "3.9")


def prove(inputs: Inputs, supply: Supply, resolver: Resolver, complaint: str) -> tuple[Proof, ...]:
    """The smallest clashing set of lines; without any one of them uv finds a solution or fails for another reason.

    `complaint`: uv's error for the complete set. Empty if the search ran out of runs or of time, or no index could be
    reached.
    """
    runs = _UvRuns(supply, resolver)
    fixed = [line for line in inputs.lines if line.kind not in (REQUIRE, CONSTRAIN, NEWEST)]
    loose = [line for line in inputs.lines if line.kind in (REQUIRE, CONSTRAIN, NEWEST)]
    try:
        lines = smallest(lambda some: runs.complaint(_only(inputs, some, fixed)), loose, complaint)
        clash = _only(inputs, lines, fixed)
        members = [line.proof for line in lines] + [line.proof for line in _clashing_overrides(clash, runs)]
        return (*members, *_clashing_platform(clash, runs))
    except _Spent:
        return ()


class _Spent(Exception):
    """The search has used up its runs or its time, or no index can be reached."""


@dataclass
class _UvRuns:
    """Runs uv on subsets of the inputs, offline if its cache suffices. Counts the runs and caches their errors."""

    supply: Supply
    resolver: Resolver
    max_runs: int = _MAX_RUNS
    ends: float = field(default_factory=lambda: time.monotonic() + _MAX_SECONDS)
    results: dict[Inputs, str | None] = field(default_factory=dict)

    def complaint(self, inputs: Inputs) -> str | None:
        """uv's error if the inputs do not resolve; None if they do."""
        if inputs not in self.results:
            self.results[inputs] = self._run(inputs)
        return self.results[inputs]

    def _run(self, inputs: Inputs) -> str | None:
        for is_offline in dict.fromkeys((True, self.resolver.is_offline)):
            if len(self.results) >= self.max_runs or time.monotonic() > self.ends:
                raise _Spent
            with tempfile.TemporaryDirectory(prefix="npuenv-conflict-") as folder:
                ran = pip_compile(inputs, self.supply, replace(self.resolver, is_offline=is_offline), Path(folder))
            if ran.code == 0:
                return None
            if not is_cache_miss(ran.err):
                break
        if is_out_of_reach(ran):
            raise _Spent
        return ran.err


def smallest(
    complain: Callable[[Sequence[InputLine]], str | None], lines: Sequence[InputLine], complaint: str
) -> list[InputLine]:
    """The fewest of the lines that still clash, in their order.

    `complain` returns the resolver's error for some lines, None if they resolve; `complaint` is its error for all of
    them. Assumes that dropping lines never adds a clash.
    """
    needed: list[InputLine] = []
    rest = _narrowed(complain, needed, lines, complaint)
    while rest:
        # From the end: if several lines would do, the stack's pins stay, because they come first and are most specific.
        *others, last = rest
        error = complain([*others, *needed])
        if error is None:
            needed.insert(0, last)
            rest = others
        else:
            rest = _narrowed(complain, needed, others, error)
    return needed


def _narrowed(
    complain: Callable[[Sequence[InputLine]], str | None],
    needed: Sequence[InputLine],
    lines: Sequence[InputLine],
    error: str,
) -> list[InputLine]:
    """The lines whose packages an error names, if those clash by themselves; else all. The date limit is always
    included.
    """
    named = _names(error)
    fewer = [line for line in lines if line.name in named or line.kind == NEWEST]
    if len(fewer) < len(lines) and complain([*fewer, *needed]) is not None:
        return fewer
    return list(lines)


def _names(error: str) -> set[str]:
    return {canonicalize_name(token) for token in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", error)}


def _only(inputs: Inputs, lines: Iterable[InputLine], fixed: Iterable[InputLine]) -> Inputs:
    return replace(inputs, lines=(*lines, *fixed))


def _clashing_overrides(clash: Inputs, runs: _UvRuns) -> Iterator[InputLine]:
    """Overrides without which the other lines would resolve."""
    named = _names(runs.complaint(clash) or "")
    for line in clash.lines:
        if line.kind == REPLACE and line.name in named:
            without = replace(clash, lines=tuple(other for other in clash.lines if other != line))
            if runs.complaint(without) is None:
                yield line


def _clashing_platform(clash: Inputs, runs: _UvRuns) -> Iterator[Proof]:
    """C library, Python or architecture as a member of the clash, if the same lines resolve with another one."""
    error, platform = runs.complaint(clash) or "", clash.platform
    if "platform tag" in error:
        if _resolves_on(replace(platform, glibc=_ANY_GLIBC), clash, runs):
            yield Proof(f"glibc<={platform.glibc}", platform.tag)
        elif any(_resolves_on(replace(platform, arch=arch), clash, runs) for arch in ARCHES):
            yield Proof(f"platform_machine=={platform.arch}", platform.tag)
    elif "Python" in error and any(_resolves_on(replace(platform, python=python), clash, runs) for python in _PYTHONS):
        yield Proof(f"python=={platform.python}", platform.tag)


def _resolves_on(platform: Platform, clash: Inputs, runs: _UvRuns) -> bool:
    return platform != clash.platform and runs.complaint(replace(clash, platform=platform)) is None
