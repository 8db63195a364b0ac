"""Checks of the driver: present, working, consistent, complete inside a container, and found by the loader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, card_check, fail, fix_for, given, ok, skip, title, unknown, warn
from npuenv.checks.npu.boards import INSTALL, TABLE, TOOLS, with_table
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence, Fact, State
from npuenv.core.versions import numbers_in
from npuenv.facts.collector import was_asked
from npuenv.facts.npu.driver import INSTALL_INFO
from npuenv.facts.npu.failures import SmiFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.facts.npu.driver import Installer
    from npuenv.facts.npu.failures import SmiTrouble
    from npuenv.facts.npu.smi import SmiTable
    from npuenv.facts.python import Import


_RELEASES = (
    "MindCluster and CANN 9.1.0 release notes: Atlas 350 25.7.RC1, Atlas 850 25.6.RC1, Atlas 950 SuperPoD 25.1.RC1"
)
_TOPO = "vllm-project/vllm-ascend: EI0014 open /usr/local/Ascend/driver/topo/950/... failed"
_INFO = "/etc/ascend_install.info of public hosts; driver installer --install-for-all"
_A5 = "950"
_A5_SERIES = ((25, 6), (25, 7))
_A5_POD_SERIES = (25, 1)
_DRIVER_LIBS = "/usr/local/Ascend/driver/lib64"
_MISSED = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


def _answers(context: Context) -> CheckResult:
    """One error has several causes: one is named only if other evidence shows it, else all candidates are."""
    facts = context.facts
    trouble = facts.npu.smi_trouble.value
    if trouble is None and facts.npu.smi.is_known:
        return ok("npu.smi-ok")
    if trouble is None or trouble.kind is SmiFailure.NOT_FOUND:
        return fail("npu.smi-missing", *facts.npu.smi.evidence, fix=_mount_or_install(context))
    if trouble.kind is SmiFailure.INIT:
        return _init_failed(context, trouble)
    if trouble.kind is SmiFailure.UNREADABLE:
        lines = facts.npu.smi_trouble.evidence
        fix = fix_for("npu.smi-unreadable", ("npu-smi", "info"), ("dmesg", "--ctime"))
        if not trouble.line and lines:
            return unknown("npu.smi-silent", *lines, fix=fix, line=lines[0].line)
        return unknown("npu.smi-unreadable", *lines, fix=fix, line=trouble.line)
    if trouble.kind is SmiFailure.IN_USE:
        return _in_use(context, trouble)
    fixes = {
        SmiFailure.LIBRARY: fix_for(
            "npu.smi-library", ("export", f"LD_LIBRARY_PATH={library_path(context)}"), library=trouble.library
        ),
        SmiFailure.UNEXECUTABLE: fix_for("npu.smi-unexecutable"),
        SmiFailure.TIMEOUT: fix_for("npu.smi-timeout", ("npuenv", "doctor", "--level", "2"), ("dmesg", "--ctime")),
    }
    says = {"library": trouble.library or "", "ret": trouble.ret or 0, "line": trouble.line}
    return fail(f"npu.smi-{trouble.kind.value}", *facts.npu.smi_trouble.evidence, fix=fixes[trouble.kind], **says)


def _in_use(context: Context, trouble: SmiTrouble) -> CheckResult:
    """`because the device is used`; the driver's own record names the process, if it can be read."""
    npu = context.facts.npu
    holders = [claim for claim in npu.claims.value or () if claim.is_exclusive and not claim.is_ours and claim.devices]
    conflicts = [event for event in npu.kernel.value or () if event.kind == "conflict"]
    lines = [*npu.smi_trouble.evidence, *(Evidence("dmesg", event.line) for event in conflicts)]
    if not holders:
        return fail("npu.smi-in-use", *lines, fix="npu.smi-in-use", ret=trouble.ret or 0)
    pids = tuple(str(claim.root_pid) for claim in holders)
    lines += list(npu.claims.evidence)
    fix = fix_for("npu.smi-in-use-by", pid=pids[0])
    return fail("npu.smi-in-use-by", *lines, fix=fix, ret=trouble.ret or 0, pids=pids)


