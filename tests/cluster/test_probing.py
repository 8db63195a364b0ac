"""Probing between nodes: who cannot reach whom is led back to the fewest places, a shared folder is the same or is not.

The programs run for real, on this machine or in namespaces; what only judges is fed with answers as they print them.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.consistency.findings import NodeIdentity
from npuenv.cluster.inventory import Node
from npuenv.cluster.localize import PortProbe, localize_port_faults
from npuenv.cluster.parallel_ssh import NodeAnswer, Transport
from npuenv.cluster.ports import (
    address_of,
    group_links,
    has_dynamic_ports,
    isolated_groups,
    judge,
    packets,
    ports_of,
    probe_ports,
    probe_schedule,
    usual_ports,
)
from npuenv.cluster.probing import identify_nodes, probe, probe_shared_folder, skipped_findings
from npuenv.cluster.ssh import NodeFailure, Options
from npuenv.core.finding import Status
from npuenv.core.messages import say
from tests.support.namespaces import machines, why_not
from tests.support.sentences import part, says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from npuenv.core.finding import Finding

PROGRAMS = Path(__file__).parents[2] / "npuenv" / "facts" / "target"
# Stands for ssh: runs the command line that a remote shell would get, here.
HERE = ("sh", "-c", 'for last; do :; done; exec sh -c "$last"', "ssh")
FOUR = ("a", "b", "c", "d")
PORTS = (6379, 8265)


MISSING = sentence("agree.word-storage-missing")


def all_open(count: int, ports: str) -> str:
    return sentence("agree.ports-open", count=count, ports=ports)


def blind(who: str, count: int = 0) -> str:
    """Of whom nothing could be told; `count` of the others reach each other."""
    says = sentence("agree.blind", who=who)
    return sentence("agree.ports-open-else", says=says, elsewhere=all_open(count, "6379,8265")) if count else says


def place(kind: str, **args: str) -> str:
    """Where it does not get through, as it is said."""
    return sentence(f"agree.place-{kind}", **args)


def nodes_of(*names: str) -> list[Node]:
    return [Node(name, name, python=sys.executable) for name in names]


@pytest.mark.parametrize("name", ["knock", "node"])
def test_the_programs_are_in_the_grammar_of_python_3_6(name: str) -> None:
    ast.parse((PROGRAMS / f"{name}.py").read_text(encoding="utf-8"), feature_version=(3, 6))


# Which attempts fail among four nodes and two ports, as (source, target, port), None for every one -> the places.
CULPRITS: dict[str, tuple[list[tuple[str | None, str | None, int | None]], list[tuple[Any, ...]]]] = {
    "nothing fails": ([], []),
    "one port of one node": ([(None, "b", 6379)], [(None, "b", (6379,))]),
    "nothing reaches a node": ([(None, "b", None)], [(None, "b", None)]),
    "nothing leaves a node": ([("c", None, None)], [("c", None, None)]),
    "a node alone": ([("c", None, None), (None, "c", None)], [("c", None, None), (None, "c", None)]),
    "one way": ([("a", "b", None)], [("a", "b", None)]),
    "a port everywhere": ([(None, None, 8265)], [(None, None, (8265,))]),
    "one port of one way": ([("a", "b", 6379)], [("a", "b", (6379,))]),
    "two places": ([(None, "b", 6379), ("d", "a", None)], [(None, "b", (6379,)), ("d", "a", None)]),
    "nothing at all": ([(None, None, None)], [(None, None, None)]),
}


@pytest.mark.parametrize("name", CULPRITS)
def test_what_fails_is_led_back_to_the_fewest_places(name: str) -> None:
    dead, expected = CULPRITS[name]
    tried = {
        PortProbe(source, target, port): not any(fits(knock, (source, target, port)) for knock in dead)
        for source, target, port in itertools.product(FOUR, FOUR, PORTS)
        if source != target
    }
    found = localize_port_faults(tried)
    assert {(item.source, item.target, item.ports) for item in found} == set(expected)
    assert sum(len(item.failed) for item in found) == sum(not arrived for arrived in tried.values())


def fits(dead: tuple[str | None, str | None, int | None], knock: tuple[str, str, int]) -> bool:
    return all(part is None or part == real for part, real in zip(dead, knock, strict=True))


def test_of_two_nodes_neither_is_blamed_alone() -> None:
    tried = {PortProbe("a", "b", 6379): False, PortProbe("b", "a", 6379): True}
    assert [(item.source, item.target, item.ports) for item in localize_port_faults(tried)] == [("a", "b", (6379,))]


@pytest.mark.parametrize("count", [2, 3, 32, 33, 100, 256])
def test_every_node_is_tried_from_several_sides_and_the_rounds_stay_few(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    plan = probe_schedule(names)
    callers = {name: sum(name in targets for targets in plan.values()) for name in names}
    steps = count - 1 if count <= 32 else (count - 1).bit_length()
    assert set(callers.values()) == {steps}
    assert all(len(targets) == steps == len(set(targets) - {name}) for name, targets in plan.items())


def told(outcome: Callable[[str, str, int], str], listening: str = "opened") -> dict[str, dict[str, Any]]:
    """The answers of four nodes, as the program prints them."""
    return {
        source: {
            "listening": {str(port): listening for port in PORTS},
            "reached": {
                target: {str(port): outcome(source, target, port) for port in PORTS}
                for target in FOUR
                if target != source
            },
            "heard": [],
        }
        for source in FOUR
    }


def test_a_port_that_a_service_holds_is_reached_without_our_word() -> None:
    finding = judge(told(lambda *_: "service", "taken"), probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.OK, all_open(4, "6379,8265"))


def test_a_service_that_refuses_may_listen_on_loopback_alone_and_is_no_closed_port() -> None:
    """As Ray's dashboard does by default."""
    answers = told(lambda _, target, port: "ECONNREFUSED" if (target, port) == ("a", 8265) else "ok")
    answers["a"]["listening"]["8265"] = "taken"
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.OK, all_open(4, "6379"))
    answers = told(lambda *_: "ECONNREFUSED", "taken")
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind("a, b, c, d"))


