"""Finds the wheels of vllm-ascend that are built for one generation of cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import ChipWheel, RecipeGit
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.types import GitSource


def chip_wheel(source: RecipeGit, ref: str, candidate: Candidate, matrix: Matrix) -> ChipWheel | None:
    """The wheel of a component at a release's tag for a candidate's cards, Python, architecture and C library, or None.

    One whose hash is known comes first. The wheel has compiled code: it is only for the CANN and torch_npu that its
    release was built with.
    """
    version = candidate.versions.get(source.name)
    if source.moving or source.how != "install" or ref != f"v{version}":
        return None
    system = matrix.system_row(candidate.os) if candidate.os else None
    python = f"-cp{candidate.python.replace('.', '')}-"
    fitting = [
        row
        for row in matrix.chip_wheels
        if (row.name, row.version, row.hardware) == (source.name, version, candidate.hardware)
        and python in row.id
        and f"_{candidate.arch}" in row.id
        and versions.accepts(f">={row.glibc}", system.glibc if system else candidate.recipe.glibc)
    ]
    return max(fitting, key=lambda row: bool(row.sha256)) if fitting and _is_as_built(candidate, matrix) else None


def chip_wheel_notes(sources: Iterable[GitSource]) -> Iterator[Message]:
    """What an installation takes from a wheel for the requested hardware, and which wheel has no known hash."""
    for wheel in filter(None, (source.wheel for source in sources)):
        args = {"name": wheel.name, "file": wheel.id, "hardware": wheel.hardware, "sha256": wheel.sha256}
        index = Message("plan.default-index") if wheel.index == "default" else wheel.index
        key = "resolve.note-chip-wheel" if wheel.sha256 else "resolve.note-chip-wheel-unhashed"
        yield Message(key, {**args, "index": index})


def _is_as_built(candidate: Candidate, matrix: Matrix) -> bool:
    """Whether a candidate has the CANN and the torch_npu of its vllm-ascend release."""
    row = matrix.vllm_ascend_row(candidate.versions.get("vllm-ascend", ""))
    if row is None or candidate.cann is None:
        return False
    cann = {versions.cann(text) for text in (row.cann, *(image.cann for image in row.image)) if text}
    torch_npu = versions.exact(row.requirement("torch-npu")) or row.torch_npu
    has = candidate.versions.get("torch-npu", "")
    is_torch_npu = bool(torch_npu and has) and Version(torch_npu).release == Version(has).release
    return versions.cann(candidate.cann) in cann and is_torch_npu
