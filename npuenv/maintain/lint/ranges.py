"""Whether two version ranges can hold together, decided on the versions around their bounds."""

from __future__ import annotations

import functools

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from npuenv.matrix.ranges import common_version

_HIGHEST = "99999"


def disjoint(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether no version satisfies both."""
    return common_version(str(one), str(other)) is None


def within(inner: SpecifierSet, outer: SpecifierSet) -> bool:
    """Whether every version that `inner` takes is taken by `outer` (an unbounded `inner` is within nothing bounded)."""
    return all(
        outer.contains(each, prereleases=True)
        for each in _around(str(inner), str(outer))
        if inner.contains(each, prereleases=True)
    )


def takes_newest(spec: SpecifierSet) -> bool:
    """Whether a range has no upper bound."""
    return spec.contains(_HIGHEST, prereleases=True)


@functools.lru_cache(maxsize=2048)
def _around(*texts: str) -> tuple[Version, ...]:
    """The versions named in ranges, and one just below and one just above each."""
    found = {Version("0"), Version(_HIGHEST)}
    for text in texts:
        for each in SpecifierSet(text):
            try:
                bound = Version(each.version.removesuffix(".*"))
            except InvalidVersion:  # `===` takes any text
                continue
            found |= {bound, Version(bound.public), _above(bound), _below(bound)}
    return tuple(sorted(found))


def _above(bound: Version) -> Version:
    return Version(".".join(map(str, (*bound.release, 0, 0, 1))))


def _below(bound: Version) -> Version:
    """The version before the release: 2.0 gives 1.99999, 0 gives 0."""
    release = list(bound.release)
    while release and release[-1] == 0:
        release.pop()
    if not release:
        return Version("0")
    release[-1] -= 1
    return Version(".".join(map(str, (*release, 99999))))
