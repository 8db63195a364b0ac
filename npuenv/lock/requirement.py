"""What a requirement asks, as far as a lock's inputs go: name, extras, one exact version. Start from `asked_by`."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.versions import normalised

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_RELEASE = r"[0-9]+(?:\.[0-9]+)*"
_VERSION = rf"{_RELEASE}(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?"
_BOUND = rf"(?:(?:>=|<=|<|>){_VERSION}|[=!]=(?:{_VERSION}(?:\+[a-z0-9]+)?|{_RELEASE}\.\*))"
_MARKER = r'(?:python_version|platform_machine|extra) (?:==|!=|<=|>=|<|>) "[A-Za-z0-9_.-]*"'
# What nearly every requirement looks like: all that fits is a requirement, but not the other way round.
_PLAIN = re.compile(
    rf"({_NAME})(?:\[({_NAME}(?:,{_NAME})*)\])?({_BOUND}(?:,{_BOUND})*)?(?:; {_MARKER}(?: (?:and|or) {_MARKER})*)?"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One requirement taken apart."""

    written: str  # the name as it stands there
    extras: tuple[str, ...]  # sorted
    is_exact: bool  # one of its bounds names a single version

    @property
    def name(self) -> str:
        """The normalised name."""
        return normalised(self.written)


@functools.lru_cache(maxsize=4096)
def asked_by(text: str) -> Asked:
    """What a requirement asks. Raises BadInput for what is none."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return _any_form(text)
    bounds = (found[3] or "").split(",")
    is_exact = any(bound.startswith("==") and not bound.endswith(".*") for bound in bounds)
    return Asked(found[1], tuple(sorted(set(found[2].split(",") if found[2] else ()))), is_exact)


def _any_form(text: str) -> Asked:
    # Loaded where it is needed: it takes 20 ms.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise BadInput(Message("locking.no-requirement", {"text": text, "why": str(error)})) from error
    bounds = [each for each in requirement.specifier if each.operator in ("==", "===")]
    is_exact = any(not each.version.endswith(".*") for each in bounds)
    return Asked(requirement.name, tuple(sorted(requirement.extras)), is_exact)
