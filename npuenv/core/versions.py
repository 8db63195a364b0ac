"""The order of CANN, driver and firmware versions, and a bridge to `packaging` for Python ones.

CANN and driver numbers are not PEP 440: `8.5.0.B160` reads as a beta below 8.5.0 there, and `8.0.RC3.alpha003` does not
read at all. `cann`, `driver` and `firmware` each give a comparable `Version`. Nothing here knows which versions fit
together; that is `npuenv.matrix`.
"""

from __future__ import annotations

import functools
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version as PythonVersion

_STAGES = {"alpha": 0, "beta": 1, "rc": 2}
_FINAL = 3
_SNAPSHOT = re.compile(r"_\d{8,}$")
_CANN_BUILD = re.compile(r"\.B\d+$", re.IGNORECASE)
_DRIVER_BUILD = re.compile(r"\.b\d+$", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"\d{300}")  # int() refuses thousands of digits with a ValueError
_CANN = re.compile(
    r"(?P<numbers>\d+\.\d+(?:\.\d+)?)"
    r"(?:[.-]?(?P<stage>RC|alpha|beta)\.?(?P<count>\d+))?"
    r"(?P<patch>(?:\.\d+)*)"
    r"(?:[.-]?(?P<sub>alpha|beta)\.?(?P<sub_count>\d+))?",
    re.IGNORECASE,
)

_RELEASE = r"[0-9]+(?:\.[0-9]+)*"
_PLAIN = re.compile(rf"{_RELEASE}(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?")
_BOUND = re.compile(rf"(>=|<=|==|!=|<|>)({_PLAIN.pattern}|(?<=[=!]=){_RELEASE}\.\*)")
_SIGNS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A version of CANN, a driver or a firmware. Compares by `key`; `text` is what was read, for display.

    Two texts that differ only in a build suffix (`8.5.0` and `8.5.0.B160`) are equal.
    """

    text: str
    key: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text

    @property
    def series(self) -> tuple[int, int]:
        """The first two numbers: releases of one series share a folder layout and a compatible set."""
        return self.key[0], self.key[1]


@functools.lru_cache(maxsize=512)
def cann(text: str) -> Version:
    """A CANN version: `8.3.RC1 < 8.3.RC2 < 8.5.0.alpha001 < 8.5.0 < 8.5.2 < 9.0.0 < 9.1.0-beta.1 < 9.1.0`.

    A build (`.B160`) and a snapshot stamp (`_20260930220649`) do not count. Case and the separator do not either:
    `8.3.rc1`, the form of image tags, is `8.3.RC1`.
    Raises: BadInput where the text is not of that form.
    """
    bare = _CANN_BUILD.sub("", _SNAPSHOT.sub("", text.strip()))
    return Version(text.strip(), _staged_key(bare, text, "versions.not-cann"))


@functools.lru_cache(maxsize=64)
def driver(text: str) -> Version:
    """A driver (HDK) version: `25.0.RC1 < 25.0.0 < 25.5.2 < 26.0.RC1 < 26.0.RC3`; a build (`.b010`) does not count.

    Raises: BadInput where the text is not of that form.
    """
    bare = _DRIVER_BUILD.sub("", text.strip())
    return Version(text.strip(), _staged_key(bare, text, "versions.not-driver"))


def covers_cann(named: str, text: str) -> bool:
    """Whether `8.5.X`, a series, or `8.5.0`, one version, covers a CANN version. Raises: BadInput."""
    if named.endswith(".X"):
        return cann(named.removesuffix(".X")).series == cann(text).series
    return cann(named) == cann(text)


def firmware(text: str) -> Version:
    """A firmware version: numbers only, such as `7.8.0.2.212`. Raises: BadInput."""
    if not re.fullmatch(r"\d+(\.\d+){2,}", text.strip()) or _LONG_NUMBER.search(text):
        raise BadInput(Message("versions.not-firmware", {"text": text}), Message("versions.hint-firmware"))
    return Version(text.strip(), tuple(int(part) for part in text.strip().split(".")))


@functools.lru_cache(maxsize=1024)
def python_version(text: str) -> PythonVersion:
    """A PEP 440 version. Raises: BadInput."""
    # Importing packaging takes 15 ms, and a doctor that finds no packages never compares any.
    from packaging.version import Version

    try:
        return Version(text)
    except ValueError:  # InvalidVersion is one; so is a number of thousands of digits
        raise BadInput(Message("versions.not-pep440", {"text": text}), Message("versions.hint-pep440")) from None


def is_release(text: str) -> bool:
    """Whether a text names a release of a framework. What has no dot is none: a commit may be digits alone."""
    if "." not in text:
        return False
    try:
        python_version(text)
    except BadInput:
        return False
    return True


@functools.lru_cache(maxsize=512)
def specifier(text: str) -> SpecifierSet:
    """A PEP 440 specifier set. Raises: BadInput."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        if _LONG_NUMBER.search(text):
            raise InvalidSpecifier(text)
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise BadInput(Message("versions.not-specifier", {"text": text}), Message("versions.hint-specifier")) from None


@functools.lru_cache(maxsize=4096)
def accepts(requirement: str, version: str) -> bool:
    """Whether a specifier takes a version, pre-releases included.

    `==2.8.0` takes `2.8.0+cpu` and not `2.8.0.post1`. `prereleases` is always said: its default changed between
    packaging 25.0 and 26.2. Raises: BadInput.
    """
    found = _accepts_plainly(requirement, version)
    return specifier(requirement).contains(python_version(version), prereleases=True) if found is None else found


