"""`npuenv cluster up|status|down`: what is refused, what is written down, and how it is said.

A real Ray, and real processes, are in `test_ray.py`; what Ray's own answers mean is in `test_ray_seen.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import main
from npuenv.cluster import ray
from npuenv.cluster.inventory import Node, parse
from npuenv.cluster.node_programs import ProbeResult
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.facts.target import text
from npuenv.host.writing import claimed
from tests.support.sentences import part, says, sentence
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.cluster.parallel_ssh import Transport

HERE = ray.NodeState(Node("node1", "node1"), ray="/env/bin/ray", version="2.50.1", python="3.11.7", cards=8)


def on(name: str, **changes: Any) -> ray.NodeState:
    return replace(HERE, **{"node": Node(name, name), **changes})


def started(name: str, cards: int = 8) -> ray.StartedNode:
    processes = ((77, 1, "sh"), (80, 2, "raylet"))
    return ray.StartedNode(Node(name, name, port=22), "boot", 77, processes, cards, "word", f"10.0.0.{name[-1]}")


CLUSTER = ray.Cluster("10.0.0.1:6379", "/env", (started("node1"), started("node2")), "node1", "hosts")
TABLE = "Active:\n 1 node_a\nResources\n-----\nTotal Usage:\n 0.0/{npus} NPU\nTotal Demands:\n (no resource demands)\n"


def running(*names: str) -> dict[str, ProbeResult]:
    """What these nodes say where all runs."""
    return {name: ProbeResult(Node(name, name), {"running": ["gcs_server", "raylet"]}, 0.0, 1.0) for name in names}


def ray_says(*alive: str, dead: Sequence[str] = (), cards: int = 8) -> ProbeResult:
    """What Ray's list of nodes and its table say."""
    rows = [{"address": each, "is_alive": True, "total": {"NPU": cards}, "free": {}, "why": ""} for each in alive]
    rows += [{"address": each, "is_alive": False, "total": {}, "free": None, "why": "no heartbeat"} for each in dead]
    table = TABLE.format(npus=float(cards * len(alive)))
    out = {"nodes": f"RAY-NODES {json.dumps(rows)}\n", "table": table}
    told = {name: {"code": 0, "out": text, "err": "", "timed_out": False} for name, text in out.items()}
    return ProbeResult(Node("node1", "node1"), told, 0.0, 1.0)


def test_nodes_that_fit_together_are_not_refused() -> None:
    assert ray.start_conflicts([on("node1"), on("node2"), on("node3")]) == []


@pytest.mark.parametrize(
    ("changes", "key", "args"),
    [
        ({"version": "2.48.0"}, "versions", {"ray": "2.48.0", "python": "3.11.7", "common_ray": "2.50.1"}),
        ({"python": "3.10.9"}, "versions", {"ray": "2.50.1", "python": "3.10.9"}),
        ({"version": "", "python": ""}, "version-unknown", {}),
        ({"python": ""}, "version-unknown", {}),
        ({"ray": "", "version": "", "python": ""}, "absent", {}),
        ({"running": ("gcs_server", "raylet")}, "runs-already", {}),
        ({"why_not": "Connection refused"}, "silent", {}),
    ],
)
def test_a_node_that_would_not_come_up_is_named_before_a_start(
    changes: dict[str, Any], key: str, args: dict[str, str]
) -> None:
    (wrong,) = ray.start_conflicts([on("node1"), on("node2", **changes), on("node3")])
    assert (wrong.nodes, wrong.says.key) == (("node2",), f"cluster.ray-{key}")
    assert args.items() <= wrong.says.args.items()
    assert say(wrong.says)


@pytest.mark.parametrize(("seen", "wanted", "is_refused"), [(4, 8, True), (8, 4, True), (8, 8, False), (0, 8, False)])
def test_other_cards_than_the_inventory_says_are_not_started(seen: int, wanted: int, is_refused: bool) -> None:
    """A node that sees none at all is told the inventory's number: its devices may be where nobody sees them."""
    odd = on("node2", node=Node("node2", "node2", cards=wanted), cards=seen)
    wrong = ray.start_conflicts([on("node1"), odd, on("node3")])
    assert [(each.nodes, each.says.key, each.says.args["found"]) for each in wrong] == (
        [(("node2",), "cluster.ray-cards-other", seen)] if is_refused else []
    )


