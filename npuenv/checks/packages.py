"""The target Python and what is installed in it. Versions by metadata first: an import error hides a mismatch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv import versions
from npuenv.checks.base import (
    FRAMEWORKS,
    NPU_FRAMEWORKS,
    Check,
    Context,
    Fix,
    Verdict,
    fail,
    fix,
    ok,
    skip,
    unsure,
    warn,
)
from npuenv.errors import BadInput
from npuenv.facts.base import Evidence

if TYPE_CHECKING:
    from npuenv.facts.python import Import, Python
    from npuenv.matrix.rows import VllmAscend

_PTA = "Ascend/pytorch COMPATIBILITY.en.md"
_VA = "vllm-project/vllm-ascend docs/source/community/versioning_policy.md"
_MEASURED = "measured with torch 2.13.0+cpu and torch-npu 2.13.0"
_OLDEST = (3, 10)
# From here on triton-ascend asks for triton itself and still brings every file of it. Which of the two was written last
# cannot be seen: both together are worth a warning (triton-lang/triton-ascend pull request 395).
_TRITON_COEXISTS = "3.2.1"


def _python(context: Context) -> Python | None:
    return context.facts.python.value


def _version(context: Context, name: str) -> str | None:
    python = _python(context)
    return python.distributions.get(name) if python else None


def _line(context: Context, *names: str) -> tuple[Evidence, ...]:
    """The installed versions as evidence."""
    python = _python(context)
    where = f"{python.executable} (inventory)" if python else "-"
    return tuple(Evidence(where, f"{name} {_version(context, name) or 'not installed'}") for name in names)


def _release(version: str) -> str:
    """ "2.8.0.post2+git1" -> "2.8.0"."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return match.group() if match else version


def _pip(context: Context, verb: str, *words: str) -> tuple[str, ...]:
    """A command line for this environment: its own pip, or uv where it has none (as every environment that uv made)."""
    python = _python(context)
    executable = python.executable if python else "python3"
    if python is not None and "pip" not in python.distributions:
        return ("uv", "pip", verb, "--python", executable, *words)
    return (executable, "-m", "pip", verb, *(("-y",) if verb == "uninstall" else ()), *words)


def _found(context: Context) -> Verdict:
    python = _python(context)
    if python is None:
        return fail("python-found-fail", fix=fix("python-install"))
    return ok("python-found-ok", version=python.version, executable=python.executable, kind=python.kind)


def _supported(context: Context) -> Verdict:
    python = _python(context)
    if python is None:
        return skip("no-python")
    numbers = tuple(int(word) for word in re.findall(r"[0-9]+", python.version)[:2])
    short = ".".join(map(str, numbers))
    arch = context.facts.arch.value or "aarch64"
    row = context.matrix.torch_npu_row((_version(context, "torch-npu") or "").split("+")[0])
    rows = (row,) if row is not None and row.pythons(arch) else context.matrix.torch_npu
    offered = sorted({item for row in rows for item in row.pythons(arch)}, key=_release_key)
    if numbers < _OLDEST or (offered and short not in offered):
        cure = fix("python-version", ("npuenv", "install", "--for", context.framework or "cpu"))
        return fail("python-version-fail", fix=cure, version=short, offered=tuple(offered))
    return ok("python-version-ok", version=short)


def _release_key(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split("."))


def _torch_pair(context: Context) -> Verdict:
    torch, torch_npu = _version(context, "torch"), _version(context, "torch-npu")
    if torch is None or torch_npu is None:
        if torch_npu is None:
            return skip("no-torch-npu")
        return fail("torch-pair-no-torch", fix=_torch(context, _release(torch_npu)), torch_npu=torch_npu)
    row = context.matrix.torch_npu_row(torch_npu.split("+")[0])
    wanted = row.torch if row is not None else _release(torch_npu)
    lines = _line(context, "torch", "torch-npu")
    if _release(torch) == _release(wanted):
        if _is_for_gpus(torch):
            return warn("torch-pair-gpu", *lines, fix=_torch(context, wanted), torch=torch)
        return ok("torch-pair-ok", *lines, torch=torch, torch_npu=torch_npu)
    return fail("torch-pair-fail", *lines, fix=_torch(context, wanted), torch=torch, torch_npu=torch_npu, wanted=wanted)


def _is_for_gpus(version: str) -> bool:
    """A local label names another accelerator: "2.8.0+cu128". One without a label may be either."""
    return re.search(r"\+(cu[0-9]|rocm|xpu)", version) is not None


def _torch(context: Context, version: str, *others: str) -> Fix:
    """torch without CUDA: the `+cpu` build from its own index, where a plain name would fetch gigabytes of CUDA."""
    row = context.matrix.index_row("pytorch-cpu")
    words = (f"torch=={_release(version)}+cpu", *others)
    more = ("--extra-index-url", row.url) if row is not None else ()
    return fix("reinstall", _pip(context, "install", *more, *words), requirement=" ".join(words))


