"""The steps that install wheels, each at its exact version with its hash, and uninstall packages.

Each call of uv reads the complete environment. So packages from one location are installed together, whichever entries
of the stack's order named them: without dependencies and at exact versions the order of wheels cannot change the
result. A build, an uninstallation and the package that must be last end such a group.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Step, WriteFile
from npuenv.facts.pip import INDEX_VARIABLES, named_index
from npuenv.lock.wheels import uv_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.install.plan.context import Making
    from npuenv.lock.file import LockedPackage
    from npuenv.resolve.types import BuildStep

_ALL_PLACES = (*INDEX_VARIABLES, "UV_FIND_LINKS")
_NETWORK = tuple(
    spelling
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelling in (name, name.upper())
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Location:
    """A package location: a labelled index must not serve packages of another."""

    label: str  # label of an index; "": the default one
    folder: str  # a folder that replaces every index; "": none
    is_hashed: bool


@dataclass(slots=True)
class _Group:
    """The packages of one call of uv."""

    items: list[BuildStep] = field(default_factory=list)
    packages: list[LockedPackage] = field(default_factory=list)


def put_in(making: Making, items: Sequence[BuildStep]) -> list[Step]:
    """One step for each location of these entries' packages."""
    groups: dict[_Location, _Group] = {}
    for item in items:
        for package in _packages(making, item):
            group = groups.setdefault(_place(making, package), _Group())
            if item not in group.items:
                group.items.append(item)
            group.packages.append(package)
    parted = {item.id for item in items if sum(item in group.items for group in groups.values()) > 1}
    return [_step(making, location, group, parted) for location, group in groups.items()]


def take_out(making: Making, item: BuildStep) -> Step:
    names = [canonicalize_name(name) for name in item.what]
    run = making.uv("pip", "uninstall", "--python", making.target.python, *making.tools.offline, *names)
    # A name that is installed again later cannot be a condition: every further run would uninstall it once more.
    later = {package.name for package in making.lock.packages}
    wants = tuple(Condition("dist.version", (making.target.python, n), "") for n in names if n not in later)
    reinstalled = [package for package in making.lock.packages if package.name in names]
    # Packages that are installed again were put there by npuenv; any other may be the user's.
    is_upkeep = making.is_own and not wants
    return Step(item.id, item.why, (run,), wants or (_complete_want(making, reinstalled),), is_upkeep=is_upkeep)


def _packages(making: Making, item: BuildStep) -> list[LockedPackage]:
    """The packages of an entry; for `rest` those that no other entry names."""
    if item.does == "rest":
        named = {canonicalize_name(n) for other in making.stack.order for n in other.what if other.does != "git"}
        return [p for p in making.lock.packages if p.name not in named]
    wanted = {canonicalize_name(name) for name in item.what}
    return [p for p in making.lock.packages if p.name in wanted]


def _place(making: Making, package: LockedPackage) -> _Location:
    if making.tools.wheels:
        return _Location("", making.tools.wheels, bool(package.sha256))
    folder = making.tools.in_links.get(package.name, "") if package.index else ""
    if folder and folder in making.tools.settings.public.get("UV_FIND_LINKS", "").split(",") and package.sha256:
        return _Location("", "", True)  # found there with all others: the hash admits no other file of that name
    return _Location(package.index or "", folder, bool(package.sha256))


def _step(making: Making, location: _Location, group: _Group, parted: set[str]) -> Step:
    """A step named after its entries, and after the location if one of them has several."""

    def both(first: Message, other: Message) -> Message:
        return Message("plan.why-both", {"first": first, "other": other})

    name = "+".join(item.id for item in group.items)
    if any(item.id in parted for item in group.items):
        name += f"@{location.label or 'default'}{'' if location.is_hashed else '-unhashed'}"
    lines = [
        " ".join([f"{p.name}=={p.version}", *(f"--hash=sha256:{digest}" for digest in p.sha256)])
        for p in group.packages
    ]
    file = making.target.own(f"{name}.txt")
    options, env, unset = _from(making, location)
    if not making.is_own:
        options += _reinstall_options(making, group.packages)
    run = making.uv("pip", "install", "--python", making.target.python, *options, "-r", file, env=env, unset=unset)
    args = {
        "why": functools.reduce(both, (item.why for item in group.items)),
        "count": len(group.packages),
        "from": location.folder or location.label or Message("plan.default-index"),
    }
    message = Message("plan.why-group" if location.is_hashed else "plan.why-group-unhashed", args)
    want = _complete_want(making, group.packages)
    do = (WriteFile(file, "\n".join(lines) + "\n"), run)
    return Step(name, message, do, (want,), needs_network=not location.folder, is_upkeep=making.is_own)


def _reinstall_options(making: Making, packages: Sequence[LockedPackage]) -> list[str]:
    """uv's options to reinstall installed packages, because nothing removes damaged packages from the user's
    environment.

    uv also unpacks these packages again beside its cached copy: therefore only packages that are installed are named.
    """
    present = making.tools.present
    if present is None:
        return ["--reinstall"]
    return [word for package in packages if package.name in present for word in ("--reinstall-package", package.name)]


def _from(making: Making, location: _Location) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """uv's options, the variables it gets, and those that are unset."""
    options = ["--no-deps", "--python-platform", uv_platform(making.stack.platform)]
    options += ["--link-mode", making.tools.link_mode, *["--require-hashes"] * location.is_hashed]
    if location.folder:
        unset = (*_ALL_PLACES, *_NETWORK) if making.tools.wheels else _ALL_PLACES
        return [*options, "--no-index", "--find-links", location.folder, *making.tools.offline], {}, unset
    if location.label:
        address = named_index(location.label, making.tools.indexes[location.label], {})
        return options, {"UV_DEFAULT_INDEX": address}, INDEX_VARIABLES
    return [*options, *making.tools.settings.options], {}, ()


def _complete_want(making: Making, packages: Sequence[LockedPackage]) -> Condition:
    names = (f"{package.name}=={package.version}" for package in packages)
    return Condition("env.dists", (making.target.root, *making.over, *names), "complete")
