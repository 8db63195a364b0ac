"""Whether two version ranges have a version in common, decided exactly. Start from `common_version`.

A range of PEP 440 changes its mind only at the releases it names, and there only between the release, its
pre-releases, its post-releases and their developments. So it is enough to try one version of each such place: what
none of them meets, nothing meets.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.core import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.specifiers import Specifier


@functools.lru_cache(maxsize=4096)
def overlap(one: str, other: str) -> bool:
    """Whether two specifiers have a version in common. Mostly the bounds alone tell, and nothing is searched.

    Raises: BadInput.
    """
    bounds = [bound for each in (one, other) for bound in versions.plain_bounds(each) or () if bound[1][-1] != "*"]
    named = ("0", *(text for _, text in bounds))
    if any(versions.accepts(one, each) and versions.accepts(other, each) for each in named):
        return True
    lows = [versions.python_version(text) for sign, text in bounds if sign in (">=", ">", "==")]
    highs = [versions.python_version(text) for sign, text in bounds if sign in ("<=", "<", "==")]
    if lows and highs and max(lows) > min(highs):
        return False
    return common_version(one, other) is not None


@functools.lru_cache(maxsize=4096)
def common_version(one: str, other: str) -> str | None:
    """A version that both specifiers take, pre-releases included; None where there is none.

    Example: (">=4.13.0", "<=4.11.0.86") -> None; ("<5,>=4.56.0", "<=4.57.1") -> "4.56.0". Raises: BadInput.
    """
    sets = (versions.specifier(one), versions.specifier(other))
    for version in samples(one, other):
        if all(each.contains(version, prereleases=True) for each in sets):
            return str(version)
    return None


def samples(*specifiers: str) -> Iterator[Version]:
    """Versions that stand for all: specifiers that agree on each of them agree on every version. Raises: BadInput."""
    named = tuple(dict.fromkeys(_named(itertools.chain(*map(versions.specifier, specifiers)))))
    yield from named
    yield from _everywhere(named)


def _named(specifiers: Iterable[Specifier]) -> Iterator[Version]:
    """0, the versions that specifiers name, and for each that is a prefix the release at which the prefix ends."""
    yield Version("0")
    for each in specifiers:
        try:
            version = Version(each.version.removesuffix(".*"))
        except ValueError:  # `===` may name a text that is no version, and any a number of thousands of digits
            continue
        yield version
        release = version.release[:-1] if each.operator == "~=" else version.release
        if each.operator == "~=" or each.version.endswith(".*"):
            yield _version(version.epoch, (*release[:-1], release[-1] + 1))


def _everywhere(named: tuple[Version, ...]) -> Iterator[Version]:
    """One version of each place at which a range that names these versions can change its mind."""
    width = max(len(version.release) for version in named)
    for base in dict.fromkeys(Version(version.base_version) for version in named):
        # Above the release and all that hangs on it, below every other that is named.
        yield _version(base.epoch, (*base.release, *[0] * (width - len(base.release)), 1))
        yield from _around(base, [version for version in named if Version(version.base_version) == base])


def _around(base: Version, named: list[Version]) -> Iterator[Version]:
    """A release with its pre-releases, post-releases and developments: those named, and one between each two."""
    pres: dict[str, None] = {"": None, "a0": None}
    for version in named:
        if version.pre:
            letter, number = version.pre
            pres.update(dict.fromkeys(f"{letter}{each}" for each in _beside(number)))
    posts = [None, 0, *(each for version in named if version.post is not None for each in _beside(version.post))]
    devs = [None, 0, *(each for version in named if version.dev is not None for each in _beside(version.dev))]
    for pre, post, dev in itertools.product(pres, dict.fromkeys(posts), dict.fromkeys(devs)):
        tail = "".join(("" if post is None else f".post{post}", "" if dev is None else f".dev{dev}"))
        yield Version(f"{base}{pre}{tail}")


def _beside(number: int) -> tuple[int, ...]:
    return (max(number - 1, 0), number, number + 1)


def _version(epoch: int, release: tuple[int, ...]) -> Version:
    return Version(f"{epoch}!{'.'.join(map(str, release))}")
