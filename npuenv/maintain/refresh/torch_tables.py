"""Proposals for the tables torch_npu and triton_ascend: which wheels exist, and what they ask of torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from npuenv.core.shellscript import ARCHES
from npuenv.index.metadata import distribution, specifier_of
from npuenv.maintain.refresh.asked import DEFAULT, glibc_floor, published, pythons, wheels
from npuenv.maintain.refresh.proposal import Proposal, changed_keys, new_row
from npuenv.matrix.rows import TorchNpu, TritonAscend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.index.pages import IndexFile
    from npuenv.maintain.refresh.asked import Refresh

TORCH_NPU, TRITON = "torch_npu.toml", "triton_ascend.toml"


def torch_npu(asked: Refresh) -> Iterator[Proposal]:
    """New torch_npu versions, and rows whose wheels are no longer what they say."""
    known = {str(Version(row.version)): row for row in asked.matrix.torch_npu}
    found = set()
    for version, files in asked.by_version("torch-npu", min(known, key=Version)):
        found.add(version)
        old = known.get(version)
        row = _with_wheels(asked, old or _unlisted(asked, version, files), files, is_new=old is None)
        if old is None and wheels(files):
            yield new_row(TORCH_NPU, replace(row, torch=_torch_of(row)))
        elif old is not None:
            yield from changed_keys(TORCH_NPU, old, row, "package index")
    for version, row in known.items():
        if row.index == DEFAULT and version not in found:
            yield from changed_keys(TORCH_NPU, row, replace(row, index=""), "package index: no such version")


def triton_ascend(asked: Refresh) -> Iterator[Proposal]:
    """New triton-ascend versions, and rows whose wheels are no longer what they say.

    For which CANN and hardware a version is made, the index does not say: a new row leaves both empty.
    """
    known = {str(Version(row.version)): row for row in asked.matrix.triton_ascend}
    for version, files in asked.by_version("triton-ascend", min(known, key=Version)):
        old = known.get(version)
        source = _source(asked, files)
        empty = TritonAscend(f"triton-ascend.{version}", source, asked.today, version, (), (), (), (), DEFAULT)
        row = replace(
            old or empty,
            python=pythons(wheels(files)),
            arch=tuple(arch for arch in ARCHES if wheels(files, arch)),
            index=DEFAULT,
            published=published(files) or (old.published if old else ""),
        )
        if old is None and wheels(files):
            yield new_row(TRITON, row)
        elif old is not None:
            yield from changed_keys(TRITON, old, row, "package index")


def _with_wheels(asked: Refresh, row: TorchNpu, files: Sequence[IndexFile], *, is_new: bool) -> TorchNpu:
    """The row with what the index says of its wheels. METADATA is read where it may differ from the row."""
    asks = {}
    for arch in ARCHES:
        chosen = wheels(files, arch)
        before = row.requires_aarch64 if arch == "aarch64" else row.requires_x86_64
        asks[arch] = before if chosen else ""
        if chosen and (is_new or asked.is_news(chosen, row.seen)):
            read = asked.wheel_requires(chosen[0])
            asks[arch] = _on_torch(read.requires) if read else before
    return replace(
        row,
        index=DEFAULT if wheels(files) else row.index,
        python_aarch64=pythons(wheels(files, "aarch64")),
        python_x86_64=pythons(wheels(files, "x86_64")),
        requires_aarch64=asks["aarch64"],
        requires_x86_64=asks["x86_64"],
        published=published(files) or row.published,
    )


def _on_torch(requires: Sequence[str]) -> str:
    """The requirement on torch, like "torch==2.8.0+cpu"; "" where there is none."""
    is_there = any(distribution(line) == "torch" for line in requires)
    return f"torch{specifier_of(requires, 'torch')}" if is_there else ""


def _unlisted(asked: Refresh, version: str, files: Sequence[IndexFile]) -> TorchNpu:
    """A row for a version of which only the index is known: which CANN it goes with, no index says."""
    return TorchNpu(
        id=f"torch-npu.{version}",
        source=_source(asked, files),
        seen=asked.today,
        version=version,
        torch="",
        status=_status(Version(version)),
    )


def _status(version: Version) -> Literal["dev", "one-off", "pre-release", "unlisted"]:
    if version.is_devrelease:
        return "dev"
    if version.local:
        return "one-off"
    return "pre-release" if version.is_prerelease else "unlisted"


def _torch_of(row: TorchNpu) -> str:
    """The torch a version is for: the one its wheels pin, else the one of the same number."""
    pin = (row.torch_requirement("aarch64") or row.torch_requirement("x86_64")).removeprefix("==")
    is_exact = pin and pin[0].isdigit() and "," not in pin
    return pin.split("+")[0] if is_exact else Version(row.version).base_version


def _source(asked: Refresh, files: Sequence[IndexFile]) -> str:
    floor = glibc_floor(wheels(files))
    return f"package index, {asked.today}" + (f"; its wheels need glibc {floor}" if floor else "")
