"""Rules about the versions that a Dockerfile or script leaves installed, taken together and with its base image."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.core.shellwords import ARCHES
from npuenv.core.versions import covers_cann
from npuenv.maintain.lint.rules_files import together, torch_pairs
from npuenv.maintain.lint.values import Event, LintedTree, PipInstall, Requirement, Uninstall, disjoint, finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.core.finding import Finding, Location, Severity
    from npuenv.maintain.lint.history import History, MetadataConflict, Package
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import TorchNpu, TritonAscend, VllmAscend

# What pulls in or overwrites community triton when it is installed with its dependencies.
_BRINGS_TRITON = frozenset(("triton", "vllm", "xformers", "liger-kernel", "flash-linear-attention"))


def pairs(history: History, matrix: Matrix) -> Iterator[Finding]:
    """torch, torch_npu, torchvision and torchaudio as they are in the end."""
    for arch in ARCHES:
        names = ("torch", "torch-npu", "torchvision", "torchaudio")
        active = ((name, history.final[arch][name]) for name in names if name in history.final[arch])
        stated = {name: each.requirement for name, each in active if each.requirement and each.why != "metadata"}
        yield from torch_pairs(stated, matrix, arch)


def pairs_of_commands(history: History, matrix: Matrix) -> Iterator[Finding]:
    """The same four of one command, which pip refuses as a whole, whatever comes later. Without dependencies it
    refuses nothing.
    """
    for event in history.script.events:
        if isinstance(event, PipInstall) and event.certain and not event.no_deps:
            for arch in ARCHES:
                if event.arch in ("", arch):
                    requirements = {each.name: each for each in event.requirements if each.on(arch)}
                    npu = requirements.get("torch-npu")
                    row = matrix.torch_npu_row(npu.exact) if npu else None
                    if row is None or not row.torch_requirement(arch):  # its wheel itself asks for no torch
                        requirements.pop("torch-npu", None)
                    yield from torch_pairs(requirements, matrix, arch)


def torch_npu_on_cann(history: History, matrix: Matrix) -> Iterator[Finding]:
    """torch_npu against the CANN of the base image: the recommended pair, the compatible set, or neither."""
    cann = history.cann
    for arch in ARCHES if versions.is_cann(cann) else ():
        npu = history.last("torch-npu", arch)
        row = matrix.torch_npu_row(npu.exact) if npu else None
        if npu is None or row is None or _pairs_with(row, cann):
            continue
        if not (row.cann or row.cann_compatible):
            continue  # no source says what it pairs with
        compatible = any(covers_cann(each, cann) for each in row.cann_compatible)
        fits = _pair_of(matrix, row.torch, cann)
        if (compatible and not fits) or not _is_named(matrix, cann):
            continue  # nothing better is known, or the tables do not reach this CANN
        says = "torch-npu-cann-not-pair" if compatible else "torch-npu-cann"
        args = {
            "torch_npu": f"torch_npu {npu.exact}",
            "cann": cann,
            "pair": row.cann or Message("lint.no-pair"),
            "fits": fits or Message("lint.no-pair"),
        }
        place = history.where("torch-npu", arch)
        evidence = (*_sides(npu, place), history.cann_evidence, row)
        yield finding(place, "torch-npu-cann", args, evidence, "warning" if compatible else "error", says=says)


def triton_on_cann(history: History, matrix: Matrix) -> Iterator[Finding]:
    """triton-ascend that was published for another CANN series, where there is one for this."""
    if not versions.is_cann(history.cann):
        return
    for arch in ARCHES:
        requirement = history.last("triton-ascend", arch)
        row = matrix.triton_ascend_row(requirement.exact) if requirement else None
        better = next((each for each in matrix.triton_ascend if _same_series(each.cann, history.cann)), None)
        if requirement is None or row is None or better is None or not row.cann or _same_series(row.cann, history.cann):
            continue
        fits = f"triton-ascend {better.version}"
        args = {"asked": requirement.text, "cann": history.cann, "stated": row.cann, "fits": fits}
        place = history.where("triton-ascend", arch)
        evidence = (*_sides(requirement, place), history.cann_evidence, row, better)
        yield finding(place, "triton-ascend-cann", args, evidence, "warning")


def _same_series(stated: tuple[str, ...], cann: str) -> bool:
    return any(versions.cann(each).series == versions.cann(cann).series for each in stated)


def _is_named(matrix: Matrix, cann: str) -> bool:
    """Whether any torch_npu row speaks of a CANN version."""
    return any(covers_cann(each, cann) for row in matrix.torch_npu for each in (row.cann, *row.cann_compatible) if each)


def _pairs_with(row: TorchNpu, cann: str) -> bool:
    known = [each for each in (row.cann, *row.cann_unofficial) if each]
    return any(covers_cann(each, cann) for each in known)


def _pair_of(matrix: Matrix, torch: str, cann: str) -> str:
    rows = (each for each in matrix.torch_npu if each.torch == torch and each.cann)
    row = next((each for each in rows if covers_cann(each.cann, cann)), None)
    return f"torch_npu {row.version}" if row else ""


def wheels(history: History, matrix: Matrix) -> Iterator[Finding]:
    """A pin that has no wheel for the Python of the base image."""
    image = history.script.image
    missing: dict[Requirement, list[tuple[str, TorchNpu | TritonAscend]]] = {}
    for arch in ARCHES if image and image.python else ():
        for name in ("torch-npu", "triton-ascend"):
            requirement = history.last(name, arch)
            row = _indexed_row(requirement, matrix) if requirement and requirement.place.line else None
            pythons = _pythons(row, arch) if row else ()
            if requirement and row and image and pythons and image.python not in pythons:
                missing.setdefault(requirement, []).append((arch, row))
    for requirement, found in missing.items():
        arches, row = tuple(arch for arch, _ in found), found[0][1]
        assert image is not None
        args = {"asked": requirement.text, "python": image.python, "arch": arches, "pythons": _pythons(row, arches[0])}
        yield finding(requirement.place, "no-wheel", args, (requirement, image, row), "error")


def _pythons(row: TorchNpu | TritonAscend, arch: str) -> tuple[str, ...]:
    return row.python if hasattr(row, "python") else row.pythons(arch)


def index_of_files(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    """A version in a requirements file that is nowhere, or not where the file, or a script that installs it, looks."""
    indexes_of: dict[str, tuple[str, ...]] = {}
    for script in checkout.scripts:
        for event in script.events:
            if isinstance(event, PipInstall):
                for name in map(posixpath.basename, event.files):
                    indexes_of[name] = (*indexes_of.get(name, ()), *event.indexes)
    for each in checkout.files:
        if each.kind != "extra":
            more = indexes_of.get(posixpath.basename(each.path), ()) if each.kind == "requirements" else ()
            wider = (replace(requirement, indexes=(*requirement.indexes, *more)) for requirement in each.requirements)
            yield from _indexes(wider, matrix, "warning")


def index_of_script(history: History, matrix: Matrix) -> Iterator[Finding]:
    """The same for the command line of an install."""
    for event in history.script.events:
        if isinstance(event, PipInstall) and event.certain:
            yield from _indexes((each for each in event.requirements if "://" not in each.text), matrix, "error")


def _indexes(requirements: Iterable[Requirement], matrix: Matrix, severity: Severity) -> Iterator[Finding]:
    for requirement in requirements:
        row = _indexed_row(requirement, matrix)
        if row is None or row.index == "default":
            continue
        index = matrix.index_row(row.index) if row.index else None
        carriers = [each.url for each in matrix.indexes if requirement.name in each.carries]
        if index and any(_same_index(one, other) for one in carriers for other in requirement.indexes):
            continue
        args = {"asked": requirement.text, "index": index.url if index else ""}
        rule, severity_here = ("other-index", severity) if index else ("no-index", "error")
        yield finding(requirement.place, rule, args, (requirement, row), severity_here)


def _indexed_row(requirement: Requirement, matrix: Matrix) -> TorchNpu | TritonAscend | None:
    """The row of a pin, for the packages whose rows say which index has them."""
    if requirement.name == "torch-npu":
        return matrix.torch_npu_row(requirement.exact)
    return matrix.triton_ascend_row(requirement.exact) if requirement.name == "triton-ascend" else None


def _same_index(one: str, other: str) -> bool:
    return _bare_address(one) == _bare_address(other)


def _bare_address(url: str) -> str:
    return url.partition("://")[2].rstrip("/").removesuffix("/simple").rpartition("@")[2]


def cpu_index(history: History, matrix: Matrix) -> Iterator[Finding]:
    """torch_npu whose x86_64 wheel asks for `torch==X+cpu`, in a script that never names where that is."""
    index = next((each for each in matrix.indexes if "torch" in each.carries), None)
    installs = [each for each in history.script.events if isinstance(each, PipInstall)]
    texts = [text for each in installs for text in (*each.indexes, *(asked.text for asked in each.requirements))]
    named = any("+cpu" in each or (index and _same_index(index.url, each)) for each in texts)
    image = history.script.image
    if index is None or named or any(each.opaque for each in installs) or (image and (image.release or not image.cann)):
        return
    for event in installs:
        for each in event.requirements if event.certain and not event.no_deps and event.arch != "aarch64" else ():
            row = matrix.torch_npu_row(each.exact) if each.name == "torch-npu" and each.on("x86_64") else None
            if row and "+cpu" in row.requires_x86_64 and "://" not in each.text:
                args = {"asked": each.text, "needs": row.requires_x86_64, "index": index.url}
                yield finding(each.place, "cpu-index", args, (each, row), "warning")


def vllm_pair(history: History, matrix: Matrix) -> Iterator[Finding]:
    """vllm-ascend against vllm, the base image's CANN and Python, and their own metadata against each other."""
    ascend, vllm = history.packages.get("vllm-ascend"), history.packages.get("vllm")
    row = matrix.vllm_ascend_row(ascend.version) if ascend and ascend.version else None
    if ascend is None or row is None:
        return
    if vllm and vllm.version and not versions.accepts(f"=={row.vllm}", vllm.version):
        args: dict[str, object] = {"ascend": row.version, "vllm": vllm.version, "fits": row.vllm}
        yield finding(vllm.place, "vllm-pair", args, (vllm, ascend, row), "error")
    yield from _ascend_in_image(history, row, ascend)