def test_what_takes_a_connection_in_between_is_not_taken_for_the_node() -> None:
    """A port that we opened answers with our word, or it was not we who answered."""
    answers = told(lambda source, target, port: "service" if target == "b" else "ok")
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.FAIL, place("target-all", target="b"))


@pytest.mark.parametrize(
    ("dead", "kind", "args"),
    [
        ([(None, "b", 6379), (None, "c", 6379)], "target", {"target": "b, c", "ports": "6379"}),
        ([("a", "b", None), ("a", "c", None)], "way-all", {"source": "a", "target": "b, c"}),
        ([("a", "b", 8265)], "way", {"source": "a", "target": "b", "ports": "8265"}),
        ([("c", None, 8265)], "source", {"source": "c", "ports": "8265"}),
        ([(None, None, 8265)], "nowhere", {"ports": "8265"}),
        ([(None, None, None)], "nowhere-all", {}),
    ],
)
def test_places_are_said_in_few_words(
    dead: list[tuple[str | None, str | None, int | None]], kind: str, args: dict[str, str]
) -> None:
    answers = told(lambda *knock: "ETIMEDOUT" if any(fits(place, knock) for place in dead) else "ok")
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.FAIL, place(kind, **args))


def test_a_node_that_says_nothing_is_unknown_and_nobody_is_blamed_for_it() -> None:
    answers = told(lambda source, target, port: "ETIMEDOUT" if target == "d" else "ok")
    del answers["d"]
    finding = judge(answers, probe_schedule(FOUR), PORTS, {"d": "timed-out"})
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind("d", 3))
    assert [line.line for line in finding.evidence] == ["timed-out"]


def test_a_port_that_cannot_be_opened_is_unknown() -> None:
    answers = told(lambda source, target, port: "ECONNREFUSED" if (target, port) == ("a", 6379) else "ok")
    answers["a"]["listening"]["6379"] = "Permission denied"
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind("a", 3))


def test_a_node_that_came_too_late_is_unknown_and_blames_nobody() -> None:
    """Its own attempts and those of the others fall into different times."""
    answers = told(lambda source, target, port: "ECONNREFUSED" if "d" in (source, target) else "ok")
    for name, each in answers.items():
        each.update({"ended": 130.0, "lasted": 10.0} if name == "d" else {"ended": 121.0, "lasted": 9.0})
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert finding.status is Status.UNKNOWN
    late = sentence("agree.ports-late", who="d", seconds="8")
    assert say(finding.says) == sentence("agree.ports-open-else", says=late, elsewhere=all_open(3, "6379,8265"))
    answers["d"]["ended"] = 122.0
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (
        Status.FAIL,
        f"{place('target-all', target='d')}, {place('source-all', source='d')}",
    )