def _init_failed(context: Context, trouble: SmiTrouble) -> CheckResult:
    """`dcmi module initialize failed`: no nodes, no module, another driver; else all four candidates.

    Nodes that cannot be opened and missing manager devices are reported by their own checks.
    """
    facts, in_container = context.facts, context.in_container
    nodes = facts.npu.nodes.value
    evidence = (*facts.npu.smi_trouble.evidence, *facts.npu.nodes.evidence, *facts.npu.modules.evidence)
    if nodes is not None:
        if not all(node.is_openable for node in (*nodes.cards, *nodes.managers)):
            return skip("npu.smi-because", *evidence, ret=trouble.ret, cause=title("devices.openable"))
        if nodes.cards and nodes.missing_managers:
            return skip("npu.smi-because", *evidence, ret=trouble.ret, cause=title("devices.managers"))
        if not nodes.cards and in_container:
            return fail("npu.smi-init-unmounted", *evidence, fix="npu.device-flags", ret=trouble.ret)
    if not in_container and facts.npu.modules.value == ():
        return fail("npu.smi-init-not-loaded", *evidence, fix="npu.driver-load", ret=trouble.ret)
    changed = facts.npu.changed.value
    if changed is not None and changed.is_after_boot:
        fix = "npu.driver-restart-container" if in_container else "npu.driver-reboot"
        return fail("npu.smi-init-changed", *evidence, *facts.npu.changed.evidence, fix=fix, ret=trouble.ret)
    return fail("npu.smi-init-several", *evidence, fix="npu.smi-init-several", ret=trouble.ret)


def _mount_or_install(context: Context) -> Fix:
    return fix_for("npu.driver-mount") if context.in_container else fix_for("npu.driver-install")


def library_path(context: Context) -> str:
    """The session's LD_LIBRARY_PATH with the driver's folders before it."""
    wanted = ":".join((_DRIVER_LIBS, f"{_DRIVER_LIBS}/common", f"{_DRIVER_LIBS}/driver"))
    present = context.environment.get("LD_LIBRARY_PATH")
    return f"{wanted}:{present}" if present else wanted


def _installed(context: Context) -> CheckResult:
    driver, table = context.facts.npu.driver.value, context.facts.npu.smi.value
    if driver is None and _is_by_runtime(context) and table is not None and table.driver:
        return ok("npu.driver-installed-told", *context.facts.npu.smi.evidence, version=table.driver)
    if driver is None:
        return fail("npu.driver-installed-fail", fix=_mount_or_install(context))
    return ok("npu.driver-installed-ok", version=driver.version, path=driver.path)


def _complete(context: Context) -> CheckResult:
    info, table = context.facts.npu.install_info.value, context.facts.npu.smi.value
    status = (info or {}).get("Driver_Install_Status")
    if status not in (None, "complete") or (table is not None and table.is_install_incomplete):
        return warn("npu.driver-complete-warn", fix="npu.driver-install", status=status or "-")
    return skip("npu.driver-complete-skip") if info is None else ok("npu.driver-complete-ok")


def _agree(context: Context) -> CheckResult:
    driver, table = context.facts.npu.driver.value, context.facts.npu.smi.value
    if driver is None or table is None or table.driver is None:
        return skip("npu.driver-agree-skip")
    evidence = (*context.facts.npu.driver.evidence, *context.facts.npu.smi.evidence)
    same = _is_same(driver.version, table.driver)
    if same is None:
        return unknown("npu.driver-agree-unknown", *evidence, file=driver.version, running=table.driver)
    if same:
        return ok("npu.driver-agree-ok", version=table.driver)
    in_container = context.in_container
    changed = context.facts.npu.changed.value
    if changed is not None and changed.is_after_boot and not in_container:
        return skip("npu.driver-agree-reboot")
    fix = "npu.driver-restart-container" if in_container else "npu.driver-reboot"
    return warn("npu.driver-agree-warn", *evidence, fix=fix, file=driver.version, running=table.driver)


