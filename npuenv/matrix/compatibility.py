"""Compatibility of torch_npu versions with CANN versions, from the rows of the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import TorchNpu


def pairing(row: TorchNpu, cann: str, matrix: Matrix) -> str | None:
    """How a torch_npu version pairs with a CANN: recommended-pair, compatible-set, image-practice, or None.

    An image counts only if the release's policy table and its metadata name the same torch_npu. If they differ, one of
    them is a temporary build.
    """
    wanted = versions.cann(cann)
    if row.cann and versions.cann(row.cann) == wanted:
        return "recommended-pair"
    if any(versions.covers_cann(each, cann) for each in (*row.cann_compatible, *row.cann_unofficial)):
        return "compatible-set"
    exactly = f"=={row.version}"
    for release in matrix.vllm_ascend:
        agrees = release.torch_npu == row.version and release.requirement("torch-npu") == exactly
        if agrees and release.cann and versions.is_cann(release.cann) and versions.cann(release.cann) == wanted:
            return "image-practice"
    return None


def paired_with(row: TorchNpu) -> tuple[str, ...] | Message:
    """The CANN versions a torch_npu row names, or a message that there are none."""
    named = tuple(dict.fromkeys(each for each in (row.cann, *row.cann_unofficial, *row.cann_compatible) if each))
    return named or Message("resolve.none-stated")