def _reinstall(context: Context, requirement: str) -> Fix:
    return fix("reinstall", _pip(context, "install", requirement), requirement=requirement)


def _torch_npu_cann(context: Context) -> Verdict:
    """The recommended pair, or the compatible set of the release notes, or what other projects state; never guessed."""
    torch_npu, cann = _version(context, "torch-npu"), context.facts.cann.value
    if torch_npu is None or cann is None:
        return skip("no-torch-npu" if torch_npu is None else "no-cann")
    lines = (*_line(context, "torch-npu"), *context.facts.cann.evidence)
    try:
        have = versions.cann(cann.version)
        fitting = [row.version for row in context.matrix.torch_npu if row.cann and versions.cann(row.cann) == have]
    except BadInput:
        return unsure("torch-npu-cann-unknown", *lines, torch_npu=torch_npu, cann=cann.version)
    row = context.matrix.torch_npu_row(torch_npu.split("+")[0])
    if row is None:
        return unsure("torch-npu-cann-unknown", *lines, torch_npu=torch_npu, cann=cann.version)
    if row.version in fitting:
        return ok("torch-npu-cann-pair", *lines, torch_npu=torch_npu, cann=cann.version)
    stated = (*row.cann_compatible, *row.cann_unofficial)
    series = f"{have.series[0]}.{have.series[1]}.X"
    if series in stated or any(
        text[:1].isdigit() and "X" not in text and versions.cann(text) == have for text in stated
    ):
        return ok("torch-npu-cann-compatible", *lines, torch_npu=torch_npu, cann=cann.version)
    cure = _recommended(context, fitting, torch_npu)
    pair = next((version for version in fitting if _release(version) == _release(torch_npu)), None)
    if not row.cann and pair is not None:
        return warn("torch-npu-cann-other", *lines, fix=cure, torch_npu=torch_npu, cann=cann.version, pair=pair)
    if not row.cann:
        return unsure("torch-npu-cann-unstated", *lines, torch_npu=torch_npu, cann=cann.version)
    return warn("torch-npu-cann-warn", *lines, fix=cure, torch_npu=torch_npu, cann=cann.version, recommended=row.cann)


def _recommended(context: Context, fitting: list[str], torch_npu: str) -> Fix | None:
    """The recommended torch_npu for the installed torch, else the first one together with its torch."""
    for version in fitting:
        if _release(version) == _release(torch_npu):
            return _reinstall(context, f"torch-npu=={version}")
    return _torch(context, fitting[0], f"torch-npu=={fitting[0]}") if fitting else None


def _imports_torch(context: Context) -> Verdict:
    return _imported(context, context.facts.import_torch.value, "torch")


def _imports_torch_npu(context: Context) -> Verdict:
    return _imported(context, context.facts.import_torch_npu.value, "torch-npu")


def _imported(context: Context, found: Import | None, name: str) -> Verdict:
    if found is None:
        return skip("import-skip", *_line(context, name), package=name)
    if found.is_ok:
        return ok("import-ok", module=found.module, version=found.version)
    library = next(
        (
            m.group(1)
            for text in reversed(found.errors)
            if (m := re.search(r"(lib[\w.+-]+\.so[\w.]*): cannot open", text))
        ),
        "",
    )
    lines = tuple(
        Evidence(item.command, text) for item in _probe_lines(context, found) for text in found.errors or (found.crash,)
    )
    if library:
        return fail("import-library", *lines, fix=_library_fix(context, library), module=found.module, library=library)
    return fail("import-fail", *lines, fix=fix("import"), module=found.module, error=found.innermost)


def _probe_lines(context: Context, found: Import) -> tuple[Evidence, ...]:
    fact = context.facts.import_torch if found.module == "torch" else context.facts.import_torch_npu
    return fact.evidence[:1]


def _library_fix(context: Context, library: str) -> Fix:
    """A CANN library is missing: source it where it is, else install it; a driver library comes with the driver."""
    if library.startswith(("libascend_hal", "libdrv", "libc_sec")):
        return fix("driver-mount" if context.facts.container.is_known else "driver-install")
    cann = context.facts.cann.value
    if cann is not None and cann.set_env:
        return fix("source", ("source", cann.set_env))
    return fix("cann-install", ("npuenv", "resolve"))


