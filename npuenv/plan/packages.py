"""The steps that put wheels in, each at its exact version with its hash, and take wheels out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.facts.pip import named_index
from npuenv.lock.wheels import uv_platform
from npuenv.messages import Message
from npuenv.plan.types import Step, Want, WriteFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.lock.file import LockedPackage
    from npuenv.plan.making import Making
    from npuenv.resolve.types import BuildStep

_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")


def put_in(making: Making, item: BuildStep) -> list[Step]:
    """One step per place the packages come from: a labelled index must not serve what belongs to another."""
    if item.does == "rest":
        named = {canonicalize_name(n) for other in making.stack.order for n in other.what if other.does != "git"}
        packages = [p for p in making.lock.packages if p.name not in named]
    else:
        wanted = {canonicalize_name(name) for name in item.what}
        packages = [p for p in making.lock.packages if p.name in wanted]
    groups: dict[tuple[str, str, bool], list[LockedPackage]] = {}
    for package in packages:
        folder = making.tools.in_links.get(package.name, "") if package.index else ""
        groups.setdefault((package.index or "", folder, bool(package.sha256)), []).append(package)
    steps = []
    for (label, folder, is_hashed), group in groups.items():
        suffix = "" if len(groups) == 1 else f"@{label or 'default'}{'' if is_hashed else '-unhashed'}"
        steps.append(_group(making, f"{item.id}{suffix}", item.why, group, label=label, folder=folder))
    return steps


def take_out(making: Making, item: BuildStep) -> Step:
    names = [canonicalize_name(name) for name in item.what]
    run = making.uv("pip", "uninstall", "--python", making.target.python, *names)
    # A name that goes in again later cannot be a condition: it would make every further run take it out once more.
    later = {package.name for package in making.lock.packages}
    wants = tuple(Want("dist.version", (making.target.python, n), "") for n in names if n not in later)
    return Step(item.id, item.why, (run,), wants or (_complete_want(making, names),))


def _group(making: Making, step: str, why: Message, group: list[LockedPackage], *, label: str, folder: str) -> Step:
    names = [f"{package.name}=={package.version}" for package in group]
    is_hashed = all(package.sha256 for package in group)
    lines = [" ".join([f"{p.name}=={p.version}", *(f"--hash=sha256:{digest}" for digest in p.sha256)]) for p in group]
    file = making.target.own(f"{step}.txt")
    platform = ("--python-platform", uv_platform(making.stack.platform))
    options = ["--no-deps", *platform, "--link-mode", making.tools.link_mode]
    options += ["--require-hashes"] * is_hashed
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    if folder:
        options += ["--no-index", "--find-links", folder]
        unset = (*_INDEX_VARIABLES, "UV_FIND_LINKS")
    elif label:
        env, unset = {"UV_DEFAULT_INDEX": named_index(label, making.tools.indexes[label], {})}, _INDEX_VARIABLES
    else:
        options += making.tools.settings.options
    run = making.uv("pip", "install", "--python", making.target.python, *options, "-r", file, env=env, unset=unset)
    said = {"why": why, "count": len(group), "from": folder or label or Message("plan.default-index")}
    message = Message("plan.why-group" if is_hashed else "plan.why-group-unhashed", said)
    want = Want("env.dists", (making.target.root, *names), "complete")
    return Step(step, message, (WriteFile(file, "\n".join(lines) + "\n"), run), (want,), needs_network=not folder)


def _complete_want(making: Making, names: Sequence[str]) -> Want:
    found = [p for p in making.lock.packages if p.name in names]
    return Want("env.dists", (making.target.root, *(f"{p.name}=={p.version}" for p in found)), "complete")
