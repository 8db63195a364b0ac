"""Checks of the devices of this session: can be opened, complete, can compute."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, card_check, fail, fix_for, ok, skip, unknown, unread, warn, worst
from npuenv.checks.npu.boards import INSTALL, TABLE, TOOLS, interface_is_down, with_table
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.npu.smi import SmiTable
    from npuenv.facts.python import DeviceRun, Devices

_DMI = "MindCluster ToolBox 7.3.0, Ascend DMI: fault diagnosis, states of an item"
# The runtime's error if another container has the device: public porting notes, and errors/container_no_device_87.
_TAKEN = re.compile(r"drvRetCode=87\b|Resource_Busy|EL0005")
_GRAVE = ("EMERGENCY_WARN", "FAIL")
_LIGHT = ("IMPORTANT_WARN", "GENERAL_WARN")


def _openable(context: Context) -> CheckResult:
    nodes = context.facts.npu.nodes.value
    if nodes is None or not (nodes.cards or nodes.managers):
        return skip("no-nodes")
    shut = [node for node in (*nodes.cards, *nodes.managers) if not node.is_openable]
    if not shut:
        return ok("npu.devices-openable-ok", count=len(nodes.cards))
    lines = [*_stopped(context), *(Evidence(node.path, node.why_not) for node in shut)]
    account, home = context.facts.machine.account.value, context.environment.get("HOME", "").rstrip("/")
    user = (account.name if account else "") or home.rpartition("/")[2] or "USER"
    join = fix_for("npu.device-group", ("usermod", "-aG", "HwHiAiUser", user), is_dangerous=True, needs_root=True)
    fix = fix_for("npu.device-flags") if context.in_container else join
    return fail("npu.devices-openable-fail", *lines, fix=fix, paths=tuple(node.path for node in shut))


def _managers(context: Context) -> CheckResult:
    nodes = context.facts.npu.nodes.value
    if nodes is None or not nodes.cards:
        return skip("no-nodes")
    if nodes.missing_managers:
        fix = "npu.manager-nodes" if context.in_container else "npu.driver-install"
        lines = (*context.facts.npu.nodes.evidence, *_stopped(context))
        return fail("npu.devices-managers-fail", *lines, fix=fix, paths=nodes.missing_managers)
    return ok("npu.devices-managers-ok")


def _stopped(context: Context) -> tuple[Evidence, ...]:
    """npu-smi's error if the driver interface does not start, which needs these nodes."""
    return context.facts.npu.smi_trouble.evidence if interface_is_down(context) else ()


@with_table
def _agree(context: Context, table: SmiTable) -> CheckResult:
    """As many nodes as chips: a container may see a table with more cards than it was given."""
    nodes = context.facts.npu.nodes.value
    if nodes is None or not nodes.cards:
        return skip("no-nodes")
    chips = len(table.cards)
    if any(card.is_virtual for card in table.cards):
        return skip("npu.virtual-card")
    if chips == len(nodes.cards):
        return ok("npu.devices-agree-ok", count=chips)
    if not table.is_complete:
        return unknown("npu.cards-healthy-unknown")
    fix = "npu.devices-more" if context.in_container else "npu.devices-fewer"
    lines = (Evidence("npu-smi info", f"{chips} chips"), *context.facts.npu.nodes.evidence)
    return warn("npu.devices-agree-warn", *lines, fix=fix, chips=chips, nodes=len(nodes.cards))


def _computes(context: Context) -> CheckResult:
    devices = context.facts.python.devices.value
    if devices is None:
        return skip("npu.devices-computes-skip", *context.facts.python.devices.evidence)
    if devices.error:
        taken = _TAKEN.search(devices.error) is not None
        fix = "npu.smi-in-use" if taken else "npu.device-error"
        return fail(f"npu.devices-computes-{'taken' if taken else 'error'}", fix=fix, error=devices.error)
    if devices.count == 0:
        return fail("npu.devices-computes-none", fix="npu.device-error")
    outcomes = [*_wrong(devices), _unfinished(devices)]
    expected = _expected_devices(context)
    if expected is not None and devices.count < expected:
        says = {"count": devices.count, "expected": expected}
        outcomes.append(warn("npu.devices-computes-fewer", fix="npu.device-error", **says))
    well = ok("npu.devices-computes-ok", count=devices.count, name=devices.names[0] if devices.names else "?")
    return worst(outcomes, otherwise=well)


