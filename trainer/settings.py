"""The declaration of a setting: its default, its limits, its description, and how a text becomes its value.

Imports no torch and declares no setting itself; `trainer.config` declares them with `number`, `choice`, `text` and
`switch`.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


class BadSetting(ValueError):
    """A setting that cannot be used; the text names it, its value and what would be accepted."""


def number(default: float, low: float, high: float, about: str = "", *, may_change: bool = False) -> Any:
    """A setting with a lowest and a highest accepted value; an integer if its default is.

    `may_change`, here and below: a resumed run may have another value than the saved one.
    """
    return field(default=default, metadata={"low": low, "high": high, "about": about, "may_change": may_change})


def choice(default: str, *others: str, about: str = "", may_change: bool = False) -> Any:
    """A setting that accepts one of some names."""
    return field(default=default, metadata={"accepted": (default, *others), "about": about, "may_change": may_change})


def text(default: str = "", about: str = "", *, may_change: bool = False) -> Any:
    """A setting that takes any text: a path, a name."""
    return field(default=default, metadata={"about": about, "may_change": may_change})


def switch(default: bool, about: str = "", *, may_change: bool = False) -> Any:
    """A setting that is on or off."""
    return field(default=default, metadata={"about": about, "may_change": may_change})


def value_of(setting: Field[Any], given: str, accepted: Sequence[str] | None = None) -> Any:
    """The value of a text. `accepted` are the names for a setting that cannot declare them itself.

    Raises BadSetting for a text of the wrong kind or outside of the limits.
    """
    name, kind = setting.name, type(setting.default)
    words = setting.metadata.get("accepted", accepted)
    if kind is str:
        if words is not None and given.lower() not in words:
            raise BadSetting(f"{name}={given} is not accepted. Accepted: {', '.join(words)}")
        return given if words is None else given.lower()
    if kind is bool:
        if given.lower() not in _BOOLEANS:
            raise BadSetting(f"{name}={given} is not accepted. Accepted: true, false")
        return _BOOLEANS[given.lower()]
    return _number(name, given, kind, setting.metadata["low"], setting.metadata["high"])


def _number(name: str, given: str, kind: Callable[[str], Any], low: float, high: float) -> int | float:
    wanted = "a whole number" if kind is int else "a number"
    try:
        value: int | float = kind(given)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadSetting(f"{name}={given} is not accepted. Accepted: {wanted} from {low:g} to {high:g}")
    return value


def limits(setting: Field[Any], accepted: Sequence[str] | None = None) -> str:
    """The accepted values as text. Example: `0 to 10`, `verl | trl | roll`, `true | false`, `text`."""
    words = setting.metadata.get("accepted", accepted)
    if words is not None:
        return " | ".join(words)
    if "low" in setting.metadata:
        return f"{setting.metadata['low']:g} to {setting.metadata['high']:g}"
    return "true | false" if isinstance(setting.default, bool) else "text"


def shown(setting: Field[Any]) -> str:
    """A default as it would be typed. Example: False -> `false`."""
    assert setting.default is not MISSING
    return str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
