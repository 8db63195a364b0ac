"""Checks of the session's paths to CANN: one install, none missing, no stub libraries, its Python packages; of NNAL."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, CheckResult, Context, card_check, fail, fix_for, given, ok, skip, warn
from npuenv.checks.python.installed import accepts, lines, pip_fix
from npuenv.core import versions
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status

if TYPE_CHECKING:
    from npuenv.core.finding import Fix
    from npuenv.facts.cann.toolkit import CannFolder, CannPath, Installs, Nnal


_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH")
# Libraries for linking and simulation: their libascend_hal.so does nothing, their libascendcl.so refuses to run.
_STAND_INS = re.compile(r"/(?:devlib|stub|simulator|camodel)(?:/|$)")
_REAL = re.compile(r"/driver/lib64(?:/|$)")
# Imports of CANN's operator compiler; CANN's documents name more, which mostly its tools need.
_IMPORTS = ("attrs", "decorator", "psutil", "scipy")
INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"
_OLDEST_GCC = 8  # vllm-ascend's operators are C++17
_ONE_ABI_SINCE = "2.7.0"  # from here on all wheels of torch have the new ABI


def source(path: str) -> Fix:
    """The fix that sources an environment script."""
    return fix_for("cann.source", ("source", path or "CANN/set_env.sh"))


def _own_script(context: Context) -> Fix:
    cann = context.cann
    return source(cann.set_env if cann else "")


def _entries(context: Context) -> tuple[CannPath, ...]:
    return context.facts.cann.entries.value or ()


def broken_link(context: Context) -> tuple[str, CannFolder, Fix] | None:
    """The first dangling link with an install in its own folder, and the newest one there; None if there is none."""
    installs = context.facts.cann.installs.value
    if installs is None:
        return None
    for path in installs.dangling:
        beside = [item for item in installs.found if posixpath.dirname(item.root) == posixpath.dirname(path)]
        if beside:
            # Names that are not releases come before all releases.
            newest = max(beside, key=lambda item: release_of(item.version) or versions.cann("0.0.0"))
            return path, newest, fix_for("cann.link", ("ln", "-sfn", newest.root, path), needs_root=True)
    return None


def release_of(text: str) -> versions.Version | None:
    """The release with this number; None for a name that is none."""
    return versions.cann(text) if versions.is_cann(text) else None


@given(lambda context: context.facts.cann.installs.value, "no-cann")
def _links(context: Context, found: Installs) -> CheckResult:
    """Installs side by side, and whether the links all lead to one of them."""
    if found.mixed:
        link, homes = next(iter(sorted(found.mixed.items())))
        shown = (Evidence(link, home) for home in homes)
        return warn("cann.links-mixed", *shown, fix="cann.links", link=link, homes=homes)
    if found.dangling:
        broken = broken_link(context)
        if broken is not None and context.cann is None and context.facts.cann.closed.value is None:
            return skip("because", cause="cann.found")  # which names the link and has the same fix
        shown = (Evidence(link, "leads nowhere") for link in found.dangling)
        return warn("cann.links-dangling", *shown, fix=broken[2] if broken else "cann.links", links=found.dangling)
    if not found.found:
        return skip("no-cann")
    return ok("cann.links-ok", installs=tuple(item.root for item in found.found))


def _one_version(context: Context) -> CheckResult:
    """Every path into a CANN belongs to that of ASCEND_HOME_PATH; links are followed if possible."""
    entries = _entries(context)
    own = next((item.real for item in entries if item.variable == "ASCEND_HOME_PATH"), "")
    if not own:
        return skip("cann.one-version-skip")
    others = [item for item in entries if item.real and item.real != own and item.is_there]
    if not others:
        return ok("cann.one-version-ok", root=own)
    fix, first = fix_for("cann.fresh", *_own_script(context).commands), others[0]
    shown = tuple(Evidence("environment", f"{item.variable}: {item.path}") for item in others)
    says = {"variable": first.variable, "other": first.real, "own": own}
    if any(item.variable not in _LISTS or _comes_first(item, entries, own) for item in others):
        return fail("cann.one-version-first", *shown, fix=fix, **says)
    return warn("cann.one-version-behind", *shown, fix=fix, **says)


def _comes_first(entry: CannPath, entries: tuple[CannPath, ...], own: str) -> bool:
    """Whether a foreign folder is searched before any folder of the session's own CANN."""
    if entry.variable == "PATH":
        return False  # tools of another release after the own ones do no harm to the libraries
    mine = [item.position for item in entries if item.variable == entry.variable and item.real == own]
    return not mine or entry.position < min(mine)


def _gone(context: Context) -> CheckResult:
    """Search paths into a removed CANN. `cann.sourced` reports a missing home of the session itself."""
    entries = _entries(context)
    if context.cann is None:
        return skip("no-cann")
    home = {item.home for item in entries if item.variable == "ASCEND_HOME_PATH"}
    gone = [item for item in entries if item.is_there is False and item.variable in _LISTS and item.home not in home]
    if not gone:
        return ok("cann.gone-ok")
    homes = tuple(dict.fromkeys(item.home for item in gone))
    shown = (Evidence("environment", f"{item.variable}: {item.path}") for item in gone)
    return warn("cann.gone-warn", *shown, fix=fix_for("cann.fresh", *_own_script(context).commands), homes=homes)