@pytest.mark.parametrize(
    ("is_tried", "who"),
    [
        (lambda *_: False, "a, b, c, d"),
        (lambda source, target, port: port == 6379, "a, b, c, d"),
        (lambda source, target, port: (source, target) != ("b", "c"), "b"),
    ],
)
def test_attempts_that_were_never_made_are_unknown(is_tried: Callable[[str, str, int], bool], who: str) -> None:
    answers = told(lambda *_: "ok")
    for source, each in answers.items():
        for target, rows in each["reached"].items():
            each["reached"][target] = {at: row for at, row in rows.items() if is_tried(source, target, int(at))}
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind(who, 4 - len(who.split(", "))))
    assert {line.line for line in finding.evidence} == {"no outcome"}
    answers["a"]["reached"]["b"]["8265"] = "ETIMEDOUT"
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert finding.status is Status.FAIL and finding.says.key == "agree.and-blind"
    assert str(finding.says.args["who"]) == who


def test_two_names_of_one_machine_leave_the_ports_of_the_others_known() -> None:
    """The second name finds its ports taken by the first, and would answer with another name."""
    asked: list[str] = []

    def reached(
        nodes: Sequence[Node], _: Any, *, stdin: Callable[[Node], bytes], **__: Any
    ) -> Generator[NodeAnswer, None, None]:
        for node in nodes:
            asked.append(node.name)
            told = json.loads(stdin(node).splitlines()[-1])
            outcomes = {str(port): "ok" for port in told["ports"]}
            said = {"listening": dict.fromkeys(outcomes, "opened"), "lasted": 5.0}
            said["reached"] = dict.fromkeys(told["targets"], outcomes)
            yield NodeAnswer(node, 0, f"\nNPUENV-ANSWER {json.dumps(said)}\n".encode(), "", 5.0, None)

    where = {"one": 1, "two": 2, "again": 2, "three": 3}
    identities = {name: NodeIdentity(name, boot=f"boot{at}", addresses=(f"10.0.0.{at}",)) for name, at in where.items()}
    found, _ = probe_ports(nodes_of(*where), identities, Transport(ask=reached), (6379,))
    assert (found.status, asked) == (Status.OK, ["one", "two", "three"])
    unread = {name: NodeIdentity(name, addresses=each.addresses) for name, each in identities.items()}
    asked.clear()
    probe_ports(nodes_of(*where), unread, Transport(ask=reached), (6379,))
    assert asked == list(where), "whose machine it is is not known"


