"""Whether two version ranges can hold together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.matrix.ranges import common_version, samples

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_HIGHEST = "99999"


def disjoint(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether no version satisfies both."""
    return common_version(str(one), str(other)) is None


def within(inner: SpecifierSet, outer: SpecifierSet) -> bool:
    """Whether every version that `inner` takes is taken by `outer` (an unbounded `inner` is within nothing bounded)."""
    return all(
        outer.contains(each, prereleases=True)
        for each in samples(str(inner), str(outer))
        if inner.contains(each, prereleases=True)
    )


def takes_newest(spec: SpecifierSet) -> bool:
    """Whether a range has no upper bound."""
    return spec.contains(_HIGHEST, prereleases=True)
