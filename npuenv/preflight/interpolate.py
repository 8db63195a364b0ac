"""OmegaConf interpolations filled in where that is possible, over dotted keys."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core.shellscript import LONGEST
from npuenv.preflight.yaml_text import scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.preflight.types import LaunchSetting

_ONE = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_KEY = re.compile(r"(\.*)([A-Za-z_$][\w$/-]*(?:\.[\w$/-]+|\[[^\]]*\])*)")
_OPEN = object()  # not known here
_MOST = 20  # interpolations that lead to each other
_MOST_VALUES = 100_000  # to be filled in for one launch; verl's own configuration has 600, with 50 interpolations


def fill(
    settings: Mapping[str, LaunchSetting], defaults: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, LaunchSetting]:
    """The settings with `${a.b}`, `${.c}`, `${oc.env:X,default}` replaced; what cannot be is open, its value the text.

    `environ` holds variables that are known where the launch runs.
    """
    reader = _Interpolator(settings, defaults, environ)
    filled = {}
    for key, setting in settings.items():
        value = setting.value if setting.is_open else reader.filled(setting.value, key, _MOST)
        is_open = setting.is_open or value is _OPEN
        filled[key] = replace(setting, value=setting.text if is_open else value, is_open=is_open)
    return filled


class _Interpolator:
    """Looks up what an interpolation names: written settings first, then the release's own."""

    def __init__(
        self, settings: Mapping[str, LaunchSetting], defaults: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self.settings, self.defaults, self.environ = settings, defaults, environ
        self.left = _MOST_VALUES
        self.parents = {key.rpartition(".")[0] for key in (*settings, *defaults)}

    def filled(self, value: Any, key: str, depth: int) -> Any:
        """A value without interpolations, or _OPEN."""
        self.left -= 1
        if self.left < 0:
            return _OPEN
        if isinstance(value, list):
            items = [self.filled(item, key, depth) for item in value]
            return _OPEN if any(item is _OPEN for item in items) else items
        if isinstance(value, dict):
            pairs = {name: self.filled(item, f"{key}.{name}", depth) for name, item in value.items()}
            return _OPEN if any(item is _OPEN for item in pairs.values()) else pairs
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth == 0:
            return _OPEN
        whole = _ONE.fullmatch(value)
        if whole is not None:
            return self._resolved(whole[1], key, depth - 1)
        return self._in_text(value, key, depth - 1)

    def _in_text(self, text: str, key: str, depth: int) -> Any:
        for found in _ONE.finditer(text):
            value = self._resolved(found[1], key, depth)
            if value is _OPEN or isinstance(value, (list, dict)):
                return _OPEN
            shown = "null" if value is None else str(value)
            if len(text) + len(shown) > LONGEST:
                return _OPEN
            return self.filled(text[: found.start()] + shown + text[found.end() :], key, depth)
        return text if "${" not in text.replace("\\${", "") else _OPEN

    def _resolved(self, inside: str, key: str, depth: int) -> Any:
        name, sign, words = inside.strip().partition(":")
        if sign:
            return self._called(name.strip(), words, key, depth)
        found = _KEY.fullmatch(name)
        if found is None:
            return _OPEN
        target = found[2].replace("[", ".").replace("]", "")
        return self._at(".".join(filter(None, (_above(key, len(found[1])), target))), depth)

    def _called(self, name: str, words: str, key: str, depth: int) -> Any:
        first, sign, other = (part.strip() for part in words.partition(","))
        default = scalar(other.strip("'\"")) if sign else _OPEN
        if name == "oc.env":
            return scalar(self.environ[first]) if first in self.environ else default
        if name == "oc.select":
            value = self._at(first, depth)
            return default if value is _OPEN else value
        return _OPEN

    def _at(self, key: str, depth: int) -> Any:
        """The value under a key: a leaf, a whole mapping, or an item of a list."""
        if key in self.settings:
            setting = self.settings[key]
            return _OPEN if setting.is_open else self.filled(setting.value, key, depth)
        if key in self.defaults and key not in self.parents:
            return self.filled(self.defaults[key], key, depth)
        if key in self.parents or any(each.startswith(f"{key}.") for each in self.parents):
            return self._mapping(key, depth)
        above, _, last = key.rpartition(".")
        if last.isdigit() and above in self.settings and isinstance(self.settings[above].value, list):
            items = self.settings[above].value
            return self.filled(items[int(last)], above, depth) if int(last) < len(items) else _OPEN
        return _OPEN

    def _mapping(self, key: str, depth: int) -> Any:
        tree: dict[str, Any] = {}
        below = f"{key}."
        self.left -= len(self.defaults) + len(self.settings)
        for each in dict.fromkeys((*self.defaults, *self.settings)):
            if self.left < 0:
                return _OPEN
            if each.startswith(below):
                value = self._at(each, depth)
                if value is _OPEN:
                    return _OPEN
                *parts, last = each[len(below) :].split(".")
                inner = tree
                for part in parts:
                    inner = inner.setdefault(part, {})
                inner[last] = value
        return tree


def _above(key: str, dots: int) -> str:
    """What a relative interpolation starts from: one dot means beside the key itself, none the top."""
    return ".".join(key.split(".")[:-dots]) if dots else ""