def _ascend_in_image(history: History, row: VllmAscend, ascend: Package) -> Iterator[Finding]:
    image = history.script.image
    stated = {each for each in (row.cann, row.cann_image, *(each.cann for each in row.image)) if versions.is_cann(each)}
    if versions.is_cann(history.cann) and stated and not any(covers_cann(each, history.cann) for each in stated):
        args = {"ascend": row.version, "cann": history.cann, "fits": tuple(sorted(stated))}
        yield finding(ascend.place, "vllm-ascend-cann", args, (ascend, row, history.cann_evidence), "warning")
    if image and image.python and row.python and not versions.accepts(row.python, f"{image.python}.0"):
        args = {"ascend": row.version, "python": image.python, "fits": row.python}
        yield finding(ascend.place, "vllm-ascend-python", args, (ascend, row, image), "error")


def metadata_clash(history: History) -> Iterator[Finding]:
    """vllm and vllm-ascend that ask for different versions of a third package."""
    ascend, vllm = history.packages.get("vllm-ascend"), history.packages.get("vllm")
    if ascend is None or vllm is None:
        return
    for one in ascend.requires:
        other = next((each for each in vllm.requires if each.name == one.name), None)
        if other and one.spec is not None and other.spec is not None and disjoint(one.spec, other.spec):
            args = {"package": one.name, "ascend": one.text, "vllm": other.text}
            evidence = (f"{one} (vllm-ascend)", f"{other} (vllm)", f"{vllm.place}: vllm {vllm.version}")
            yield finding(ascend.place, "metadata-clash", args, evidence, "warning")