def _unfinished(devices: Devices) -> CheckResult | None:
    """Unknown for the devices that reported neither a result nor an error."""
    silent = [run for run in devices.cards if not run.error and None in (run.copies_exactly, run.computes_correctly)]
    return unread({run.number: Evidence(f"npu:{run.number}", "no result") for run in silent})


def _wrong(devices: Devices) -> Iterator[CheckResult]:
    """The errors in the numbers that were read back."""
    copies = [run.number for run in devices.cards if run.copies_exactly is False]
    wrong = [run.number for run in devices.cards if run.computes_correctly is False and run.number not in copies]
    answered = [run for run in devices.cards if not run.error]
    worst_error = "inf" if devices.worst_error is None else f"{devices.worst_error:.3g}"
    if copies and len(copies) < len(answered):
        lines, cards = _lines(devices.cards, copies), tuple(copies)
        yield fail("npu.devices-computes-copy-some", *lines, fix="npu.device-wrong-some", cards=cards)
    elif devices.copies_exactly is not True:
        yield fail("npu.devices-computes-copy", fix="npu.device-wrong")
        return
    if wrong and len(wrong) < len(answered):
        lines, says = _lines(devices.cards, wrong), {"cards": tuple(wrong), "worst": worst_error}
        yield fail("npu.devices-computes-some", *lines, fix="npu.device-wrong-some", **says)
    elif devices.computes_correctly is not True and not copies:
        values = {"worst": worst_error, "tolerance": devices.tolerance, "count": devices.count}
        yield fail("npu.devices-computes-wrong", fix="npu.device-wrong", **values)


def _lines(runs: tuple[DeviceRun, ...], numbers: list[int]) -> list[Evidence]:
    found = (run for run in runs if run.number in numbers)
    return [Evidence(f"npu:{run.number}", run.error or f"largest difference {run.worst_error}") for run in found]


def _answers(context: Context) -> CheckResult:
    """Some devices fail while others work; if all fail, devices.computes reports it."""
    devices = context.facts.python.devices.value
    if devices is None:
        return skip("npu.devices-computes-skip", *context.facts.python.devices.evidence)
    silent = [run.number for run in devices.cards if run.error]
    if not devices.cards or len(silent) == len(devices.cards):
        return skip("npu.devices-answers-skip")
    if not silent:
        return ok("npu.devices-answers-ok", count=len(devices.cards))
    lines = _lines(devices.cards, silent)
    table = context.facts.npu.smi.value
    if table is not None and table.processes:
        return warn("npu.devices-answers-busy", *lines, fix="npu.card-held", cards=tuple(silent))
    fix = fix_for("npu.device-silent", ("dmesg", "--ctime"))
    return fail("npu.devices-answers-fail", *lines, fix=fix, cards=tuple(silent))


def _burnt(context: Context) -> CheckResult:
    devices = context.facts.npu.burn.value
    if devices is None:
        return skip("npu.burn-skip", *context.facts.npu.burn.evidence)
    bad = [run.number for run in devices.cards if run.error or False in (run.copies_exactly, run.computes_correctly)]
    if devices.error and not devices.cards:
        return skip("npu.burn-skip", Evidence("burn-in", devices.error))
    lines = _lines(devices.cards, bad)
    failure = fail("npu.burn-fail", *lines, fix="npu.device-wrong-some", cards=tuple(bad)) if bad else None
    rounds = sum(run.rounds for run in devices.cards)
    well = ok("npu.burn-ok", *context.facts.npu.burn.evidence, count=len(devices.cards), rounds=rounds)
    return worst((failure, _unfinished(devices)), otherwise=well)


