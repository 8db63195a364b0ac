"""A configuration file with what its `defaults:` names, as settings by dotted key; verl's own in a checkout of it.

`counted_as` says which recorded release judges a launch: a commit of ROLL counts as a version, verl's commits as none.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.documents import read_bytes
from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import KeyTable, configs_of, defaults_of, known_releases, names_of, nearest_release, programs_of
from npuenv.preflight.launch import MOST_BYTES, MOST_FILES, LaunchSetting, TooLarge
from npuenv.preflight.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.preflight.yaml_text import YamlEntry


@dataclass(frozen=True, slots=True)
class Config:
    """Settings in the order of their first writing, and the files that were not found."""

    settings: Mapping[str, LaunchSetting] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()  # verl's own configurations that it starts from
    is_partial: bool = False  # it was not found, and may set anything


@dataclass(frozen=True, slots=True)
class Search:
    """Where the files of `defaults:` are looked for. `base`: what a relative `file://` starts from."""

    folders: tuple[Path, ...]
    base: Path
    framework: str = ""
    above: tuple[str, ...] = ()  # the files that lead here
    read: list[str] = field(default_factory=list)  # every file so far, of one search that goes on

    def config(self, name: str, *, is_primary: bool = False) -> Config:
        """The configuration of that name; one of verl's own release counts as found and writes nothing."""
        file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
        places = [type(folder)(os.path.normpath(folder / file)) for folder in self.folders]
        found = next((place for place in places if place.is_file()), None)
        own = file.removesuffix(".yaml").rpartition("/")[2]
        if own in _own_configs() and (found is None or not is_primary):
            return Config(bases=(own,))
        if found is None:
            return Config(missing=(file,))
        self.read.append(str(found))
        if len(self.read) > MOST_FILES:  # few files are enough for endless paths through them
            raise TooLarge(str(found), MOST_FILES, "files")
        text = _text(found)
        if not text.strip() or str(found) in self.above:
            return Config()
        folders = self.folders if found.parent in self.folders else (found.parent, *self.folders)
        return read_config(text, str(found), replace(self, folders=folders, above=(*self.above, str(found))))


@functools.cache
def _own_configs() -> frozenset[str]:
    """The names of verl's configurations that a run can start from, in any release."""
    return frozenset(name for path in configs_of("verl") for name in re.findall(r"/config/(\w*ppo\w*)$", path))


def read_config(text: str, path: str, search: Search) -> Config:
    """A file over what its defaults bring, in the order that the list says; without `_self_` the file comes last.

    Raises: BadInput where it is no YAML with one mapping.
    """
    entries = read_yaml(text, path)
    leaves = ((each, Location(path, each.line)) for each in _leaves(entries))
    own = {each.dotted: LaunchSetting(each.dotted, each.value, each.text, place) for each, place in leaves}
    added = _searchpath(entries, search.base, *search.folders[:1])
    search = replace(search, folders=(*search.folders, *added))
    settings: dict[str, LaunchSetting] = {}
    missing: list[str] = []
    bases: list[str] = []
    listed = list(_listed(next((entry for entry in entries if entry.path == ("defaults",)), None)))
    if all(name != "_self_" for name, _, _ in listed):
        listed.append(("_self_", "", False))
    for name, package, is_optional in listed:
        if name == "_self_":
            _lay_over(settings, own, "")
            continue
        found = search.config(name)
        _lay_over(settings, found.settings, package)
        missing += () if is_optional else found.missing
        bases += found.bases
    return Config(settings, tuple(dict.fromkeys(missing)), tuple(dict.fromkeys(bases)))


def _leaves(entries: Iterable[YamlEntry]) -> Iterator[YamlEntry]:
    """What is for the framework, not for Hydra itself."""
    return (leaf for entry in entries if entry.path[0] not in ("defaults", "hydra") for leaf in entry.leaves())


def _lay_over(settings: dict[str, LaunchSetting], others: Mapping[str, LaunchSetting], package: str) -> None:
    """Puts settings over others: a whole value replaces what stood below its key, and the other way round."""
    for name, setting in others.items():
        key = f"{package}.{name}" if package else name
        if setting.value not in (None, {}):
            for above in _parents(key):
                settings.pop(above, None)
        if setting.value != {} or not any(each.startswith(f"{key}.") for each in settings):
            for below in [each for each in settings if each.startswith(f"{key}.")]:
                settings.pop(below)
            settings[key] = replace(setting, key=key)


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _searchpath(entries: tuple[YamlEntry, ...], base: Path, *beside: Path) -> Iterator[Path]:
    """The folders of `hydra.searchpath`. Hydra starts a relative one from where the run is started, mostly the top of
    the framework's tree, which need not be where this runs: the folders above the file are tried behind it.
    """
    tops = (base, *(top for folder in beside for top in (folder, *folder.resolve().parents)))
    for entry in entries:
        for leaf in entry.leaves() if entry.path == ("hydra",) else ():
            if leaf.dotted == "hydra.searchpath" and isinstance(leaf.value, list):
                places = [str(each) for each in leaf.value if str(each).startswith("file://")]
                yield from (top / each.removeprefix("file://") for each in places for top in tops)