def test_two_names_of_one_machine_are_not_both_started() -> None:
    """Containers with a network of their own on one machine are two nodes."""
    one, two = (on(name, boot="b", network="net:[1]") for name in ("node1", "10.0.0.1"))
    (wrong,) = ray.start_conflicts([one, two, on("node3", boot="b", network="net:[2]"), on("node4"), on("node5")])
    assert (wrong.nodes, wrong.says.key) == (("node1", "10.0.0.1"), "cluster.ray-one-machine")


def test_what_was_started_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "clusters" / "x.json"
    assert ray.load(path) is None
    ray.save(CLUSTER, path)
    assert ray.load(path) == CLUSTER and CLUSTER.cards == 16
    path.write_text('{"schema": "other"}')
    with pytest.raises(BadInput):
        ray.load(path)


@pytest.mark.usefixtures("home")
def test_wrong_usage_is_said_before_anybody_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node[1-2]\n")
    cases: tuple[tuple[list[str], str, dict[str, str]], ...] = (
        (["up"], "ray-hosts", {}),
        (["up", "--hosts", str(hosts), "--head", "node9"], "ray-no-head", {"name": "node9"}),
        (["up", "--hosts", str(hosts), "--ssh-config", "/no/config"], "no-ssh-config", {"path": "/no/config"}),
        (["status"], "ray-none-at-all", {}),
        (["down"], "ray-none-at-all", {}),
        (["down", "--hosts", str(hosts)], "ray-none", {}),
        (["down", "--hosts", "/no/file"], "no-inventory", {"path": "/no/file"}),
        (["status", "--hosts", "/no/file"], "no-inventory", {"path": "/no/file"}),
        (["status", "--hosts", "/dev/null"], "no-nodes", {"source": "/dev/null"}),
    )
    for words, key, args in cases:
        assert main(["cluster", *words]) == 2
        assert says(capsys.readouterr().err, f"cluster.{key}", **args)


@pytest.fixture
def hosts(home: Path, tmp_path: Path) -> Path:
    """An inventory of three nodes."""
    assert home
    path = tmp_path / "hosts"
    path.write_text("node[1-3]\n")
    return path


def keep(cluster: ray.Cluster, hosts: Path) -> Path:
    """Writes down that a cluster was started on an inventory, and says where."""
    place = ray.state_path(str(hosts), os.environ)
    ray.save(replace(cluster, source=str(hosts)), place)
    return place


def cluster_command(*words: str, hosts: Path | None = None) -> int:
    return main(["cluster", *words, *(["--hosts", str(hosts)] if hosts else [])])


