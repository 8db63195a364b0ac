"""Checks per card: answers, memory errors, versions, links between cards, and the kernel's log; the table for all."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from npuenv.checks.base import card_check, fail, fix_for, given, ok, skip, unknown, unread, warn, worst
from npuenv.core.fact import Evidence, State
from npuenv.facts.npu.failures import SmiFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts
    from npuenv.facts.npu import KernelEvent
    from npuenv.facts.npu.queries import Board, Ecc, FaultEvent, QueryRefusal, Spod, Topology
    from npuenv.facts.npu.smi import Card, SmiTable


T = TypeVar("T")
# Known if npu-smi failed, absent if it gave a table: a check that reads this fact runs in both cases.
TABLE = ("npu.smi_trouble",)
_COUNTED = ("Double Bit Error Count", "Double Bit Isolated Pages Count", "Double Bit Next-Isolated Pages Count")
_FALLBACK = frozenset({"SYS", "PHB", "PIX", "PXB"})
_DIRECT = frozenset({"HCCS", "HCCS_SW", "SIO"})
_GROUP = 8  # cards of a board that are directly connected
_COMPATIBLE = frozenset({"OK", "NOT SUPPORT", "NOT SUPPORTED"})  # the last two: this user may not query it
_GRAVE_ACTIONS = ("reset", "separate")


def has_sign_of_cards(facts: Facts) -> bool:
    """Whether there is any sign of an NPU: a node, a table, a PCI device, a driver, npu-smi, or a torch device."""
    npu, devices = facts.npu, facts.python.devices.value
    has_cards = any(fact.value is not None and fact.value.cards for fact in (npu.nodes, npu.smi))
    is_there = npu.driver.is_known or npu.smi_trouble.is_known or bool(npu.pci_devices.value)
    return has_cards or is_there or bool(devices and devices.count)


def interface_is_down(context: Context) -> bool:
    """Whether npu-smi is present but the driver interface does not start."""
    trouble = context.facts.npu.smi_trouble.value
    return trouble is not None and trouble.kind is SmiFailure.INIT


def with_table(judge: Callable[[Context, SmiTable], CheckResult]) -> Callable[[Context], CheckResult]:
    """Decorates a check of the listed cards: the function gets the table if it lists any.

    A tool that does not work is reported once, by the check of the tool.
    """

    @functools.wraps(judge)
    def check(context: Context) -> CheckResult:
        npu = context.facts.npu
        if npu.smi.value is not None and npu.smi.value.cards:
            return judge(context, npu.smi.value)
        if npu.smi_trouble.is_known:
            return unknown("npu.see-npu-smi", *npu.smi_trouble.evidence)
        if npu.smi.state is State.UNKNOWN:
            return unknown("unknown-input", *npu.smi.evidence, facts=("npu.smi",))
        return skip("no-table")

    return check


def unread_of(context: Context, name: str) -> CheckResult | None:
    """Unknown for the cards that the fact `npu.NAME` lacks; None if it has all of them.

    A card that does not answer at all is reported once, by the check for that.
    """
    lacking = (context.facts.npu.unread.value or {}).get(name, {})
    reported = set(context.facts.npu.silent.evidence) if context.facts.npu.silent.value else set()
    rest = {card: line for card, line in lacking.items() if line not in reported}
    return unread(rest) if rest or not lacking else skip("because", cause="cards.answer")


def unread_rows(cards: Sequence[Card], has: Callable[[Card], bool]) -> CheckResult | None:
    """Unknown for the cards whose row lacks a value that others have; on some kinds no card has it."""
    blind = {f"{card.npu}.{card.chip}": Evidence("npu-smi info", card.line) for card in cards if not has(card)}
    return unread(blind) if any(map(has, cards)) else None


def first_by(fact: Fact[tuple[T, ...]], rank: Callable[[T], int]) -> list[Evidence]:
    """The lines of a fact with one line for each value, lowest rank first: only the first lines are shown."""
    pairs = sorted(zip(fact.value or (), fact.evidence), key=lambda pair: rank(pair[0]))
    return [line for _, line in pairs]


def one_of_each(fact: Fact[tuple[T, ...]], part: Callable[[T], object]) -> list[Evidence]:
    """The lines of a fact with one line for each value: first one line for each different part, and so on."""
    nth: Counter[object] = Counter()
    lines: list[tuple[int, Evidence]] = []
    for value, line in zip(fact.value or (), fact.evidence):
        lines.append((nth[part(value)], line))
        nth[part(value)] += 1
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


@given(lambda context: context.facts.npu.silent.value, "npu.not-told")
def _answer(_: Context, silent: tuple[QueryRefusal, ...]) -> CheckResult:
    if not silent:
        return ok("npu.cards-answer-ok")
    return fail("npu.cards-answer-fail", fix=fix_for("npu.card-silent", ("lspci", "-d", "19e5:")), count=len(silent))


@given(lambda context: context.facts.npu.ecc.value, "npu.not-told")
def _memory(context: Context, cards: tuple[Ecc, ...]) -> CheckResult:
    """Single-bit errors are corrected. Lifetime totals say nothing about the present."""
    bad: dict[str, None] = {}
    lines = []
    for card in cards:
        counts = [f"{label}: {count}" for label, count in card.counts.items() if count and label.endswith(_COUNTED)]
        lines += [Evidence(f"npu-smi info -t ecc -i {card.npu}", count) for count in counts]
        if counts:
            bad[str(card.npu) if card.chip is None else f"{card.npu}.{card.chip}"] = None
    reported = warn("npu.cards-memory-warn", *lines, fix="npu.card-memory", cards=tuple(bad)) if bad else None
    return worst((reported, unread_of(context, "ecc")), otherwise=ok("npu.cards-memory-ok", count=len(cards)))


@given(lambda context: context.facts.npu.boards.value, "npu.not-told")
def _alike(context: Context, boards: tuple[Board, ...]) -> CheckResult:
    """One driver and one firmware version on all cards of a host."""
    differing = [each for name in ("firmware", "driver") for each in _several(context, boards, name)]
    first = next((board.firmware for board in boards if board.firmware), "")
    if not first and not any(board.driver for board in boards):
        return skip("npu.not-told")
    well = ok("npu.cards-alike-ok", firmware=first or "-", count=len(boards))
    return worst((unread_of(context, "boards"), *differing), otherwise=well)


def _several(context: Context, boards: Iterable[Board], name: str) -> Iterator[CheckResult | None]:
    """What is wrong with one of the two versions: it differs between cards, or is missing on some."""
    reported = [(str(board.npu), getattr(board, name)) for board in boards]
    versions = tuple(sorted({value for _, value in reported if value}))
    evidence = one_of_each(context.facts.npu.boards, lambda board: getattr(board, name))
    fix = fix_for("npu.firmware" if name == "firmware" else "npu.driver-reboot")
    if len(versions) > 1:
        yield warn(f"npu.cards-alike-{name}", *evidence, fix=fix, versions=versions)
    if versions:
        yield _blind("board", reported)


def _blind(query: str, reported: Iterable[tuple[str, object]]) -> CheckResult | None:
    """Unknown for the cards that do not report what others do."""
    return unread({card: Evidence(f"npu-smi info -t {query}", f"{card}: -") for card, value in reported if not value})


def _compatible(context: Context) -> CheckResult:
    """The card's own compatibility result for driver and firmware."""
    boards = context.facts.npu.boards.value
    words = {board.npu: board.compatibility for board in boards or () if board.compatibility}
    if not words or all(word.upper().startswith("NOT SUPPORT") for word in words.values()):
        return skip("npu.not-told")
    bad = {npu: word for npu, word in words.items() if word.upper() not in _COMPATIBLE}
    lines = (Evidence(f"npu-smi info -t board -i {npu}", f"Compatibility : {word}") for npu, word in bad.items())
    reported = fail("npu.cards-compatible-fail", *lines, fix="npu.firmware", cards=tuple(bad)) if bad else None
    silent = _blind("board", [(str(board.npu), board.compatibility) for board in boards or ()])
    outcomes = (reported, silent, unread_of(context, "boards"))
    return worst(outcomes, otherwise=ok("npu.cards-compatible-ok", count=len(words)))