def _accepts_plainly(requirement: str, version: str) -> bool | None:
    """`accepts` for the forms that nearly all requirements have; None for any other.

    To load packaging's specifiers takes 20 to 25 ms, more than all of a resolution's comparisons.
    """
    bounds, public = plain_bounds(requirement), version.partition("+")[0]
    if bounds is None or not _PLAIN.fullmatch(public):
        return None
    python_version(version)  # its label too must be one; no plain bound looks at it
    has = python_version(public)
    # Which pre-releases and post-releases `<`, `>` and a prefix take has rules of its own.
    is_release = has.base_version == public
    if not is_release and any(sign in ("<", ">") or text[-1] == "*" for sign, text in bounds):
        return None
    return all(_meets(has, sign, text) for sign, text in bounds)


@functools.lru_cache(maxsize=4096)
def plain_bounds(requirement: str) -> tuple[tuple[str, str], ...] | None:
    """Sign and version of each bound of a specifier; None where one is of a rarer form (`~=`, `===`, blanks, `+cpu`).

    Example: ">=4.56,!=4.57.*" -> ((">=", "4.56"), ("!=", "4.57.*"))
    """
    found = [_BOUND.fullmatch(each) for each in requirement.split(",")] if requirement else []
    bounds = tuple((each[1], each[2]) for each in found if each)
    return bounds if len(bounds) == len(found) else None


@functools.lru_cache(maxsize=4096)
def overlap(one: str, other: str) -> bool:
    """Whether some version meets both specifiers, pre-releases included. `===` may meet any: it names a text.

    Example: ">=4.13.0", "<=4.11.0.86" -> False. Raises: BadInput.
    """
    # Bounds decide nearly always, without packaging's specifiers (see `_accepts_plainly`).
    bounds = [bound for each in (one, other) for bound in plain_bounds(each) or () if bound[1][-1] != "*"]
    if any(accepts(one, each) and accepts(other, each) for each in ("0", *(text for _, text in bounds))):
        return True
    lows = [python_version(text) for sign, text in bounds if sign in (">=", ">", "==")]
    highs = [python_version(text) for sign, text in bounds if sign in ("<=", "<", "==")]
    if lows and highs and max(lows) > min(highs):
        return False
    sets = (specifier(one), specifier(other))
    return "===" in one + other or not sets[0].is_disjoint(sets[1])


def _meets(has: PythonVersion, sign: str, text: str) -> bool:
    """Whether a version meets one plain bound."""
    if not text.endswith(".*"):
        return bool(_SIGNS[sign](has, python_version(text)))
    wanted = python_version(text.removesuffix(".*")).release
    padded = (*has.release, *[0] * len(wanted))
    return (padded[: len(wanted)] == wanted) is (sign == "==")


def numbers_in(text: str) -> tuple[int, ...]:
    """The numbers of any text, in order. Example: "25.0.rc1" -> (25, 0, 1)."""
    return tuple(map(int, re.findall(r"[0-9]+", text)))


def exact(spec: str) -> str:
    """The version of an exact pin; "" for a range. Example: "==2.9.0" -> "2.9.0"."""
    return spec.removeprefix("==") if spec.startswith("==") and "," not in spec and "*" not in spec else ""


@functools.lru_cache(maxsize=512)
def is_cann(text: str) -> bool:
    """Whether a text can be read as a CANN version."""
    try:
        cann(text)
    except BadInput:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def requirement_name(text: str) -> str:
    """The normalised distribution name of a requirement: `ray[default]>=2.41` gives `ray`."""
    return normalised(re.split(r"[\s\[<>=!~;@(]", text.strip(), maxsplit=1)[0])


@functools.lru_cache(maxsize=4096)
def requirement_spec(text: str) -> str:
    """The specifier part of a requirement without markers. Example: "ray[default]>=2.41; x" -> ">=2.41"."""
    return re.sub(r"^\s*[A-Za-z0-9._-]+\s*(\[[^\]]*\])?\s*", "", text.partition(";")[0]).strip().strip("()")


def marker_environment(arch: str, python: str, full: str = "") -> dict[str, str]:
    """The environment of CPython on Linux, without extras, for `Marker.evaluate`. `full`: the whole version."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": full or f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def with_extras_of(text: str, other: str) -> str:
    """The first requirement with the second one's extras.

    Example: "fastapi<0.124", "fastapi[standard]>=0.133" -> "fastapi[standard]<0.124"
    """
    match = re.match(r"^\s*[A-Za-z0-9._-]+\s*(\[[^\]]*\])", other)
    return f"{requirement_name(text)}{match[1] if match else ''}{requirement_spec(text)}"


@functools.lru_cache(maxsize=1024)
def normalised(name: str) -> str:
    """A distribution name in its normal form: lower case, runs of `-`, `_` and `.` as one `-`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _staged_key(bare: str, text: str, error: str) -> tuple[int, ...]:
    """Major, minor, patch, stage, count, further numbers padded, sub-stage, its count."""
    match = _CANN.fullmatch(bare)
    if match is None or _LONG_NUMBER.search(text):
        raise BadInput(Message(error, {"text": text}), Message("versions.hint-staged"))
    numbers = [int(part) for part in match["numbers"].split(".")]
    numbers += [0] * (3 - len(numbers))
    stage = _STAGES[match["stage"].lower()] if match["stage"] else _FINAL
    count = int(match["count"] or 0)
    patch = [int(part) for part in match["patch"].split(".") if part]
    patch += [0] * (2 - len(patch))
    sub = _STAGES[match["sub"].lower()] if match["sub"] else _FINAL
    return (*numbers, stage, count, *patch, sub, int(match["sub_count"] or 0))