@pytest.mark.parametrize("count", [16, 64])
def test_nodes_that_fall_apart_into_two_halves_are_one_place(count: int) -> None:
    """As where the line between two switches is broken; of 64 nodes only some ways are tried."""
    names = [f"n{number:02}" for number in range(count)]
    first = set(names[: count // 2])
    plan = probe_schedule(names)
    answers = {
        name: {
            "listening": {"1": "opened", "2": "opened"},
            "reached": {
                target: dict.fromkeys("12", "ok" if (name in first) == (target in first) else "ETIMEDOUT")
                for target in plan[name]
            },
        }
        for name in names
    }
    finding = judge(answers, plan, (1, 2), {})
    one, two = f"n[00-{count // 2 - 1:02}]", f"n[{count // 2:02}-{count - 1}]"
    assert say(finding.says) == place("apart", groups=f"{one} | {two}")
    assert 2 <= len(finding.evidence) <= 6


def test_beside_two_halves_a_node_all_by_itself_and_a_closed_port_are_named() -> None:
    names = [*FOUR, "e"]
    tried = {
        PortProbe(source, target, port): {source, target} <= {"a", "b"}
        or (port == 1 and {source, target} <= {"c", "d"})
        for source, target, port in itertools.product(names, names, (1, 2))
        if source != target
    }
    assert isolated_groups(tried) == [{"a", "b"}, {"c", "d"}]
    answers = {
        name: {
            "listening": {"1": "opened", "2": "opened"},
            "reached": {
                target: {str(port): "ok" if tried[PortProbe(name, target, port)] else "ETIMEDOUT" for port in (1, 2)}
                for target in names
                if target != name
            },
        }
        for name in names
    }
    places = say(judge(answers, probe_schedule(names), (1, 2), {}).says)
    assert places.startswith(place("apart", groups="a, b | c, d") + ", ")
    assert place("source-all", source="e") in places and place("target-all", target="e") in places
    whole = {knock: arrived or "e" not in knock[:2] for knock, arrived in tried.items()}
    assert isolated_groups(whole) == [], "a node all by itself is no group"


def test_the_same_targets_of_several_nodes_are_said_once() -> None:
    """One way only, so that the nodes are no groups apart."""
    answers = told(lambda source, target, port: "ETIMEDOUT" if source in "ab" and target in "cd" else "ok")
    finding = judge(answers, probe_schedule(FOUR), PORTS, {})
    assert say(finding.says) == place("way-all", source="a, b", target="c, d")


def test_broken_ways_come_together_only_where_nothing_between_them_works_and_they_have_an_end_in_common() -> None:
    broken = [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("e", "f"), ("g", "c")]
    assert group_links(broken, [("g", "d")]) == [({"a", "b"}, {"c", "d"}), ({"e"}, {"f"}), ({"g"}, {"c"})]
    assert group_links([("a", "b"), ("b", "a")], []) == [({"a"}, {"b"}), ({"b"}, {"a"})]


def test_a_sampled_schedule_says_that_single_ways_are_not_excluded() -> None:
    names = [f"n{number}" for number in range(40)]
    plan = probe_schedule(names)
    answers = {
        name: {"listening": {"1": "opened"}, "reached": {target: {"1": "ok"} for target in plan[name]}}
        for name in names
    }
    finding = judge(answers, plan, (1,), {})
    assert (finding.status, finding.says.key) == (Status.OK, "agree.ports-open-sampled")


def test_the_usual_ports_are_those_of_ray_and_of_hccl() -> None:
    assert usual_ports() == (6379, 8265, 10001, *range(23456, 23488), *range(60000, 60032))


def test_the_ports_of_hccl_are_where_the_sessions_set_them() -> None:
    ray, usual = (6379, 8265, 10001), (*range(23456, 23488), *range(60000, 60032))
    moved = {"HCCL_IF_BASE_PORT": "50000"}
    assert ports_of([moved, moved]) == (*ray, *range(50000, 50032))
    assert ports_of([moved, {}]) == (*ray, *sorted((*usual, *range(50000, 50032)))), "who sets none uses the usual ones"
    for odd in ("", "x", "80", "65521", "-1", "60000 "):
        assert ports_of([{"HCCL_IF_BASE_PORT": odd}]) == (*ray, *usual)
    assert ports_of([{"HCCL_IF_BASE_PORT": "8260"}]) == (*ray, *(port for port in range(8260, 8292) if port != 8265))
    assert ports_of([{"HCCL_IF_BASE_PORT": "65520"}]) == (*ray, *range(65520, 65536)), "there are no ports behind"


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        ("50000-50050", range(50000, 50032)),  # as many as HCCL takes of its own
        ("50000,50010-50011", (50000, 50010, 50011)),
        ("auto", ()),
        ("50010-50000", None),
        ("any", None),
    ],
)
def test_a_range_of_ports_wins_over_the_base(value: str, ports: Sequence[int] | None) -> None:
    session = {"HCCL_HOST_SOCKET_PORT_RANGE": value, "HCCL_IF_BASE_PORT": "40000"}
    assert ports_of([session]) == (usual_ports() if ports is None else (6379, 8265, 10001, *ports))
    assert has_dynamic_ports([{}, session]) == (value == "auto")


def test_ports_that_the_system_gives_out_are_said_to_be_untried() -> None:
    def reached(
        nodes: Sequence[Node], _: Any, *, stdin: Callable[[Node], bytes], **__: Any
    ) -> Generator[NodeAnswer, None, None]:
        for node in nodes:
            asked = json.loads(stdin(node).splitlines()[-1])
            outcomes = {str(port): "ok" for port in asked["ports"]}
            said = {"listening": dict.fromkeys(outcomes, "opened"), "lasted": 5.0}
            said["reached"] = dict.fromkeys(asked["targets"], outcomes)
            yield NodeAnswer(node, 0, f"\nNPUENV-ANSWER {json.dumps(said)}\n".encode(), "", 5.0, None)

    identities = {
        name: NodeIdentity(name, addresses=(f"10.0.0.{at}",)) for at, name in enumerate(("one", "two"), start=1)
    }
    found, _ = probe_ports(nodes_of("one", "two"), identities, Transport(ask=reached), (6379,), has_dynamic=True)
    assert found.status is Status.OK
    over = sentence("agree.ports-over", says=all_open(2, "6379"), addresses="10.0.0.[1-2]")
    assert say(found.says) == sentence("agree.ports-unfixed", says=over)


