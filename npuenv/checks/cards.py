"""Cards as the host shows them: are there any, are they well, can they be opened."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, Context, Fix, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.facts.base import Evidence, State

if TYPE_CHECKING:
    from npuenv.facts.smi import Card, SmiTable

_TOOLS = "Ascend host tools: npu-smi source (hicann/driver) and public transcripts"
_INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"
_IDLE_AT_MOST = 0.25  # of a card's memory; ours


def _label(card: Card) -> str:
    return f"{card.npu}.{card.chip}"


def _names(context: Context, table: SmiTable) -> str:
    """ "8 x 910B3 (a2)": the chips by name, with the generation where the matrix knows it."""
    words = []
    for name, count in Counter(card.name or "?" for card in table.cards).items():
        row = context.matrix.hardware_of_chip(name)
        words.append(f"{count} x {name}" + (f" ({row.id})" if row else ""))
    return ", ".join(words)


def _present(context: Context) -> Verdict:
    """Cards by the table; where that fails, by the device nodes; without either, what was looked at."""
    facts = context.facts
    if context.framework == "cpu":
        return skip("skip-cpu")
    nodes = facts.nodes.value
    looked = (*facts.smi.evidence, *facts.nodes.evidence, *facts.pci_devices.evidence)
    if facts.smi.value is not None and facts.smi.value.cards:
        return ok("cards-present-ok", *facts.smi.evidence, cards=_names(context, facts.smi.value))
    if nodes is not None and nodes.cards:
        return warn("cards-present-nodes-only", *looked, count=len(nodes.cards))
    if facts.pci_devices.value:
        return fail("cards-present-pci-only", *looked, fix=fix("driver-install"), count=len(facts.pci_devices.value))
    if not (facts.smi.is_known or facts.smi_trouble.is_known) and (nodes is None or facts.smi.state is State.UNKNOWN):
        return unsure("cards-present-unknown", *looked)
    return fail("cards-present-fail", *looked, fix=_try_cpu())


def _try_cpu() -> Fix:
    return fix("try-cpu", ("npuenv", "up", "--for", "cpu"))


def _healthy(context: Context) -> Verdict:
    table = context.facts.smi.value
    if table is None or not table.cards:
        return skip("no-table")
    lines = [Evidence("npu-smi info", card.line) for card in table.cards if card.health != "OK"]
    dead = [_label(card) for card in table.cards if card.health == "Critical"]
    if dead:
        return fail("cards-healthy-critical", *lines, fix=fix("card-critical"), cards=tuple(dead))
    if not table.is_complete or any(card.health in (None, "UNKNOWN") for card in table.cards):
        return unsure("cards-healthy-unknown", *lines)
    ill = [_label(card) for card in table.cards if card.health != "OK"]
    if ill:
        npu = next(card.npu for card in table.cards if card.health != "OK")
        cure = fix("card-alarm", ("npu-smi", "info", "-t", "health", "-i", str(npu)))
        return warn("cards-healthy-alarm", *lines, fix=cure, cards=tuple(ill))
    return ok("cards-healthy-ok", count=len(table.cards))


def _supported(context: Context) -> Verdict:
    table = context.facts.smi.value
    if table is None or not table.cards:
        return skip("no-table")
    names = sorted({card.name for card in table.cards if card.name})
    rows = {name: context.matrix.hardware_of_chip(name) for name in names}
    refused = [name for name, row in rows.items() if row is not None and not row.accepted]
    if refused:
        return fail("cards-supported-fail", names=tuple(refused), fix=_try_cpu())
    strange = [name for name, row in rows.items() if row is None]
    if strange or not names:
        return unsure("cards-supported-unknown", names=tuple(strange) or ("?",))
    return ok("cards-supported-ok", names=tuple(names))


def _free(context: Context) -> Verdict:
    # Idle is not zero memory: a card without work holds 3 to 5 GB. Process rows do not show other containers' work.
    table = context.facts.smi.value
    if table is None or not table.cards:
        return skip("no-table")
    busy = sorted({process.npu for process in table.processes})
    if not busy:
        held = [card for card in table.cards if _holds_memory(card)]
        if not held:
            return ok("cards-free-ok", count=len(table.cards))
        lines = (
            Evidence("npu-smi info", f"NPU {card.npu}: {card.hbm_used_mib} of {card.hbm_total_mib} MiB")
            for card in held
        )
        return warn("cards-free-held", *lines, fix=fix("card-held"), cards=tuple(_label(card) for card in held))
    rows = [f"NPU {item.npu}: process {item.pid} {item.name}".rstrip() for item in table.processes]
    return warn("cards-free-busy", *(Evidence("npu-smi info", row) for row in rows), npus=tuple(busy))


def _holds_memory(card: Card) -> bool:
    """Whether a card holds more than an idle one does: at most 3.4 GB of 32 (A2) and 5.2 of 84 (950) were seen."""
    return bool(card.hbm_used_mib and card.hbm_total_mib and card.hbm_used_mib > card.hbm_total_mib * _IDLE_AT_MOST)


def _openable(context: Context) -> Verdict:
    nodes = context.facts.nodes.value
    if nodes is None or not (nodes.cards or nodes.managers):
        return skip("no-nodes")
    shut = [node for node in (*nodes.cards, *nodes.managers) if not node.is_openable]
    if not shut:
        return ok("devices-openable-ok", count=len(nodes.cards))
    lines = (Evidence(node.path, node.why_not) for node in shut)
    cure = fix("device-flags") if context.facts.container.is_known else _join_group(context)
    return fail("devices-openable-fail", *lines, fix=cure, paths=tuple(node.path for node in shut))


def _join_group(context: Context) -> Fix:
    home = (context.facts.environment.value or {}).get("HOME", "").rstrip("/")
    user = home.rpartition("/")[2] or "USER"
    return fix("device-group", ("usermod", "-aG", "HwHiAiUser", user), is_dangerous=True)


def _managers(context: Context) -> Verdict:
    nodes = context.facts.nodes.value
    if nodes is None or not nodes.cards:
        return skip("no-nodes")
    if nodes.missing_managers:
        cure = fix("manager-nodes") if context.facts.container.is_known else fix("driver-install")
        return fail("devices-managers-fail", fix=cure, paths=nodes.missing_managers)
    return ok("devices-managers-ok")


def _agree(context: Context) -> Verdict:
    """As many nodes as chips: a container may see a table with more cards than it was given."""
    nodes, table = context.facts.nodes.value, context.facts.smi.value
    if nodes is None or table is None or not table.cards or not nodes.cards:
        return skip("no-table")
    chips = len(table.cards)
    if any(card.npu >= 32768 for card in table.cards):
        return skip("virtual-card")
    if chips == len(nodes.cards):
        return ok("devices-agree-ok", count=chips)
    if not table.is_complete:
        return unsure("cards-healthy-unknown")
    return warn("devices-agree-warn", chips=chips, nodes=len(nodes.cards))


def _computes(context: Context) -> Verdict:
    devices = context.facts.devices.value
    if devices is None:
        return skip("devices-computes-skip", *context.facts.devices.evidence)
    if devices.error:
        return fail("devices-computes-error", fix=fix("device-error"), error=devices.error)
    if devices.count == 0:
        return fail("devices-computes-none", fix=fix("device-error"))
    if devices.copies_exactly is not True:
        return fail("devices-computes-copy", fix=fix("device-wrong"))
    if devices.computes_correctly is not True:
        worst = "inf" if devices.worst_error is None else f"{devices.worst_error:.3g}"
        return fail(
            "devices-computes-wrong",
            fix=fix("device-wrong"),
            worst=worst,
            tolerance=devices.tolerance,
            count=devices.count,
        )
    expected = _expected_devices(context)
    if expected is not None and devices.count < expected:
        return warn("devices-computes-fewer", fix=fix("device-error"), count=devices.count, expected=expected)
    return ok("devices-computes-ok", count=devices.count, name=devices.names[0] if devices.names else "?")


def _expected_devices(context: Context) -> int | None:
    """How many devices torch should see: those made visible, else all. None: a setting that cannot be read."""
    value = (context.facts.environment.value or {}).get("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return _device_count(context)
    words = {word.strip() for word in value.split(",")}
    return len(words) if all(re.fullmatch(r"[0-9]+", word) for word in words) else None


def _visible(context: Context) -> Verdict:
    """ASCEND_RT_VISIBLE_DEVICES against what is there. In a container the runtime counts from 0."""
    environment = context.facts.environment.value or {}
    value = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return ok("visible-unset")
    line = Evidence("environment", f"ASCEND_RT_VISIBLE_DEVICES={value}")
    unset = fix("visible-devices", ("unset", "ASCEND_RT_VISIBLE_DEVICES"))
    words = [word.strip() for word in value.split(",")]
    if not value.strip() or value == "NoDevFiles":
        return warn("visible-none", line, fix=unset)
    if not all(re.fullmatch(r"[0-9]+", word) for word in words):
        return fail("visible-malformed", line, fix=unset, value=value)
    ids = [int(word) for word in words]
    if len(set(ids)) != len(ids):
        return fail("visible-twice", line, fix=unset, value=value)
    count = _device_count(context)
    if count is not None and max(ids) >= count:
        name = "visible-host-ids" if context.facts.container.is_known else "visible-range"
        return fail(name, line, fix=unset, value=value, count=count, last=count - 1)
    if ids != sorted(ids):
        return warn("visible-unsorted", line, fix=unset, value=value)
    return unsure("visible-uncounted", line) if count is None else ok("visible-ok", line, value=value)


def _device_count(context: Context) -> int | None:
    """How many devices the runtime numbers: the nodes of this container or host, else the chips of the table."""
    nodes, table = context.facts.nodes.value, context.facts.smi.value
    if nodes is not None and nodes.cards:
        return len(nodes.cards)
    return len(table.cards) if table is not None and table.cards and table.is_complete else None


CHECKS = (
    Check("cards.present", (), _TOOLS, _present, required_for=NPU_FRAMEWORKS),
    Check("cards.healthy", ("smi",), _TOOLS, _healthy, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("cards.supported", ("smi",), "matrix hardware", _supported, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("cards.free", ("smi",), _TOOLS, _free, is_about_cards=True),
    Check("devices.openable", ("nodes",), _INSTALL, _openable, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("devices.managers", ("nodes",), _INSTALL, _managers, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("devices.agree", ("nodes", "smi"), _TOOLS, _agree, is_about_cards=True),
    Check(
        "devices.computes",
        ("devices",),
        "measured: operators that do nothing copy exactly and multiply wrongly",
        _computes,
        is_about_cards=True,
        level=2,
        required_for=NPU_FRAMEWORKS,
    ),
    Check(
        "session.visible-devices",
        (),
        "vllm-project/vllm-ascend issue 2557",
        _visible,
        is_about_cards=True,
        required_for=NPU_FRAMEWORKS,
    ),
)
