"""Rules about what requirement files and package metadata ask for."""

from __future__ import annotations

import itertools
import posixpath
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.core.shellscript import ARCHES
from npuenv.core.versions import requirement_name, specifier
from npuenv.maintain.lint.ranges import disjoint, takes_newest, within
from npuenv.maintain.lint.values import LintedTree, Requirement, RequirementFile, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Finding
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Limit

_NOT_PROJECT = frozenset(("setuptools", "wheel", "pip"))  # a build may well want others than the project runs with


def disjoint_asks(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    """Two requirements of one project that no version satisfies: metadata against requirement files, each in itself."""
    del matrix
    for one, other in _pairs(checkout.files):
        for first, second in _clashing(one, other):
            args = {"package": first.name, "one": first.text, "other": second.text, "file": second.place.path}
            yield finding(first.place, "disjoint", args, (str(first), str(second)), "error")


def _pairs(files: tuple[RequirementFile, ...]) -> Iterator[tuple[RequirementFile, RequirementFile]]:
    """Requirement files of one folder are often alternatives and are not held against each other, nor are extras."""
    for file in files:
        if file.kind == "requirements":
            yield file, file
    by_folder: dict[str, list[RequirementFile]] = {}
    for file in files:
        by_folder.setdefault(posixpath.dirname(file.path), []).append(file)
    for each in by_folder.values():
        for one, other in itertools.combinations(each, 2):
            if "project" in (one.kind, other.kind):
                yield (other, one) if one.kind == "project" else (one, other)
            elif {one.kind, other.kind} == {"build", "requirements"}:
                yield one, other


def _clashing(one: RequirementFile, other: RequirementFile) -> Iterator[tuple[Requirement, Requirement]]:
    by_name: dict[str, list[Requirement]] = {}
    for requirement in other.requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    shown = set[str]()
    skipped = _NOT_PROJECT if "build" in (one.kind, other.kind) else frozenset()
    for first in one.requirements:
        for second in by_name.get(first.name, ()):
            meet = not first.arch or not second.arch or first.arch == second.arch
            if first.place == second.place or first.name in shown or not meet or first.name in skipped:
                continue
            if first.spec is not None and second.spec is not None and disjoint(first.spec, second.spec):
                shown.add(first.name)
                yield first, second


def undeclared_limits(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    """A file whose requirements let in what no metadata forbids and an import refuses."""
    for file in checkout.files:
        if file.kind in ("requirements", "project"):
            for limit in (row for row in matrix.limits if not row.python):
                yield from _over_limit(file, limit)


def _over_limit(file: RequirementFile, limit: Limit) -> Iterator[Finding]:
    when, needs = requirement_name(limit.when), requirement_name(limit.needs)
    when_range, needs_range = (
        specifier(each[len(name) :]) for each, name in ((limit.when, when), (limit.needs, needs))
    )
    trigger = next(
        (each for each in file.requirements if each.name == when and each.spec and within(each.spec, when_range)), None
    )
    requirement = next((each for each in file.requirements if each.name == needs and each.spec is not None), None)
    if trigger is None or requirement is None or requirement.spec is None:
        return
    impossible = disjoint(requirement.spec, needs_range)
    if impossible or (takes_newest(requirement.spec) and not takes_newest(needs_range)):
        args = {"asked": requirement.text, "trigger": trigger.text, "needs": limit.needs, "why": Message(limit.why)}
        yield finding(
            requirement.place,
            "undeclared-limit",
            args,
            (str(trigger), str(requirement), f"{limit.id} ({limit.source})"),
            "error" if impossible else "warning",
        )


def pins_that_pair(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    """torch, torch_npu, torchvision and torchaudio of one file; both triton packages in one."""
    for file in checkout.files:
        for arch in ARCHES:
            requirements = {each.name: each for each in file.requirements if each.on(arch)}
            yield from torch_pairs(requirements, matrix, arch)
            if {"triton", "triton-ascend"} <= requirements.keys():
                yield together(requirements["triton"], requirements["triton-ascend"])


def together(triton: Requirement, ascend: Requirement) -> Finding:
    args = {"triton": triton.text, "ascend": ascend.text}
    place = triton.place
    return finding(place, "triton-together", args, (str(triton), str(ascend)), "error")


def torch_pairs(requirements: dict[str, Requirement], matrix: Matrix, arch: str) -> Iterator[Finding]:
    """torch against torch_npu, and torchvision and torchaudio against torch."""
    torch, npu = requirements.get("torch"), requirements.get("torch-npu")
    row = matrix.torch_npu_row(npu.exact) if npu and npu.exact else None
    if torch and torch.spec is not None and npu and row:
        needs = specifier(row.torch_requirement(arch) or f"=={row.torch}")
        public = specifier(f"=={row.torch}")
        if disjoint(torch.spec, needs) and disjoint(torch.spec, public):
            args = {"torch_npu": npu.text, "torch": torch.text, "needs": f"torch=={row.torch}"}
            yield finding(npu.place, "torch-pair", args, (str(torch), str(npu), f"{row.id} ({row.source})"), "error")
    companions = matrix.companion_row(torch.exact) if torch and torch.exact else None
    for name in ("torchvision", "torchaudio") if companions else ():
        requirement, fits = requirements.get(name), getattr(companions, name)
        if (
            requirement
            and torch
            and companions
            and requirement.spec
            and not requirement.spec.contains(fits, prereleases=True)
            and requirement.exact.split("+")[0] != fits
        ):
            args = {"asked": requirement.text, "torch": torch.text, "fits": f"{name}=={fits}"}
            yield finding(
                requirement.place,
                "companion",
                args,
                (str(torch), str(requirement), f"{companions.id} ({companions.source})"),
                "error",
            )