def test_others_reach_a_node_where_we_did_or_at_its_own_address() -> None:
    identities = {
        "a": NodeIdentity("a", addresses=("10.0.0.1", "10.1.0.1"), login="10.1.0.1"),
        "b": NodeIdentity("b", addresses=("10.0.0.2",), login="198.51.100.7"),
    }
    assert (address_of(identities, "a"), address_of(identities, "b"), address_of(identities, "c")) == (
        "10.1.0.1",
        "10.0.0.2",
        "",
    )


def test_nodes_introduce_themselves_with_name_clock_and_each_others_names() -> None:
    identities, silent = identify_nodes(nodes_of("one", "two"), Transport(client=HERE))
    assert (set(identities), silent) == ({"one", "two"}, {})
    here = socket.gethostname()
    for each in identities.values():
        assert each.hostname == here
        assert each.offset is not None
        assert abs(each.offset.seconds) <= each.offset.within_s  # it is this machine's own clock
    assert identities["one"].boot == identities["two"].boot != ""


def test_a_clock_that_is_ahead_is_measured() -> None:
    identities, _ = identify_nodes(nodes_of("one"), Transport(ask=Ahead()))
    offset = identities["one"].offset
    assert offset is not None
    assert offset.within_s < 1.0
    assert abs(offset.seconds - 90.0) <= offset.within_s


def test_a_clock_is_measured_right_where_its_answer_is_taken_late() -> None:
    """This machine may be busy with the answers of others."""
    identities, _ = identify_nodes(nodes_of("one"), Transport(ask=Ahead(late_s=0.3)))
    offset = identities["one"].offset
    assert offset is not None
    assert abs(offset.seconds - 90.0) <= offset.within_s


@dataclass
class Ahead:
    """Answers as a node does whose clock is 90 s ahead, and its answers lie a while before they are taken."""

    late_s: float = 0.0

    def __call__(
        self, nodes: Sequence[Node], *_: Any, stdin: Callable[[Node], bytes], **__: Any
    ) -> Generator[NodeAnswer, None, None]:
        for node in nodes:
            stdin(node)
            now = time.time() + 90.0
            said = {"began": now, "ended": now, "hostname": node.name, "addresses": [], "sees": {}}
            time.sleep(self.late_s)
            yield NodeAnswer(node, 0, f"\nNPUENV-ANSWER {json.dumps(said)}\n".encode(), "", 0.001, None)


def test_a_node_that_cannot_be_asked_takes_no_part_and_the_reason_is_kept() -> None:
    nodes = [*nodes_of("one"), Node("two", "two", python="/no/such/python3")]
    identities, silent = identify_nodes(nodes, Transport(client=HERE))
    assert set(identities) == {"one"}
    assert "not found" in silent["two"]


