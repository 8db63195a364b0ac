"""Which versions of a report belong together, by the tables of the matrix: signs, and the commands that fix them.

A version that no row knows gives no sign and no command; nothing here is a verdict.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.core import versions
from npuenv.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.diagnose.text import Text
    from npuenv.diagnose.types import ReportFacts, Sighting, Sign
    from npuenv.host.report import PasteLine
    from npuenv.matrix import Matrix
    from npuenv.matrix.error_patterns import ErrorPatterns
    from npuenv.matrix.rows import TorchNpu, VllmAscend

    _Judge = Callable[[ReportFacts, Matrix], Iterator[Sign]]

_LISTED = re.compile(r"\s*(?:\[(?:pip3?|conda)\]\s+)?torch(?:[_-]npu)?(?:==|\s{2,}|\s*\|)")  # no prose


def version_signs(facts: ReportFacts, matrix: Matrix, patterns: ErrorPatterns) -> dict[str, PasteLine]:
    """Name of a sign to the line that shows it."""
    signs: dict[str, PasteLine] = {}
    for judge in _JUDGES:
        for sign, where in _judged(judge, facts, matrix):
            signs.setdefault(sign, where)
    for row in patterns.bounds:
        line = _breaks(facts, row.when, row.needs)
        if line:
            signs.setdefault(row.sign, line)
    for bug in patterns.releases:
        seen = facts.packages.get(bug.package)
        have = _version(seen)
        if have and seen and bug.fixed_in:
            signs[f"present-{bug.id}" if have < Version(bug.fixed_in) else f"fixed-{bug.id}"] = seen.line
    return signs


def _judged(judge: _Judge, facts: ReportFacts, matrix: Matrix) -> tuple[Sign, ...]:
    try:
        return tuple(judge(facts, matrix))
    except BadInput:  # a version of a form that no tool prints: it cannot be compared
        return ()


def _version(seen: Sighting[str] | None) -> Version | None:
    return _version_text(seen.value) if seen else None


def _release(version: Version) -> tuple[int, int]:
    return version.release[0], version.release[1] if len(version.release) > 1 else 0


def _torch(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    torch, npu = _version(facts.packages.get("torch")), _version(facts.packages.get("torch-npu"))
    if torch and torch.local and torch.local.startswith(("cu", "rocm")):
        yield "torch-cuda-build", facts.packages["torch"].line
    if torch is None or npu is None:
        return
    agrees = _release(torch) == _release(npu)
    later = _version(facts.changed.get("torch"))
    if not agrees and later is not None and _release(later) == _release(npu):
        yield "two-environments", facts.changed["torch"].line  # the first list is another machine's, or was mended
    yield ("torch-pair-agrees" if agrees else "torch-pair-differs"), facts.packages["torch-npu"].line
    if not agrees and all(_LISTED.match(facts.packages[name].line.text) for name in ("torch", "torch-npu")):
        yield "torch-pair-differs-in-list", facts.packages["torch-npu"].line
    for name in ("torch", "torch-npu"):
        other = _version(facts.changed.get(name))
        first = _version(facts.packages[name])
        if other and first and _release(other) != _release(first):
            yield "torch-changed", facts.changed[name].line


def _torchvision(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    torch, vision = facts.packages.get("torch"), facts.packages.get("torchvision")
    row = matrix.companion_row(torch.value) if torch else None
    have, wanted = _version(vision), _version_text(row.torchvision) if row else None
    if vision and have and wanted and _release(have) != _release(wanted):
        yield "torchvision-differs", vision.line


def _version_text(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return None


def _torch_npu_row(facts: ReportFacts, matrix: Matrix) -> TorchNpu | None:
    seen = facts.packages.get("torch-npu")
    return matrix.torch_npu_row(seen.value.split("+")[0]) if seen else None


def _plugin_row(facts: ReportFacts, matrix: Matrix) -> VllmAscend | None:
    """The row of the vllm-ascend that the report names; development versions go with their release."""
    have = _version(facts.packages.get("vllm-ascend"))
    if have is None:
        return None
    named = (str(have), have.public, have.public.partition(".dev")[0])
    return next(filter(None, map(matrix.vllm_ascend_row, named)), None)


def _vllm(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    seen, plugin = facts.packages.get("vllm"), facts.packages.get("vllm-ascend")
    have, mine = _version(seen), _version(plugin)
    named = _version(facts.vllm_version)
    if facts.vllm_version and have and named and named.release != have.release:
        yield "vllm-version-override-differs", facts.vllm_version.line
    if seen and (have is None or have.release[:2] == (0, 1) or "unknown" in seen.value):
        yield "vllm-dev-version", seen.line
        return
    if have is None or mine is None or seen is None or plugin is None or mine.release[:2] == (0, 1):
        return
    row = _plugin_row(facts, matrix)
    wanted = _version_text(row.vllm) if row else None
    if wanted is not None:
        agrees = have.release[:3] == wanted.release[:3]
    elif mine.is_devrelease or mine.local:  # a development version pairs with a commit
        if have.release[:3] != mine.release[:3]:
            yield "vllm-pair-doubtful", plugin.line
        return
    else:
        agrees = _release(have) == _release(mine)
    yield ("vllm-pair-agrees" if agrees else "vllm-pair-differs"), plugin.line
    if not agrees and _release(have) != _release(mine):
        yield "vllm-far-apart", plugin.line


def _plugin(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    """What the installed vllm-ascend asks of torch_npu, Python and CANN."""
    row, npu = _plugin_row(facts, matrix), _version(facts.packages.get("torch-npu"))
    if row is None:
        return
    if npu is not None:
        named = (row.torch_npu, versions.exact(row.requirement("torch-npu")), *(image.torch_npu for image in row.image))
        known = [version for version in map(_version_text, filter(None, named)) if version]
        if known and not any(npu.public == version.public for version in known):
            newest = max(known)
            sign = "torch-npu-too-old-for-plugin" if _release(npu) < _release(newest) else "torch-npu-not-the-pair"
            yield sign, facts.packages["torch-npu"].line
    if row.python and facts.python and not versions.accepts(row.python, f"{facts.python.value}.5"):
        yield "python-out-of-range", facts.python.line


def model_signs(facts: ReportFacts, text: Text, matrix: Matrix, patterns: ErrorPatterns) -> Iterator[Sign]:
    """`model-newer-than-release` where this vLLM takes no transformers that knows the type of the model."""
    seen, row = facts.packages.get("vllm"), _plugin_row(facts, matrix)
    vllm = _version(seen) if seen else _version_text(row.vllm if row else "")
    for line in text.all("model type") if vllm and vllm.release[:2] > (0, 1) else ():
        name = line.text.lower().replace("_", "-")
        since = next((row.since for row in matrix.model_types if re.search(row.pattern, name)), "")
        for bound in patterns.bounds if since else ():
            if not bound.when.startswith("vllm<") or not bound.needs.startswith("transformers"):
                continue
            is_bound = versions.accepts(versions.requirement_spec(bound.when), str(vllm))
            if is_bound and not versions.accepts(versions.requirement_spec(bound.needs), since):
                yield "model-newer-than-release", line


def _cann(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    if facts.cann is None:
        return
    have = versions.cann(facts.cann.value)
    if have.series < (8, 1):
        yield "cann-old", facts.cann.line
    row = _plugin_row(facts, matrix)
    named = {text for text in ((row.cann, row.cann_image, *(i.cann for i in row.image)) if row else ()) if text}
    if named:
        known = sorted(map(versions.cann, named))
        if have.series < known[0].series or (have < known[0] and have.series == (8, 0)):
            yield "cann-below-pair", facts.cann.line
            if any(have.series < versions.cann(each.version).series < known[0].series for each in matrix.cann):
                yield "cann-far-below-plugin", facts.cann.line
        elif have < known[0]:
            yield "cann-earlier-candidate", facts.cann.line
        elif have.series > known[-1].series:
            yield "cann-above-pair", facts.cann.line
        else:
            yield "cann-agrees", facts.cann.line
        return
    yield from _cann_of_torch_npu(facts, facts.cann, matrix, have)


def _cann_of_torch_npu(
    facts: ReportFacts, seen: Sighting[str], matrix: Matrix, have: versions.Version
) -> Iterator[Sign]:
    row = _torch_npu_row(facts, matrix)
    if row is None or not row.cann:
        return
    pair = versions.cann(row.cann)
    if any(versions.covers_cann(each, seen.value) for each in (*row.cann_compatible, row.cann)):
        yield "cann-agrees", seen.line
    elif have < pair:
        yield "cann-below-pair", seen.line
    elif have > pair:
        yield "cann-above-pair", seen.line


def _numpy(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    seen = facts.packages.get("numpy")
    have = _version(seen)
    if seen is None or have is None:
        return
    yield ("numpy1" if have.major < 2 else "numpy2"), seen.line
    row = _plugin_row(facts, matrix)
    cann = matrix.cann_row(facts.cann.value) if facts.cann else None
    spec = (row.requirement("numpy") if row else "") or (cann.numpy if cann else "")
    if have.major >= 2 and spec and not versions.accepts(spec, str(have)):
        yield "numpy2-too-new", seen.line
    npu = _version(facts.packages.get("torch-npu"))
    if have.major >= 2 and not spec and npu is not None and _release(npu) < (2, 9):
        yield "numpy2-too-new", seen.line


def _triton(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    plain, ours = facts.packages.get("triton"), _version(facts.packages.get("triton-ascend"))
    # From 3.2.1 on triton-ascend depends on triton and is installed over it.
    if plain is not None and ours is not None and ours < Version("3.2.1"):
        yield "triton-twice", plain.line


def _driver(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    if facts.driver is None:
        return
    have = versions.driver(facts.driver.value)
    row = matrix.cann_row(facts.cann.value) if facts.cann else None
    if row and row.driver_since and have.series < versions.driver(row.driver_since).series:
        yield "driver-below-floor", facts.driver.line
    named = _driver_named(facts, matrix)
    if named is not None and have.series[0] < named.series[0]:
        yield "driver-older-than-named", facts.driver.line
    plugin = _version(facts.packages.get("vllm-ascend"))
    cann = versions.cann(facts.cann.value) if facts.cann else None
    torch = _version(facts.packages.get("torch"))
    modern = (cann is not None and cann >= versions.cann("8.0.RC3")) or plugin is not None
    modern = modern or (torch is not None and _release(torch) >= (2, 5))
    if modern and have.series < (24, 0):
        yield "driver-very-old", facts.driver.line
    elif plugin is not None and _release(plugin) >= (0, 11) and have.series < (25, 0):
        yield "driver-older-than-plugin", facts.driver.line


def _driver_named(facts: ReportFacts, matrix: Matrix) -> versions.Version | None:
    """The oldest driver that is named for this CANN, or for the newest one before it that names any."""
    if facts.cann is None:
        return None
    have = versions.cann(facts.cann.value)
    rows = [row for row in matrix.cann if row.driver_named and versions.cann(row.version) <= have]
    best = max(rows, key=lambda row: versions.cann(row.version), default=None)
    return min(map(versions.driver, best.driver_named)) if best else None


_JUDGES: tuple[_Judge, ...] = (
    _torch, _torchvision, _vllm, _plugin, _cann, _numpy, _triton, _driver,
)  # fmt: skip


def _breaks(facts: ReportFacts, when: str, needs: str) -> PasteLine | None:
    """The line of a package that a bound forbids beside another; None where the bound holds or is not known."""
    other = facts.packages.get(versions.requirement_name(when))
    mine = facts.packages.get(versions.requirement_name(needs))
    if other is None or mine is None:
        return None
    theirs, ours = _version(other), _version(mine)
    if theirs is None or ours is None or not versions.accepts(versions.requirement_spec(when), str(theirs)):
        return None
    return None if versions.accepts(versions.requirement_spec(needs), str(ours)) else mine.line


_OF_TORCH = ("torch-torch_npu-mismatch", "torch_npu-wrong-release", "install-order")
_PIP = ("pip", "install")
_INDEXES = ("pytorch-cpu", "huawei-ascend")  # together they hold what the default index lacks


def fix_commands(cause: str, facts: ReportFacts, matrix: Matrix) -> tuple[tuple[str, ...], ...]:
    """What to type, as argv; empty where the tables do not know the versions of the report."""
    if cause in _OF_TORCH:
        row = _torch_npu_to_install(facts, matrix)
        return (_torch_pair(row, matrix),) if row else ()
    if cause == "vllm-vllm_ascend-mismatch":
        plugin = _plugin_row(facts, matrix)
        # Not `pip install vllm`: its wheels are for GPUs. The plan names the build and the order.
        return (("npuenv", "install", f"vllm-ascend-{plugin.version}", "--dry-run"),) if plugin else ()
    if cause == "torchvision-mismatch":
        torch = facts.packages.get("torch")
        pair = matrix.companion_row(torch.value) if torch else None
        named = (f"{name}=={getattr(pair, name)}" for name in ("torchvision", "torchaudio"))
        return ((*_PIP, "--no-deps", *named),) if pair else ()
    if cause == "pip-index":
        urls = [index.url for label in _INDEXES if (index := matrix.index_row(label)) is not None]
        return (("export", f"PIP_EXTRA_INDEX_URL={shlex.quote(' '.join(urls))}"),)
    return ()


def _torch_pair(row: TorchNpu, matrix: Matrix) -> tuple[str, ...]:
    """torch as its build without CUDA, from its own index: a plain name fetches gigabytes of CUDA on most machines."""
    index = matrix.index_row("pytorch-cpu")
    more = ("--extra-index-url", index.url) if index is not None else ()
    return (*_PIP, *more, f"torch=={row.torch}+cpu", f"torch_npu=={row.version}")


def _torch_npu_to_install(facts: ReportFacts, matrix: Matrix) -> TorchNpu | None:
    """The release for the installed vllm-ascend; without one the newest for the torch that is there."""
    plugin = _plugin_row(facts, matrix)
    if plugin is not None and plugin.torch_npu:
        return matrix.torch_npu_row(plugin.torch_npu)
    have = _version(facts.packages.get("torch") or facts.packages.get("torch-npu"))
    if have is None:
        return None
    rows = [row for row in matrix.torch_npu if row.status in ("released", "patch")]
    fitting = [row for row in rows if Version(row.torch).release[:2] == have.release[:2] and _has_wheel(row, facts)]
    return max(fitting, key=lambda row: Version(row.version), default=None)


def _has_wheel(row: TorchNpu, facts: ReportFacts) -> bool:
    """Whether the release has a wheel for the Python of the report; true where either is not known."""
    known = {*row.python_aarch64} & {*row.python_x86_64}  # for the machine of the report, whichever it is
    return facts.python is None or not known or facts.python.value in known
