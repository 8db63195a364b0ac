"""Why a version was chosen and why not a newer one, and what a stack rests on besides. All is derived from the rows.

"Why not newer" replaces the chosen version with the next newer one that has a row and reports the resulting conflicts.
If no table lists the versions of a package, it reports the requirement that bounds it.
A stack also rests on a public run on cards, the days on which its rows were read, and the digest of its base image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import pairing
from npuenv.matrix.rows import RecipePin, TritonAscend, VllmAscend
from npuenv.resolve.candidate import Candidate, same
from npuenv.resolve.rules import matrix_conflicts
from npuenv.resolve.types import Reason, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import PublicRun


# Above any release: a requirement that rejects it has an upper bound.
_FAR = "99999"
_BY_ROW = {"vllm-ascend": "vllm_ascend_row", "triton-ascend": "triton_ascend_row", "torch-npu": "torch_npu_row"}


def because(pin: RecipePin, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    """Why a package has this version."""
    recipe = candidate.recipe
    if pin.name in request.pins:
        option = f"--pin {pin.name}=={request.pins[pin.name]}"
        return because_asked(option)
    if pin.name == "torch" and "torch-npu" in candidate.versions:
        return _because_torch(candidate, matrix)
    if pin.name == "torch-npu":
        return _because_torch_npu(pin, candidate, matrix)
    if pin.name in ("torchvision", "torchaudio"):
        row = matrix.companion_row(candidate.versions["torch"])
        if row is not None:
            says = Message("resolve.because-companion", {"torch": row.torch})
            return Reason(says, (row.id, recipe.id), (row.source, pin.source))
    if pin.name == "vllm":
        return _because_vllm(pin, candidate, matrix)
    says = Message(pin.why) if pin.why else Message("resolve.because-recipe", {"stack": recipe.id})
    lookup = _BY_ROW.get(pin.name)
    row_ids = (getattr(matrix, lookup)(pin.version).id,) if lookup else ()
    return Reason(says, (*row_ids, recipe.id), (pin.source,))


def because_asked(option: str, origin: str | None = None) -> Reason:
    """The reason of a requested version: the user's option, or the file or host that `origin` names."""
    if origin is None:
        return Reason(Message("resolve.because-asked", {"option": option}), ("request",), (option,))
    return Reason(Message("resolve.because-read", {"line": origin}), ("request",), (origin,))