def _diagnosed(context: Context) -> CheckResult:
    """The states of Ascend DMI; unreadable ones are only evidence."""
    found = context.facts.npu.dmi.value
    if found is None:
        return skip("npu.dmi-skip", *context.facts.npu.dmi.evidence)
    bad = {item: word for item, word in found.items.items() if word in (*_GRAVE, *_LIGHT)}
    rows = ("; ".join((f"{item}: {word}", *found.notes.get(item, ()))) for item, word in bad.items())
    lines = [Evidence("ascend-dmi", row) for row in rows]
    items = tuple(f"{item} {word}" for item, word in bad.items())
    if bad:
        name, make = ("npu.dmi-fail", fail) if set(_GRAVE) & set(bad.values()) else ("npu.dmi-warn", warn)
        return make(name, *lines, fix="npu.dmi", items=items)
    passed = tuple(item for item, word in found.items.items() if word != "SKIP")
    return ok("npu.dmi-ok", items=passed) if passed else skip("npu.dmi-skip", *context.facts.npu.dmi.evidence)


def _expected_devices(context: Context) -> int | None:
    """The number of devices that torch should see: the visible ones, else all. None: an unreadable setting."""
    value = context.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return _device_count(context)
    words = {word.strip() for word in value.split(",")}
    return len(words) if all(re.fullmatch(r"[0-9]+", word) for word in words) else None


def _visible(context: Context) -> CheckResult:
    """ASCEND_RT_VISIBLE_DEVICES against the present devices. In a container the runtime counts from 0."""
    value = context.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return ok("npu.visible-unset")
    line = Evidence("environment", f"ASCEND_RT_VISIBLE_DEVICES={value}")
    unset = fix_for("npu.visible-devices", ("unset", "ASCEND_RT_VISIBLE_DEVICES"))
    words = [word.strip() for word in value.split(",")]
    if not value.strip() or value == "NoDevFiles":
        return warn("npu.visible-none", line, fix=unset)
    if not all(re.fullmatch(r"[0-9]+", word) for word in words):
        return fail("npu.visible-malformed", line, fix=unset, value=value)
    ids = [int(word) for word in words]
    if len(set(ids)) != len(ids):
        return fail("npu.visible-twice", line, fix=unset, value=value)
    count = _device_count(context)
    if count is not None and max(ids) >= count:
        name = "npu.visible-host-ids" if context.in_container else "npu.visible-range"
        return fail(name, line, fix=unset, value=value, count=count, last=count - 1)
    if ids != sorted(ids):
        rising = ",".join(map(str, sorted(ids)))
        fix = fix_for("npu.visible-sorted", ("export", f"ASCEND_RT_VISIBLE_DEVICES={rising}"))
        return warn("npu.visible-unsorted", line, fix=fix, value=value)
    return unknown("npu.visible-uncounted", line) if count is None else ok("npu.visible-ok", line, value=value)


def _device_count(context: Context) -> int | None:
    """The number of devices of the runtime: the nodes of this container or host, else the chips of the table."""
    nodes, table = context.facts.npu.nodes.value, context.facts.npu.smi.value
    if nodes is not None and nodes.cards:
        return len(nodes.cards)
    return len(table.cards) if table is not None and table.cards and table.is_complete else None


_COMPUTES = "measured: operators that do nothing copy exactly and multiply wrongly"
_ANSWERS = "public notes: a device hangs or dies (507033, heartbeat lost) while its neighbours work"
_VISIBLE_DEVICES = "vllm-project/vllm-ascend issue 2557"
CHECKS = (
    card_check("devices.openable", ("npu.nodes",), INSTALL, _openable, required_for=NPU_FRAMEWORKS),
    card_check("devices.managers", ("npu.nodes",), INSTALL, _managers, required_for=NPU_FRAMEWORKS),
    card_check("devices.agree", ("npu.nodes", *TABLE), TOOLS, _agree),
    card_check("devices.computes", ("python.devices",), _COMPUTES, _computes, level=2, required_for=NPU_FRAMEWORKS),
    card_check("devices.answers", ("python.devices",), _ANSWERS, _answers, level=2),
    card_check("devices.burn-in", ("npu.burn",), "the CPU's product decides", _burnt, level=3),
    card_check("devices.dmi", ("npu.dmi",), _DMI, _diagnosed, level=3),
    card_check("session.visible-devices", (), _VISIBLE_DEVICES, _visible, required_for=NPU_FRAMEWORKS),
)