def _numpy(context: Context) -> Verdict:
    numpy, cann = _version(context, "numpy"), context.facts.cann.value
    if numpy is None or cann is None:
        return skip("no-numpy" if numpy is None else "no-cann")
    try:
        row = context.matrix.cann_row(cann.version)
    except BadInput:
        row = None
    if row is None or not row.numpy:
        return ok("numpy-free", *_line(context, "numpy"), numpy=numpy, cann=cann.version)
    if versions.accepts(row.numpy, numpy):
        return ok("numpy-ok", *_line(context, "numpy"), numpy=numpy, cann=cann.version)
    cure = _reinstall(context, f"numpy{row.numpy}")
    return fail("numpy-fail", *_line(context, "numpy"), fix=cure, numpy=numpy, cann=cann.version, needs=row.numpy)


def _limits(context: Context) -> Verdict:
    """Requirements that no metadata declares: where `when` is installed, `needs` must hold."""
    python = _python(context)
    if python is None:
        return skip("no-python")
    minor = ".".join(python.version.split(".")[:2])
    rows = [row for row in context.matrix.limits if not row.python or minor in row.python]
    broken = [row for row in rows if _holds(python, row.when) is True and _holds(python, row.needs) is False]
    if not broken:
        return ok("limits-ok", count=len(context.matrix.limits))
    names = [_split(text)[0] for row in broken for text in (row.when, row.needs)]
    needs = tuple(row.needs for row in broken)
    cure = fix("reinstall", _pip(context, "install", *needs), requirement=" ".join(needs))
    pairs = tuple(f"{row.when}: {row.needs}" for row in broken)
    return fail("limits-fail", *_line(context, *dict.fromkeys(names)), fix=cure, limits=pairs)


def _holds(python: Python, requirement: str) -> bool | None:
    """Whether what is installed satisfies a requirement; None when that package is not installed."""
    name, specifier = _split(requirement)
    version = python.distributions.get(name)
    return None if version is None else versions.accepts(specifier, version)


def _split(requirement: str) -> tuple[str, str]:
    match = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement)
    assert match is not None, requirement
    return match.group().lower().replace("_", "-"), requirement[match.end() :]


def _triton(context: Context) -> Verdict:
    """Triton and triton-ascend own the same files; the last one installed wins, and it has to be triton-ascend."""
    python = _python(context)
    ascend, plain = _version(context, "triton-ascend"), _version(context, "triton")
    if python is None or (ascend is None and (plain is None or "torch-npu" not in python.distributions)):
        return skip("no-triton-ascend")
    if ascend is None:
        return warn("triton-alone", *_line(context, "triton", "torch-npu"), fix=fix("triton-alone"), triton=plain)
    lines = _line(context, "triton", "triton-ascend")
    cure = fix(
        "triton",
        _pip(context, "uninstall", "triton", "triton-ascend"),
        _pip(context, "install", f"triton-ascend=={ascend}"),
    )
    coexist = versions.accepts(f">={_TRITON_COEXISTS}", ascend)
    if "ascend" not in python.triton_backends:
        return fail("triton-overwritten", *lines, fix=cure, backends=python.triton_backends or ("-",))
    if plain is not None:
        shared = next(
            (item.count for item in python.shared_files if set(item.owners) == {"triton", "triton-ascend"}), 0
        )
        verdict = warn if coexist else fail
        return verdict("triton-residue", *lines, fix=cure, triton=plain, ascend=ascend, count=shared)
    return _triton_cann(context, ascend) or ok("triton-ok", *lines, ascend=ascend)


def _triton_cann(context: Context, ascend: str) -> Verdict | None:
    """A warning when the CANN is of a series that this triton-ascend was not published for."""
    row, cann = context.matrix.triton_ascend_row(ascend.split("+")[0]), context.facts.cann.value
    if row is None or not row.cann or cann is None or not versions.is_cann(cann.version):
        return None
    if versions.cann(cann.version).series in {versions.cann(text).series for text in row.cann}:
        return None
    lines = (*_line(context, "triton-ascend"), *context.facts.cann.evidence)
    return warn("triton-cann", *lines, ascend=ascend, cann=cann.version, published=row.cann)


def _shared(context: Context) -> Verdict:
    python = _python(context)
    if python is None:
        return skip("no-python")
    others = [item for item in python.shared_files if set(item.owners) != {"triton", "triton-ascend"}]
    lines = [Evidence(" + ".join(item.owners), f"{item.count} files: {item.examples[0]}") for item in others]
    twice = [Evidence(name, ", ".join(all_)) for name, all_ in python.installed_twice.items()]
    if others or twice:
        names = tuple(" + ".join(item.owners) for item in others) + tuple(python.installed_twice)
        return warn("shared-warn", *lines, *twice, packages=names)
    return ok("shared-ok", count=len(python.distributions))


