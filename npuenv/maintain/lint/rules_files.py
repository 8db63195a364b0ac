"""Rules about files as they are written: what requirement files and metadata ask for, and how scripts build.

How an image or an environment is built: chips, shells, TLS, moving refs, paths of one architecture.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.finding import Finding, Location, Severity
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


def disjoint_asks(checkout: LintedTree) -> Iterator[Finding]:
    """Two requirements of one project that no version satisfies: metadata against requirement files, each in itself."""
    for one, other in _pairs(checkout.files):
        for first, second in _clashing(one, other):
            args = {"package": first.name, "one": first.text, "other": second.text, "file": second.place.path}
            yield finding(first.place, "disjoint", args, (first, second), "error")


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
    when_range, needs_range = specifier(limit.when[len(when) :]), specifier(limit.needs[len(needs) :])
    triggers = (each for each in file.requirements if each.name == when and each.spec)
    trigger = next((each for each in triggers if each.spec and within(each.spec, when_range)), None)
    requirement = next((each for each in file.requirements if each.name == needs and each.spec is not None), None)
    if trigger is None or requirement is None or requirement.spec is None:
        return
    impossible = disjoint(requirement.spec, needs_range)
    if impossible or (takes_newest(requirement.spec) and not takes_newest(needs_range)):
        args = {"asked": requirement.text, "trigger": trigger.text, "needs": limit.needs, "why": Message(limit.why)}
        severity: Severity = "error" if impossible else "warning"
        yield finding(requirement.place, "undeclared-limit", args, (trigger, requirement, limit), severity)


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
    return finding(triton.place, "triton-together", args, (triton, ascend), "error")


def torch_pairs(requirements: dict[str, Requirement], matrix: Matrix, arch: str) -> Iterator[Finding]:
    """torch against torch_npu, and torchvision and torchaudio against torch."""
    torch, npu = requirements.get("torch"), requirements.get("torch-npu")
    row = matrix.torch_npu_row(npu.exact) if npu else None
    if torch and torch.spec is not None and npu and row:
        needs = specifier(row.torch_requirement(arch) or f"=={row.torch}")
        public = specifier(f"=={row.torch}")
        if disjoint(torch.spec, needs) and disjoint(torch.spec, public):
            args = {"torch_npu": npu.text, "torch": torch.text, "needs": f"torch=={row.torch}"}
            yield finding(npu.place, "torch-pair", args, (torch, npu, row), "error")
    companions = matrix.companion_row(torch.exact) if torch and torch.exact else None
    for name in ("torchvision", "torchaudio") if companions else ():
        requirement, fits = requirements.get(name), getattr(companions, name)
        if requirement is None or torch is None or not requirement.spec:
            continue
        if not requirement.spec.contains(fits, prereleases=True) and requirement.exact.split("+")[0] != fits:
            args = {"asked": requirement.text, "torch": torch.text, "fits": f"{name}=={fits}"}
            yield finding(requirement.place, "companion", args, (torch, requirement, companions), "error")


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
            yield finding(event.place, "soc-version", args, (event, image, row), "error")


def source_under_sh(history: History) -> Iterator[Finding]:
    """`source` where /bin/sh may be dash. One finding a stage, the other lines as evidence."""
    script = history.script
    if script.shell == "bash" or (script.image and not script.image.os.startswith(("ubuntu", "debian"))):
        return
    found = [each for each in script.events if isinstance(each, Remark) and each.kind == "source"]
    if found:
        evidence = (*found, *filter(None, (script.image,)))
        yield finding(found[0].place, "source-sh", {"count": len(found)}, evidence, "warning")


def tls(history: History) -> Iterator[Finding]:
    """Certificates that are not checked. One finding a script."""
    found = [each for each in history.script.events if isinstance(each, Remark) and each.kind == "tls"]
    if found:
        evidence = dict.fromkeys(map(str, found))
        args = {"what": found[0].text, "count": len(evidence)}
        yield finding(found[0].place, "tls-off", args, evidence, "warning")


def refs(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A clone of a branch that moves, and a commit in a short form."""
    for event in history.script.events:
        if not isinstance(event, Clone) or event.ref is None or not event.certain:
            continue
        ref, line = event.ref, f"{event.place}: {event.repo} {event.ref}".rstrip()
        if ref in _MOVING or ref.startswith(("release/", "releases/")):
            # the tag of the same number as a release branch, where the matrix knows that release
            version = ref.rpartition("/")[2].removeprefix("v")
            row = matrix.vllm_ascend_row(version) if event.repo == "vllm-ascend" else None
            args = {"repo": event.repo, "ref": ref or Message("lint.default-branch")}
            if row:
                args["tag"] = f"v{version}"
            says = "moving-ref-tag" if row else "moving-ref"
            evidence = (line, row) if row else (line,)
            yield finding(event.place, "moving-ref", args, evidence, "warning", says=says)
        elif re.fullmatch(r"(?=.*\d)[0-9a-f]{7,39}", ref):
            yield finding(event.place, "short-commit", {"repo": event.repo, "ref": ref}, (line,), "warning")


def vllm_target(history: History) -> Iterator[Finding]:
    """vllm built for CUDA, or taken as a wheel, which asks for another torch, beside torch_npu or vllm-ascend."""
    vllm = history.packages.get("vllm")
    has_npu = "vllm-ascend" in history.packages or any("torch-npu" in history.final[arch] for arch in ARCHES)
    if vllm is None or not (history.cann or has_npu):
        return
    event = history.script.events[vllm.order]
    if not isinstance(event, PipInstall) or not event.certain or event.no_deps:
        return
    target = event.env.get("VLLM_TARGET_DEVICE", "")
    if vllm.built and target != "empty" and UNKNOWN not in target:
        args = {"target": target or Message("lint.unset")}
        yield finding(vllm.place, "vllm-target", args, (vllm, f"VLLM_TARGET_DEVICE={target}"), "error")
    elif not vllm.built:
        evidence = (vllm, history.cann_evidence or f"{vllm.place}: torch_npu, vllm-ascend")
        yield finding(vllm.place, "vllm-wheel", {"version": vllm.version}, evidence, "warning")


def one_architecture(history: History) -> Iterator[Finding]:
    """A path or download of one architecture in an image that is built for both."""
    script = history.script
    if script.platform or script.image is None or not script.image.cann:
        return
    for event in script.events:
        if not isinstance(event, EnvSetting | Remark) or event.arch:
            continue
        names, text = set[str](), ""
        if isinstance(event, EnvSetting) and _PATH_SETTINGS.search(event.name) and ARCH not in event.value:
            names, text = set(_ONE_ARCH.findall(event.value)), f"{event.name}={event.value}"
        elif isinstance(event, Remark) and event.kind == "download" and event.certain:
            names, text = set(_PLATFORM_WHEEL.findall(event.text)), event.text
        if len({_ARCH_OF[each] for each in names}) == 1:
            args = {"what": text, "arch": min(names)}
            yield finding(event.place, "one-arch", args, (event, script.image), "warning")


def unknown_instruction(history: History) -> Iterator[Finding]:
    """A line that is no instruction, most often because a backslash is missing on the line before."""
    for event in history.script.events:
        if isinstance(event, Remark) and event.kind == "instruction":
            yield finding(event.place, "unknown-instruction", {"name": event.text}, (event,), "error")


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
            yield finding(vllm.place, "vllm-differs", args, (first, vllm), "warning")
