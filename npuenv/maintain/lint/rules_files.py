"""Rules about files as they are written: what requirement files and metadata ask for, and how scripts build.

How an image or an environment is built: chips, shells, TLS, moving refs, paths of one architecture.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.finding import Finding, Location
from npuenv.core.messages import Message
from npuenv.core.shellwords import ARCH, ARCHES, UNKNOWN
from npuenv.core.versions import requirement_name, specifier
from npuenv.maintain.lint.values import (
    Clone,
    EnvSetting,
    LintedTree,
    PipInstall,
    Remark,
    Requirement,
    RequirementFile,
    disjoint,
    finding,
    takes_newest,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.maintain.lint.history import History
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


_MOVING = ("", "main", "master", "develop", "dev", "HEAD", "FETCH_HEAD")
_ONE_ARCH = re.compile(r"(?<![A-Za-z0-9])(amd64|arm64|x86_64|aarch64)(?![A-Za-z0-9])")
_PLATFORM_WHEEL = re.compile(
    r"(amd64|arm64|x86_64|aarch64)(?:-linux(?:-gnu)?|)(?:\.(?:whl|zip|tar\.gz|tgz|run|deb|rpm|sh))$"
)
_ARCH_OF = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
_CANN_IN_NAME = re.compile(r"(?<![\d.])(\d+\.\d+(?:\.(?:\d+|rc\d+))(?:-beta\.\d+)?)(?![\d])", re.IGNORECASE)
_PATH_SETTINGS = re.compile(r"(HOME|PATH|ROOT|DIR|PRELOAD)$")


def soc_version(history: History, matrix: Matrix) -> Iterator[Finding]:
    """SOC_VERSION of another chip than the base image's."""
    image = history.script.image
    chip = next((row for row in matrix.hardware if image and image.chip and row.image_chip == image.chip), None)
    for event in history.script.events:
        if not isinstance(event, EnvSetting) or event.name != "SOC_VERSION" or image is None or chip is None:
            continue
        row = next((each for each in matrix.hardware if event.value.casefold() in each.socs), None)
        if row and row.id != chip.id:
            args = {"soc": event.value, "title": row.title, "image": image.text, "wanted": chip.title}
            yield finding(
                event.place,
                "soc-version",
                args,
                (
                    f"{event.place}: SOC_VERSION={event.value}",
                    f"{image.place}: FROM {image.text}",
                    f"{row.id} ({row.source})",
                ),
                "error",
            )


def source_under_sh(history: History, matrix: Matrix) -> Iterator[Finding]:
    """`source` where /bin/sh may be dash. One finding a stage, the other lines as evidence."""
    del matrix
    script = history.script
    if script.shell == "bash" or (script.image and not script.image.os.startswith(("ubuntu", "debian"))):
        return
    found = [each for each in script.events if isinstance(each, Remark) and each.kind == "source"]
    if found:
        first = found[0].place
        image = (f"{script.image.place}: FROM {script.image.text}",) if script.image else ()
        evidence = (*(f"{each.place}: {each.text}" for each in found), *image)
        yield finding(first, "source-sh", {"count": len(found)}, evidence, "warning")


def tls(history: History, matrix: Matrix) -> Iterator[Finding]:
    """Certificates that are not checked. One finding a script."""
    del matrix
    found = [each for each in history.script.events if isinstance(each, Remark) and each.kind == "tls"]
    if found:
        first = found[0].place
        evidence = tuple(dict.fromkeys(f"{each.place}: {each.text}" for each in found))
        yield finding(first, "tls-off", {"what": found[0].text, "count": len(evidence)}, evidence, "warning")