@pytest.mark.slow
def test_a_node_that_took_no_part_is_unknown_in_every_finding(tmp_path: Path) -> None:
    transport = Transport(client=HERE)
    nodes = [*nodes_of("one", "two"), Node("three", "three", python="/no/such/python3")]
    with free_port() as port:
        probed = probe(nodes, transport, ports=(port,), shared=str(tmp_path))
        alone = probe(nodes[1:], transport, ports=(port,), shared=str(tmp_path))
    assert set(probed.identities) == {"one", "two"}
    assert [(item.status, say(item.says)) for item in probed.findings][2] == (
        Status.UNKNOWN,
        blind("three"),
    )
    assert all("three" in say(item.says) and item.status is not Status.OK for item in probed.findings[:2])
    assert [(item.status, say(item.says)) for item in alone.findings] == [(Status.UNKNOWN, blind("three"))] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_an_address_is_unknown() -> None:
    nodes = nodes_of("one", "two")
    found = probe_ports(
        nodes,
        {"one": NodeIdentity("one", addresses=("127.0.0.1",)), "two": NodeIdentity("two")},
        Transport(client=HERE),
    )
    assert [(finding.status, say(finding.says)) for finding in found] == [(Status.UNKNOWN, blind("two"))] * 2


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port for the program to listen at, held for it: with this option it may, and nobody is given it by chance."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def test_a_file_that_a_full_disk_cuts_short_is_taken_away(tmp_path: Path) -> None:
    full = "import os\ndef fsync(_): raise OSError(28, os.strerror(28))\nos.fsync = fsync\n"
    asked = {"do": "write", "path": str(tmp_path / ".npuenv-x"), "word": "abc", "limit_s": 1}
    code = full + (PROGRAMS / "node.py").read_text(encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", code], input=json.dumps(asked) + "\n", capture_output=True, text=True)
    assert os.strerror(28) in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_writer_never_answers_is_taken_away(tmp_path: Path) -> None:
    from npuenv.cluster.parallel_ssh import ask

    rounds = itertools.count()

    def cut(nodes: Sequence[Node], *args: Any, **options: Any) -> Generator[NodeAnswer, None, None]:
        is_first = next(rounds) == 0
        for answer in ask(nodes, *args, **options):
            yield replace(answer, out=b"", failure=NodeFailure.BROKEN) if is_first else answer

    finding = probe_shared_folder(nodes_of("one", "two", "three"), str(tmp_path), Transport(client=HERE, ask=cut))
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind("one"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_the_same_is_found_so_and_left_empty(tmp_path: Path) -> None:
    finding = probe_shared_folder(nodes_of("one", "two", "three"), str(tmp_path), Transport(client=HERE))
    assert (finding.status, say(finding.says)) == (Status.OK, sentence("agree.storage-same", folder=tmp_path, count=3))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_another_one_somewhere_is_named(tmp_path: Path) -> None:
    """The third node's command line is led to another folder of the same name, as an unmounted file system would."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "local").mkdir()
    transport = Transport(client=HERE, ask=elsewhere("three", str(tmp_path / "shared"), str(tmp_path / "local")))
    finding = probe_shared_folder(nodes_of("one", "two", "three"), str(tmp_path / "shared"), transport, look_s=0.5)
    assert finding.status is Status.FAIL
    assert says(say(finding.says), "agree.storage-apart", groups=f"three: {MISSING}", count=2)
    first, second = (line.command for line in finding.evidence)
    assert first == f"one: {tmp_path / 'shared'} (written here)"
    assert second == f"three: {tmp_path / 'shared'} (written on one)"
    assert list((tmp_path / "shared").iterdir()) == []


def elsewhere(name: str, folder: str, instead: str) -> Callable[..., Generator[NodeAnswer, None, None]]:
    """`ask`, with one node that has another folder at the place."""
    from npuenv.cluster.parallel_ssh import ask

    def asked(nodes: Sequence[Node], command: Any, *, stdin: Any, **options: Any) -> Generator[NodeAnswer, None, None]:
        def led(node: Node) -> bytes:
            data: bytes = stdin(node)
            return data.replace(folder.encode(), instead.encode()) if node.name == name else data

        return ask(nodes, command, stdin=led, **options)

    return asked


def test_a_folder_that_nobody_can_write_is_said_to_be_so(tmp_path: Path) -> None:
    finding = probe_shared_folder(nodes_of("one", "two"), str(tmp_path / "absent"), Transport(client=HERE))
    assert finding.status is Status.FAIL
    why = part(os.strerror(2))
    assert says(say(finding.says), "agree.storage-unwritten", who="one, two", why=why)


def test_the_file_is_removed_even_when_looking_for_it_is_broken_off(tmp_path: Path) -> None:
    from npuenv.cluster.parallel_ssh import ask

    rounds = itertools.count()

    def broken(nodes: Sequence[Node], *args: Any, **options: Any) -> Generator[NodeAnswer, None, None]:
        if next(rounds) == 1:
            raise KeyboardInterrupt
        return ask(nodes, *args, **options)

    with pytest.raises(KeyboardInterrupt):
        probe_shared_folder(nodes_of("one", "two"), str(tmp_path), Transport(client=HERE, ask=broken))
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_tried_says_how_to_let_it_be_tried() -> None:
    assert [(item.check, item.status) for item in skipped_findings()] == [
        ("agree.ports", Status.SKIP),
        ("agree.packets", Status.SKIP),
        ("agree.storage", Status.SKIP),
    ]
    assert ["--level 2" in say(skipped_findings()[0].says), "--shared DIR" in say(skipped_findings()[2].says)] == [
        True,
        True,
    ]


def test_two_listeners_on_one_machine_are_told_from_a_service_by_their_word(tmp_path: Path) -> None:
    """The program as it is, against a real listener of somebody else's and against its own."""
    with socket.create_server(("127.0.0.1", 0)) as service, free_port() as free:
        taken = service.getsockname()[1]
        asked = {"me": "one", "word": "abc", "ports": [taken, free], "targets": {"one": "127.0.0.1"}}
        answer = knocked({**asked, "callers": 1, "limit_s": 8})
    assert answer["reached"] == {"one": {str(taken): "service", str(free): "ok"}}
    assert answer["heard"] == [["one", "0"], ["one", str(free)]]
    assert answer["large"] == {"one": "ok"}
    assert answer["listening"][str(free)] == "opened"


def test_whoever_answers_in_the_place_of_another_node_is_told_from_it() -> None:
    """Its address leads back here, as that of a bridge which every machine has, to our listener or to somebody's."""
    with socket.create_server(("0.0.0.0", 0)) as service, free_port() as free:
        taken = service.getsockname()[1]
        asked = {"me": "one", "word": "abc", "ports": [taken, free], "callers": 0, "limit_s": 8}
        answer = knocked({**asked, "targets": {"two": "127.0.0.1", "three": "127.0.0.2"}})
    assert answer["reached"]["two"] == {str(taken): "answered by one", str(free): "answered by one"}
    assert answer["reached"]["three"][str(free)] == "answered by one"
    assert answer["heard"] == [], "whoever meant another node has not come to this one"


def test_an_answer_of_another_node_is_no_way_to_the_one_that_was_meant() -> None:
    finding = judge(told(lambda source, *_: f"answered by {source}"), probe_schedule(FOUR), PORTS, {})
    assert (finding.status, say(finding.says)) == (Status.FAIL, place("nowhere-all"))
    assert ("a: connect b:6379", "answered by a") in [(line.command, line.line) for line in finding.evidence]


def large(lost: Callable[[str, str], bool]) -> dict[str, dict[str, Any]]:
    """The answers of four nodes whose small messages arrive everywhere."""
    answers = told(lambda *_: "ok")
    for source, each in answers.items():
        each["large"] = {target: "lost" if lost(source, target) else "ok" for target in each["reached"]}
    return answers


@pytest.mark.parametrize(
    ("lost", "kind", "args"),
    [
        (lambda source, target: (source, target) == ("a", "b"), "way-all", {"source": "a", "target": "b"}),
        (lambda source, _: source == "a", "source-all", {"source": "a"}),
        (lambda _, target: target == "c", "target-all", {"target": "c"}),
        (lambda *_: True, "nowhere-all", {}),
        (lambda source, target: (source in "ab") != (target in "ab"), "apart", {"groups": "a, b | c, d"}),
    ],
)
def test_where_small_packets_alone_arrive_the_way_is_named(
    lost: Callable[[str, str], bool], kind: str, args: dict[str, str]
) -> None:
    assert judge(large(lost), probe_schedule(FOUR), PORTS, {}).status is Status.OK
    finding = packets(large(lost), {})
    assert (finding.check, finding.status) == ("agree.packets", Status.FAIL)
    assert say(finding.says) == sentence("agree.packets-lost", places=place(kind, **args))
    assert finding.fix is not None


def test_large_packets_are_judged_only_where_small_ones_arrived_and_an_outcome_is_there() -> None:
    answers = large(lambda *_: False)
    assert (packets(answers, {}).status, packets(answers, {"d": "timed-out"}).status) == (Status.OK, Status.UNKNOWN)
    del answers["b"]["large"]["c"]
    finding = packets(answers, {})
    assert (finding.status, say(finding.says)) == (Status.UNKNOWN, blind("b"))
    answers["b"]["reached"]["c"] = dict.fromkeys(map(str, PORTS), "ETIMEDOUT")
    assert packets(answers, {}).status is Status.OK, "the ports say what is wrong there"
    assert packets(told(lambda *_: "service", "taken"), {}).status is Status.SKIP


def knocked(asked: dict[str, Any]) -> dict[str, Any]:
    """What the program says, with its input open until it has ended. It soon gives up those that say nothing."""
    program = (PROGRAMS / "knock.py").read_text(encoding="utf-8")
    patient = re.search(r"^ATTEMPT_S = [\d.]+", program, re.MULTILINE)
    assert patient
    argv = [sys.executable, "-c", program.replace(patient[0], "ATTEMPT_S = 0.4")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        line = next(line for line in process.stdout if line.startswith("NPUENV-ANSWER "))
        found: dict[str, Any] = json.loads(line.removeprefix("NPUENV-ANSWER "))
        return found


def test_a_node_that_has_not_mounted_the_folder_is_named_and_not_all_the_others() -> None:
    """Its mount point is an ordinary folder that can be written: what it writes there is seen by nobody."""
    kept: dict[str, set[str]] = {}

    def ask(
        nodes: Sequence[Node], _: Any, *, stdin: Callable[[Node], bytes], **__: Any
    ) -> Generator[NodeAnswer, None, None]:
        for node in nodes:
            asked = json.loads(stdin(node).splitlines()[-1])
            disk = kept.setdefault("own" if node.name == "n1" else "nfs", set())
            said = {"write": "written", "remove": "removed"}.get(asked["do"], "missing")
            disk |= {asked["path"]} if asked["do"] == "write" else set()
            said = "found" if asked["do"] == "find" and asked["path"] in disk else said
            disk -= {asked["path"]} if asked["do"] == "remove" else set()
            told = {"said": said, "mount": "/ ext4 /dev/sda1" if node.name == "n1" else "/data nfs4 srv:/data"}
            yield NodeAnswer(node, 0, f"\nNPUENV-ANSWER {json.dumps(told)}\n".encode(), "", 0.1, None)

    found = probe_shared_folder(nodes_of("n1", "n2", "n3", "n4"), "/data", Transport(ask=ask))
    assert say(found.says) == sentence(
        "agree.storage-apart", writer="n2", folder="/data", groups=f"n1: {MISSING}", count=3
    )
    assert [(line.command, line.line) for line in found.evidence] == [
        ("n2: /data (written here)", "(/data nfs4 srv:/data)"),
        ("n1: /data (written on n2)", "missing (/ ext4 /dev/sda1)"),
    ]
    assert kept == {"own": set(), "nfs": set()}, "each has removed its own"


@pytest.mark.slow
@pytest.mark.long
def test_real_hosts_with_a_real_firewall_and_a_pulled_cable(tmp_path: Path) -> None:
    """Three hosts with sshd: all open, then one port dropped, then what one of them sends, then a host that is gone."""
    why = why_not(sshd=True) or (None if shutil.which("iptables") else "there is no iptables here")
    if why:
        pytest.skip(why)
    with machines(tmp_path, 3, sshd=True) as hosts:
        transport = Transport(client=hosts.operator.argv(["ssh"]), options=Options(config=str(hosts.ssh_config)))
        nodes = [Node(host.name, host.name) for host in hosts]
        first = probe(nodes, transport, shared=str(tmp_path))
        assert [(item.status, say(item.says)) for item in first.findings] == [
            (
                Status.OK,
                sentence(
                    "agree.ports-over",
                    says=all_open(3, "6379,8265,10001,23456-23487,60000-60031"),
                    addresses="10.77.0.[1-3]",
                ),
            ),
            (Status.OK, sentence("agree.packets-arrive", tried=6)),
            (Status.OK, sentence("agree.storage-same", folder=tmp_path, count=3)),
        ]
        assert first.identities["node2"].resolved["node3"] == ("10.77.0.3",)
        hosts[1].run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "6379", "-j", "DROP")
        assert words(probe_ports(nodes, first.identities, transport, (6379, 8265))[0]) == place(
            "target", target="node2", ports="6379"
        )
        hosts[1].run("iptables", "-F")
        hosts[0].run("iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", "60000:60015", "-j", "REJECT")
        said = words(probe_ports(nodes, first.identities, transport, (8265, 60000, 60001))[0])
        assert said == place("source", source="node1", ports="60000-60001")
        apart = probe_shared_folder(nodes, "/dev/shm", transport)  # every host has its own
        assert (apart.status, f"node[2-3]: {MISSING}" in say(apart.says)) == (Status.FAIL, True)
        hosts[0].run("iptables", "-F")
        drop = ("-m", "length", "--length", "1400:65535", "-j", "DROP")
        hosts[0].run("iptables", "-A", "OUTPUT", "-d", hosts[1].address, "-p", "tcp", "--dport", "8265", *drop)
        small, full = probe_ports(nodes, first.identities, transport, (8265,))
        assert small.status is Status.OK
        assert words(full) == sentence("agree.packets-lost", places=place("way-all", source="node1", target="node2"))
        hosts[2].unplug()
        last, _ = probe_ports(nodes, first.identities, transport, (8265,))
        elsewhere = sentence("agree.ports-open-else", says=blind("node3"), elsewhere=all_open(2, "8265"))
        assert (last.status, say(last.says)) == (Status.UNKNOWN, elsewhere)


def words(finding: Finding) -> str:
    assert finding.status is Status.FAIL
    return say(finding.says)