@given(lambda context: context.facts.npu.topology.value, "npu.not-told")
def _linked(context: Context, topology: Topology) -> CheckResult:
    """On a board with directly connected cards, a pair without a direct link has lost it.

    Cards in slots (all SYS) are normal, and so are the two halves of a board with sixteen.
    """
    pairs = {
        (one, other): word
        for one, row in topology.links.items()
        for other, word in row.items()
        if one < other and one // _GROUP == other // _GROUP
    }
    rest = None if topology.is_complete else unknown("npu.cards-linked-cut", *context.facts.npu.topology.evidence)
    if not _DIRECT & set(pairs.values()):
        return rest or ok("npu.cards-linked-none")
    lost = {pair: word for pair, word in pairs.items() if word in _FALLBACK}
    lines = (Evidence("npu-smi info -t topo", f"NPU{one} - NPU{other}: {word}") for (one, other), word in lost.items())
    names = tuple(f"{one}-{other}" for one, other in lost)
    reported = warn("npu.cards-linked-warn", *lines, fix="npu.card-link", pairs=names) if lost else None
    return worst((reported, rest), otherwise=ok("npu.cards-linked-ok", count=len(pairs)))


@given(lambda context: context.facts.npu.spods.value, "npu.not-told")
def _in_pod(context: Context, pods: tuple[Spod, ...]) -> CheckResult:
    locations = {(pod.pod, pod.size, pod.server) for pod in pods if _is_whole(pod)}
    fact = context.facts.npu.spods
    outcomes = [
        unread_of(context, "spods"),
        _blind("spod-info", [(f"{pod.npu}.{pod.chip}", _is_whole(pod)) for pod in pods]),
    ]
    if len(locations) > 1:
        servers = tuple(sorted({f"{pod}/{server}" for pod, _, server in locations}))
        lines = one_of_each(fact, lambda pod: (pod.pod, pod.size, pod.server))
        outcomes.append(fail("npu.cards-pod-differ", *lines, fix="npu.card-pod", servers=servers))
    numbers = [pod.sdid for pod in pods if pod.sdid is not None]
    twice = tuple(sorted({number for number in numbers if numbers.count(number) > 1}))
    if twice:
        lines = first_by(fact, lambda pod: pod.sdid not in twice)
        outcomes.append(fail("npu.cards-pod-twice", *lines, fix="npu.card-pod", numbers=twice))
    first = pods[0]
    well = ok("npu.cards-pod-ok", *fact.evidence[:1], pod=first.pod, server=first.server, size=first.size)
    return worst(outcomes, otherwise=well)