def _is_same(one: str, other: str) -> bool | None:
    """Whether two driver versions are the same, ignoring a build such as `.b010`; None: not comparable."""
    try:
        return versions.driver(one) == versions.driver(other)
    except BadInput:
        return None


def _rebooted(context: Context) -> CheckResult:
    """Files newer than the boot are an error only if another version runs: some installs need no reboot."""
    npu = context.facts.npu
    changed, driver, table = npu.changed.value, npu.driver.value, npu.smi.value
    if changed is None or driver is None or context.in_container:
        return skip("npu.driver-rebooted-skip")
    if not changed.is_after_boot:
        return ok("npu.driver-rebooted-ok", *npu.changed.evidence)
    running = table.driver if table is not None else None
    same = _is_same(driver.version, running) if running is not None else None
    if same is None:
        return skip("npu.driver-rebooted-skip")
    if same:
        return ok("npu.driver-rebooted-alike", *npu.changed.evidence, version=running)
    evidence = (*npu.changed.evidence, *npu.driver.evidence, *npu.smi.evidence)
    return fail("npu.driver-rebooted-fail", *evidence, fix="npu.driver-reboot", file=driver.version, running=running)


@with_table
def _tool(context: Context, table: SmiTable) -> CheckResult:
    """npu-smi and the driver come in one package; a difference of a few patches does no harm."""
    if table.tool is None or table.driver is None:
        return skip("npu.driver-tool-skip")
    tool, driver = numbers_in(table.tool)[:2], numbers_in(table.driver)[:2]
    if tool == driver:
        return ok("npu.driver-tool-ok", tool=table.tool, driver=table.driver)
    fix = "npu.driver-tool-mount" if context.in_container else "npu.driver-install"
    return warn("npu.driver-tool-warn", fix=fix, tool=table.tool, driver=table.driver)


def _firmware(context: Context) -> CheckResult:
    """The range that the driver's version file gives for the firmware, as `[7.0.0,7.1.99]`.

    A driver cannot know newer firmware: it is enough if either side accepts the other.
    """
    driver, firmware = context.facts.npu.driver.value, context.facts.npu.firmware.value
    wanted = _ranges(driver.compatible_firmware) if driver is not None else []
    if driver is None or firmware is None or not wanted:
        return skip("npu.driver-firmware-skip")
    lines = (
        Evidence(driver.path, f"compatible_version_fw={driver.compatible_firmware}"),
        Evidence(firmware.path, f"compatible_version_drv={firmware.compatible_driver}"),
        *context.facts.npu.firmware.evidence,
    )
    have, drivers = numbers_in(firmware.version), _ranges(firmware.compatible_driver)
    is_wanted = any(numbers_in(low) <= have[:3] <= numbers_in(high) for low, high in wanted)
    if is_wanted or any(_is_between(driver.version, low, high) for low, high in drivers):
        return ok("npu.driver-firmware-ok", *lines, version=firmware.version)
    says = {"version": firmware.version, "wanted": driver.compatible_firmware}
    return fail("npu.driver-firmware-fail", *lines, fix="npu.firmware", **says)


def _ranges(text: str) -> list[tuple[str, str]]:
    return re.findall(r"\[([0-9A-Za-z.]+),([0-9A-Za-z.]+)\]", text)


def _is_between(version: str, low: str, high: str) -> bool:
    """Whether a driver lies in a range; `[23.0.0,23.0.0.]` means 23.0.0 and what begins with `23.0.0.`."""
    if version.casefold() == low.casefold() or (high.endswith(".") and version.casefold().startswith(high.casefold())):
        return True
    try:
        return versions.driver(low) <= versions.driver(version) <= versions.driver(high.rstrip("."))
    except BadInput:
        return False


def _loaded(context: Context) -> CheckResult:
    """The check on the host itself. What npu-smi reports too is left to its check."""
    npu = context.facts.npu
    if context.in_container or not npu.driver.is_known or npu.modules.value is None:
        return skip("npu.driver-loaded-skip")
    if npu.modules.value or npu.smi.is_known:
        return ok("npu.driver-loaded-ok", modules=npu.modules.value[:4])
    if npu.smi_trouble.is_known:
        return skip("npu.see-npu-smi")
    return fail("npu.driver-loaded-fail", fix="npu.driver-load")


