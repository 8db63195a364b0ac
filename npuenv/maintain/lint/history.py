"""What a script leaves installed, as far as its text decides it: the last requirement for each package; clashes."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PackagingRequirement

from npuenv.core import versions
from npuenv.core.finding import Location
from npuenv.core.shellwords import ARCHES
from npuenv.maintain.lint.values import (
    BaseImage,
    Clone,
    EnvSetting,
    LintedScript,
    LintedTree,
    PipInstall,
    Remark,
    Requirement,
    RequirementFile,
    Uninstall,
    cited,
    disjoint,
)

if TYPE_CHECKING:
    from npuenv.matrix import Matrix


@dataclass(frozen=True, slots=True)
class ActiveRequirement:
    """A requirement that is in force, and where it comes from."""

    requirement: Requirement | None  # None: the text no longer decides which version there is
    order: int
    why: Literal["command", "file", "metadata"]


@dataclass(frozen=True, slots=True)
class Package:
    """vllm or vllm-ascend as a script installs it."""

    name: str
    place: Location
    order: int
    version: str = ""  # "": not decided
    requires: tuple[Requirement, ...] = ()
    no_deps: bool = False
    built: bool = False  # from source, not from a wheel

    def __str__(self) -> str:
        return f"{self.place}: {self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class MetadataConflict:
    """A requirement that a package's own requirement excludes."""

    active: ActiveRequirement
    package: Package
    needs: Requirement
    replaced: bool  # True: pip undoes the requirement to satisfy the package; False: the package is overridden


@dataclass(slots=True)
class History:
    """A script with what follows from it. `final` is by architecture and package name."""

    script: LintedScript
    final: dict[str, dict[str, ActiveRequirement]] = field(default_factory=dict)
    packages: dict[str, Package] = field(default_factory=dict)
    clashes: list[MetadataConflict] = field(default_factory=list)
    cann: str = ""
    cann_evidence: str = ""

    def last(self, name: str, arch: str) -> Requirement | None:
        """What is in force for a package in the end; None where there is nothing or the text does not decide it."""
        active = self.final[arch].get(name)
        return active.requirement if active else None

    def where(self, name: str, arch: str) -> Location:
        """The line that brought a package: its own, or that of the install whose metadata asks for it."""
        active = self.final[arch][name]
        if active.requirement and active.requirement.place.line:
            return active.requirement.place
        if active.order < 0 and self.script.image:
            return self.script.image.place
        return self.script.events[active.order].place


def follow(script: LintedScript, checkout: LintedTree, matrix: Matrix) -> History:
    """Goes through a script once for each architecture."""
    history = History(script)
    if script.image and script.image.cann:
        history.cann, history.cann_evidence = script.image.cann, str(script.image)
    if script.image and script.image.release:
        _start_from(history, script.image, matrix)
    for arch in ARCHES:
        _Walk(history, checkout, matrix, arch).go()
    return history


def _start_from(history: History, image: BaseImage, matrix: Matrix) -> None:
    """An image of vllm-ascend: the CANN that its release builds for the chip."""
    row = matrix.vllm_ascend_row(image.release)
    chip = next((each.id for each in matrix.hardware if each.image_chip == image.chip), "")
    built = next((each for each in row.image if chip in each.hardware), None) if row else None
    if row and built:
        history.cann = built.cann
        history.cann_evidence = f"{image}; {cited(row)}"


