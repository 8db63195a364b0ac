"""Checks of importing the installed packages, each in its own process: the innermost error names the cause; of what
the loader would find for their extension modules; of files with two owners.
"""

from __future__ import annotations

import functools
import os.path
import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import FRAMEWORKS, NPU_FRAMEWORKS, Check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.checks.npu.boards import has_sign_of_cards
from npuenv.checks.python.environment import cause_of, cause_of_library, damaged
from npuenv.checks.python.installed import accepts, lines, resolve_here, safe_install
from npuenv.checks.python.limits import broken_limits, missing_parts
from npuenv.core.fact import Evidence, State
from npuenv.facts.python import tried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.facts.python import Import, Python
    from npuenv.facts.python.packages import Elf, MissingLibrary

    _Lines = tuple[Evidence, ...]

_MEASURED = "measured with torch 2.13.0+cpu and torch-npu 2.13.0"
_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open")
# The parts of CANN's toolkit that torch_npu and its plug-ins load; the driver's libraries (libascend_hal) are separate.
_OF_CANN = re.compile(
    r"lib(?:hccl|hcomm|ascendcl|acl|ge_|graph|runtime|register|error_manager|msprof|profapi|opapi|nnopbase|platform"
    r"|tiling|opp|cce|fe|unified_dlog|ascendalog)"
)
_ALONE = {"numpy", "pyarrow", "tensordict"}  # self-contained: a reinstallation fixes their own errors
_OF_NNAL = ("libatb", "libasdsip", "libmki")
# Never part of CANN: libraries of torch, of compilers, and of the system.
_OF_OTHERS = (
    "libtorch", "libc10", "libshm", "libgomp", "libstdc++", "libgfortran", "libopenblas", "libnuma", "libpython",
)  # fmt: skip
_VERSION = re.compile(r"(\S+): version `((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found")
_SYMBOL = re.compile(r"(\S+): undefined symbol: (\w+)")
_OF_CXX = re.compile(
    r"undefined symbol: (?:_ZN?K?S[a-z]|_ZN?K?9__gnu_cxx|_ZN10__cxxabiv1|_ZT[VIS]|__cxa_)|, version (?:GLIBCXX|CXXABI)_"
)
_MODULE = re.compile(r"No module named '([\w.]+)'")
_NUMPY = re.compile(r"NumPy 1\.x cannot be run|requires NumPy 2|multiarray failed to import|removed in the NumPy 2")
_TLS = re.compile(r"(\S+): cannot allocate memory in static TLS block")
_TWO = re.compile("Two accelerators cannot be used")
_SHELL = re.compile(r"is an empty shell|\(unknown location\)")
_SHOWN = 5
_TRITONS = {"triton", "triton-ascend"}
# Every image has these at two locations, the system's and its own; it does not matter which one is used.
_TOOLS = {"pip", "setuptools", "wheel", "distlib", "packaging", "distro-info", "six"}
_OF_TORCH = {"torch", "torch-npu"}  # these define the symbols
_SYSTEM = ("libm.so", "libc.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "libpython")


def _torch(context: Context) -> CheckResult:
    facts = context.facts.python
    if _is_autoload(facts.import_torch.value) and _is_same(facts.import_torch.value, facts.import_torch_npu.value):
        return skip("python.import-because", module="torch", cause="python.torch-npu-imports")
    return _imported(context, facts.import_torch.value, "torch", facts.import_torch.evidence)


def _torch_npu(context: Context) -> CheckResult:
    facts = context.facts.python
    torch, torch_npu = facts.import_torch, facts.import_torch_npu
    is_untried = torch.state is State.UNKNOWN and torch_npu.state is State.ABSENT
    if is_untried and context.version("torch-npu") is not None:
        return skip("python.because", cause="python.torch-imports")
    if not _is_autoload(torch.value) and _is_same(torch.value, torch_npu.value):
        return skip("python.import-because", module="torch_npu", cause="python.torch-imports")
    is_half = context.version("torch") is None and context.version("torch-npu") is not None
    errors = torch_npu.value.errors if torch_npu.value else ()
    if is_half and any("No module named 'torch'" in text for text in errors):
        return skip("python.import-because", module="torch_npu", cause="python.torch-pair")
    return _imported(context, torch_npu.value, "torch-npu", torch_npu.evidence)


def _is_autoload(torch: Import | None) -> bool:
    """Whether torch itself is intact and fails only because it loads torch_npu by itself."""
    return torch is not None and any("Failed to load the backend extension" in text for text in torch.errors)


def _is_same(one: Import | None, other: Import | None) -> bool:
    """Whether two imports fail by the same first error."""
    return bool(one and other and not (one.is_ok or other.is_ok) and one.innermost == other.innermost)


def _other(module: str, context: Context) -> CheckResult:
    """A module other than torch and torch_npu; consequences of a torch failure are not repeated."""
    fact = context.facts.python.imports
    names = tried(context.framework).get(module, ())
    name = next((each for each in names if context.version(each) is not None), None)
    if name is None:
        return skip("python.import-skip", *lines(context, *names[:1]), package=module)
    tries = tuple(item for item in fact.evidence if item.command.endswith(f"'import {module}'"))
    found = (fact.value or {}).get(module)
    if found is None and context.facts.python.import_torch.state is State.UNKNOWN:
        return skip("python.because", cause="python.torch-imports")
    if found is None:
        is_untried = all(item.line == "not in the capture" for item in tries)
        return (skip if is_untried else unknown)("python.import-unknown", *tries, module=module)
    cause = None if found.is_ok else _cause(context, found)
    if cause:
        return skip("python.import-because", module=module, cause=cause)
    return _imported(context, found, name, tries)


def _cause(context: Context, found: Import) -> str | None:
    """The id of the check that reports the cause of this failure."""
    facts = context.facts.python
    is_by_npu = _is_same(facts.import_torch_npu.value, found)
    if is_by_npu or _is_same(facts.import_torch.value, found):
        is_by_torch = _is_same(facts.import_torch.value, found) and not _is_autoload(facts.import_torch.value)
        return "python.torch-imports" if is_by_torch else "python.torch-npu-imports"
    packages = facts.packages.value
    owners = set(tried(context.framework).get(found.module, ()))
    if packages is not None and any(each.module == found.module for each in packages.shadows):
        return "python.shadowed"
    if packages is not None and owners & {*packages.foreign_wheels, *packages.foreign_extensions}:
        return "python.abi"
    match = _MODULE.search(found.innermost)
    lacks = match.group(1).split(".")[0].replace("_", "-") if match else ""
    if lacks and {lacks, f"{lacks}-core"} & set(missing_parts(context)):
        return "python.framework-parts"
    named = {name for row in broken_limits(context) for name in row}
    return "python.limits" if owners & named or (_NUMPY.search(found.innermost) and "numpy" in named) else None


def _imported(context: Context, found: Import | None, name: str, evidence: tuple[Evidence, ...]) -> CheckResult:
    if found is None:
        return skip("python.import-skip", *lines(context, name), package=name)
    if found.is_ok:
        return ok("python.import-ok", module=found.module, version=found.version)
    damage = cause_of(context, found)
    if damage is not None:
        return skip("python.import-because", module=found.module, cause=damage)
    evidence = tuple(Evidence(item.command, text) for item in evidence[:1] for text in found.errors or (found.crash,))
    for text in reversed(found.errors):
        for sign, judge in _KINDS:
            match = sign.search(text)
            verdict = judge(context, found, match, evidence) if match else None
            if verdict is not None:
                return verdict
    owner = _owner(context, found.module)
    is_own = owner in _ALONE and f"{found.module}" in found.innermost
    fix = _again(context, owner) if is_own else fix_for("python.import")
    return fail("python.import-fail", *evidence, fix=fix, module=found.module, error=found.innermost)


def _by_library(context: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult:
    library, fix = match[1], _library_fix(context, match[1])
    cause = _cause_of_missing(context, library)
    if cause is not None:
        return skip("python.import-because", module=found.module, cause=cause)
    elf = context.facts.python.elf.value
    missing = [each for each in elf.missing if each.library == library and each.lies_in] if elf else []
    says = {"module": found.module, "library": library}
    if missing:
        return fail("python.import-library-at", *evidence, fix=fix, **says, folder=missing[0].lies_in)
    return fail("python.import-library", *evidence, fix=fix, **says)


def _cause_of_missing(context: Context, library: str) -> str | None:
    """The id of the check that reports why the loader does not find a library; None if there is none."""
    from npuenv.checks.cann import session, toolkit  # these modules import files of this folder

    if context.framework == "cpu" or not has_sign_of_cards(context.facts):
        return None  # CANN is not checked there
    if library.startswith(_OF_NNAL):
        return session.why_unloadable(context)
    return toolkit.why_unloadable(context) if _OF_CANN.match(library) else _driver_cause(context, library)


def _driver_cause(context: Context, library: str) -> str | None:
    """The id of the check that reports a present driver library whose folder the session does not name."""
    npu = context.facts.npu
    if context.framework == "cpu" or not npu.driver.is_known:
        return None
    folder = next((path for path, names in (npu.library_files.value or {}).items() if library in names), "")
    if not folder or folder in context.loader_path:
        return None
    return "driver.npu-smi" if npu.smi_trouble.value and npu.smi_trouble.value.library else "driver.library-path"


def _by_version(context: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult:
    library, version = match.groups()
    folder = library.rpartition("/")[0]  # on LD_LIBRARY_PATH it comes before the system's own
    fix = fix_for("machine.cxx-path", folder=folder) if folder in context.loader_path else fix_for("python.glibc")
    return fail("python.import-version", *evidence, fix=fix, module=found.module, library=library, version=version)


def _by_shadow(context: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult | None:
    """A C++ symbol missing from the library copy on LD_LIBRARY_PATH: neither the package nor the system is at fault."""
    library = context.facts.machine.libstdcxx.value
    if library is None or not library.is_from_path or not _OF_CXX.search(match.string):
        return None
    shown = (*evidence, *context.facts.machine.libstdcxx.evidence)
    fix = fix_for("machine.cxx-path", folder=library.path.rpartition("/")[0])
    return fail("python.import-shadow", *shown, fix=fix, module=found.module, symbol=match[2], path=library.path)


def _by_symbol(_: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult:
    file, symbol = match.groups()
    kind = "nnal" if "3atb" in symbol else "abi" if symbol.startswith(("_Py", "Py")) else "torch"
    is_torch = re.match(r"_ZN[KV]?(3c10|2at|5torch|7c10_npu|6at_npu)", symbol)
    fix = fix_for(f"python.symbol-{kind}") if kind != "torch" or is_torch else fix_for("python.import")
    return fail("python.import-symbol", *evidence, fix=fix, module=found.module, file=file, symbol=symbol)


def _by_module(context: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult:
    name = match[1]
    top = name.split(".")[0]
    if top == found.module:
        return fail("python.import-part", *evidence, fix=_again(context, found.module), module=found.module, part=name)
    if "." in name:  # Python found the package itself, else the error would name that one
        fix = _again(context, _owner(context, top))
        return fail("python.import-part-other", *evidence, fix=fix, module=found.module, part=name, name=top)
    fix = safe_install(context, "python.import-module", top.replace("_", "-"))
    return fail("python.import-module", *evidence, fix=fix, module=found.module, name=name)


def _by_other_signs(context: Context, found: Import, match: re.Match[str], evidence: _Lines) -> CheckResult:
    if match.re is _TLS:
        fix = fix_for("python.static-tls", ("export", f"LD_PRELOAD={match[1]}"))
        return fail("python.import-static-tls", *evidence, fix=fix, module=found.module, library=match[1])
    if match.re is _TWO:
        fix = fix_for("python.autoload", ("export", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"))
        return fail("python.import-autoload", *evidence, fix=fix, module=found.module)
    if match.re is _SHELL:
        return fail("python.import-shell", *evidence, fix=_again(context, found.module), module=found.module)
    numpy = context.version("numpy") or "-"
    return fail("python.import-numpy", *evidence, fix="python.numpy-clash", module=found.module, numpy=numpy)


# What an error says -> the result; the first that applies counts.
_KINDS: Sequence[tuple[re.Pattern[str], Callable[[Context, Import, re.Match[str], _Lines], CheckResult | None]]] = (
    (_LIBRARY, _by_library),
    (_VERSION, _by_version),
    (_SYMBOL, _by_shadow),
    (_SYMBOL, _by_symbol),
    (_MODULE, _by_module),
    (_TLS, _by_other_signs),
    (_TWO, _by_other_signs),
    (_SHELL, _by_other_signs),
    (_NUMPY, _by_other_signs),
)


def _owner(context: Context, module: str) -> str:
    """The distribution that a top-level module most likely belongs to: rpds comes from rpds-py."""
    name = module.replace("_", "-")
    near = (name, f"{name}-py", f"py{name}", f"python-{name}", f"py-{name}")
    return next((each for each in near if context.version(each) is not None), name)


def _again(context: Context, module: str) -> Fix:
    name = module.replace("_", "-")
    requirement = f"{name}=={version}" if (version := context.version(name)) else name
    return safe_install(context, "python.reinstall", requirement, options=("--force-reinstall", "--no-deps"))


def _library_fix(context: Context, library: str) -> Fix:
    """The fix for a missing library that no installed package provides: the driver, NNAL, CANN, or none of them.

    An installed CANN is sourced, a missing one installed.
    """
    if library.startswith(("libascend_hal", "libdrv", "libc_sec")):
        folders = tuple(each for each in context.facts.npu.driver_libraries.value or () if "/lib64/" in each)
        if folders:
            present = context.environment.get("LD_LIBRARY_PATH")
            path = ":".join((*folders, *((present,) if present else ())))
            return fix_for("python.driver-path", ("export", f"LD_LIBRARY_PATH={path}"), folders=folders)
        return fix_for("python.driver-mount" if context.in_container else "python.driver-install")
    if library.startswith(_OF_NNAL):
        return fix_for("python.nnal")
    if not _OF_CANN.match(library) and (not context.is_for_npu or library.startswith(_OF_OTHERS)):
        return fix_for("python.library-of-others", library=library)
    if context.cann is not None and context.cann.set_env:
        return fix_for("python.source", ("source", context.cann.set_env))
    return fix_for("python.cann-install", resolve_here(context))


@given(lambda context: context.python, "no-python")
def _owners(context: Context, python: Python) -> CheckResult:
    others = [item for item in python.shared_files if not set(item.owners) <= _TRITONS]
    evidence = [Evidence(" + ".join(item.owners), f"{item.count} files: {item.examples[0]}") for item in others]
    twice = _twice(context, python)
    if others or twice:
        names = tuple(" + ".join(item.owners) for item in others) + tuple(twice)
        evidence += [Evidence(name, text) for name, text in twice.items()]
        return warn("python.shared-warn", *evidence, fix="python.shared", packages=names)
    return ok("python.shared-ok", count=len(python.distributions))


def _twice(context: Context, python: Python) -> dict[str, str]:
    """Distributions at two locations with different versions, or twice at one location after a broken upgrade."""
    packages = context.facts.python.packages.value
    locations = {each.name: each for each in packages.twice} if packages is not None else {}
    found = {}
    for name, versions in python.installed_twice.items():
        each = locations.get(name)
        if each is None:
            found[name] = ", ".join(versions)
            continue
        at_one_place = len(set(each.folders)) < len(each.folders)
        if len(set(versions)) > 1 and (at_one_place or name not in _TOOLS):
            found[name] = ", ".join(f"{version} ({folder})" for version, folder in zip(each.versions, each.folders))
    for name, version in (packages.of_conda if packages is not None else {}).items():
        if accepts(f"=={version}", python.distributions.get(name, "")) is False:  # 1.0 is 1.0.0
            found[name] = f"{python.distributions[name]}, {version} (conda-meta)"
    return found


@given(lambda context: context.facts.python.elf.value, "python.no-elf")
def _machines(context: Context, elf: Elf) -> CheckResult:
    found = {**elf.foreign, **elf.unread}
    causes = {path: cause_of_library(context, os.path.basename(path)) for path in found}
    bad = {path: what for path, what in found.items() if causes[path] is None}
    if found and not bad:
        return skip("python.because", cause=next(filter(None, causes.values())))
    if not bad:
        return ok("python.machines-ok", count=elf.looked)
    evidence = tuple(Evidence(path, what) for path, what in bad.items())
    names = tuple(os.path.basename(path) for path in bad)
    arch = context.facts.machine.arch.value or "-"
    return fail("python.machines-fail", *evidence, fix="python.machines", files=names[:_SHOWN], arch=arch)


@given(lambda context: context.facts.python.elf.value, "python.no-elf")
def _libraries(context: Context, elf: Elf) -> CheckResult:
    """Libraries that the loader would not find, with their folder if it is known."""
    missing = [each for each in elf.missing if not _is_optional(each)]
    if not missing:
        return ok("python.libraries-ok", count=elf.looked)
    if context.version("torch") is None and context.version("torch-npu") is not None:
        return skip("python.because", cause="python.torch-pair")
    first = next((each for each in missing if each.lies_in), missing[0])
    tried = (context.facts.python.import_torch_npu.value, context.facts.python.import_torch.value)
    has_failed = any(found is not None and not found.is_ok and "cannot open" in found.innermost for found in tried)
    cause = cause_of_library(context, first.library) or _cause_of_missing(context, first.library)
    if cause is not None or has_failed:
        return skip("python.because", cause=cause or "python.torch-npu-imports")
    evidence = tuple(Evidence(each.path, f"needs {each.library}: {each.lies_in or 'not found'}") for each in missing)
    says: dict[str, Any] = {"fix": _library_fix(context, first.library), "module": _module(first)}
    if first.lies_in:
        return fail("python.libraries-off", *evidence, **says, library=first.library, folder=first.lies_in)
    others = tuple(dict.fromkeys(each.library for each in missing))
    return fail("python.libraries-gone", *evidence, **says, libraries=others[:_SHOWN])


def _is_optional(missing: MissingLibrary) -> bool:
    """Whether a library is optional: plug-ins for ATB and for tests; libpython comes with the interpreter."""
    name = os.path.basename(missing.path)
    is_plugin = name.startswith(("libop_plugin", "libtensorpipe", "libnpu_profiler", "libtorchbind", "libjitbackend"))
    return is_plugin or missing.library.startswith(_SYSTEM)


def _module(missing: MissingLibrary) -> str:
    parts = missing.path.split("/")
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts[:-1] else os.path.basename(missing.path)


@given(lambda context: context.facts.python.elf.value, "python.no-elf")
def _runtimes(_: Context, elf: Elf) -> CheckResult:
    """The versions of the C and C++ libraries that extensions were linked against."""
    if not elf.versions:
        return ok("python.runtimes-ok", count=elf.looked)
    evidence = tuple(
        Evidence(each.path, f"needs {each.version}, {each.library} has {each.has}") for each in elf.versions
    )
    first = elf.versions[0]
    names = tuple(dict.fromkeys(os.path.basename(each.path) for each in elf.versions))
    args = {"files": names[:_SHOWN], "version": first.version, "library": first.library, "has": first.has or "-"}
    return fail("python.runtimes-fail", *evidence, fix="python.glibc", **args)


@given(lambda context: context.facts.python.elf.value, "python.no-elf")
def _symbols(context: Context, elf: Elf) -> CheckResult:
    """Symbols that an extension needs and this torch lacks: it was built for another version."""
    if not elf.symbols:
        return ok("python.symbols-ok", count=elf.looked)
    evidence = tuple(Evidence(each.path, f"{each.count} undefined: {each.symbols[0]}") for each in elf.symbols)
    names = tuple(dict.fromkeys(os.path.basename(each.path) for each in elf.symbols))
    torch, torch_npu = context.version("torch"), context.version("torch-npu")
    if torch and torch_npu and torch.split(".")[:2] != torch_npu.split(".")[:2]:  # what is missing follows from that
        return skip("python.because", cause="python.torch-pair")
    cause = next((check for check, item in damaged(context) if item.native and item.owner in _OF_TORCH), None)
    if cause is not None:
        return skip("python.because", cause=cause)
    args = {"files": names[:_SHOWN], "torch": torch or "-", "torch_npu": torch_npu or "-"}
    return fail("python.symbols-fail", *evidence, fix="python.symbol-torch", **args)


_TORCH, _TORCH_NPU, _IMPORTS = (
    ("python.interpreter", fact) for fact in ("python.import_torch", "python.import_torch_npu", "python.imports")
)
_SOURCES = {
    "numpy": "numpy C-extension import error after a mixed upgrade: an Ascend RL environment guide, pitfall 2",
    "pyarrow": "measured: pyarrow 26.0.1 with numpy 1.26.4",
    "tensordict": "an Ascend RL environment guide, pitfall 4: undefined symbol PyThreadState_GetUnchecked",
    "transformers": "vllm-project/vllm-ascend#2046; huggingface/transformers#36696",
    "ray": "an Ascend RL environment guide, pitfall 3: No module named 'rpds.rpds'; ray-project/ray#56747",
    "torchvision": "vllm-project/vllm-ascend#477 (operator torchvision::nms does not exist)",
    "torchaudio": "vllm-project/vllm-ascend#477",
    "triton": "triton-lang/triton-ascend#306",
    "vllm": "vllm-project/vllm-ascend#5497",
    "vllm_ascend": "vllm-project/vllm-ascend#1249",
    "verl": "verl-project/verl docs/ascend_tutorial/faq/faq.rst",
}
CHECKS = (
    Check("python.torch-imports", _TORCH, _MEASURED, _torch, level=1, required_for=FRAMEWORKS),
    Check("python.torch-npu-imports", _TORCH_NPU, _MEASURED, _torch_npu, level=1, required_for=NPU_FRAMEWORKS),
    *(
        Check(f"python.{name.replace('_', '-')}-imports", _IMPORTS, source, functools.partial(_other, name), level=1)
        for name, source in _SOURCES.items()
    ),
)
_LOADER = "npuenv reads the extension modules as the loader does (ld.so(8))"
_MACHINE = "ELF headers: a folder of packages copied from a machine of the other architecture"
_SYMBOLS = f"{_LOADER}; sgl-project/sglang#28628; DeepLink-org/dlinfer#183"
LOADER = (
    Check("python.one-owner", ("python.interpreter",), "RECORD of the installed distributions", _owners),
    Check("python.machine", ("python.elf",), _MACHINE, _machines),
    Check("python.libraries", ("python.elf",), f"{_LOADER}; Ascend/pytorch FAQ on libhccl.so", _libraries),
    Check("python.runtimes", ("python.elf",), f"{_LOADER}; vllm-project/vllm-ascend#1249", _runtimes),
    Check("python.symbols", ("python.elf",), _SYMBOLS, _symbols),
)