def _is_whole(pod: Spod) -> bool:
    return None not in (pod.pod, pod.size, pod.server, pod.sdid)


@given(lambda context: context.facts.npu.faults.value, "npu.not-told")
def _events(context: Context, events: tuple[FaultEvent, ...]) -> CheckResult:
    """Faults that cards of the 950 generation report individually."""
    blind = unread_of(context, "faults")
    if not events:
        return blind or ok("npu.cards-events-ok")
    codes = tuple(dict.fromkeys(event.code for event in events))
    rows = [context.matrix.npu_fault(code) for code in codes]
    if all(row is not None and row.action == "none" for row in rows):
        return blind or ok("npu.cards-events-harmless", *context.facts.npu.faults.evidence, codes=codes)
    verdict = fail if any(row is not None and row.action in _GRAVE_ACTIONS for row in rows) else warn
    result = verdict("npu.cards-events-warn", *context.facts.npu.faults.evidence, fix="npu.card-alarm", codes=codes)
    return worst((result, blind), otherwise=result)


@given(lambda context: context.facts.npu.kernel.value, "npu.not-told")
def _kernel(context: Context, events: tuple[KernelEvent, ...]) -> CheckResult:
    """The driver's kernel messages since boot about an abnormal device or stopped firmware."""
    others = []
    for event in events:
        row = context.matrix.npu_fault(event.code) if event.code else None
        if event.kind == "abnormal" or (event.kind == "exception" and not (row and row.action == "none")):
            others.append(event)
    if not others:
        return ok("npu.cards-kernel-ok")
    table = context.facts.npu.smi.value
    if table is None or any(card.health != "OK" for card in table.cards):
        return skip("npu.cards-kernel-skip")
    lines = (Evidence("dmesg", event.line) for event in others)
    devices = tuple(sorted({str(event.device) for event in others if event.device is not None})) or ("?",)
    return warn("npu.cards-kernel-warn", *lines, fix="npu.card-kernel", devices=devices)


