"""The driver: is it there, does it answer, do its parts agree, does a container see what it needs."""

from __future__ import annotations

import re

from npuenv import versions
from npuenv.checks.base import NPU_FRAMEWORKS, Check, Context, Fix, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.errors import BadInput
from npuenv.facts.base import Evidence, State
from npuenv.facts.smi import SmiTrouble, Trouble

_TOOLS = "Ascend host tools: npu-smi source (hicann/driver) and public transcripts"
_INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"
_DRIVER_LIBS = "/usr/local/Ascend/driver/lib64"


def _answers(context: Context) -> Verdict:
    """One text has several causes: one is named only when other evidence shows it, else all candidates are."""
    facts = context.facts
    trouble = facts.smi_trouble.value
    if trouble is None and facts.smi.is_known:
        return ok("smi-ok")
    if trouble is None or trouble.kind is Trouble.NOT_FOUND:
        return fail("smi-missing", *facts.smi.evidence, fix=_mount_or_install(context))
    if trouble.kind is Trouble.INIT:
        return _init_failed(context, trouble)
    if trouble.kind is Trouble.UNREADABLE:
        return unsure("smi-unreadable", *facts.smi_trouble.evidence, line=trouble.line)
    cures = {
        Trouble.LIBRARY: fix(
            "smi-library", ("export", f"LD_LIBRARY_PATH={_library_path(context)}"), library=trouble.library
        ),
        Trouble.IN_USE: fix("smi-in-use"),
        Trouble.TIMEOUT: fix("smi-timeout", ("dmesg", "--ctime")),
    }
    return fail(
        f"smi-{trouble.kind.value}",
        *facts.smi_trouble.evidence,
        fix=cures[trouble.kind],
        library=trouble.library or "",
        ret=trouble.ret or 0,
    )


def _init_failed(context: Context, trouble: SmiTrouble) -> Verdict:
    """`dcmi module initialize failed`: not openable nodes, no nodes, no module; else all four candidates."""
    facts = context.facts
    nodes = facts.nodes.value
    in_container = facts.container.is_known
    evidence = (*facts.smi_trouble.evidence, *facts.nodes.evidence, *facts.modules.evidence)
    if nodes is not None:
        shut = [node for node in (*nodes.cards, *nodes.managers) if not node.is_openable]
        if shut:
            cure = fix("device-flags") if in_container else fix("device-group")
            return fail("smi-init-shut", *evidence, fix=cure, ret=trouble.ret, path=shut[0].path)
        if not nodes.cards and in_container:
            return fail("smi-init-unmounted", *evidence, fix=fix("device-flags"), ret=trouble.ret)
    if not in_container and facts.modules.value == ():
        return fail("smi-init-not-loaded", *evidence, fix=fix("driver-install"), ret=trouble.ret)
    return fail("smi-init-several", *evidence, fix=fix("smi-init-several"), ret=trouble.ret)


def _mount_or_install(context: Context) -> Fix:
    return fix("driver-mount") if context.facts.container.is_known else fix("driver-install")


def _library_path(context: Context) -> str:
    wanted = ":".join((_DRIVER_LIBS, f"{_DRIVER_LIBS}/common", f"{_DRIVER_LIBS}/driver"))
    present = (context.facts.environment.value or {}).get("LD_LIBRARY_PATH")
    return f"{wanted}:{present}" if present else wanted


def _installed(context: Context) -> Verdict:
    driver = context.facts.driver.value
    if driver is None:
        return fail("driver-installed-fail", fix=_mount_or_install(context))
    return ok("driver-installed-ok", version=driver.version, path=driver.path)


def _complete(context: Context) -> Verdict:
    info, table = context.facts.install_info.value, context.facts.smi.value
    status = (info or {}).get("Driver_Install_Status")
    if status not in (None, "complete") or (table is not None and table.is_install_incomplete):
        return warn("driver-complete-warn", fix=fix("driver-install"), status=status or "-")
    return skip("driver-complete-skip") if info is None else ok("driver-complete-ok")


def _agree(context: Context) -> Verdict:
    driver, table = context.facts.driver.value, context.facts.smi.value
    if driver is None or table is None or table.driver is None:
        return skip("driver-agree-skip")
    evidence = (*context.facts.driver.evidence, *context.facts.smi.evidence)
    try:
        same = versions.driver(driver.version) == versions.driver(table.driver)
    except BadInput:
        return unsure("driver-agree-unknown", *evidence, file=driver.version, running=table.driver)
    if same:
        return ok("driver-agree-ok", version=table.driver)
    cure = fix("driver-restart-container") if context.facts.container.is_known else fix("driver-reboot")
    return warn("driver-agree-warn", *evidence, fix=cure, file=driver.version, running=table.driver)


def _firmware(context: Context) -> Verdict:
    """The range that the driver's version file gives for the firmware, as `[7.0.0,7.1.99]`."""
    driver, firmware = context.facts.driver.value, context.facts.firmware.value
    if driver is None or firmware is None:
        return skip("driver-firmware-skip")
    found = re.findall(r"\[([0-9.]+),([0-9.]+)\]", driver.compatible_firmware)
    if not found:
        return skip("driver-firmware-skip")
    have = _numbers(firmware.version)
    fits = any(_numbers(low) <= have[:3] <= _numbers(high) for low, high in found)
    line = Evidence(driver.path, f"compatible_version_fw={driver.compatible_firmware}")
    if fits:
        return ok("driver-firmware-ok", line, *context.facts.firmware.evidence, version=firmware.version)
    return fail(
        "driver-firmware-fail",
        line,
        *context.facts.firmware.evidence,
        fix=fix("firmware"),
        version=firmware.version,
        wanted=driver.compatible_firmware,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"[0-9]+", text))


def _mounts(context: Context) -> Verdict:
    facts = context.facts
    if not facts.container.is_known:
        return skip("container-mounts-skip")
    there = facts.driver_libraries.value or ()
    missing = [item.command for item in facts.driver_libraries.evidence if item.command not in there]
    if facts.smi.state is State.ABSENT:
        missing.append("npu-smi")
    libraries = [path for path in missing if "lib64" in path]
    if libraries:
        return fail("container-mounts-fail", fix=fix("driver-mount"), paths=tuple(missing))
    return (
        warn("container-mounts-warn", fix=fix("driver-mount"), paths=tuple(missing))
        if missing
        else ok("container-mounts-ok")
    )


CHECKS = (
    Check("driver.npu-smi", (), _TOOLS, _answers, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("driver.installed", ("driver",), _TOOLS, _installed, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check(
        "driver.complete",
        ("install_info",),
        "npu-smi source, npu_info_print.c (hicann/driver)",
        _complete,
        is_about_cards=True,
    ),
    Check("driver.agrees", ("driver",), _TOOLS, _agree, is_about_cards=True),
    Check(
        "driver.firmware",
        ("driver", "firmware"),
        "driver version.info, compatible_version_fw",
        _firmware,
        is_about_cards=True,
    ),
    Check("container.mounts", ("container", "driver_libraries"), _INSTALL, _mounts, is_about_cards=True),
)