def broken_pins(history: History) -> Iterator[Finding]:
    """An install that overrides what vllm or vllm-ascend asks for, or that they undo afterwards."""
    for clash in history.clashes:
        if clash.active.requirement and clash.active.requirement.place.line:
            yield _broken(clash, clash.active.requirement)


def _broken(clash: MetadataConflict, requirement: Requirement) -> Finding:
    rule = "pin-replaced" if clash.replaced else "breaks-pin"
    package = f"{clash.package.name} {clash.package.version}".strip()
    args = {"asked": requirement.text, "package": package, "needs": clash.needs.text}
    severity: Severity = "warning" if clash.replaced else "error"
    return finding(requirement.place, rule, args, (requirement, clash.package, clash.needs), severity)


def triton_order(history: History) -> Iterator[Finding]:
    """Community triton and triton-ascend own the same files: whichever is touched last decides."""
    for arch in ARCHES:
        yield from _triton_on(history, arch)


def _triton_on(history: History, arch: str) -> Iterator[Finding]:
    events = [(order, each) for order, each in enumerate(history.script.events) if _counts(each, arch)]
    installs = (order for order, each in events if isinstance(each, PipInstall) and _installs_ascend(each, arch))
    anew = max(installs, default=-1)
    ascend: Requirement | None = None
    for order, event in events:
        if isinstance(event, PipInstall):
            if ascend and not event.no_deps:
                yield from _over_ascend(event, ascend, arch, is_last=order > anew)
            named = (each for each in event.requirements if each.name == "triton-ascend" and each.on(arch))
            ascend = next(named, ascend)
        elif isinstance(event, Uninstall) and "triton-ascend" in event.names:
            ascend = None
        elif isinstance(event, Uninstall) and "triton" in event.names and ascend and order > anew:
            args, evidence = {"ascend": ascend.text}, (ascend, f"{event.place}: pip uninstall triton")
            yield finding(event.place, "triton-uninstalled-last", args, evidence, "warning")


def _counts(event: Event, arch: str) -> bool:
    return isinstance(event, PipInstall | Uninstall) and event.certain and event.arch in ("", arch)


def _installs_ascend(event: PipInstall, arch: str) -> bool:
    """Whether an install brings triton-ascend, or something that the text does not name."""
    return event.opaque or any(each.name == "triton-ascend" and each.on(arch) for each in event.requirements)


def _over_ascend(event: PipInstall, ascend: Requirement, arch: str, *, is_last: bool) -> Iterator[Finding]:
    for each in event.requirements:
        if each.name == "triton" and each.on(arch):
            yield together(each, ascend)
        elif each.name in _BRINGS_TRITON and each.on(arch) and is_last:
            args = {"ascend": ascend.text, "asked": each.text}
            yield finding(each.place, "triton-ascend-not-last", args, (ascend, each), "warning")


def _sides(requirement: Requirement, place: Location) -> tuple[object, ...]:
    """A requirement, and the line that brought it where that is another one."""
    return (requirement,) if requirement.place == place else (requirement, place)