def _libraries(context: Context) -> CheckResult:
    """The driver's library folders on the host itself; another check covers containers."""
    npu = context.facts.npu
    if context.in_container or not npu.driver.is_known:
        return skip("npu.driver-libraries-skip")
    there, asked = npu.driver_libraries.value or (), (item.command for item in npu.driver_libraries.evidence)
    missing = tuple(path for path in asked if path not in there and "lib64" in path)
    if missing:
        return fail("npu.driver-libraries-fail", fix="npu.driver-install", paths=missing)
    return ok("npu.driver-libraries-ok", count=len(there))


def _for_all(context: Context) -> CheckResult:
    """An installation for its own group hides the libraries from other users."""
    info, account = context.facts.npu.install_info.value, context.facts.machine.account.value
    if info is None or account is None or context.in_container:
        return skip("npu.driver-for-all-skip")
    group = info.get("UserGroup", "HwHiAiUser")
    if info.get("Driver_Install_For_All", "yes").casefold() != "no" or account.is_root:
        return ok("npu.driver-for-all-ok")
    if group in account.group_names:
        return ok("npu.driver-for-all-group", group=group)
    line = Evidence("/etc/ascend_install.info", "Driver_Install_For_All=no")
    evidence = (line, *context.facts.machine.account.evidence)
    return warn("npu.driver-for-all-warn", *evidence, fix=fix_for("npu.driver-for-all", group=group), group=group)


@with_table
def _line(context: Context, table: SmiTable) -> CheckResult:
    """Product lines number their drivers differently: 25.6 and 25.7 exist for the 950 only."""
    version, kinds = table.driver, tuple(context.chip_generations)
    if version is None or len(kinds) != 1:
        return skip("npu.driver-line-skip")
    kind = kinds[0]
    series = numbers_in(version)[:2]
    is_old = series < min(_A5_SERIES) and series != _A5_POD_SERIES
    if is_old if kind == _A5 else series in _A5_SERIES:
        return fail("npu.driver-line-fail", fix="npu.driver-line", version=version, kind=kind)
    return ok("npu.driver-line-ok", version=version, kind=kind)


@with_table
def _topology_files(context: Context, _: SmiTable) -> CheckResult:
    """Cards of the 950 generation need their board's file in the driver's folder `topo`, also inside a container."""
    if _A5 not in context.chip_generations:
        return skip("npu.driver-topo-skip")
    if context.facts.npu.topology_files.value:
        return ok("npu.driver-topo-ok")
    return fail("npu.driver-topo-fail", fix=_mount_or_install(context))


@given(lambda context: context.facts.npu.installer.value, "npu.installer-skip")
def _installed_well(_: Context, installer: Installer) -> CheckResult:
    """The installer's last message, if the driver does not work."""
    if installer.missing_tools:
        fix = fix_for("npu.installer-tools", tools=installer.missing_tools)
        return fail("npu.installer-tools", fix=fix, tools=installer.missing_tools)
    if installer.outcome == "failed":
        return fail("npu.installer-failed", fix="npu.driver-install", line=installer.line)
    if installer.outcome == "unfinished":
        return warn("npu.installer-unfinished", fix="npu.driver-install", line=installer.line)
    if installer.needs_reboot:
        return warn("npu.installer-reboot", fix="npu.driver-reboot", line=installer.line)
    return ok("npu.installer-ok", line=installer.line)


def _mounts(context: Context) -> CheckResult:
    facts = context.facts
    if not facts.machine.container.is_known:
        return skip("npu.container-mounts-skip")
    there = facts.npu.driver_libraries.value or ()
    missing = [item.command for item in facts.npu.driver_libraries.evidence if item.command not in there]
    if facts.npu.smi.state is State.ABSENT and was_asked(facts.npu.smi):
        missing.append("npu-smi")
    if any("lib64" in path for path in missing):
        return fail("npu.container-mounts-fail", fix="npu.driver-mount", paths=tuple(missing))
    if missing:
        return warn("npu.container-mounts-warn", fix="npu.driver-mount", paths=tuple(missing))
    info = facts.npu.install_info
    if info.state is State.ABSENT and facts.npu.driver.is_known and not _is_by_runtime(context):
        return warn("npu.container-mounts-info", *info.evidence, fix="npu.driver-mount", path=INSTALL_INFO)
    return ok("npu.container-mounts-ok")