def _listed(defaults: YamlEntry | None) -> Iterator[tuple[str, str, bool]]:
    """The entries of a defaults list: a configuration's name, the key its content goes under, whether it may miss.

    Example: `- ../config/x@_here_` gives ("../config/x", "", False); `- optional db: mysql` ("db/mysql", "db", True).
    """
    items: Any = defaults.value if defaults is not None else None
    for item in items if isinstance(items, list) else ():
        pairs = item.items() if isinstance(item, dict) else [(str(item), "")]
        for name, option in pairs:
            words = str(name).split()
            group, _, package = words[-1].partition("@") if words else ("", "", "")
            if not group or "override" in words or option is None:
                continue
            options = option if isinstance(option, list) else [option]
            for each in options:
                inner = f"{group}/{each}" if isinstance(item, dict) else group
                yield inner.lstrip("/"), _package(package, inner), "optional" in words


def _package(package: str, name: str) -> str:
    if package in ("_here_", "_global_"):
        return ""
    if package:
        return package.replace("_here_.", "").replace("_global_.", "")
    return posixpath.dirname(name.lstrip("/")).replace("/", ".") if ".." not in name else ""


_CONFIG = Path("verl", "trainer", "config")
_COMPOSED = "_generated_ppo_trainer.yaml"
_VERSION = Path("verl", "version", "version")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree of verl."""

    version: str  # as the tree calls itself, like 0.10.0.dev
    release: str  # the recorded release whose keys and defaults it has, else `version`
    keys: KeyTable | None = None  # None: those of the recorded release
    damage: Message | None = None  # why it cannot be read; then its release counts as unknown


def find_checkout(folders: Iterable[Path]) -> Checkout | None:
    """The first of the folders that is a source tree of verl; None where none is, or one older than all releases."""
    found = next((each for each in folders if (each / _CONFIG / _COMPOSED).is_file()), None)
    return None if found is None else _read(found)


@functools.cache
def _read(tree: Path) -> Checkout | None:
    try:
        version = _text(tree / _VERSION).strip()
        nearest = nearest_release("verl", version)
        if nearest is None:
            return None
        base = versions.python_version(version).base_version
        # The engine is a choice, which is not in the file.
        defaults = {"model_engine": "dp", **_tree_leaves(tree / _CONFIG / _COMPOSED)}
        if defaults == defaults_of("verl", base):
            return Checkout(version, base)
        names = frozenset(defaults).union(*map(_tree_leaves, _other_trainers(tree)))
    except BadInput as error:
        damage = Message("preflight.checkout-damaged", {"path": str(tree), "why": error.message})
        return Checkout("", "", damage=damage)
    files = (tree / "verl").rglob("config/**/*.yaml")
    configs = frozenset(each.relative_to(tree).with_suffix("").as_posix() for each in files if each.name[0] != "_")
    if not _are_composed(tree):
        names |= names_of("verl", nearest)
    return Checkout(version, version, KeyTable(version, defaults, names, configs, str(tree)))


def _other_trainers(tree: Path) -> list[Path]:
    """The composed configurations of other engines, and those of trainers in other folders."""
    others = [each for each in (tree / "verl").rglob("config/*ppo*trainer.yaml") if each.parent != tree / _CONFIG]
    return [*(tree / _CONFIG).glob("_generated_*.yaml"), *others]


def _are_composed(tree: Path) -> bool:
    """Whether the tree has a composed configuration for each engine."""
    engines = {each.stem for each in (tree / _CONFIG / "model_engine").glob("*.yaml")} - {"dp"}
    return all((tree / _CONFIG / f"_generated_ppo_{name}_trainer.yaml").is_file() for name in engines)


def _tree_leaves(file: Path) -> dict[str, Any]:
    return {leaf.dotted: leaf.value for leaf in _leaves(read_yaml(_text(file), str(file)))}


def _text(file: Path) -> str:
    try:
        return read_bytes(file, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(Message("preflight.unreadable", {"path": str(file), "why": str(error)})) from error


def short_name(name: str) -> str:
    """A release without what people write around it. Example: "main @8eb27cc2" -> "8eb27cc2"; "v0.9.0" -> "0.9.0" """
    return name.strip().rpartition("@")[2].removeprefix("v")


def counted_as(framework: str, name: str) -> str:
    """The version that a release is judged as; the name itself where nothing says otherwise.

    Example: roll "main @8eb27cc2" -> "0.3.0"; verl "v0.9.0" -> "0.9.0"
    """
    version = short_name(name)
    rows = load_matrix().roll_releases if framework == "roll" else ()
    return next((row.counts_as for row in rows if row.is_called(version)), version)


def is_far(framework: str, name: str) -> bool:
    """Whether no recorded release speaks for this one: older than all, of another major number, or no version."""
    release = counted_as(framework, name)
    newest = known_releases(framework)[-1]
    if nearest_release(framework, release) is None:
        return True
    return versions.python_version(release).major != versions.python_version(newest).major


def program_config(module: str) -> str:
    """The configuration that a module of verl starts from, in any release; "" for a module that no release has."""
    known = programs_of("verl")
    short = min((name for name in known if name.endswith(f".{module}")), key=len, default=module)
    return known.get(module, known.get(short, ""))