def _stand_ins(context: Context) -> CheckResult:
    """Stub library folders before those of the driver, or without them."""
    folders = context.environment.get("LD_LIBRARY_PATH", "").split(":")
    stand_ins = [at for at, folder in enumerate(folders) if _STAND_INS.search(folder)]
    real = [at for at, folder in enumerate(folders) if _REAL.search(folder)]
    if not stand_ins or (real and min(real) < min(stand_ins)):
        return ok("cann.stand-ins-ok")
    folder = folders[stand_ins[0]]
    evidence = Evidence("environment", f"LD_LIBRARY_PATH: {folder}")
    fix = fix_for("cann.stand-ins", *_own_script(context).commands)
    return fail("cann.stand-ins-fail", evidence, fix=fix, folder=folder)


def _python_path(context: Context) -> CheckResult:
    """PYTHONPATH was overwritten or unset after set_env.sh, so that CANN's packages (te, tbe, acl) are not found."""
    if not context.setting("ASCEND_HOME_PATH"):
        return skip("cann.python-path-skip")
    if any(item.variable == "PYTHONPATH" for item in _entries(context)):
        return ok("cann.python-path-ok")
    return warn("cann.python-path-lost", context.line("PYTHONPATH"), fix=_own_script(context))


def _python_packages(context: Context) -> CheckResult:
    """The imports of CANN's operator compiler: without them the first compiled operator fails with 500001."""
    python = context.python
    if python is None or "torch-npu" not in python.distributions:
        return skip("no-torch-npu")
    missing = tuple(name for name in _IMPORTS if name not in python.distributions)
    if not missing:
        return ok("cann.packages-ok")
    fix = pip_fix(context, "cann.packages", install=missing)
    return warn("cann.packages-missing", *lines(context, *missing), fix=fix, names=missing)


@given(lambda context: (context.facts.cann.compilers.value or {}).get("gcc"), "cann.gcc-skip")
def _gcc(_: Context, version: str) -> CheckResult:
    """The compiler that vllm-ascend's and other operators are built with."""
    if int(version.split(".")[0]) >= _OLDEST_GCC:
        return ok("cann.gcc-ok", version=version)
    return warn("cann.gcc-old", fix="cann.gcc", version=version, least=_OLDEST_GCC)


def _writable(context: Context) -> CheckResult:
    """CANN's log and cache folders created by another user (sudo, a container's root) make the next run fail."""
    folders = context.facts.cann.writes.value or ()
    shut = next((item for item in folders if item.state != "writable"), None)
    if shut is None:
        return ok("cann.writable-ok")
    evidence = Evidence(f"{shut.named_by} ({shut.path})", shut.state)
    fix = fix_for("cann.writable", path=shut.path)
    return warn("cann.writable-shut", evidence, fix=fix, path=shut.path, state=shut.state)


def _nnal(context: Context) -> CheckResult:
    nnal, cann = context.facts.cann.nnal.value, context.cann
    if nnal is not None:
        releases = [release_of(each.version) for each in (nnal, cann) if each]
        # an unreadable number proves no mismatch
        if cann is not None and len({release.series for release in releases if release}) > 1:
            fix = fix_for("cann.nnal-install", version=cann.version)
            return warn("cann.nnal-other", fix=fix, nnal=nnal.version, cann=cann.version)
        return ok("cann.nnal-ok", version=nnal.version)
    if cann is None:
        return skip("no-cann")
    fix = fix_for("cann.nnal-install", version=cann.version)
    return fail("cann.nnal-fail", fix=fix) if context.framework in NPU_FRAMEWORKS else warn("cann.nnal-fail", fix=fix)


def _script(nnal: Nnal) -> str:
    """The script to source: nnal/atb/set_env.sh, beside the folder `latest`."""
    return f"{re.sub('/latest$', '', nnal.root)}/set_env.sh"


@given(lambda context: context.facts.cann.nnal.value, "cann.nnal-sourced-skip")
def _sourced(context: Context, nnal: Nnal) -> CheckResult:
    atb, fix = context.facts.cann.atb.value, source(_script(nnal))
    if not context.setting("ATB_HOME_PATH"):
        return warn("cann.nnal-sourced-unset", context.line("ATB_HOME_PATH"), fix=fix)
    if atb is not None and not atb.is_there:
        return fail("cann.nnal-sourced-nowhere", context.line("ATB_HOME_PATH"), fix=fix, home=atb.home)
    path, kinds = context.environment.get("LD_LIBRARY_PATH", ""), _kinds(context)
    if len(set(kinds)) > 1:
        shown = context.line("LD_LIBRARY_PATH")
        return warn("cann.nnal-sourced-mixed", shown, fix="cann.nnal-mixed", first=kinds[0])
    if kinds and atb is not None and atb.abi and kinds[0] != atb.abi:
        both = (context.line("ATB_HOME_PATH"), context.line("LD_LIBRARY_PATH"))
        return warn("cann.nnal-sourced-split", *both, fix="cann.nnal-mixed", home=atb.abi, first=kinds[0])
    if path and not kinds and f"{context.setting('ATB_HOME_PATH').rstrip('/')}/lib" not in path.split(":"):
        return warn("cann.nnal-sourced-half", context.line("LD_LIBRARY_PATH"), fix=fix)
    return ok("cann.nnal-sourced-ok", context.line("ATB_HOME_PATH"))