def _claimed(context: Context) -> CheckResult:
    """Devices that a container holds although nothing runs in it: no other container gets them."""
    claims = context.facts.npu.claims.value
    if claims is None or context.in_container:
        return skip("npu.not-told")
    others = [claim for claim in claims if claim.is_exclusive and not claim.is_ours and claim.devices]
    if not others:
        return ok("npu.cards-claimed-ok")
    table = context.facts.npu.smi.value
    if table is not None and table.processes:
        return skip("npu.cards-claimed-busy")
    if table is not None and table.unlisted:
        return unknown("npu.cards-processes-unknown", npus=table.unlisted)
    texts = (f"process {item.root_pid} holds {len(item.devices)}" for item in others)
    lines = (Evidence("/proc/uda/namespace_node", text) for text in texts)
    devices = tuple(sorted({str(device) for claim in others for device in claim.devices}, key=int))
    pids = tuple(str(claim.root_pid) for claim in others)
    return warn("npu.cards-claimed-warn", *lines, fix="npu.card-claimed", devices=devices, pids=pids)


_TOOLS = "npu-smi source (hicann/driver) and public transcripts"
TOOLS = f"Ascend host tools: {_TOOLS}"
INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"
_ECC = "Ascend/mind-cluster docs: event 80E01801 (multi-bit ECC), 80E18402 (isolated rows have reached 64)"
_TOPO = "npu-smi info -t topo, legend; HCCS within groups of eight on A2 boards (public transcripts)"
_SPOD = "hicann/hccl fault diagnosis: EI0014 (duplicate super-device id); Ascend A3 spod-info"
_UDA = "hicann/driver uda_fops.c; Huawei support note on -8020: ns_id below 128 in /proc/uda/namespace_node"
_KERNEL = "public kernel logs of Ascend hosts: drv_pcie Device is abnormal, devdrv Get mntn message"
_FAULTS = "hicann/driver docs, Ascend 950 npu-smi: querying the alarm information of a device"
CHECKS = (
    card_check("cards.answer", ("npu.silent",), _TOOLS, _answer, level=2),
    card_check("cards.memory", ("npu.ecc",), _ECC, _memory, level=2),
    card_check("cards.alike", ("npu.boards",), _TOOLS, _alike, level=2),
    card_check("cards.compatible", ("npu.boards",), _TOOLS, _compatible, level=2),
    card_check("cards.linked", ("npu.topology",), _TOPO, _linked, level=2),
    card_check("cards.super-pod", ("npu.spods",), _SPOD, _in_pod, level=2),
    card_check("cards.events", ("npu.faults",), _FAULTS, _events, level=2),
    card_check("cards.kernel", ("npu.kernel",), _KERNEL, _kernel, level=2),
    card_check("cards.claimed", ("npu.claims",), _UDA, _claimed, level=2),
)
