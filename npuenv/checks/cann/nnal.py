"""Checks of NNAL (ATB): present, of CANN's release, sourced once, and built for the C++ ABI of torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, CheckResult, Context, card_check, fail, fix_for, ok, skip, warn
from npuenv.checks.cann.session import source
from npuenv.checks.python.installed import accepts
from npuenv.checks.session.variables import installed, line, setting
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status

if TYPE_CHECKING:
    from npuenv.facts.cann.toolkit import Cann, Nnal

_ONE_ABI_SINCE = "2.7.0"  # from here on all wheels of torch have the new ABI
_INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"


def _nnal(context: Context) -> CheckResult:
    nnal, cann = context.facts.cann.nnal.value, context.facts.cann.toolkit.value
    if nnal is not None:
        if cann is not None and not _same_series(nnal.version, cann):
            fix = fix_for("cann.nnal-install", version=cann.version)
            return warn("cann.nnal-other", fix=fix, nnal=nnal.version, cann=cann.version)
        return ok("cann.nnal-ok", version=nnal.version)
    if cann is None:
        return skip("no-cann")
    fix = fix_for("cann.nnal-install", version=cann.version)
    return fail("cann.nnal-fail", fix=fix) if context.framework in NPU_FRAMEWORKS else warn("cann.nnal-fail", fix=fix)


def _same_series(version: str, cann: Cann) -> bool:
    try:
        return versions.cann(version).series == versions.cann(cann.version).series
    except BadInput:
        return True  # an unreadable number proves no mismatch


def _script(nnal: Nnal) -> str:
    """The script to source: nnal/atb/set_env.sh, beside the folder `latest`."""
    return f"{re.sub('/latest$', '', nnal.root)}/set_env.sh"


def _sourced(context: Context) -> CheckResult:
    nnal, atb = context.facts.cann.nnal.value, context.facts.cann.atb.value
    if nnal is None:
        return skip("cann.nnal-sourced-skip")
    fix = source(_script(nnal))
    if not setting(context, "ATB_HOME_PATH"):
        return warn("cann.nnal-sourced-unset", line(context, "ATB_HOME_PATH"), fix=fix)
    if atb is not None and not atb.is_there:
        return fail("cann.nnal-sourced-nowhere", line(context, "ATB_HOME_PATH"), fix=fix, home=atb.home)
    path = context.environment.get("LD_LIBRARY_PATH", "")
    kinds = _kinds(context)
    if len(set(kinds)) > 1:
        fix = fix_for("cann.nnal-mixed")
        return warn("cann.nnal-sourced-mixed", line(context, "LD_LIBRARY_PATH"), fix=fix, first=kinds[0])
    if kinds and atb is not None and atb.abi and kinds[0] != atb.abi:
        shown = (line(context, "ATB_HOME_PATH"), line(context, "LD_LIBRARY_PATH"))
        return warn("cann.nnal-sourced-split", *shown, fix=fix_for("cann.nnal-mixed"), home=atb.abi, first=kinds[0])
    if path and not kinds and f"{setting(context, 'ATB_HOME_PATH').rstrip('/')}/lib" not in path.split(":"):
        return warn("cann.nnal-sourced-half", line(context, "LD_LIBRARY_PATH"), fix=fix)
    return ok("cann.nnal-sourced-ok", line(context, "ATB_HOME_PATH"))


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
    cann = context.facts.cann.toolkit.value
    fix = fix_for("cann.nnal-install", version=cann.version if cann else "")
    return fail("cann.nnal-library-fail", *context.facts.cann.atb.evidence, fix=fix, home=atb.home)


def why_unloadable(context: Context) -> str | None:
    """The id of the failed check that explains why NNAL's libraries cannot be loaded; None if there is none."""
    judges = {"nnal.present": _nnal, "nnal.sourced": _sourced, "nnal.library": _library}
    return next((check for check, judge in judges.items() if judge(context).status is Status.FAIL), None)


def _abi(context: Context) -> CheckResult:
    """The ABI at the end of ATB_HOME_PATH, chosen when it was sourced, against that of torch."""
    atb, torch = context.facts.cann.atb.value, context.facts.cann.torch_abi.value
    lines = context.facts.cann.torch_abi.evidence
    if torch is None and accepts(f">={_ONE_ABI_SINCE}", version := installed(context).get("torch", "")):
        torch, lines = "1", (Evidence("python (inventory)", f"torch {version}"),)
    if atb is None or not atb.abi or torch is None:
        return skip("cann.nnal-abi-skip")
    loaded = [*_kinds(context), atb.abi][0]
    if loaded == torch:
        return ok("cann.nnal-abi-ok", abi=torch)
    nnal = context.facts.cann.nnal.value
    script = _script(nnal) if nnal else "nnal/atb/set_env.sh"
    fix = fix_for("cann.nnal-abi", ("source", script, f"--cxx_abi={torch}"))
    shown = line(context, "ATB_HOME_PATH" if loaded == atb.abi else "LD_LIBRARY_PATH")
    return fail("cann.nnal-abi-fail", shown, *lines, fix=fix, atb=loaded, torch=torch)


_ABI = "vllm-project/vllm-ascend#1144; nnal set_env.sh --cxx_abi; PyTorch 2.6 release notes: CXX11_ABI=1 from 2.7 on"
CHECKS = (
    card_check("nnal.present", ("cann.nnal",), _INSTALL, _nnal, required_for=NPU_FRAMEWORKS),
    card_check("nnal.sourced", ("cann.nnal",), "vllm-project/vllm-ascend#6299, #152", _sourced),
    card_check("nnal.library", ("cann.atb",), "vllm-project/vllm-ascend#152: libatb.so", _library),
    card_check("nnal.abi", ("cann.atb", "cann.torch_abi"), _ABI, _abi),
)
