"""What a stack rests on besides its pins: a public run on cards, and the days on which its rows were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import PublicRun
    from npuenv.resolve.candidate import Candidate


def public_run(candidate: Candidate, matrix: Matrix) -> PublicRun | None:
    """The public run that is closest to a candidate; None where none is known.

    It has the same generation of cards and CANN series, the same vllm-ascend or release of the framework, and no other
    torch, torch_npu, vllm or vllm-ascend. One that did not fail comes first, then the one with most versions in common.
    """
    if candidate.cann is None:
        return None
    recipe = candidate.recipe
    series = versions.cann(candidate.cann).series
    pinned = {name: version.split("+")[0] for name, version in candidate.versions.items()}
    pinned.setdefault(recipe.framework, recipe.release)
    engines = {name: pinned[name] for name in ("torch", "torch-npu", "vllm", "vllm-ascend") if name in pinned}
    deciding = {name: pinned[name] for name in ("vllm-ascend", recipe.framework) if name in pinned}
    found = [
        run
        for run in matrix.runs
        if run.hardware == candidate.hardware
        and versions.cann(run.cann).series == series
        and any(run.packages.get(name) == version for name, version in deciding.items())
        and all(run.packages.get(name, version) == version for name, version in engines.items())
    ]
    return max(
        found,
        key=lambda run: (not run.failed, len(run.packages.items() & pinned.items()), run.date),
        default=None,
    )


def sources_read(candidate: Candidate, matrix: Matrix) -> tuple[str, str]:
    """The days on which the oldest and the youngest of the deciding rows were read."""
    days = [row.seen for row in (candidate.recipe, *matrix.version_rows(candidate.versions, candidate.cann))]
    return min(days), max(days)


def seen_elsewhere(image: str | None, matrix: Matrix) -> Iterator[Message]:
    """The digest that others saw the base image have."""
    for digest in (row for row in matrix.image_digests if row.id == image):
        args = {"image": digest.id, "digest": digest.digest, "date": digest.date, "source": digest.source}
        yield Message("resolve.note-image-digest" if digest.date else "resolve.note-image-digest-undated", args)
