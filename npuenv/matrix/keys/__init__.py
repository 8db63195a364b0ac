"""The keys of each framework's configuration by release, and the values that stand there unless one is written.

verl.toml is generated from the wheels; roll.toml lists the fields of ROLL's dataclasses. Start from `defaults_of`,
`names_of`, `known_releases` and `tables_beside`; `programs_of` and `configs_of` say what can be started.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core import versions
from npuenv.core.documents import folder_of, load_toml, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping


@functools.cache
def _table(framework: str) -> Mapping[str, Any]:
    return load_toml(folder_of(__file__) / f"{framework}.toml", is_ours=True)


def known_releases(framework: str) -> tuple[str, ...]:
    """The releases whose keys are recorded, oldest first."""
    return tuple(_table(framework)["releases"])


def nearest_release(framework: str, release: str | None) -> str | None:
    """The recorded release that speaks for another: itself, or the last before it.

    None where nothing does: an unknown release, one older than all, or a version that nobody can read.
    Example: verl 0.8.0.dev0 -> "0.7.1"; 0.10.0 -> "0.9.1"; 0.0.9 -> None; 40456706 -> None
    """
    if release is None or not versions.is_release(release):
        return None
    wanted = versions.python_version(release)
    older = [name for name in known_releases(framework) if versions.python_version(name) <= wanted]
    return older[-1] if older else None


def releases_beside(framework: str, release: str | None) -> tuple[str, ...]:
    """The recorded releases between which another lies: itself alone, or the last before it and the first behind it.

    Empty where none speaks for it. A later or somebody's own build of a recorded one is that one.
    Example: verl 0.7.1.post1 -> ("0.7.1",); 0.8.0.dev0 -> ("0.7.1", "0.8.0"); 0.10.0 -> ("0.9.1",)
    """
    name = nearest_release(framework, release)
    if name is None or release is None:
        return ()
    if _is_build(name, release):
        return (name,)
    known = known_releases(framework)
    at = known.index(name)
    return known[at : at + 2]


@dataclass(frozen=True, slots=True)
class KeyTable:
    """What the configuration of one version of verl has."""

    release: str
    defaults: Mapping[str, Any]  # as `defaults_of` gives them
    names: frozenset[str]
    configs: frozenset[str]
    checkout: str = ""  # the folder of the source tree that it was read from; "": recorded


@functools.cache
def tables_beside(release: str | None) -> tuple[KeyTable, ...]:
    """The recorded tables of verl between which a release lies, as `releases_beside` says."""
    beside = releases_beside("verl", release)
    return tuple(
        KeyTable(each, defaults_of("verl", each), names_of("verl", each), configs_of("verl", each)) for each in beside
    )


def is_recorded(framework: str, release: str | None) -> bool:
    """Whether the keys of the very release are recorded; a later or somebody's own build of one counts as it."""
    name = nearest_release(framework, release)
    return name is not None and _is_build(name, release)


def _is_build(name: str, release: str | None) -> bool:
    """Whether a version is a recorded one, or a build of it: 0.7.1.post1 of 0.7.1."""
    return release is not None and (
        versions.python_version(name).base_version == versions.python_version(release).base_version
    )


@functools.cache
def defaults_of(framework: str, release: str | None) -> Mapping[str, Any]:
    """The release's own values by dotted key, interpolations as they are written; empty where it is not known."""
    name = nearest_release(framework, release)
    if name is None or framework != "verl":
        return {}
    at = known_releases(framework).index(name)
    return {key: parse_json(text) for key, text in _standing(framework, "keys", at)}


@functools.cache
def names_of(framework: str, release: str | None) -> frozenset[str]:
    """All keys that the release knows, those of other trainers of the package among them; empty where not known."""
    name = nearest_release(framework, release)
    if name is None:
        return frozenset()
    at = known_releases(framework).index(name)
    return frozenset(key for part in ("keys", "more") for key, _ in _standing(framework, part, at))


@functools.cache
def programs_of(framework: str, release: str | None = None) -> Mapping[str, str]:
    """The modules that the release's package starts runs with, each with its configuration; None: of any release."""
    return dict(_rows(framework, "programs", release))


@functools.cache
def configs_of(framework: str, release: str | None = None) -> frozenset[str]:
    """The configurations in the release's package, without .yaml; None: of any release.

    Example: verl/trainer/config/ppo_trainer; verl/trainer/config/model_engine/megatron, a choice of a group.
    """
    return frozenset(key for key, _ in _rows(framework, "configs", release))


def _rows(framework: str, part: str, release: str | None) -> list[tuple[str, str]]:
    if release is None:
        return [(key, spans[-1][-1]) for key, spans in _table(framework).get(part, {}).items()]
    name = nearest_release(framework, release)
    return [] if name is None else _standing(framework, part, known_releases(framework).index(name))


@functools.cache
def all_names(framework: str) -> frozenset[str]:
    """All keys of all recorded releases."""
    return frozenset(key for part in ("keys", "more") for key in _table(framework).get(part, {}))


def _standing(framework: str, part: str, at: int) -> list[tuple[str, str]]:
    """(key, its value; null without one) of the rows whose span holds the release with this number."""
    order = {release: number for number, release in enumerate(known_releases(framework))}
    found = []
    for key, spans in _table(framework).get(part, {}).items():
        for first, last, *default in spans:
            if order[first] <= at <= order[last]:
                found.append((key, default[0] if default else "null"))
    return found


def fields_of(part: str) -> tuple[str, ...]:
    """The names of a part of ROLL's configuration: top, worker, model_args and so on; empty for a free part."""
    return tuple(_table("roll")["fields"].get(part, ()))


def roll_names(kind: Literal["free_parts", "megatron", "roles"]) -> tuple[str, ...]:
    """Names of ROLL's configuration by what they are."""
    return tuple(_table("roll")["names"][kind])
