"""Checks about cards and devices: one change to a healthy A2 host each, and every healthy table that was published."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import check_all, exit_code
from npuenv.checks.npu.boards import CHECKS as BOARDS
from npuenv.checks.npu.cards import CHECKS as CARDS
from npuenv.checks.npu.devices import CHECKS as DEVICES
from npuenv.checks.npu.driver import CHECKS as DRIVER
from npuenv.core.documents import load_toml
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status
from npuenv.core.messages import LANGUAGES, say
from npuenv.facts.machine import Account
from npuenv.facts.npu import Claim, Dmi, Holder, KernelEvent, parse_dmi, parse_kernel_log
from npuenv.facts.npu.failures import SmiFailure
from npuenv.facts.npu.queries import (
    Board,
    Ecc,
    FaultEvent,
    Health,
    Mapped,
    QueryRefusal,
    Spod,
    Topology,
    parse_board,
    parse_ecc,
    parse_health,
    parse_spod,
    parse_topology,
)
from npuenv.facts.npu.smi import NpuProcess, SmiTable, parse_info
from npuenv.facts.python import DeviceRun, Devices
from npuenv.matrix import load_matrix
from npuenv.report.doctor import grouped
from tests.support.changes import HEALTHY, Change, both, cards, find, gone, lost, nodes, part, put, trouble, variables
from tests.support.sentences import outcomes

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts

OURS = (*CARDS, *BOARDS, *DEVICES)
TABLES = sorted((Path(__file__).parents[1] / "facts" / "cases" / "smi").glob("info_*.toml"))
CONTAINER = put(container="docker")
ME = Account(1000, 1000, "bob", (1000,), ("bob",))
BOARD = Board(0, None, None, None, None, None, "25.5.1", "7.8.0.5.216", "OK", None, None)
SPOD = Spod(0, 0, 16777216, 384, 0, 4)
RUN = DeviceRun(0, True, True, 0.001, 1, "")
EIGHT = tuple(RUN._replace(number=number) for number in range(8))


def table_of(name: str) -> SmiTable:
    read = parse_info(load_toml(TABLES[0].parent / f"{name}.toml")["output"])
    assert isinstance(read, SmiTable)
    return read


def health(status: str, *codes: str, npu: int = 0) -> Change:
    return put(health=(Health(npu, 0, status, codes, ()),))


def ill(status: str, *codes: str) -> Change:
    return both(cards(health=status), health(status, *codes))


def holder(**values: object) -> Change:
    """A process on NPU 2, in the table and as this session sees it."""
    first = Holder(2, 0, 4711, "python", 41230, False, True, 1000, False)
    held = first._replace(**values)  # type: ignore[arg-type]
    row = NpuProcess(2, 0, 4711, "python", 41230)
    return both(part("smi", processes=(row,)), put(holders=(held,), account=ME))


def ecc(**counts: int) -> Change:
    labels = {name.replace("_", " "): count for name, count in counts.items()}
    return put(ecc=(Ecc(3, 0, labels),))


def without(*numbers: int) -> Change:
    """Cards taken out of the table and out of /dev."""
    assert HEALTHY.npu.smi.value is not None
    left = tuple(card for card in HEALTHY.npu.smi.value.cards if card.npu not in numbers)
    return both(part("smi", cards=left), nodes(*(card.npu for card in left)), put(mapped=None, pci_addresses=None))


def chips(*suffixes: str) -> Change:
    return put(chips=tuple(BOARD._replace(chip_name="Ascend910", npu_name=suffix) for suffix in suffixes))


def links(word: str, count: int = 8, **changes: str) -> Change:
    rows = {
        one: {
            other: changes.get(f"n{min(one, other)}_{max(one, other)}", word) for other in range(count) if other != one
        }
        for one in range(count)
    }
    return put(topology=Topology(rows, {}, True))


def devices(*runs: DeviceRun, error: str = "", **values: object) -> Change:
    reached = [run for run in runs if not run.error]
    value = Devices(
        True, 8, ("Ascend910B2",) * 8, all(run.copies_exactly for run in reached) if reached else None,
        all(run.computes_correctly for run in reached) if reached else None, 0.2, 0.05, error, runs,
    )  # fmt: skip
    return put(devices=dataclasses.replace(value, **values))  # type: ignore[arg-type]


def put_kernel(events: tuple[KernelEvent, ...]) -> Change:
    return put(**{"npu.kernel": events})


def dmi(**items: str) -> Change:
    return put(dmi=Dmi(items, {"aicore": ("Device 4: a timeout error occurred.",)}, 0, ""))


def burn(*runs: DeviceRun) -> Change:
    return put(burn=Devices(True, 8, (), True, True, 0.1, 0.5, "", runs))


EVENTS = {
    name: KernelEvent(name, 5, "A6193215" if name == "exception" else "", "line")
    for name in ("abnormal", "exception", "conflict")
}
CASES: list[tuple[str, Change, Status, str]] = [
    ("cards.healthy", ill("Alarm"), Status.WARN, "0.0"),
    ("cards.healthy", ill("Alarm", "A4025021", "8C03A000", "8C084E00"), Status.FAIL, "8C03A000"),
    ("cards.healthy", ill("Alarm", "A4025021"), Status.WARN, "A4025021"),
    ("cards.healthy", ill("Warning", "80C98008"), Status.WARN, "80C98008"),
    ("cards.healthy", ill("Warning", "80E01801"), Status.WARN, "80E01801"),
    ("cards.healthy", ill("Alarm", "80E18402"), Status.FAIL, "80E18402"),
    ("cards.healthy", ill("Alarm", "12345678"), Status.WARN, "12345678"),
    ("cards.healthy", ill("Critical"), Status.FAIL, "Critical"),
    ("cards.healthy", cards(health="Critical", power_w=0.0), Status.FAIL, "dead"),
    ("cards.healthy", health("Alarm", "8C084E00", npu=3), Status.WARN, "3.0"),
    ("cards.healthy", cards(health="UNKNOWN"), Status.WARN, "UNKNOWN"),
    ("cards.healthy", cards(health="UNKNOWN", npu=32768), Status.UNKNOWN, "UNKNOWN"),
    ("cards.supported", cards(name="910B"), Status.FAIL, "first-generation"),
    ("cards.supported", cards(name="910PremiumA"), Status.FAIL, "910PremiumA"),
    ("cards.complete", without(3), Status.WARN, "NPU 3"),
    ("cards.complete", without(0, 1, 2, 3, 6, 7), Status.OK, "2 chips"),
    ("cards.complete", both(without(3), CONTAINER), Status.SKIP, "container"),
    ("cards.complete", put(pci_addresses=("0000:c1:00.0", "0000:ff:00.0")), Status.WARN, "0000:ff:00.0"),
    ("cards.complete",
     put(mapped=(Mapped(8, 0, 8, 8, "Ascend 910B2"), Mapped(0, 1, None, None, "Mcu"))),
     Status.WARN, "NPU 8.0"),
    ("cards.complete", put(pci_addresses=("0000:c1:00.0", "0000:c1:00.3")), Status.OK, "8 chips"),
    ("cards.complete", both(cards(bus_id=None), put(pci_addresses=("0000:ff:00.0",))), Status.OK, "8 chips"),
    ("cards.complete", nodes(0, 1, 2), Status.SKIP, "nodes"),
    ("cards.complete", part("smi", is_complete=False), Status.UNKNOWN, "truncated"),
    ("cards.one-kind", cards(name="910B3"), Status.WARN, "910B2, 910B3"),
    ("cards.one-kind", chips("9391", "9392"), Status.WARN, "Ascend910 9391, Ascend910 9392"),
    ("cards.one-kind", chips("9391", "9391"), Status.OK, "same model"),
    ("cards.whole", cards(npu=32768), Status.OK, "1 vNPUs"),
    ("cards.free", holder(), Status.WARN, "your own processes 4711"),
    ("cards.free", holder(uid=1001), Status.WARN, "other users"),
    ("cards.free", holder(is_here=False, uid=None, is_in_container=True), Status.WARN, "in containers"),
    ("cards.free", holder(is_zombie=True), Status.WARN, "zombie processes"),
    ("cards.free", holder(is_here=False, uid=None), Status.WARN, "running on NPU 2"),
    ("cards.free", cards(hbm_used_mib=61440), Status.WARN, "hold memory"),
    ("cards.free", both(holder(), cards(hbm_used_mib=61440)), Status.WARN, "chips 0.0"),
    ("cards.free", both(cards(hbm_used_mib=61440), part("smi", listed=())), Status.UNKNOWN, "NPU 0, 1, 2"),
    ("cards.stuck", cards(busy_percent=100), Status.WARN, "0.0"),
    ("cards.stuck", both(cards(busy_percent=100), CONTAINER), Status.SKIP, "container"),
    ("cards.stuck", cards(busy_percent=99), Status.OK, "idle"),
    ("cards.stuck", both(cards(busy_percent=100), cards(hbm_used_mib=61440)), Status.OK, "idle"),
    ("cards.answer", put(silent=(QueryRefusal("timeout", "did not end"),)), Status.FAIL, "1 queries"),
    ("cards.answer", put(silent=None), Status.SKIP, "does not report"),
    ("cards.memory", ecc(HBM_Double_Bit_Error_Count=2), Status.WARN, "3.0"),
    ("cards.memory", ecc(HBM_Double_Bit_Isolated_Pages_Count=1), Status.WARN, "3.0"),
    ("cards.memory", ecc(HBM_Single_Bit_Error_Count=9, HBM_Double_Bit_Aggregate_Total_Err_Cnt=1), Status.OK, "1 cards"),
    ("cards.alike",
     put(boards=(BOARD, BOARD._replace(firmware="7.7.0.6.236"))),
     Status.WARN, "7.7.0.6.236"),
    ("cards.alike", put(boards=(BOARD, BOARD._replace(driver="25.2.0"))), Status.WARN, "25.2.0"),
    ("cards.alike",
     put(boards=(BOARD, BOARD._replace(firmware=None, driver=None))),
     Status.UNKNOWN, "cards 0"),
    ("cards.compatible", put(boards=(BOARD._replace(compatibility="NOT OK"),)), Status.FAIL, "NPU 0"),
    ("cards.compatible", put(boards=(BOARD._replace(compatibility="NOT SUPPORT"),)), Status.SKIP, "report"),
    ("cards.linked", links("HCCS", n1_6="SYS"), Status.WARN, "1-6"),
    ("cards.linked", links("SYS"), Status.OK, "PCIe only"),
    ("cards.linked", part("topology", is_complete=False), Status.UNKNOWN, "truncated"),
    ("cards.super-pod", put(spods=(SPOD, SPOD._replace(sdid=5))), Status.OK, "server 4"),
    ("cards.super-pod", put(spods=(SPOD, SPOD._replace(sdid=5, server=3))), Status.FAIL, "0/3, 0/4"),
    ("cards.super-pod", put(spods=(SPOD, SPOD._replace(npu=1))), Status.FAIL, "16777216"),
    ("cards.super-pod", put(spods=(SPOD, SPOD._replace(sdid=5, pod=None))), Status.UNKNOWN, "0.0"),
    ("cards.events", put(faults=()), Status.OK, "no active"),
    ("cards.events", put(faults=(FaultEvent(0, "81AF8000", 2, ""),)), Status.WARN, "81AF8000"),
    ("cards.events", put(faults=(FaultEvent(0, "80E18402", 2, ""),)), Status.FAIL, "80E18402"),
    ("cards.events", put(faults=(FaultEvent(0, "80E21007", 1, ""),)), Status.OK, "80E21007"),
    ("cards.kernel", put_kernel((EVENTS["abnormal"],)), Status.WARN, "devices 5"),
    ("cards.kernel", put_kernel((EVENTS["exception"],)), Status.WARN, "devices 5"),
    ("cards.kernel", put_kernel((EVENTS["conflict"],)), Status.OK, "since boot"),
    ("cards.kernel", both(put_kernel((EVENTS["abnormal"],)), cards(health="Alarm")), Status.SKIP, "health"),
    ("cards.claimed", put(claims=(Claim(0, 4711, (0, 1), False),)), Status.WARN, "4711"),
    ("cards.claimed",
     put(claims=(Claim(0, 4711, (0, 1), True), Claim(128, 1, (0,), False))),
     Status.OK, "no container"),
    ("cards.claimed", both(put(claims=(Claim(0, 4711, (0, 1), False),)), holder()), Status.SKIP, "processes"),
    ("cards.claimed", both(put(claims=(Claim(0, 4711, (0, 1), False),)), CONTAINER), Status.SKIP, "report"),
    ("devices.computes", devices(error="RuntimeError: drvRetCode=87"), Status.FAIL, "another container"),
    ("devices.computes", devices(error="ModuleNotFoundError: x"), Status.FAIL, "ModuleNotFoundError"),
    ("devices.computes",
     devices(RUN._replace(computes_correctly=False), *EIGHT[1:]),
     Status.FAIL, "devices 0 is wrong"),
    ("devices.computes",
     devices(RUN._replace(copies_exactly=False), *EIGHT[1:]),
     Status.FAIL, "devices 0 and back"),
    ("devices.computes",
     devices(*(run._replace(computes_correctly=False) for run in EIGHT)),
     Status.FAIL, "8 devices"),
    ("devices.computes", devices(*EIGHT, count=7), Status.WARN, "7"),
    (
        "devices.computes",  # a setting that cannot be read says nothing of how many there should be
        both(devices(*EIGHT, count=2), variables(ASCEND_RT_VISIBLE_DEVICES="0,1,x")),
        Status.OK,
        "2 devices",
    ),
    ("devices.answers", devices(*EIGHT), Status.OK, "all 8"),
    ("devices.answers",
     devices(*EIGHT[:7], EIGHT[7]._replace(error="ended by signal 11")),
     Status.FAIL, "7"),
    ("devices.answers",
     both(devices(*EIGHT[:7], EIGHT[7]._replace(error="busy")), holder()),
     Status.WARN, "7"),
    ("devices.answers", devices(RUN._replace(error="x"), error="x"), Status.SKIP, "individual"),
    ("devices.burn-in", burn(*EIGHT), Status.OK, "8 matrix products"),
    ("devices.burn-in", burn(*EIGHT[:7], EIGHT[7]._replace(computes_correctly=False)), Status.FAIL, "7"),
    ("devices.burn-in", gone("burn", Evidence("npu-smi info", "processes run on the cards")), Status.SKIP, "not run"),
    ("devices.dmi", dmi(driver="HEALTH", aicore="PASS", prbs="SKIP"), Status.OK, "driver, aicore"),
    ("devices.dmi", dmi(driver="HEALTH", aicore="EMERGENCY_WARN"), Status.FAIL, "aicore EMERGENCY_WARN"),
    ("devices.dmi", dmi(driver="HEALTH", aicore="FAIL"), Status.FAIL, "aicore FAIL"),
    ("devices.dmi", dmi(driver="GENERAL_WARN"), Status.WARN, "driver GENERAL_WARN"),
    ("devices.dmi", dmi(prbs="SKIP"), Status.SKIP, "not applicable"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES, ids=lambda value: getattr(value, "value", None))
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check, level=3)
    assert (finding.status, words in say(finding.says)) == (status, True), say(finding.says)
    if status is Status.FAIL:
        assert finding.fix is not None
    for lang in LANGUAGES:
        assert "{" not in say(finding.says, lang)
        assert finding.fix is None or "{" not in say(finding.fix.says, lang)


def row(at: int, **values: object) -> Change:
    """A card of the table with other values."""

    def change(facts: Facts) -> Facts:
        assert facts.npu.smi.value is not None
        rows = list(facts.npu.smi.value.cards)
        rows[at] = dataclasses.replace(rows[at], **values)  # type: ignore[arg-type]
        return part("smi", cards=tuple(rows))(facts)

    return change


def left_out(name: str, card: str = "5") -> Change:
    """Card 5 gave no readable answer to a question that others answered."""
    return put(unread={name: {card: Evidence(f"npu-smi info -i {card}", "cannot be read")}}, silent=())


# Card 0 is not well, and of card 5 nothing can be read.
COMPUTED = tuple(each._replace(computes_correctly={0: False, 5: None}.get(each.number, True)) for each in EIGHT)
ONE_WRONG_ONE_UNREAD = Devices(True, 8, ("Ascend910B3",) * 8, True, False, 1.0, 0.1, "", COMPUTED)
MIXED: dict[str, Change] = {
    "cards.healthy": both(row(0, health="Alarm"), row(5, health=None)),
    "cards.supported": both(row(0, name="910B"), row(5, name=None)),
    "cards.one-kind": both(row(0, name="910B4"), row(5, name=None)),
    "cards.free": both(row(0, hbm_used_mib=60000), row(5, hbm_used_mib=None)),
    "cards.stuck": both(row(0, busy_percent=100), row(5, busy_percent=None)),
    "cards.memory": both(ecc(HBM_Double_Bit_Error_Count=1), left_out("ecc")),
    "cards.alike": both(put(boards=(BOARD, BOARD._replace(npu=1, driver="25.2.0"))), left_out("boards")),
    "cards.compatible": both(put(boards=(BOARD._replace(compatibility="NOT OK"),)), left_out("boards")),
    "cards.super-pod": both(put(spods=(SPOD, SPOD._replace(server=3, sdid=1))), left_out("spods", "5.0")),
    "cards.events": both(put(faults=(FaultEvent(0, "81AF8000", 3, ""),)), left_out("faults")),
    "devices.computes": put(devices=ONE_WRONG_ONE_UNREAD),
    "devices.burn-in": put(burn=ONE_WRONG_ONE_UNREAD),
}
# Of the table or the session as a whole, of pairs of cards, or with an answer or an error for each card.
NOT_BY_CARD = {
    "cards.present", "cards.complete", "cards.whole", "cards.answer", "cards.linked", "cards.kernel", "cards.claimed",
    "devices.openable", "devices.managers", "devices.agree", "devices.answers", "devices.dmi",
    "session.visible-devices",
}  # fmt: skip


@pytest.mark.parametrize("check", [check.id for check in OURS if check.id not in NOT_BY_CARD])
def test_a_card_that_is_not_well_hides_no_other_one_that_could_not_be_read(check: str) -> None:
    finding = find(MIXED[check](HEALTHY), check, level=3)
    named = {each.key: each.args for each in outcomes(finding.says)}
    assert len(named) == 2, named
    assert finding.status in (Status.FAIL, Status.UNKNOWN) and finding.fix is not None
    assert str(named["checks.cards-unread"]["cards"][0]).startswith("5")  # type: ignore[index]


def test_pairs_that_lost_their_link_are_told_beside_a_table_that_is_cut() -> None:
    finding = find(both(links("HCCS", n1_6="SYS"), part("topology", is_complete=False))(HEALTHY), "cards.linked")
    assert [each.key for each in outcomes(finding.says)] == [
        "check_npu.cards-linked-cut",
        "check_npu.cards-linked-warn",
    ]


@pytest.mark.parametrize("field", ["pod", "size", "server", "sdid"])
def test_a_place_in_the_super_pod_that_cannot_be_read_is_no_other_place(field: str) -> None:
    pods = (SPOD, SPOD._replace(npu=1, **{field: None}, **({} if field == "sdid" else {"sdid": 1})))
    finding = find(put(spods=pods)(HEALTHY), "cards.super-pod")
    assert (finding.status, finding.says.key) == (Status.UNKNOWN, "checks.cards-unread")


def test_a_dead_card_hides_neither_a_critical_one_nor_the_events_of_a_third() -> None:
    cards = both(row(0, health="Critical", power_w=0.0), row(1, health="Critical"), row(2, health="Alarm"))
    finding = find(both(cards, health("Alarm", "8C03A000", npu=2))(HEALTHY), "cards.healthy")
    told = {each.key.partition(".")[2]: each.args["cards"] for each in outcomes(finding.says)}
    assert told == {"cards-healthy-dead": ("0.0",), "cards-healthy-critical": ("1.0",), "cards-healthy-codes": ("2.0",)}
    assert finding.status is Status.FAIL


@pytest.mark.parametrize("check", [check for check in OURS if check.reads], ids=lambda check: check.id)
def test_an_input_that_is_unknown_makes_the_finding_unknown(check: object) -> None:
    assert hasattr(check, "reads") and hasattr(check, "id")
    names = ["npu.smi", "npu.smi_trouble"] if "npu.smi_trouble" in check.reads else list(check.reads)
    finding = find(lost(*names)(HEALTHY), check.id, level=3)
    assert finding.status is Status.UNKNOWN


def test_every_check_has_a_case_that_is_right_and_one_that_is_not() -> None:
    healthy = {item.check for item in check_all(HEALTHY, level=3, checks=OURS) if item.status is Status.OK}
    right = healthy | {check for check, _, status, _ in CASES if status is Status.OK}
    wrong = {check for check, _, status, _ in CASES if status in (Status.WARN, Status.FAIL)}
    elsewhere = {"cards.present", "devices.openable", "devices.managers", "devices.agree", "session.visible-devices"}
    ids = {check.id for check in OURS}
    assert ids - right == set()
    assert ids - wrong - elsewhere == {"cards.whole"}  # a fault only for a framework that trains


@pytest.mark.parametrize(
    ("framework", "status"), [("verl", Status.FAIL), ("roll", Status.FAIL), ("vllm-ascend", Status.OK)]
)
def test_slices_are_a_fault_for_training_alone(framework: str, status: Status) -> None:
    table = table_of("info_310P3_vnpu_container_25.5.1")
    assert find(put(smi=table)(HEALTHY), "cards.whole", framework=framework).status is status


def test_a_table_that_npu_smi_cannot_give_is_told_once() -> None:
    facts = trouble(SmiFailure.INIT, -8005)(HEALTHY)
    absent_details = put(
        health=None,
        ecc=None,
        boards=None,
        chips=None,
        mapped=None,
        topology=None,
        spods=None,
        silent=None,
        holders=None,
    )
    found = check_all(absent_details(facts), level=1, checks=(*OURS, *DRIVER))
    told = {item.check for item in found if item.status in (Status.FAIL, Status.UNKNOWN)}
    because = {item.check for item in found if item.says.key == "check_npu.see-npu-smi" and item.check in told}
    assert told - because == {"driver.npu-smi", "cards.healthy"}
    assert {"cards.supported", "cards.complete", "cards.free"} <= because
    groups = [group for group in grouped(found) if group.first.check in because]
    assert [group.because for group in groups] == ["driver.npu-smi"]
    assert {item.check for item in groups[0].findings} == because
    assert exit_code(found, framework="verl") == ExitCode.PROBLEMS


def test_my_own_processes_are_ended_by_number_and_only_on_request() -> None:
    cure = find(holder()(HEALTHY), "cards.free").fix
    assert cure is not None and cure.commands == (("kill", "4711"),) and cure.is_dangerous


BUSY = {"info_910B3_25.0.rc1.b010_busy", "info_910B3_25.2.0_one_proc", "info_910B3_26.0_process_table"}
BUSY |= {"info_A3_25.3.rc1_16chips_busy", "info_hugepages_23.0.rc3"}
FIRST_GENERATION = {"info_910B_22.0.4.1", "info_910B_ddr_25.5.2"}
SICK = {"info_950PR_25.7.rc1_alarm"}


@pytest.mark.parametrize("path", [path for path in TABLES if path.stem not in SICK], ids=lambda path: path.stem)
@pytest.mark.parametrize("container", [None, "docker"])
def test_a_healthy_table_gives_no_alarm(path: Path, container: str | None) -> None:
    """The tables as people showed them; cards in use are in use, and the first generation is what it is."""
    table = table_of(path.stem)
    assert HEALTHY.npu.driver.value is not None
    version = HEALTHY.npu.driver.value._replace(version=table.driver or "25.5.1")
    other = {
        "holders": (), "health": None, "ecc": None, "boards": None, "chips": None, "mapped": None, "topology": None,
        "spods": None, "faults": None, "pci_addresses": None, "claims": None, "nodes": None, "devices": None,
    }  # fmt: skip
    facts = put(smi=table, container=container, driver=version, topology_files=("950",), **other)(HEALTHY)
    found = check_all(facts, level=3, checks=(*OURS, *DRIVER))
    loud = {item.check: say(item.says) for item in found if item.status in (Status.WARN, Status.FAIL)}
    if path.stem in BUSY:
        assert "running on NPU" in loud.pop("cards.free")
    if path.stem in FIRST_GENERATION:
        assert "first-generation" in loud.pop("cards.supported")
    assert loud == {}


def test_the_sick_table_names_its_two_ill_cards_and_the_memory_that_nobody_holds() -> None:
    table = table_of("info_950PR_25.7.rc1_alarm")._replace(listed=(0, 1, 2))
    facts = put(smi=table, holders=(), health=None)(HEALTHY)
    assert say(find(facts, "cards.healthy").says).startswith("chips 0.0, 1.0 ")
    free = find(facts, "cards.free")
    assert "NPU 0" in say(free.says) and "chips 1.0" in say(free.says)
    assert find(facts, "cards.stuck").status is Status.OK  # its 100 % belong to the memory that is told already


def test_a_half_pair_of_a3_is_missed_and_a_lone_card_is_not() -> None:
    table = table_of("info_A3_25.3.rc1_16chips_busy")
    half = table._replace(cards=table.cards[:-1])
    facts = put(smi=half, nodes=None, mapped=None, pci_addresses=None)(HEALTHY)
    assert "NPU 7" in say(find(facts, "cards.complete").says)


def details_of(folder: str, name: str) -> str:
    text: str = load_toml(TABLES[0].parents[1] / folder / f"{name}.toml")["output"]
    return text


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (put(health=parse_health(details_of("npu_health", "health_ok_910A_23.0.5"))), "cards.healthy"),
        (put(health=parse_health(details_of("npu_health", "health_950_doc"))), "cards.healthy"),
        (put(ecc=parse_ecc(details_of("npu_ecc", "ecc_910A_23.0.5"))), "cards.memory"),
        (put(boards=parse_board(details_of("npu_board", "board_card_910A_23.0.5"))), "cards.alike"),
        (put(boards=parse_board(details_of("npu_board", "board_950PR_25.7.rc1.6"))), "cards.compatible"),
        (put(topology=parse_topology(details_of("npu_topology", "topo_910B3_24.1.rc1"))), "cards.linked"),
        (put(topology=parse_topology(details_of("npu_topology", "topo_950_single_doc"))), "cards.linked"),
        (put(spods=(parse_spod(details_of("npu_spod", "spod_info_A3")),)), "cards.super-pod"),
        (put_kernel(parse_kernel_log(details_of("npu_kernel", "healthy"))), "cards.kernel"),
        (put(dmi=parse_dmi(details_of("npu_dmi", "health_check"), 0)), "devices.dmi"),
    ],
)
def test_a_healthy_answer_of_a_real_card_gives_no_alarm(change: Change, check: str) -> None:
    assert find(change(HEALTHY), check, level=3).status is Status.OK


RESETS = ("check_npu.fix-card-fault-reset", "check_npu.fix-card-fault-free")


def test_the_alarm_of_a_real_card_names_its_codes_and_the_cost_of_a_reset() -> None:
    (found,) = parse_health(details_of("npu_health", "health_alarm_910A_23.0.5"))
    facts = both(cards(health="Alarm"), put(health=(found._replace(npu=0, chip=0),)))(HEALTHY)
    finding = find(facts, "cards.healthy")
    assert finding.status is Status.FAIL
    assert "A4025021, 8C03A000, 8C084E00" in say(finding.says)
    assert finding.fix is not None and finding.fix.says.key in RESETS
    assert finding.fix.commands == ()


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("80E21007", "none"),
        ("8c03a000", "reset"),
        ("A2301001", "separate"),
        ("A8028801", "separate"),
        ("00000000", None),
    ],
)
def test_of_two_rows_for_an_event_the_graver_one_counts(code: str, action: str | None) -> None:
    row = load_matrix().npu_fault(code)
    assert (row.action if row else None) == action


def test_a_process_of_unknown_owner_comes_with_the_command_that_shows_it() -> None:
    rows = (NpuProcess(1, 0, 88121, "VLLMEngineCor", 57788),)
    finding = find(both(part("smi", processes=rows), put(holders=()))(HEALTHY), "cards.free")
    assert finding.status is Status.WARN and finding.fix is not None
    assert finding.fix.commands == (("ps", "-fp", "88121"),)


def test_a_tool_that_is_silent_for_seconds_is_asked_again_before_any_reboot() -> None:
    finding = find(trouble(SmiFailure.TIMEOUT)(HEALTHY), "driver.npu-smi")
    assert finding.status is Status.FAIL and finding.fix is not None
    assert finding.fix.commands[0] == ("npuenv", "doctor", "--level", "2")
    assert "hangs" not in say(finding.says).partition(".")[0] and finding.fix.says.key == "check_npu.fix-smi-timeout"


@pytest.mark.parametrize(("place", "words"), [("docker", "--device /dev/davinciN"), (None, "dmesg")])
def test_fewer_nodes_than_chips_come_with_a_cure_and_the_count_that_shows_it(place: str | None, words: str) -> None:
    finding = find(both(put(container=place), nodes(0, 1))(HEALTHY), "devices.agree")
    assert finding.status is Status.WARN and finding.fix is not None and words in say(finding.fix.says)
    assert finding.evidence[0].line == "8 chips"