def _is_by_runtime(context: Context) -> bool:
    """Whether the vendor's runtime or Kubernetes created the container: their list of mounts has no version files.

    Source: Ascend/mind-cluster component/ascend-docker-runtime/build/scripts/base.list
    """
    return any(map(context.environment.get, ("ASCEND_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST")))


@given(lambda context: context.facts.npu.library_files.value or None, "npu.library-path-skip")
def _library_path(context: Context, folders: Mapping[str, tuple[str, ...]]) -> CheckResult:
    """A library that an import could not load although it is in a driver folder that the session does not name."""
    if context.facts.npu.smi_trouble.value is not None and context.facts.npu.smi_trouble.value.library:
        return skip("npu.see-npu-smi")
    tried = 0
    for fact in (context.facts.python.import_torch_npu, context.facts.python.import_torch):
        tried += fact.value is not None
        for library, line in _missed(fact):
            folder = next((path for path, names in folders.items() if library in names), "")
            if folder and folder not in context.loader_path:
                path = library_path(context)
                fix = fix_for("npu.library-path", ("export", f"LD_LIBRARY_PATH={path}"), folder=folder)
                lacks = Evidence("environment", f"LD_LIBRARY_PATH lacks {folder}")
                shown = (line, Evidence(f"ls {folder}", library), lacks)
                return fail("npu.library-path-fail", *shown, fix=fix, library=library, folder=folder)
    return ok("npu.library-path-ok") if tried else skip("npu.library-path-skip")


def _missed(fact: Fact[Import]) -> Iterator[tuple[str, Evidence]]:
    for text in fact.value.errors if fact.value else ():
        found = _MISSED.search(text)
        if found:
            yield found[1], Evidence(fact.evidence[0].command if fact.evidence else "import", text)


_MOUNTS = INSTALL + "; install scripts of CANN packages: driver and firmware is not exists"
_FIRMWARE = "driver version.info, compatible_version_fw"
_SOURCE = "Ascend/pytorch troubleshooting: ImportError libascend_hal.so; CANN installation guide, LD_LIBRARY_PATH"
CHECKS = (
    card_check("driver.npu-smi", (), TOOLS, _answers, level=1, required_for=NPU_FRAMEWORKS),
    card_check("driver.installed", ("npu.driver",), TOOLS, _installed, required_for=NPU_FRAMEWORKS),
    card_check("driver.complete", ("npu.install_info",), "npu-smi source, npu_info_print.c (hicann/driver)", _complete),
    card_check("driver.agrees", ("npu.driver",), TOOLS, _agree),
    card_check("driver.firmware", ("npu.driver", "npu.firmware"), _FIRMWARE, _firmware),
    card_check("driver.rebooted", ("npu.driver",), "Ascend/mind-cluster FAQ: -8005 after an upgrade", _rebooted),
    card_check("driver.tool", TABLE, TOOLS, _tool),
    card_check("driver.loaded", ("npu.modules",), "driver installer: DKMS build", _loaded),
    card_check("driver.libraries", ("npu.driver_libraries",), INSTALL, _libraries),
    card_check("driver.for-all", ("npu.install_info",), _INFO, _for_all),
    card_check("driver.line", TABLE, _RELEASES, _line),
    card_check("driver.topology-files", (*TABLE, "npu.topology_files"), _TOPO, _topology_files),
    card_check("driver.installer", ("npu.installer",), "driver installer output of public hosts", _installed_well),
    card_check("container.mounts", ("machine.container", "npu.driver_libraries"), _MOUNTS, _mounts),
    card_check("driver.library-path", ("npu.library_files",), _SOURCE, _library_path, level=1),
)
