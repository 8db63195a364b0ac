"""The steps that put wheels in, each at its exact version with its hash, and take wheels out.

Every call of uv costs what it takes to look through the environment, so packages that come from one place go in
together, whichever entries of the stack's order named them: without dependencies and at exact versions no order among
wheels can change the result. A build, an uninstallation and the package that must be last end such a run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Step, WriteFile
from npuenv.facts.pip import named_index
from npuenv.lock.wheels import uv_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.install.plan.context import Making
    from npuenv.lock.file import LockedPackage
    from npuenv.resolve.types import BuildStep

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")
_ALL_PLACES = (*_INDEX_VARIABLES, "UV_FIND_LINKS")
_NETWORK = tuple(
    spelling
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelling in (name, name.upper())
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """Where packages come from: a labelled index must not serve what belongs to another."""

    label: str  # of an index; "": the default one
    folder: str  # a folder that is used instead of every index; "": none
    is_hashed: bool


@dataclass(slots=True)
class _Group:
    """What one call of uv puts in."""

    items: list[BuildStep] = field(default_factory=list)
    packages: list[LockedPackage] = field(default_factory=list)


def put_in(making: Making, items: Sequence[BuildStep]) -> list[Step]:
    """One step per place that the packages of these entries come from."""
    groups: dict[_Place, _Group] = {}
    for item in items:
        for package in _packages(making, item):
            group = groups.setdefault(_place(making, package), _Group())
            if item not in group.items:
                group.items.append(item)
            group.packages.append(package)
    parted = {item.id for item in items if sum(item in group.items for group in groups.values()) > 1}
    return [_step(making, place, group, parted) for place, group in groups.items()]


def take_out(making: Making, item: BuildStep) -> Step:
    names = [canonicalize_name(name) for name in item.what]
    run = making.uv("pip", "uninstall", "--python", making.target.python, *making.tools.offline, *names)
    # A name that goes in again later cannot be a condition: it would make every further run take it out once more.
    later = {package.name for package in making.lock.packages}
    wants = tuple(Condition("dist.version", (making.target.python, n), "") for n in names if n not in later)
    again = [package for package in making.lock.packages if package.name in names]
    # What goes in again was put there by npuenv; anything else may be the user's.
    is_upkeep = making.is_own and not wants
    return Step(item.id, item.why, (run,), wants or (_complete_want(making, again),), is_upkeep=is_upkeep)


def _packages(making: Making, item: BuildStep) -> list[LockedPackage]:
    """What an entry puts in; for `rest` whatever no other entry names."""
    if item.does == "rest":
        named = {canonicalize_name(n) for other in making.stack.order for n in other.what if other.does != "git"}
        return [p for p in making.lock.packages if p.name not in named]
    wanted = {canonicalize_name(name) for name in item.what}
    return [p for p in making.lock.packages if p.name in wanted]


def _place(making: Making, package: LockedPackage) -> _Place:
    if making.tools.wheels:
        return _Place("", making.tools.wheels, bool(package.sha256))
    folder = making.tools.in_links.get(package.name, "") if package.index else ""
    if folder and folder in making.tools.settings.public.get("UV_FIND_LINKS", "").split(",") and package.sha256:
        return _Place("", "", True)  # found there with all others: the hash lets no other file of that name in
    return _Place(package.index or "", folder, bool(package.sha256))


def _step(making: Making, place: _Place, group: _Group, parted: set[str]) -> Step:
    """The step is called after the entries it does; with the place where one of them is done in several."""
    name = "+".join(item.id for item in group.items)
    if any(item.id in parted for item in group.items):
        name += f"@{place.label or 'default'}{'' if place.is_hashed else '-unhashed'}"
    lines = [
        " ".join([f"{p.name}=={p.version}", *(f"--hash=sha256:{digest}" for digest in p.sha256)])
        for p in group.packages
    ]
    file = making.target.own(f"{name}.txt")
    options, env, unset = _from(making, place)
    if not making.is_own:
        options += _again(making, group.packages)
    run = making.uv("pip", "install", "--python", making.target.python, *options, "-r", file, env=env, unset=unset)
    said = {
        "why": functools.reduce(_both, (item.why for item in group.items)),
        "count": len(group.packages),
        "from": place.folder or place.label or Message("plan.default-index"),
    }
    message = Message("plan.why-group" if place.is_hashed else "plan.why-group-unhashed", said)
    want = _complete_want(making, group.packages)
    do = (WriteFile(file, "\n".join(lines) + "\n"), run)
    return Step(name, message, do, (want,), needs_network=not place.folder, is_upkeep=making.is_own)


def _both(first: Message, other: Message) -> Message:
    """Two reasons, each a sentence of its own."""
    return Message("plan.why-both", {"first": first, "other": other})


def _again(making: Making, packages: Sequence[LockedPackage]) -> list[str]:
    """uv's options that put in anew what is there: nothing takes damaged packages out of an environment not ours.

    What is named here uv unpacks anew too, beside what its cache holds of it: hence only packages that are there.
    """
    present = making.tools.present
    if present is None:
        return ["--reinstall"]
    return [word for package in packages if package.name in present for word in ("--reinstall-package", package.name)]


def _from(making: Making, place: _Place) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """uv's options, the variables it gets and those it must not see."""
    options = ["--no-deps", "--python-platform", uv_platform(making.stack.platform)]
    options += ["--link-mode", making.tools.link_mode, *["--require-hashes"] * place.is_hashed]
    if place.folder:
        unset = (*_ALL_PLACES, *_NETWORK) if making.tools.wheels else _ALL_PLACES
        return [*options, "--no-index", "--find-links", place.folder, *making.tools.offline], {}, unset
    if place.label:
        address = named_index(place.label, making.tools.indexes[place.label], {})
        return options, {"UV_DEFAULT_INDEX": address}, _INDEX_VARIABLES
    return [*options, *making.tools.settings.options], {}, ()


def _complete_want(making: Making, packages: Sequence[LockedPackage]) -> Condition:
    names = (f"{package.name}=={package.version}" for package in packages)
    return Condition("env.dists", (making.target.root, *making.over, *names), "complete")
