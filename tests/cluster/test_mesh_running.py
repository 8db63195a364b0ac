"""What the answers of nodes mean, batches of pings, and the file of what is done."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.inventory import Node
from npuenv.cluster.localize import Kind, localize_faults
from npuenv.cluster.mesh import (
    MeshDevice,
    MeshDevices,
    MissingDevice,
    NodeOutput,
    PingOutcome,
    Results,
    find_devices,
    full,
    running,
    vanished_devices,
)
from npuenv.cluster.mesh.running import Line, MeshRun, ping_outcome, survey
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host import Ran
from tests.cluster.test_mesh_planning import all_pings, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

REPLY = "device 0 PING 10.0.0.21\n{rows}\n3 packets transmitted, {back} received, {loss}% packet loss\n"
GOOD = REPLY.format(rows="recv seq=0,time=0.181000ms\nrecv seq=1,time=0.055000ms", back=3, loss="0.00")
DEAD = REPLY.format(rows="recv time out seq=0\nrecv time out seq=1", back=0, loss="100.00")
WEAK = REPLY.format(rows="recv time out seq=0\nrecv time out seq=1\nrecv seq=2,time=0.1ms", back=1, loss="66.67")
PARTLY = "recv time out seq=O\nrecv seq=1,time=0.097000ms\n3 packets transmitted, 2 received, 33.33% packet loss\n"


@pytest.mark.parametrize(
    ("code", "out", "err", "outcome", "line"),
    [
        (0, GOOD, "", PingOutcome.OK, ""),
        (1, GOOD, "", PingOutcome.OK, ""),  # the text counts
        (0, DEAD, "", PingOutcome.FAILED, "time out: 3 packets transmitted, 0 received, 100.00% packet loss"),
        (0, PARTLY, "", PingOutcome.LOSSY, "3 packets transmitted, 2 received, 33.33% packet loss"),
        (0, WEAK, "", PingOutcome.WEAK, "3 packets transmitted, 1 received, 66.67% packet loss"),
        (0, "4 packets transmitted, 2 received, 50.00% packet loss\n", "", PingOutcome.WEAK, None),
        (1, "Destination Host Unreachable\n", "", PingOutcome.FAILED, "unreachable: Destination Host Unreachable"),
        (1, "Message too long\n", "Cmd execute failed!\n", PingOutcome.FAILED, "message too long: Cmd execute failed!"),
        (0, "", "", PingOutcome.SILENT, "exit 0"),
        (0, GOOD.replace("10.0.0.21", "10.0.0.22"), "", PingOutcome.SILENT, "device 0 PING 10.0.0.22"),
        (1, "", "Command execute failed!\n", PingOutcome.SILENT, "Command execute failed!"),
        (11, "hccn_tool is busy, please try again.\n", "", PingOutcome.UNTRIED, "hccn_tool is busy, please try again."),
        (3, "", "Get device health status failed!\n", PingOutcome.UNTRIED, "Get device health status failed!"),
        (4, "", "Get invalid device id.\n", PingOutcome.UNTRIED, "Get invalid device id."),
    ],
)
def test_the_text_of_a_ping_decides_and_never_its_exit_code(
    code: int, out: str, err: str, outcome: PingOutcome, line: str | None
) -> None:
    line = out.strip() if line is None else line
    assert ping_outcome(Ran(("hccn_tool",), code, out, err), "10.0.0.21") == (outcome, line)


def test_a_ping_that_was_ended_is_unknown_unless_it_said_that_nothing_came_back() -> None:
    assert ping_outcome(Ran(("hccn_tool",), None, "", "", timed_out=True), "10.0.0.21")[0] is PingOutcome.SILENT
    said = "device 0 PING 10.0.0.21\nrecv time out seq=0\n"
    assert ping_outcome(Ran(("hccn_tool",), None, said, "", timed_out=True), "10.0.0.21")[0] is PingOutcome.FAILED


# --- what nodes say of their cards


def said(card: int, out: str, err: str = "") -> dict[str, Any]:
    return {"card": card, "code": 0, "out": out, "err": err, "late": False, "s": 0.1}


A3_TABLE = Path(__file__).parent.parent.parent.parent / "shared" / "transcripts" / "npu-smi"


def test_devices_are_what_nodes_say_and_the_rest_is_missing_with_its_reason() -> None:
    nodes = [Node(name, name, cards=cards) for name, cards in (("a", 2), ("b", None), ("c", 3), ("d", None))]
    none = "Get ipconf failed, because no ip was preset there!"
    heard = {
        "a": NodeOutput((said(0, "ipaddr:10.0.0.1\nnetmask:255.255.255.0\n"), said(1, "", none))),
        "b": NodeOutput((), Message("mesh.why-nothing")),
        "c": NodeOutput((said(4, "ipaddr:10.0.1.1\nnetmask:255.255.255.0\n"), said(5, "ipaddr:what\n"))),
        "d": NodeOutput(({"refused": "no-tool"},)),
    }
    found = find_devices(nodes, heard)
    assert found.devices == (
        MeshDevice("a", 0, "10.0.0.1", "255.255.255.0"),
        MeshDevice("c", 4, "10.0.1.1", "255.255.255.0"),
    )
    assert found.devices[1].network == "10.0.1.0/24"
    assert [(each.node, each.card, each.why, each.is_fault) for each in found.missing] == [
        ("a", 1, Message("mesh.why-no-address"), False),
        ("b", None, Message("mesh.why-nothing"), False),
        ("c", 5, Message("mesh.why-unread", {"line": "ipaddr:what"}), False),
        ("c", None, Message("mesh.why-fewer-cards", {"found": 2, "wanted": 3}), True),
        ("d", None, Message("mesh.why-no-tool"), False),
    ]


@pytest.mark.skipif(not A3_TABLE.is_dir(), reason="needs the transcripts beside the repository")
def test_an_a3_node_is_known_by_the_table_of_its_npu_smi() -> None:
    from npuenv.facts.npu.smi import Layout, SmiTable, parse_info

    for path in sorted(A3_TABLE.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        table = parse_info(text)
        if isinstance(table, SmiTable):
            line = {"cards": [2], "smi": text}
            found = find_devices(
                [Node("a", "a")], {"a": NodeOutput((line, said(2, "ipaddr:10.0.0.1\nnetmask:255.0.0.0")))}
            )
            assert (found.devices[0].board == 1) == (table.layout is Layout.A3), path.name


# --- batches


class Nodes:
    """Answers for the nodes of a cluster in which some pings fail, and remembers what it was asked."""

    def __init__(self, devices: list[MeshDevice], *, broken: set[tuple[str, str]] | None = None) -> None:
        self.devices = {(device.node, device.card): device.ip for device in devices}
        self.broken = broken or set()
        self.silent: dict[str, NodeOutput] = {}
        self.lossy: dict[tuple[str, str], list[str]] = {}  # what such a ping comes to, each time that it is made
        self.most = 10**9  # pings that a node makes before its time is over
        self.asked: list[tuple[str, str]] = []

    def __call__(
        self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        assert on_line
        for node, question in questions.items():
            if node in self.silent:
                yield node, self.silent[node]
                continue
            for line in self._made(node, question):
                on_line(node, line)
            yield node, NodeOutput(({"end": True},))

    def _made(self, node: str, question: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for number, (card, ip) in enumerate(question["jobs"][: self.most]):
            own = self.devices[node, card]
            self.asked.append((own, ip))
            text = DEAD if (own, ip) in self.broken else GOOD
            if self.lossy.get((own, ip)):
                text = self.lossy[own, ip].pop(0)
            line = {"job": number, "code": 0, "out": text.replace("10.0.0.21", ip), "err": "", "late": False, "s": 0.5}
            yield line


def run_of(devices: list[MeshDevice], nodes: Nodes) -> MeshRun:
    plan = full(devices)
    return MeshRun(plan, Results.empty(plan.devices), nodes)


def test_every_ping_is_made_once_over_the_batches_and_measured_first() -> None:
    devices = cluster([3, 3, 2])
    nodes = Nodes(devices)
    nodes.most = 3
    run = run_of(devices, nodes)
    assert run.measure() == 0.5
    measured = len(nodes.asked)
    assert 0 < measured <= 4 * 3
    left = list(run.run_remaining())
    assert left == sorted(left, reverse=True) and left[-1] == 0
    assert len(nodes.asked) == len(set(nodes.asked)) == run.plan.num_pings == 56
    assert run.results.counts(all_pings(run.plan))[PingOutcome.OK] == 56


def test_no_node_begins_later_rounds_before_all_have_ended_the_earlier_ones() -> None:
    devices = cluster([3, 3])
    nodes = Nodes(devices)
    nodes.most = 1  # a ping a batch: the slowest that a node can be
    run = run_of(devices, nodes)
    place = {(devices[s].ip, devices[t].ip): at for at, pings in enumerate(run.plan.rounds) for s, t in pings}
    list(run.run_remaining())
    order = [place[pair] for pair in nodes.asked]
    assert len(order) == 30
    assert all(later >= earlier - 1 for earlier, later in pairwise(order))


def test_a_ping_that_lost_packets_is_made_once_more_and_then_counts() -> None:
    devices = cluster([2, 2])
    nodes = Nodes(devices)
    at = {(source, target): (devices[source].ip, devices[target].ip) for source in range(4) for target in range(4)}
    nodes.lossy = {
        at[0, 2]: [PARTLY, GOOD],  # the first packet to a new address
        at[1, 3]: [PARTLY, PARTLY],
        at[2, 0]: [WEAK, PARTLY],
        at[3, 1]: [PARTLY, WEAK],
        at[3, 0]: [WEAK, DEAD],
    }
    wanted = {(0, 2): PingOutcome.OK, (1, 3): PingOutcome.LOSSY, (2, 0): PingOutcome.LOSSY}
    wanted |= {(3, 1): PingOutcome.WEAK, (3, 0): PingOutcome.FAILED}
    run = run_of(devices, nodes)
    told: list[int] = []
    run.on_ping = lambda: told.append(1)
    assert run.measure() == 0.5
    list(run.run_remaining())
    assert {pair: run.results.of(pair) for pair in wanted} == wanted
    times = Counter(nodes.asked)
    assert [times[at[pair]] for pair in wanted] == [2] * 5 and len(times) == len(told) == 12
    assert sum(times.values()) == run.results.num_timed == 17


def test_a_cluster_of_cold_addresses_is_measured_all_the_same() -> None:
    devices = cluster([2, 2])
    nodes = Nodes(devices)
    nodes.lossy = {(one.ip, other.ip): [PARTLY, GOOD] for one in devices for other in devices}
    run = run_of(devices, nodes)
    assert run.measure() == 0.5
    assert list(run.results.pairs(PingOutcome.LOSSY)) == []
    assert list(run.run_remaining())[-1] == 0
    assert len(list(run.results.pairs(PingOutcome.OK))) == 12 and set(Counter(nodes.asked).values()) == {2}


@pytest.mark.parametrize("refusal", ["stuck", "not-allowed"])
def test_a_node_that_will_not_do_better_is_left_out_at_once_with_its_reason(refusal: str) -> None:
    devices = cluster([2, 2, 2])
    nodes = Nodes(devices)
    nodes.silent["node001"] = NodeOutput(({"refused": refusal},))
    run = run_of(devices, nodes)
    run.measure()
    assert run.lost == {"node001": Message(f"mesh.why-{refusal}")}


def test_a_node_that_comes_to_nothing_is_left_out_and_its_pings_are_unknown() -> None:
    devices = cluster([2, 2, 2])
    nodes = Nodes(devices)
    nodes.silent["node001"] = NodeOutput((), Message("mesh.why-nothing"))
    run = run_of(devices, nodes)
    list(run.run_remaining())
    assert run.lost == {"node001": Message("mesh.why-nothing")}
    untried = list(run.results.pairs(PingOutcome.UNTRIED))
    assert {devices[source].node for source, _ in untried} == {"node001"} and len(untried) == 2 * 5
    tried = list(run.results.pairs(PingOutcome.OK))
    assert len(tried) == 4 * 5
    # Others still reach its devices, so that what could not be tried comes down to what they send.
    assert {each.hypothesis.kind for each in localize_faults(devices, untried, tried)} == {Kind.NODE_SENDS}


def test_a_run_that_goes_on_makes_only_what_was_not_tried(tmp_path: Path) -> None:
    devices = cluster([2, 2])
    first = Nodes(devices, broken={(devices[0].ip, devices[3].ip)})
    run = run_of(devices, first)
    run.measure()
    run.results.note((1, 0), PingOutcome.UNTRIED, "hccn_tool is busy, please try again.")
    path = tmp_path / "state.json"
    running.save_results(path, run.results, "full")
    results, mode = running.load_results(path)
    assert mode == "full" and results.devices == tuple(devices) and results.seconds_a_ping == 0.5
    assert results.is_pending((1, 0))
    second = Nodes(devices, broken=first.broken)
    again = MeshRun(full(devices), results, second)
    assert again.left.num_pings == len(list(results.pairs(PingOutcome.PENDING)))
    list(again.run_remaining())
    repeated = set(first.asked) & set(second.asked)
    assert repeated <= {(devices[1].ip, devices[0].ip)}
    assert len(set(first.asked) | set(second.asked)) == 12
    assert list(results.pairs(PingOutcome.FAILED)) == [(0, 3)]


# --- the file


def kept(tmp_path: Path) -> tuple[Path, list[MeshDevice]]:
    devices = cluster([2, 1])
    path = tmp_path / "state.json"
    results = Results.empty(tuple(devices))
    results.note((0, 2), PingOutcome.FAILED, "line")
    running.save_results(path, results, "full")
    return path, devices


def test_what_is_done_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, _ = kept(tmp_path)
    results, _ = running.load_results(path)
    assert results.of((0, 2)) is PingOutcome.FAILED and results.notes == {(0, 2): "line"}
    assert results.of((1, 1)) is PingOutcome.BARRED and results.of((1, 0)) is PingOutcome.PENDING
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: {**document, "schema": "npuenv.mesh/1"},
        lambda document: {**document, "mode": "other"},
        lambda document: {**document, "rows": document["rows"][:2]},
        lambda document: {**document, "rows": ["ooo", *document["rows"][1:]]},  # a device that pings itself
        lambda document: {**document, "rows": ["-x.", *document["rows"][1:]]},
        lambda document: {**document, "devices": [["a"]]},
        lambda document: {name: value for name, value in document.items() if name != "timed"},
        lambda document: [document],
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, change: Any) -> None:
    path, _ = kept(tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        running.load_results(path)
    assert caught.value.message.key == "mesh.bad-state"


def test_the_same_devices_go_on_whatever_is_silent_today_or_unknown_of_their_boards(tmp_path: Path) -> None:
    path, devices = kept(tmp_path)
    today = [devices, devices[:2], devices[1:], [replace(device, board=7, netmask="") for device in devices]]
    for now in today:
        running.require_same_devices(devices, now, {"node000", "node001"}, path)


def test_other_devices_do_not_go_on(tmp_path: Path) -> None:
    path, devices = kept(tmp_path)
    nodes = {"node000", "node001", "new"}
    other = replace(devices[1], ip="10.9.9.9")
    for now, names in (
        ([*devices, MeshDevice("new", 0, "10.9.9.9")], nodes),
        ([devices[0], other, devices[2]], nodes),
        (devices[:2], {"node000"}),  # a node that the inventory does not have
    ):
        with pytest.raises(BadInput) as caught:
            running.require_same_devices(devices, now, names, path)
        assert caught.value.message.key == "mesh.other-devices"


def test_what_is_gone_since_is_missing_once() -> None:
    devices = cluster([2, 1, 1])
    found = MeshDevices((devices[0],), (MissingDevice("node001", None, Message("mesh.why-nothing")),))
    assert [(each.node, each.card, each.why.key) for each in vanished_devices(devices, found)] == [
        ("node000", 1, "mesh.why-gone"),
        ("node002", 0, "mesh.why-gone"),
    ]


def test_what_gave_no_answer_that_can_be_read_is_not_kept_as_done(tmp_path: Path) -> None:
    results = Results.empty(tuple(cluster([2, 1])))
    results.note((0, 1), PingOutcome.SILENT, "what?")
    results.note((0, 2), PingOutcome.WEAK, "line")
    path = tmp_path / "state.json"
    running.save_results(path, results, "full")
    read, _ = running.load_results(path)
    assert read.is_pending((0, 1)) and read.of((0, 2)) is PingOutcome.WEAK and read.notes == {(0, 2): "line"}
    # So it is with a file that has it as done.
    text = json.loads(path.read_text())
    text["rows"][0] = "-sw"
    path.write_text(json.dumps(text))
    assert running.load_results(path)[0].is_pending((0, 1))


def test_a_survey_asks_every_node_for_the_address_of_each_card() -> None:
    class MeshDevices:
        def __call__(
            self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
        ) -> Iterator[tuple[str, NodeOutput]]:
            for node, question in questions.items():
                assert question["words"] == ("-i", "{card}", "-ip", "-g")
                yield node, NodeOutput(tuple(said(card, "") for card in question["otherwise"]))

    heard = survey([Node("a", "a", cards=2), Node("b", "b")], MeshDevices())
    assert {node: [line["card"] for line in each.lines] for node, each in heard.items()} == {"a": [0, 1], "b": []}
