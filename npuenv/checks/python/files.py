"""Checks of installed files: duplicate owners, and dynamic linking."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, fail, given, ok, skip, warn
from npuenv.checks.python.damage import cause_of_library, damaged
from npuenv.checks.python.imports import cause_of_missing, library_fix
from npuenv.checks.python.installed import accepts
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.facts.python.interpreter import Python
    from npuenv.facts.python.packages import Elf, MissingLibrary

_SHOWN = 5
_TRITONS = {"triton", "triton-ascend"}
# Every image has these at two locations, the system's and its own; it does not matter which one is used.
_TOOLS = {"pip", "setuptools", "wheel", "distlib", "packaging", "distro-info", "six"}
_OF_TORCH = {"torch", "torch-npu"}  # these define the symbols
_SYSTEM = ("libm.so", "libc.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "libpython")


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
    damage = cause_of_library(context, first.library)
    if damage is not None:
        return skip("python.because", cause=damage)
    tried = (context.facts.python.import_torch_npu.value, context.facts.python.import_torch.value)
    if any(found is not None and not found.is_ok and "cannot open" in found.innermost for found in tried):
        return skip("python.because", cause=cause_of_missing(context, first.library) or "python.torch-npu-imports")
    cause = cause_of_missing(context, first.library)
    if cause is not None:
        return skip("python.because", cause=cause)
    evidence = tuple(Evidence(each.path, f"needs {each.library}: {each.lies_in or 'not found'}") for each in missing)
    module, others = _module(elf, first), tuple(dict.fromkeys(each.library for each in missing))
    fix = library_fix(context, first.library)
    if first.lies_in:
        return fail(
            "python.libraries-off", *evidence, fix=fix, module=module, library=first.library, folder=first.lies_in
        )
    return fail("python.libraries-gone", *evidence, fix=fix, module=module, libraries=others[:_SHOWN])


def _is_optional(missing: MissingLibrary) -> bool:
    """Whether a library is optional: plug-ins for ATB and for tests; libpython comes with the interpreter."""
    name = os.path.basename(missing.path)
    is_plugin = name.startswith(("libop_plugin", "libtensorpipe", "libnpu_profiler", "libtorchbind", "libjitbackend"))
    return is_plugin or missing.library.startswith(_SYSTEM)


def _module(elf: Elf, missing: MissingLibrary) -> str:
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
    torch, torch_npu = context.version("torch") or "-", context.version("torch-npu") or "-"
    if not _is_pair(context):
        return skip("python.because", cause="python.torch-pair")
    cause = next((check for check, item in damaged(context) if item.native and item.owner in _OF_TORCH), None)
    if cause is not None:
        return skip("python.because", cause=cause)
    args = {"files": names[:_SHOWN], "torch": torch, "torch_npu": torch_npu}
    return fail("python.symbols-fail", *evidence, fix="python.symbol-torch", **args)


def _is_pair(context: Context) -> bool:
    """Whether torch and torch_npu match; if they do not, missing symbols are a consequence."""
    torch, torch_npu = context.version("torch"), context.version("torch-npu")
    if torch is None or torch_npu is None:
        return True
    return torch.split(".")[:2] == torch_npu.split(".")[:2]


_LOADER = "npuenv reads the extension modules as the loader does (ld.so(8))"
_MACHINE = "ELF headers: a folder of packages copied from a machine of the other architecture"
_SYMBOLS = f"{_LOADER}; sgl-project/sglang#28628; DeepLink-org/dlinfer#183"
CHECKS = (
    Check("python.one-owner", ("python.interpreter",), "RECORD of the installed distributions", _owners),
    Check("python.machine", ("python.elf",), _MACHINE, _machines),
    Check("python.libraries", ("python.elf",), f"{_LOADER}; Ascend/pytorch FAQ on libhccl.so", _libraries),
    Check("python.runtimes", ("python.elf",), f"{_LOADER}; vllm-project/vllm-ascend#1249", _runtimes),
    Check("python.symbols", ("python.elf",), _SYMBOLS, _symbols),
)