def _because_torch(candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.torch_npu_row(candidate.versions["torch-npu"])
    assert row is not None
    needs = "torch" + (row.torch_requirement(candidate.arch) or f"=={row.torch}")
    args = {"torch_npu": row.version, "needs": needs, "arch": candidate.arch}
    return Reason(Message("resolve.because-torch", args), (row.id,), (row.source,))


def _because_torch_npu(pin: RecipePin, candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.torch_npu_row(pin.version)
    cann = matrix.cann_row(candidate.cann or "")
    assert row is not None
    how = pairing(row, candidate.cann or "", matrix) or "image-practice"
    args = {"cann": candidate.cann, "version": pin.version}
    ids = (row.id, *((cann.id,) if cann else ()))
    return Reason(Message(f"resolve.because-{how}", args), ids, (row.source, pin.source))


def _because_vllm(pin: RecipePin, candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.vllm_ascend_row(candidate.versions.get("vllm-ascend", ""))
    assert row is not None
    says = Message("resolve.because-vllm", {"vllm_ascend": row.version})
    return Reason(says, (row.id,), (row.source, pin.source))


def why_not_newer(name: str, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    """The reason against a newer version, or that none is known."""
    version = _current(name, candidate)
    newer = next_newer(name, version, candidate, matrix)
    if newer is not None:
        return _pairs_elsewhere(name, newer, candidate, matrix) or _against(name, newer, candidate, matrix)
    if any(same(version, each) for each in known_versions(name, candidate, matrix)):
        recipe = candidate.recipe
        return Reason(Message("resolve.newest-known", {"version": version}), (recipe.id,), (recipe.source,))
    return _bounded(name, candidate, matrix) or _unbounded(name, candidate, request, matrix)


def _pairs_elsewhere(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    """What the next newer version pairs with, if the pairing decides; else None."""
    if candidate.cann is None:
        return None
    if name in ("vllm-ascend", "triton-ascend"):
        return _published_for_other_cann(name, newer, candidate, matrix)
    if name not in ("torch-npu", "cann"):
        return None
    row = matrix.torch_npu_row(newer if name == "torch-npu" else candidate.versions["torch-npu"])
    if row is None or pairing(row, newer if name == "cann" else candidate.cann, matrix) == "recommended-pair":
        return None
    if name == "cann":
        if not row.cann or pairing(row, newer, matrix) is None:
            return None
        args = {"newer": newer, "torch_npu": row.version, "cann": row.cann}
        return Reason(Message("resolve.newer-cann-compatible", args), (row.id,), (row.source,))
    key = "resolve.newer-pairs" if row.cann or row.cann_unofficial else "resolve.newer-pairs-nothing"
    says = Message(key, {"newer": newer, "cann": row.cann or row.cann_unofficial})
    others = tuple(each.rule for each in matrix_conflicts(candidate.with_version(name, newer), matrix))
    return Reason(says, tuple(dict.fromkeys((row.id, *others))), (row.source,))


def _published_for_other_cann(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    row: VllmAscend | TritonAscend | None
    row = matrix.vllm_ascend_row(newer) if name == "vllm-ascend" else matrix.triton_ascend_row(newer)
    if row is None:
        return None
    paired = row.cann if isinstance(row, TritonAscend) else tuple(filter(None, [row.cann]))
    if not paired or any(same(each, candidate.cann) for each in paired):
        return None
    return Reason(Message("resolve.newer-pairs", {"newer": newer, "cann": paired}), (row.id,), (row.source,))


def _against(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason:
    """The conflicts of the next newer version. For vllm-ascend, vllm changes with it."""
    changed = candidate.with_version(name, newer)
    if name == "vllm-ascend":
        partner = matrix.vllm_ascend_row(newer)
        changed = changed.with_version("vllm", partner.vllm) if partner else changed
    found = list(matrix_conflicts(changed, matrix))
    if not found:
        args = {"newer": newer, "stack": candidate.recipe.id}
        return Reason(Message("resolve.newer-not-tried", args), (candidate.recipe.id,), (candidate.recipe.source,))
    first = found[0]
    says = Message("resolve.newer-objected", {"newer": newer, "objection": first.says})
    return Reason(says, tuple(dict.fromkeys(each.rule for each in found)), (first.source,))


def next_newer(name: str, version: str, candidate: Candidate, matrix: Matrix) -> str | None:
    """The next newer published version of a package in its table; None if there is none or no table."""
    known = known_versions(name, candidate, matrix)
    if name == "cann":
        return min(
            (each for each in known if versions.cann(each) > versions.cann(version)), key=versions.cann, default=None
        )
    of = versions.python_version
    return min((each for each in known if of(each) > of(version)), key=of, default=None)


def known_versions(name: str, candidate: Candidate, matrix: Matrix) -> tuple[str, ...]:
    """The versions of a package that the tables list; empty if no table does."""
    if name == "cann":
        return tuple(row.version for row in matrix.cann)
    if name == "python":
        return ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
    if name == "torch-npu":
        rows = (row for row in matrix.torch_npu if row.status in ("released", "patch", "unlisted") and row.index)
        return tuple(row.version for row in rows)
    if name == "torch" and candidate.recipe.hardware:
        return tuple({row.torch for row in matrix.torch_npu if row.status == "released"})
    if name in ("torchvision", "torchaudio"):
        return tuple(getattr(row, name) for row in matrix.companions)
    if name == "vllm-ascend":
        return tuple(row.version for row in matrix.vllm_ascend)
    if name == "vllm":
        return tuple({row.vllm for row in matrix.vllm_ascend})
    if name == "triton-ascend":
        return tuple(row.version for row in matrix.triton_ascend)
    return ()


def _current(name: str, candidate: Candidate) -> str:
    if name == "cann":
        return candidate.cann or ""
    return candidate.python if name == "python" else candidate.versions[name]


def _bounded(name: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    """The requirement that bounds the version from above."""
    found = list(matrix_conflicts(candidate.with_version(name, _FAR), matrix))
    if not found:
        return None
    needs = tuple(dict.fromkeys(str(each.says.args["needs"]) for each in found if "needs" in each.says.args))
    says = Message("resolve.bounded", {"needs": needs, "source": found[0].source})
    return Reason(says, tuple(dict.fromkeys(each.rule for each in found)), tuple(each.source for each in found))


def _unbounded(name: str, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    recipe = candidate.recipe
    key = "resolve.not-newer-asked" if name in request.pins else "resolve.not-newer-recipe"
    args = {"stack": recipe.id, "package": name, "version": _current(name, candidate)}
    return Reason(Message(key, args), (recipe.id,), (recipe.source,))


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


def image_digest_notes(image: str | None, matrix: Matrix) -> Iterator[Message]:
    """The digest that others saw the base image have."""
    for digest in (row for row in matrix.image_digests if row.id == image):
        args = {"image": digest.id, "digest": digest.digest, "date": digest.date, "source": digest.source}
        yield Message("resolve.note-image-digest" if digest.date else "resolve.note-image-digest-undated", args)