def test_up_again_starts_only_the_nodes_that_are_missing(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = keep(CLUSTER, hosts)
    asked = []

    def start(
        plan: ray.StartPlan,
        found: Sequence[ray.NodeState],
        way: Transport,
        note: Callable[[ray.StartedNode], object],
    ) -> Any:
        asked.append(([node.name for node in plan.nodes], [here.node.name for here in found], plan.port, plan.ray))
        note(ray.StartedNode(found[0].node, mark="word"))
        yield started("node3")

    monkeypatch.setattr(ray, "start", start)
    monkeypatch.setattr(ray, "survey", lambda nodes, *_: [on(node.name, node=node, running=()) for node in nodes])
    monkeypatch.setattr(
        ray, "query_processes", lambda cluster, _: running(*(each.node.name for each in cluster.started))
    )
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert cluster_command("up", hosts=hosts) == 0
    said = capsys.readouterr()
    assert asked == [(["node1", "node3"], ["node3"], 6379, "/env")]
    assert says(said.err, "cluster.ray-is-up", address="10.0.0.1:6379")
    for number in (1, 2, 3):
        node = {"name": f"node{number}", "address": f"10.0.0.{number}"}
        assert says(said.out, "cluster.ray-node-up-cards", used=8, total=8, **node)
    assert [each.node.name for each in ray.load(place).started] == ["node1", "node2", "node3"]  # type: ignore[union-attr]
    assert cluster_command("up", hosts=hosts) == 0
    assert len(asked) == 1


def test_without_its_head_a_cluster_is_not_gone_on_with(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(CLUSTER, hosts)
    heard = {**running("node2"), "node1": ProbeResult(Node("node1", "node1"), {"running": ["raylet"]}, 0.0, 1.0)}
    monkeypatch.setattr(ray, "query_processes", lambda *_: heard)
    assert cluster_command("up", hosts=hosts) == 1
    down, up = (f"npuenv cluster {verb} --hosts {hosts}" for verb in ("down", "up"))
    headless = sentence("cluster.ray-headless", names="node2", down=down, up=up)
    assert sentence("cluster.ray-refused", names="node1", says=headless) in capsys.readouterr().out
    assert cluster_command("status", hosts=hosts) == 1
    out = capsys.readouterr().out
    not_up = sentence("cluster.ray-node-not-up", name="node1", line=sentence("cluster.ray-no-gcs"))
    assert not_up in out and says(out, "cluster.ray-next-headless", down=down)


def test_an_unheard_node_of_an_earlier_start_is_not_forgotten(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = keep(CLUSTER, hosts)
    unheard = {
        "node1": running("node1")["node1"],
        "node2": ProbeResult(Node("node2", "node2"), None, 0.0, 1.0, "No route"),
    }
    unheard["node1"] = replace(unheard["node1"], answer={"running": []})
    monkeypatch.setattr(ray, "query_processes", lambda *_: unheard)
    assert cluster_command("up", hosts=hosts) == 1
    out = capsys.readouterr().out
    left = sentence("cluster.ray-left", down=f"npuenv cluster down --hosts {hosts}", place=place)
    assert sentence("cluster.ray-refused", names="node2", says=left) in out
    ended = {"node1": replace(unheard["node1"], answer={"ended": 7, "left": 0, "known": 2}), "node2": unheard["node2"]}
    monkeypatch.setattr(ray, "stop", lambda *_: ended)
    assert cluster_command("down", hosts=hosts) == 1
    out = capsys.readouterr().out
    assert sentence("cluster.ray-node-down", name="node1", ended=7) in out
    assert sentence("cluster.ray-node-not-down", name="node2", line="No route") in out
    assert says(out, "cluster.ray-next-down", down=part("npuenv"))
    kept = ray.load(place)
    assert kept is not None and [each.node.name for each in kept.started] == ["node2"] and kept.head_node is None


@pytest.mark.parametrize(
    ("told", "line", "begun"),
    [
        ({}, None, ["node1", "node2"]),
        ({"told": None, "why": "Connection closed"}, "Connection closed", ["node1", "node2", "node3"]),
        ({"processes": [], "said": "no", "left": 1}, "no", ["node1", "node2", "node3"]),
        ({"processes": [], "said": "no", "left": 0}, "no", ["node1", "node3"]),
    ],
)
def test_what_nobody_has_heard_the_end_of_is_written_down(
    hosts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, Any],
    line: str | None,
    begun: list[str],
) -> None:
    """An interrupt while node2 starts, a connection that breaks there, and a failure that could not be tidied up."""
    asked = []

    def run(nodes: Sequence[Node], program: str, asking: Callable[[Node], dict[str, Any]], **_: Any) -> Any:
        words = asking(nodes[0])
        asked.append(words)
        if nodes[0].name == "node2" and words["do"] == "start" and not told:
            raise KeyboardInterrupt
        where = {"boot": "b", "session": 9, "address": f"10.0.0.{nodes[0].name[-1]}"}
        answer = {"processes": [[10, 1, "raylet"]], "said": "", "left": 0, **where}
        is_odd = nodes[0].name == "node2" and words["do"] == "start"
        found = {**answer, **told} if is_odd else answer
        yield ProbeResult(
            nodes[0], None if found.get("told", 1) is None else found, 0.0, 1.0, str(found.get("why", ""))
        )

    def alive(cluster: ray.Cluster, _: Transport) -> dict[str, ProbeResult]:
        found = running(*(each.node.name for each in cluster.started if each.processes))
        idle = (each.node for each in cluster.started if not each.processes)
        return found | {node.name: ProbeResult(node, {"running": []}, 0.0, 1.0) for node in idle}

    monkeypatch.setattr(ray, "survey", lambda nodes, *_: [on(node.name, node=node) for node in nodes])
    monkeypatch.setattr(ray, "run_program", run)
    monkeypatch.setattr(ray, "query_processes", alive)
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert cluster_command("up", hosts=hosts) == (1 if told else 130)
    err = capsys.readouterr().err
    if line is None:
        assert says(err, "cluster.ray-broken-both", names="node1", begun="node2")
    else:
        assert says(err, "cluster.ray-failed", name="node2", line=line)
    left = ray.load(ray.state_path(str(hosts), os.environ))
    assert left is not None and sorted(each.node.name for each in left.started) == begun
    words = [words["mark"] for words in asked if words["do"] == "start"]
    known = {each.node.name: each for each in left.started}
    assert len(set(words)) == len(words) and known["node1"].mark == words[0]
    if "node2" in known:
        assert (known["node2"].mark, known["node2"].processes) == (words[1], ())


def test_a_busy_cluster_is_well_and_what_waits_is_said(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_text("node[1-2]\n")
    keep(CLUSTER, hosts)
    monkeypatch.setattr(ray, "query_processes", lambda *_: running("node1", "node2"))
    codes = []
    for need in (8, 9):
        said = ray_says("10.0.0.1", "10.0.0.2")
        assert said.answer is not None
        waits = f"{{'NPU': {need}.0}}: 1+ pending tasks/actors"
        table = said.answer["table"] | {"out": said.answer["table"]["out"].replace("(no resource demands)", waits)}
        monkeypatch.setattr(
            ray, "query_ray", lambda *_, table=table, said=said: replace(said, answer=said.answer | {"table": table})
        )
        codes.append(cluster_command("status", "--json", hosts=hosts))
        document = json.loads(capsys.readouterr().out)
        assert (len(document["waiting"]), len(document["explained"])) == ((1, 0) if need == 8 else (0, 1))
    assert codes == [0, 1]


@pytest.mark.parametrize(
    ("stopped", "alive", "dead", "line", "then"),
    [
        ([[80, "raylet"]], ["10.0.0.1", "10.0.0.2"], (), "stopped", "stopped"),
        ([[80, "raylet"]], ["10.0.0.1"], ("10.0.0.2",), "stopped", "stopped"),
        ([], ["10.0.0.1"], ("10.0.0.2",), "lost-here", "lost"),
        ([], ["10.0.0.1"], (), "lost-here", "lost"),  # it has never joined this head
    ],
)
def test_a_node_that_only_seems_to_run_is_not_up_and_the_next_command_is_named(
    hosts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stopped: list[list[object]],
    alive: Sequence[str],
    dead: Sequence[str],
    line: str,
    then: str,
) -> None:
    """A raylet that a signal holds is there, and so is one that Ray has given up."""
    hosts.write_text("node[1-2]\n")
    keep(CLUSTER, hosts)
    heard = running("node1", "node2")
    heard["node2"] = replace(heard["node2"], answer={**(heard["node2"].answer or {}), "stopped": stopped})
    monkeypatch.setattr(ray, "query_processes", lambda *_: heard)
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says(*alive, dead=dead))
    assert cluster_command("status", hosts=hosts) == 1
    told = capsys.readouterr().out
    args = {"pids": "80", "names": "raylet"} if stopped else {}
    says_why = sentence(f"cluster.ray-{line}", **args)
    assert sentence("cluster.ray-node-not-up", name="node2", line=says_why) in told
    assert says(told.splitlines()[-1], f"cluster.ray-next-{then}")


def test_what_holds_cards_after_its_program_has_ended_is_named_with_what_ends_it(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_text("node[1-2]\n")
    keep(CLUSTER, hosts)
    monkeypatch.setattr(ray, "query_processes", lambda *_: running("node1", "node2"))
    actor = {"kind": "actor", "type": "Worker", "pid": 900, "address": "10.0.0.2", "total": {"NPU": 4.0}}
    left: list[object] = [
        {**actor, "name": "roll'out", "namespace": "verl"},
        {**actor, "name": "", "namespace": "verl"},
        {"kind": "group", "name": "pool", "id": "0a01", "total": {"NPU": 8.0}},
    ]

    def told(rows: object) -> ProbeResult:
        said = ray_says("10.0.0.1", "10.0.0.2")
        assert said.answer is not None
        out = f"RAY-LEFT {json.dumps(rows)}\n{said.answer['nodes']['out']}"
        return replace(said, answer={**said.answer, "nodes": {**said.answer["nodes"], "out": out}})

    monkeypatch.setattr(ray, "query_ray", lambda *_: told(left))
    assert cluster_command("status", "--json", hosts=hosts) == 0
    named, nameless, group = json.loads(capsys.readouterr().out)["warnings"]
    assert says(named, "cluster.ray-left-actor", name="roll'out", count="4", address="10.0.0.2", pid="900")
    code = shlex.split(named[named.index("`") + 1 : named.rindex("`")])[-1]
    assert code == 'import ray; ray.init("10.0.0.1:6379"); ray.kill(ray.get_actor("roll\'out", "verl"))'
    assert says(nameless, "cluster.ray-left-actor-unnamed", pid="900")
    assert says(group, "cluster.ray-left-group", name="pool", count="8") and 'fromhex("0a01")' in group
    for unread in ("no such table", [{"kind": "actor"}], [{"kind": "actor", "total": {"NPU": 0}}], None):
        monkeypatch.setattr(ray, "query_ray", lambda *_, unread=unread: told(unread))
        assert cluster_command("status", "--json", hosts=hosts) == 0
        assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_a_head_whose_server_is_stopped_is_not_asked(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_text("node[1-2]\n")
    keep(CLUSTER, hosts)
    heard = running("node1", "node2")
    heard["node1"] = replace(heard["node1"], answer={**(heard["node1"].answer or {}), "stopped": [[79, "gcs_server"]]})
    monkeypatch.setattr(ray, "query_processes", lambda *_: heard)
    monkeypatch.setattr(ray, "query_ray", lambda *_: pytest.fail("it would wait for an answer"))
    assert cluster_command("status", hosts=hosts) == 1
    assert says(capsys.readouterr().out.splitlines()[-1], "cluster.ray-next-stopped")


def test_a_server_that_a_signal_holds_is_seen_on_the_node(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "", raylet)
    with subprocess.Popen([raylet, "60"]) as process:
        began = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        asked = {"do": "alive", "boot": "", "session": 0, "processes": [[process.pid, began, "raylet"]], "mark": ""}

        def stopped() -> object:
            program = [sys.executable, "-c", text("ray_node")]
            ran = subprocess.run(program, input=json.dumps(asked) + "\n", capture_output=True, text=True, check=True)
            told = json.loads(ran.stdout.partition("NPUENV-ANSWER ")[2])
            assert told["running"] == ["raylet"]
            return told["stopped"]

        try:
            assert until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "raylet\n")
            assert stopped() == []
            process.send_signal(signal.SIGSTOP)
            assert until(lambda: stopped() == [[process.pid, "raylet"]])
        finally:
            process.kill()


def test_cards_without_cann_are_said_also_where_only_what_went_wrong_is_to_be_said(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.write_text("node[1-2]\n")
    keep(CLUSTER, hosts)
    heard = running("node1", "node2")
    assert heard["node2"].answer is not None
    heard["node2"] = replace(heard["node2"], answer={**heard["node2"].answer, "without_cann": True})
    monkeypatch.setattr(ray, "query_processes", lambda *_: heard)
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says("10.0.0.1", "10.0.0.2"))
    assert cluster_command("status", "-q", hosts=hosts) == 0
    assert says(capsys.readouterr().out, "cluster.ray-without-cann", names="node2")
    assert cluster_command("status", "--json", hosts=hosts) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1


def test_what_is_left_of_a_start_and_would_not_end_is_not_taken_for_somebody_elses(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The head's raylet is gone, and its gcs_server hangs."""
    place = keep(CLUSTER, hosts)
    rest = {
        name: ProbeResult(Node(name, name), {"running": each}, 0.0, 1.0)
        for name, each in (("node1", ["gcs_server"]), ("node2", []))
    }
    monkeypatch.setattr(ray, "query_processes", lambda *_: rest)
    ended = {
        name: replace(each, answer={"ended": 1, "left": int(name == "node1"), "known": 1})
        for name, each in rest.items()
    }
    monkeypatch.setattr(ray, "stop", lambda *_: ended)
    assert cluster_command("up", hosts=hosts) == 1
    out = capsys.readouterr().out
    stuck = sentence("cluster.ray-stuck", down=f"npuenv cluster down --hosts {hosts}")
    assert sentence("cluster.ray-refused", names="node1", says=stuck) in out
    assert f"node1: {sentence('cluster.ray-processes-left', count=1)}" in out and "node2" not in out
    assert ray.load(place) == replace(CLUSTER, source=str(hosts))


def test_a_node_that_is_taken_out_of_the_inventory_while_it_is_silent_is_not_forgotten(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = keep(CLUSTER, hosts)
    hosts.write_text("node1\n")
    heard = {"node1": replace(running("node1")["node1"], answer={"running": []})}
    heard["node2"] = ProbeResult(Node("node2", "node2"), None, 0.0, 1.0, "No route to host")
    monkeypatch.setattr(ray, "query_processes", lambda *_: heard)
    assert cluster_command("up", hosts=hosts) == 1
    left = sentence("cluster.ray-left", down=f"npuenv cluster down --hosts {hosts}", place=place)
    assert sentence("cluster.ray-refused", names="node2", says=left) in capsys.readouterr().out
    assert ray.load(place) == replace(CLUSTER, source=str(hosts))


@pytest.mark.parametrize(
    ("login", "given", "address"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("", "", "node1"),
        ("10.0.0.1", "10.20.0.1", "10.20.0.1"),  # one of its own, in another network
        ("10.0.0.1", "192.0.2.1", "10.0.0.1"),  # of something in between: nobody listens there
    ],
)
def test_the_others_reach_the_head_by_its_own_address_and_not_by_a_name_of_ssh(
    hosts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    login: str,
    given: str,
    address: str,
) -> None:
    if given:
        hosts.write_text(f"node1 address={given}\nnode[2-3]\n")
    asked = []

    def run(nodes: Sequence[Node], program: str, asking: Callable[[Node], dict[str, Any]], **_: Any) -> Any:
        asked.append(asking(nodes[0]))
        answer = {"processes": [[10, 1, "raylet"]], "said": "", "left": 0, "boot": "b", "session": 9}
        yield ProbeResult(nodes[0], {**answer, "address": f"10.0.0.{nodes[0].name[-1]}"}, 0.0, 1.0)

    found: dict[str, dict[str, Any]]
    found = {"node1": {"login": login, "is_own": given == address}, "node2": {"login": "10.0.0.2"}, "node3": {}}
    monkeypatch.setattr(
        ray, "survey", lambda nodes, *_: [on(each.name, node=each, **found[each.name]) for each in nodes]
    )
    monkeypatch.setattr(ray, "run_program", run)
    monkeypatch.setattr(ray, "query_processes", lambda *_: running("node1", "node2", "node3"))
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert cluster_command("up", hosts=hosts) == 0
    assert [words["address"] for words in asked if words["do"] == "start"] == [address] * 3
    left = ray.load(ray.state_path(str(hosts), os.environ))
    assert left is not None and left.address == f"{address}:6379"
    is_said = says(capsys.readouterr().err, "cluster.ray-other-address", address=given, login="10.0.0.1")
    assert is_said == (bool(given) and given != address)


def test_a_ray_of_somebody_else_is_said_and_left_alone(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there: dict[str, dict[str, Any]] = {
        "node1": {"running": ("gcs_server", "raylet"), "joined": ("10.0.0.1:6380",)},
        "node3": {"why_not": "gone"},
    }
    monkeypatch.setattr(ray, "survey", lambda nodes, *_: [on(each.name, **there.get(each.name, {})) for each in nodes])
    assert cluster_command("status", hosts=hosts) == 1
    out = capsys.readouterr().out
    assert sentence("cluster.ray-none-for", source=hosts) in out
    assert sentence("cluster.ray-node-other", name="node1", address="10.0.0.1:6380") in out
    assert sentence("cluster.ray-node-free", name="node2") in out
    assert sentence("cluster.ray-node-not-up", name="node3", line="gone") in out
    assert cluster_command("status", "--json", hosts=hosts) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"]["node1"] == {"is_up": False, "others": ["10.0.0.1:6380"]}


def test_inventories_with_other_nodes_do_not_touch_each_other(
    hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other, shared = tmp_path / "other", tmp_path / "shared"
    other.write_text("node[8-9]\n")
    shared.write_text("node2 port=22 cards=8\n")
    mine, theirs = keep(CLUSTER, hosts), keep(replace(CLUSTER, started=(started("node8"),), head="node8"), other)
    monkeypatch.setattr(
        ray, "query_processes", lambda cluster, _: running(*(each.node.name for each in cluster.started))
    )
    monkeypatch.setattr(ray, "query_ray", lambda *_: ray_says("10.0.0.8"))
    assert cluster_command("status", hosts=other) == 1
    not_started = sentence("cluster.ray-not-started")
    assert sentence("cluster.ray-node-not-up", name="node9", line=not_started) in capsys.readouterr().out
    assert cluster_command("status") == 2
    one_of = capsys.readouterr().err.replace(f"{other}, {hosts}", f"{hosts}, {other}")
    assert says(one_of, "cluster.ray-several-hint", sources=f"{hosts}, {other}")
    busy = on("node2", node=Node("node2", "node2", port=22), running=("raylet",))
    monkeypatch.setattr(ray, "survey", lambda *_: [busy])
    for verb, code in (("up", 1), ("status", 1), ("down", 2)):
        assert cluster_command(verb, hosts=shared) == code
        said = capsys.readouterr()
        assert f"npuenv cluster {'status' if verb == 'status' else 'down'} --hosts {hosts}`" in said.out + said.err
    ended = ProbeResult(Node("node8", "node8"), {"ended": 7, "left": 0, "known": 2}, 0.0, 1.0)
    monkeypatch.setattr(ray, "stop", lambda *_: {"node8": ended})
    assert cluster_command("down", hosts=other) == 0
    assert mine.exists() and not theirs.exists()


def test_what_stdin_names_is_known_again_by_its_nodes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home
    one, same, another = (parse(text, "-") for text in ("node[1-2]", "node1\nnode2  # as above", "node[1-3]"))
    assert ray.state_path(one, os.environ) == ray.state_path(same, os.environ)
    assert ray.state_path(one, os.environ) != ray.state_path(another, os.environ)


def test_a_head_by_ip_version_6_is_refused_in_one_sentence(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts.write_text("head address=fd00::1\nnode2 address=10.0.0.2\n")
    assert cluster_command("up", hosts=hosts) == 2
    assert says(capsys.readouterr().err, "cluster.ray-head-six", name="head", address="fd00::1")


def test_only_one_command_at_a_time_starts_or_ends(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = keep(CLUSTER, hosts)
    with claimed(str(place.with_suffix(".lock"))) as is_mine:
        assert is_mine
        for verb in ("up", "down"):
            assert cluster_command(verb, hosts=hosts) == 1
            assert sentence("cluster.ray-busy") in capsys.readouterr().err


def test_what_a_node_says_cannot_paint_the_terminal(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "survey", lambda *_: [on("node1"), on("node2", why_not="\x1b[31mred")])
    assert main(["cluster", "up", "--hosts", str(hosts)]) == 1
    out = capsys.readouterr().out
    assert "node2: \\x1b[31mred" in out and "\x1b" not in out