class _Walk:
    """One pass over the events, for one architecture."""

    def __init__(self, history: History, checkout: LintedTree, matrix: Matrix, arch: str) -> None:
        self.history, self.checkout, self.matrix, self.arch = history, checkout, matrix, arch
        self.state: dict[str, ActiveRequirement] = {}
        self.clones: dict[str, Clone] = {}
        self.local = _local_files(history.script, checkout)
        image = history.script.image
        if image and image.release:
            requires = self._requires("vllm-ascend", image.release)
            history.packages["vllm-ascend"] = Package("vllm-ascend", image.place, -1, image.release, requires)
            self.state = {each.name: ActiveRequirement(each, -1, "metadata") for each in requires if each.on(arch)}

    def go(self) -> None:
        for order, event in enumerate(self.history.script.events):
            if isinstance(event, Clone):
                self.clones[event.folder] = event
            elif not isinstance(event, EnvSetting) and event.arch in ("", self.arch):
                self._apply(order, event)
        self.history.final[self.arch] = self.state

    def _apply(self, order: int, event: PipInstall | Uninstall | Remark) -> None:
        if isinstance(event, Remark):
            if event.kind == "cann":
                self.history.cann = event.text if event.certain else ""
                self.history.cann_evidence = f"{event.place}: CANN {event.text}"
        elif isinstance(event, Uninstall):
            for name in event.names:
                self.state.pop(name, None)
        else:
            self._install(order, event)

    def _install(self, order: int, event: PipInstall) -> None:
        if event.opaque:
            self.state = {name: ActiveRequirement(None, order, "command") for name in self.state}
        for each in event.requirements:
            self._require(order, each, event)
        for file in event.files:
            self._file(order, file, event)
        for folder in event.builds:
            self._build(order, folder, event)

    def _require(
        self, order: int, each: Requirement, event: PipInstall, why: Literal["command", "file"] = "command"
    ) -> None:
        if not each.on(self.arch):
            return
        if not event.certain or each.spec is None:
            self.state[each.name] = ActiveRequirement(None, order, why)
            return
        active = ActiveRequirement(each, order, why)
        if each.name in ("vllm", "vllm-ascend"):
            self._package(Package(each.name, each.place, order, each.exact, (), event.no_deps), event)
        self._clash_with_packages(active)
        before = self.state.get(each.name)
        pinned = before.requirement.exact if before and before.requirement else ""
        if not (pinned and each.spec.contains(pinned, prereleases=True)):
            self.state[each.name] = active

    def _clash_with_packages(self, active: ActiveRequirement) -> None:
        """A requirement that comes after vllm or vllm-ascend and leaves it without what it needs."""
        for package in self.history.packages.values():
            if package.order > active.order or active.requirement is None or active.requirement.name == package.name:
                continue
            asks = (each for each in package.requires if each.name == active.requirement.name)
            needs = next((each for each in asks if each.on(self.arch)), None)
            if needs and _apart(active.requirement, needs) and active.why == "command":
                self._clash(MetadataConflict(active, package, needs, replaced=False))

    def _clash(self, clash: MetadataConflict) -> None:
        if clash not in self.history.clashes:
            self.history.clashes.append(clash)

    def _file(self, order: int, file: str, event: PipInstall) -> None:
        """The requirements of a requirements file, where it is known which one that is."""
        clone = self.clones.get(posixpath.dirname(file))
        known = self.local.get(file)
        if clone and clone.repo == "vllm-ascend" and posixpath.basename(file) == "requirements.txt" and event.certain:
            for each in self._requires("vllm-ascend", _version(clone.ref)):
                self._require(order, each, event, "file")
        elif known and not clone:
            for each in known.requirements:
                self._require(order, each, event, "file")

    def _build(self, order: int, folder: str, event: PipInstall) -> None:
        clone = self.clones.get(folder)
        if clone and clone.repo in ("vllm", "vllm-ascend"):
            version = _version(clone.ref) if clone.certain and event.certain else ""
            self._package(Package(clone.repo, event.place, order, version, (), event.no_deps, built=True), event)
        elif not clone and folder in self.history.script.copies:
            project = _project(self.checkout, _context(self.history.script, self.checkout))
            if project and versions.normalised(project.label) == "vllm-ascend":
                asks = project.requirements
                self._package(Package("vllm-ascend", event.place, order, "", asks, event.no_deps, built=True), event)

    def _package(self, package: Package, event: PipInstall) -> None:
        """vllm or vllm-ascend with what it requires. Without `--no-deps` pip brings that about, whatever was there."""
        requires = package.requires or self._requires(package.name, package.version)
        whole = replace(package, requires=requires)
        self.history.packages[package.name] = whole
        for needs in requires if event.certain else ():
            before = self.state.get(needs.name)
            fits = before and before.requirement and not _apart(before.requirement, needs)
            if before and before.requirement and not fits and before.why == "command":
                self._clash(MetadataConflict(before, whole, needs, replaced=not package.no_deps))
            if not package.no_deps and needs.on(self.arch) and not fits:
                self.state[needs.name] = ActiveRequirement(needs, package.order, "metadata")

    def _requires(self, name: str, version: str) -> tuple[Requirement, ...]:
        """What the matrix says a release asks for; nothing where it does not know the release."""
        if not version:
            return ()
        row = self.matrix.built_row(name, version)
        if row is None:
            return ()
        where = Location(cited(row), 0)
        requirements = []
        for text in row.requires:
            try:
                parsed = PackagingRequirement(text)
            except InvalidRequirement:
                continue
            if parsed.marker is None:
                requirements.append(Requirement(versions.normalised(parsed.name), parsed.specifier, text, where))
        return tuple(requirements)


def _apart(one: Requirement, other: Requirement) -> bool:
    return one.spec is not None and other.spec is not None and disjoint(one.spec, other.spec)


def _version(ref: str | None) -> str:
    """The version a tag names: v0.18.0 gives 0.18.0; "" for a branch or a commit."""
    text = (ref or "").removeprefix("v")
    return text if text[:1].isdigit() and "." in text and "/" not in text and "_" not in text else ""


def _context(script: LintedScript, checkout: LintedTree) -> str:
    """The folder that `COPY .` copies: the nearest one above the Dockerfile that holds a project."""
    projects = {posixpath.dirname(each.path) for each in checkout.files if each.kind == "project"}
    folder = posixpath.dirname(script.path)
    while folder and folder not in projects:
        folder = posixpath.dirname(folder)
    return folder


def _project(checkout: LintedTree, folder: str) -> RequirementFile | None:
    projects = (each for each in checkout.files if each.kind == "project")
    return next((each for each in projects if posixpath.dirname(each.path) == folder), None)


def _local_files(script: LintedScript, checkout: LintedTree) -> dict[str, RequirementFile]:
    """The requirement files of the checkout by the paths under which an image sees them."""
    context = _context(script, checkout)
    found = {}
    for copy in script.copies if script.image else (posixpath.join("/", context),):
        for file in checkout.files:
            if file.kind == "requirements":
                found[posixpath.normpath(posixpath.join(copy, posixpath.relpath(file.path, context or ".")))] = file
    return found
