"""Proposals for the tables torch_npu, triton_ascend, vllm_ascend and built/.

`built/` is what vllm and vllm-ascend ask for when they are built from source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from npuenv.core.messages import Message
from npuenv.core.shellwords import ARCHES
from npuenv.core.versions import exact
from npuenv.index.metadata import (
    Requires,
    Unreadable,
    distribution,
    empty_build_requires,
    first_block,
    sdist_requires,
    specifier_of,
)
from npuenv.maintain.refresh.proposal import (
    DEFAULT,
    Proposal,
    changed_keys,
    glibc_floor,
    proposals,
    published,
    pythons,
    sdist,
    wheels,
)
from npuenv.maintain.refresh.release import POLICY, WANTED, PolicyRow, built_images, policy_rows, vllm_tag
from npuenv.matrix.rows import Built, TorchNpu, TritonAscend, VllmAscend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.index.pages import IndexFile
    from npuenv.maintain.refresh.proposal import MatrixComparison, Refresh
    from npuenv.matrix.rows import ReleaseImage


TORCH_NPU, TRITON = "torch_npu.toml", "triton_ascend.toml"


def torch_npu(asked: Refresh) -> Iterator[Proposal]:
    """New torch_npu versions, and rows whose wheels are no longer what they say."""
    known = {str(Version(row.version)): row for row in asked.matrix.torch_npu}
    found = set()
    for version, files in asked.by_version("torch-npu", min(known, key=Version)):
        found.add(version)
        old = known.get(version)
        row = _with_wheels(asked, old or _unlisted(asked, version, files), files, is_new=old is None)
        if old or wheels(files):
            new = row if old else replace(row, torch=_torch_of(row))
            yield from proposals(TORCH_NPU, old, new, "package index")
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
        if old or wheels(files):
            yield from proposals(TRITON, old, row, "package index")


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
    status = _status(Version(version))
    return TorchNpu(f"torch-npu.{version}", _source(asked, files), asked.today, version, "", status)


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


VLLM_ASCEND, BUILT_VLLM_ASCEND, BUILT_VLLM = "vllm_ascend.toml", "built/vllm_ascend.toml", "built/vllm.toml"
EMPTY_BUILD = ("PKG-INFO", "setup.py", "requirements-*.txt", "requirements/*.txt")
# The first requirement of requirements/cuda.txt behind the common ones, in every release that has no sdist.
_CUDA_STARTS = frozenset({"numba", "ray", "torch"})


@dataclass(frozen=True, slots=True)
class Release:
    """What the files of one vllm-ascend version say."""

    version: str
    asks: Requires
    images: tuple[ReleaseImage, ...]
    vllm: str  # the tag its Dockerfile builds; "": none named
    policy: dict[str, PolicyRow]  # the table it carries; empty: none
    released: str  # day of the first upload; "": not known
    source: str
    policy_source: str
    kind: str  # what was read: sdist | wheel | tree


def vllm_ascend(asked: Refresh) -> Iterator[Proposal]:
    """New releases, releases whose files say something else than their rows, and lines of the newest policy table."""
    known = {str(Version(row.version)): row for row in asked.matrix.vllm_ascend}
    read = {}
    for version, files in asked.by_version("vllm-ascend", min(known, key=Version)):
        if version not in known or asked.is_news(files, known[version].seen):
            release = _release(asked, version, files)
            if release is not None:
                read[version] = release
    table_of = next((each for each in reversed(read.values()) if each.policy), None)
    table = table_of.policy if table_of else {}
    for version in sorted({*known, *read}, key=Version):
        yield from release_rows(asked, known.get(version), read.get(version), table.get(version), table_of)


def vllm(asked: Refresh, partners: Iterable[str]) -> Iterator[Proposal]:
    """What those vllm versions ask for when they are built with the empty target, where no row says the same."""
    by_version = dict(asked.by_version("vllm", "0"))
    for version in sorted(set(partners), key=Version):
        old = asked.matrix.built_row("vllm", version)
        files = by_version.get(version, ())
        if old is None and not files:
            asked.on_step(Message("refresh.no-files", {"package": "vllm", "version": version}))
        if not files or (old is not None and not asked.is_news(files, old.seen)):
            continue
        found = _vllm_requires(asked, files)
        if found is not None:
            source = f"vllm {version} {found.file}: what a build with the empty target declares"
            built = Built(f"built.vllm.{version}", source, asked.today, "vllm", version, found.requires)
            yield from built_rows(asked, BUILT_VLLM, built)


def _release(asked: Refresh, version: str, files: Sequence[IndexFile]) -> Release | None:
    """What one version's sdist and wheels say; None where none of them can be read."""
    archive = sdist(files)
    texts = asked.texts(archive, WANTED) if archive else None
    asks = None
    if archive and texts is not None:
        try:
            asks = sdist_requires(texts)
        except Unreadable as error:
            asked.skipped(archive, error)
    for arch in ARCHES:
        for wheel in wheels(files, arch)[:1]:
            built = asked.wheel_requires(wheel)
            if asks and built and _spelled(asks.requires) != _spelled(built.requires):
                asked.on_step(_differ(version, "Requires-Dist", asks.requires, asks.file, built.requires, wheel.file))
            asks = asks or built
    if asks is None:
        return None
    texts = texts or {}
    return Release(
        version=version,
        asks=asks,
        images=built_images(texts, asked.matrix.hardware),
        vllm=vllm_tag(texts.get("Dockerfile", "")),
        policy=policy_rows(texts.get(POLICY, "")),
        released=published(files),
        source=_source_of(version, asks, texts),
        policy_source=f"versioning_policy.md inside the sdist of vllm-ascend {version}",
        kind=_kind(asks),
    )