def _kinds(context: Context) -> list[str]:
    """The C++ ABIs of the ATB libraries on LD_LIBRARY_PATH; the loader uses the first one."""
    return re.findall(r"cxx_abi_([01])/lib(?:[:/]|$)", context.environment.get("LD_LIBRARY_PATH", ""))


def _library(context: Context) -> CheckResult:
    """The library itself: a folder without it is an incomplete NNAL."""
    atb = context.facts.cann.atb.value
    if atb is None or not atb.is_there:
        return skip("cann.nnal-sourced-skip")
    if atb.has_library:
        return ok("cann.nnal-library-ok")
    cann = context.cann
    fix = fix_for("cann.nnal-install", version=cann.version if cann else "")
    return fail("cann.nnal-library-fail", *context.facts.cann.atb.evidence, fix=fix, home=atb.home)


def why_unloadable(context: Context) -> str | None:
    """The id of the failed check that explains why NNAL's libraries cannot be loaded; None if there is none."""
    judges = {"nnal.present": _nnal, "nnal.sourced": _sourced, "nnal.library": _library}
    return next((check for check, judge in judges.items() if judge(context).status is Status.FAIL), None)


def _abi(context: Context) -> CheckResult:
    """The ABI at the end of ATB_HOME_PATH, chosen when it was sourced, against that of torch."""
    atb, torch = context.facts.cann.atb.value, context.facts.cann.torch_abi.value
    stated = context.facts.cann.torch_abi.evidence
    if torch is None and accepts(f">={_ONE_ABI_SINCE}", version := context.installed.get("torch", "")):
        torch, stated = "1", (Evidence("python (inventory)", f"torch {version}"),)
    if atb is None or not atb.abi or torch is None:
        return skip("cann.nnal-abi-skip")
    loaded = [*_kinds(context), atb.abi][0]
    if loaded == torch:
        return ok("cann.nnal-abi-ok", abi=torch)
    nnal = context.facts.cann.nnal.value
    script = _script(nnal) if nnal else "nnal/atb/set_env.sh"
    fix = fix_for("cann.nnal-abi", ("source", script, f"--cxx_abi={torch}"))
    shown = context.line("ATB_HOME_PATH" if loaded == atb.abi else "LD_LIBRARY_PATH")
    return fail("cann.nnal-abi-fail", shown, *stated, fix=fix, atb=loaded, torch=torch)


_STUBS = "vllm-project/vllm-ascend#661: devlib is for builds; libascendcl of devlib: stub library cannot be used"
_PYTHON_PACKAGES = "Ascend/pytorch#7; CANN installation guide, Python dependencies"
_WRITABLE = "hiascend environment variables ASCEND_CACHE_PATH, ASCEND_PROCESS_LOG_PATH; vllm-project/vllm-ascend#433"
CHECKS = (
    card_check("cann.links", ("cann.installs",), "sgl-project/sgl-kernel-npu#460; hiyouga/LlamaFactory#5189", _links),
    card_check("cann.one-version", ("cann.entries",), "CANN set_env.sh; hw-native-sys/PTOAS#837", _one_version),
    card_check("cann.gone", ("cann.entries",), "CANN set_env.sh (9.1 removes older entries for this)", _gone),
    card_check("cann.stand-ins", (), _STUBS, _stand_ins),
    card_check("cann.python-path", ("cann.entries",), "CANN 8.0 set_env.sh: PYTHONPATH", _python_path),
    card_check("cann.python-packages", ("python.interpreter",), _PYTHON_PACKAGES, _python_packages),
    card_check("cann.gcc", ("cann.compilers",), INSTALL, _gcc, level=1),
    card_check("cann.writable", ("cann.writes",), _WRITABLE, _writable),
)
_ABI = "vllm-project/vllm-ascend#1144; nnal set_env.sh --cxx_abi; PyTorch 2.6 release notes: CXX11_ABI=1 from 2.7 on"
NNAL_CHECKS = (
    card_check("nnal.present", ("cann.nnal",), INSTALL, _nnal, required_for=NPU_FRAMEWORKS),
    card_check("nnal.sourced", ("cann.nnal",), "vllm-project/vllm-ascend#6299, #152", _sourced),
    card_check("nnal.library", ("cann.atb",), "vllm-project/vllm-ascend#152: libatb.so", _library),
    card_check("nnal.abi", ("cann.atb", "cann.torch_abi"), _ABI, _abi),
)