def refs(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A clone of a branch that moves, and a commit in a short form."""
    for event in history.script.events:
        if not isinstance(event, Clone) or event.ref is None or not event.certain:
            continue
        ref = event.ref
        if ref in _MOVING or ref.startswith(("release/", "releases/")):
            tag = _tag_for(event, matrix)
            args = {"repo": event.repo, "ref": ref or Message("lint.default-branch")}
            says = "moving-ref-tag" if tag else "moving-ref"
            yield finding(
                event.place,
                "moving-ref",
                {**args, "tag": tag} if tag else args,
                _evidence(event, tag, matrix),
                "warning",
                says=says,
            )
        elif re.fullmatch(r"(?=.*\d)[0-9a-f]{7,39}", ref):
            yield finding(
                event.place, "short-commit", {"repo": event.repo, "ref": ref}, _evidence(event, "", matrix), "warning"
            )


def _tag_for(event: Clone, matrix: Matrix) -> str:
    """The tag of the same number as a release branch, where the matrix knows that release."""
    version = (event.ref or "").rpartition("/")[2].removeprefix("v")
    known = event.repo == "vllm-ascend" and version and matrix.vllm_ascend_row(version)
    return f"v{version}" if known else ""


def _evidence(event: Clone, tag: str, matrix: Matrix) -> tuple[str, ...]:
    row = matrix.vllm_ascend_row(tag.removeprefix("v")) if tag else None
    return (f"{event.place}: {event.repo} {event.ref or ''}".rstrip(), *((f"{row.id} ({row.source})",) if row else ()))


def vllm_target(history: History, matrix: Matrix) -> Iterator[Finding]:
    """vllm built for CUDA, or taken as a wheel, which asks for another torch, beside torch_npu or vllm-ascend."""
    del matrix
    vllm = history.packages.get("vllm")
    on_npu = (
        history.cann or "vllm-ascend" in history.packages or any("torch-npu" in history.final[arch] for arch in ARCHES)
    )
    if vllm is None or not on_npu:
        return
    event = history.script.events[vllm.order]
    if not isinstance(event, PipInstall) or not event.certain or event.no_deps:
        return
    target = event.env.get("VLLM_TARGET_DEVICE", "")
    if vllm.built and target != "empty" and UNKNOWN not in target:
        args = {"target": target or Message("lint.unset")}
        evidence = (f"{vllm.place}: vllm {vllm.version}".rstrip(), f"VLLM_TARGET_DEVICE={target}")
        yield finding(vllm.place, "vllm-target", args, evidence, "error")
    elif not vllm.built:
        evidence = (
            f"{vllm.place}: vllm {vllm.version}".rstrip(),
            history.cann_evidence or f"{vllm.place}: torch_npu, vllm-ascend",
        )
        yield finding(vllm.place, "vllm-wheel", {"version": vllm.version}, evidence, "warning")


def one_architecture(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A path or download of one architecture in an image that is built for both."""
    del matrix
    script = history.script
    if script.platform or script.image is None or not script.image.cann:
        return
    for event in script.events:
        if (
            isinstance(event, EnvSetting)
            and _PATH_SETTINGS.search(event.name)
            and not event.arch
            and ARCH not in event.value
        ):
            names, text = set(_ONE_ARCH.findall(event.value)), f"{event.name}={event.value}"
        elif isinstance(event, Remark) and event.kind == "download" and not event.arch and event.certain:
            names, text = set(_PLATFORM_WHEEL.findall(event.text)), event.text
        else:
            continue
        if len({_ARCH_OF[each] for each in names}) == 1:
            evidence = (f"{event.place}: {text}", f"{script.image.place}: FROM {script.image.text}")
            yield finding(event.place, "one-arch", {"what": text, "arch": min(names)}, evidence, "warning")


def unknown_instruction(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A line that is no instruction, most often because a backslash is missing on the line before."""
    del matrix
    for event in history.script.events:
        if isinstance(event, Remark) and event.kind == "instruction":
            evidence = (f"{event.place}: {event.text}",)
            yield finding(event.place, "unknown-instruction", {"name": event.text}, evidence, "error")


def file_name(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A Dockerfile whose name has another CANN version than what it is built on and installs."""
    script = history.script
    name = posixpath.basename(script.path)
    if script.image is None or not history.cann or "." not in name:
        return
    named = [each for each in _CANN_IN_NAME.findall(name) if versions.is_cann(each) and matrix.cann_row(each)]
    if named and versions.cann(named[0]) != versions.cann(history.cann):
        place = Location(script.path, script.image.place.line)
        args = {"named": named[0], "cann": history.cann}
        yield finding(place, "file-name", args, (script.path, history.cann_evidence), "warning")


def different_vllm(histories: Sequence[History]) -> Iterator[Finding]:
    """Dockerfiles of one folder that build the checkout on different vllm releases."""
    by_folder: dict[str, History] = {}
    for each in histories:
        vllm = each.packages.get("vllm")
        if vllm is None or not vllm.version or not each.script.copies:
            continue
        first = by_folder.setdefault(posixpath.dirname(each.script.path), each).packages["vllm"]
        if first.version != vllm.version:
            args = {"one": vllm.version, "other": first.version, "file": first.place.path}
            evidence = (f"{first.place}: vllm {first.version}", f"{vllm.place}: vllm {vllm.version}")
            yield finding(vllm.place, "vllm-differs", args, evidence, "warning")