def release_rows(
    asked: MatrixComparison,
    old: VllmAscend | None,
    release: Release | None,
    policy: PolicyRow | None,
    table_of: Release | None,
) -> Iterator[Proposal]:
    """The proposals for one version: its row, and what it asks for when it is built."""
    sources = []
    row = old
    if release is not None:
        # Until something else is known, a new release goes with the vllm of its own number.
        new = VllmAscend(
            id=f"vllm-ascend.{release.version}",
            source=release.source,
            seen=asked.today,
            version=release.version,
            vllm=Version(release.version).base_version,
            released=release.released,
        )
        row = _with_release(old or new, release, is_in_table=policy is not None)
        sources.append(release.source)
    if row is not None and policy is not None and table_of is not None:
        row = _with_policy(row, policy)
        sources.insert(0, table_of.policy_source)
        if release is not None and release.vllm and release.vllm != row.vllm:
            asked.on_step(_differ(row.version, "vllm", row.vllm, "versioning_policy.md", release.vllm, "Dockerfile"))
    if row is None or not sources:
        return
    of_images = row.image[0].cann if row.image else ""
    other = of_images if of_images != row.cann else ""  # where the policy table names another
    row = replace(row, cann_image=other, source=old.source if old else "; ".join(sources))
    asked.partners[row.vllm] = None
    yield from proposals(VLLM_ASCEND, old, row, "; ".join(sources))
    if release is not None:
        source = f"vllm-ascend {row.version} {release.kind}, {release.asks.file}"
        name = f"built.vllm-ascend.{row.version}"
        built = Built(name, source, asked.today, "vllm-ascend", row.version, release.asks.requires)
        yield from built_rows(asked, BUILT_VLLM_ASCEND, built)


def _with_release(row: VllmAscend, release: Release, *, is_in_table: bool) -> VllmAscend:
    """The row with what the release's own files say; what a policy table says of it stands above that."""
    row = replace(row, image=release.images)
    if is_in_table or row.in_policy_table:
        return row
    return replace(
        row,
        vllm=release.vllm or row.vllm,
        cann=release.images[0].cann if release.images else "",
        torch_npu=exact(specifier_of(release.asks.requires, "torch-npu")),
        triton_ascend=exact(specifier_of(release.asks.requires, "triton-ascend")),
    )


def _with_policy(row: VllmAscend, policy: PolicyRow) -> VllmAscend:
    return replace(
        row,
        vllm=policy.vllm or row.vllm,
        python=policy.python,
        cann=policy.cann,
        torch_npu=policy.torch_npu,
        triton_ascend=policy.triton_ascend,
        in_policy_table=True,
    )


def _vllm_requires(asked: Refresh, files: Sequence[IndexFile]) -> Requires | None:
    """From the sdist; where there is none, the first block of a wheel's METADATA, which is the same list.

    A CUDA wheel declares requirements/cuda.txt, which starts by including the common file.
    """
    archive = sdist(files)
    if archive is not None:
        texts = asked.texts(archive, EMPTY_BUILD)
        try:
            found = empty_build_requires(texts) if texts is not None else None
        except Unreadable as error:
            asked.skipped(archive, error)
            found = None
        return replace(found, file=f"sdist, {found.file}") if found else None
    built = next((read for wheel in wheels(files)[:1] if (read := asked.wheel_requires(wheel))), None)
    file = "wheel metadata, its first block (requirements/common.txt; no sdist on the index)"
    return replace(built, requires=first_block(built.requires, _CUDA_STARTS), file=file) if built else None


def built_rows(asked: MatrixComparison, file: str, row: Built) -> Iterator[Proposal]:
    """The proposals for what a package asks for when it is built."""
    old = asked.matrix.built_row(row.name, row.version)
    yield from proposals(file, old, replace(row, id=old.id) if old else row, row.source)


def _spelled(requires: Sequence[str]) -> set[str]:
    """Requirements with their names in normal form, to compare lists that different tools wrote."""
    return {re.sub(r"^[\w.-]+", distribution(line), line) for line in requires}


def _kind(asks: Requires) -> str:
    return "wheel" if asks.file == "METADATA" else "sdist"


def _source_of(version: str, asks: Requires, texts: Mapping[str, str]) -> str:
    named = [name for name in ("Dockerfile", "requirements.txt") if name in texts] or [asks.file]
    return f"{_kind(asks)} of vllm-ascend {version} ({', '.join(named)})"


def _differ(version: str, what: str, one: object, one_source: str, other: object, other_source: str) -> Message:
    if isinstance(one, tuple) and isinstance(other, tuple):
        one, other = tuple(sorted(set(one) - set(other))), tuple(sorted(set(other) - set(one)))
    pairs = {"one": one, "one_source": one_source, "other": other, "other_source": other_source}
    return Message("refresh.sources-differ", {"package": "vllm-ascend", "version": version, "what": what, **pairs})