def _companions(context: Context) -> Verdict:
    torch = _version(context, "torch")
    row = context.matrix.companion_row(torch) if torch else None
    found = {name: _version(context, name) for name in ("torchvision", "torchaudio")}
    if torch is None or row is None or not any(found.values()):
        return skip("companions-skip")
    wanted = {"torchvision": row.torchvision, "torchaudio": row.torchaudio}
    wrong = [name for name, version in found.items() if version and wanted[name] and _release(version) != wanted[name]]
    lines = _line(context, "torch", *found)
    if not wrong:
        return ok("companions-ok", *lines, torch=torch)
    needs = tuple(f"{name}=={wanted[name]}" for name in wrong)
    cure = fix("reinstall", _pip(context, "install", "--no-deps", *needs), requirement=" ".join(needs))
    verdict = fail if "torchvision" in wrong else warn
    return verdict("companions-fail", *lines, fix=cure, torch=torch, packages=needs)


def _vllm(context: Context) -> Verdict:
    """vllm against vllm-ascend: at run time a mismatch is only a log line and an unspecified platform."""
    vllm, ascend = _version(context, "vllm"), _version(context, "vllm-ascend")
    if vllm is None or ascend is None:
        return skip("no-vllm")
    row = context.matrix.vllm_ascend_row(ascend.split("+")[0])
    lines = _line(context, "vllm", "vllm-ascend")
    if row is None:
        return unsure("vllm-unknown", *lines, vllm=vllm, ascend=ascend)
    if _bare(vllm) == _bare(row.vllm):
        if _is_for_gpus(vllm):
            return warn("vllm-gpu", *lines, fix=fix("vllm-gpu"), vllm=vllm)
        return _vllm_transformers(context, row) or ok("vllm-ok", *lines, vllm=vllm, ascend=ascend)
    cure = _reinstall(context, f"vllm=={row.vllm.removeprefix('v')}")
    return fail("vllm-fail", *lines, fix=cure, vllm=vllm, ascend=ascend, wanted=row.vllm)


def _vllm_transformers(context: Context, row: VllmAscend) -> Verdict | None:
    """A failure when transformers is of a newer major version than this vllm-ascend takes.

    Only that: published images replace the exact pins of some releases by others of the same major version.
    """
    have, needs = _version(context, "transformers"), row.requires_transformers
    if have is None or not needs or versions.accepts(needs, have):
        return None
    if "<" not in needs or int(have.split(".")[0]) < int(needs.rpartition("<")[2].lstrip("= ").split(".")[0]):
        return None
    cure = _reinstall(context, f"transformers{needs}")
    return fail("vllm-transformers", *_line(context, "transformers", "vllm-ascend"), fix=cure, have=have, needs=needs)


def _bare(version: str) -> str:
    return version.removeprefix("v").split("+")[0]


def _ray(context: Context) -> Verdict:
    ray = _version(context, "ray")
    if ray is None:
        return skip("no-ray")
    if versions.accepts(">=2.59", ray):
        return warn(
            "ray-token", *_line(context, "ray"), fix=fix("ray-token", ("export", "RAY_AUTH_MODE=disabled")), ray=ray
        )
    return ok("ray-ok", *_line(context, "ray"), ray=ray)


CHECKS = (
    Check("python.found", ("python",), "PATH, VIRTUAL_ENV, CONDA_PREFIX, --python", _found, required_for=FRAMEWORKS),
    Check("python.version", ("python",), "matrix torch_npu: wheels that exist", _supported, required_for=FRAMEWORKS),
    Check("python.torch-pair", ("python",), _PTA, _torch_pair, required_for=NPU_FRAMEWORKS),
    Check("python.torch-npu-cann", ("python", "cann"), _PTA, _torch_npu_cann, required_for=NPU_FRAMEWORKS),
    Check(
        "python.torch-imports", ("python", "import_torch"), _MEASURED, _imports_torch, level=1, required_for=FRAMEWORKS
    ),
    Check(
        "python.torch-npu-imports",
        ("python", "import_torch_npu"),
        _MEASURED,
        _imports_torch_npu,
        level=1,
        required_for=NPU_FRAMEWORKS,
    ),
    Check("python.numpy", ("python", "cann"), "matrix cann: numpy", _numpy, required_for=NPU_FRAMEWORKS),
    Check("python.limits", ("python",), "matrix limits", _limits, required_for=FRAMEWORKS),
    Check("python.triton", ("python",), "triton-lang/triton-ascend README.md; verl install script", _triton),
    Check("python.one-owner", ("python",), "RECORD of the installed distributions", _shared),
    Check("python.torchvision", ("python",), "matrix companions", _companions),
    Check("python.vllm-pair", ("python",), _VA, _vllm, required_for=frozenset({"verl", "roll", "vllm-ascend"})),
    Check("python.ray-token", ("python",), "measured with Ray 2.59: ray.init() writes ~/.ray/auth_token", _ray),
)
