"""`npuenv doctor --hosts`: every planted trouble is named, a uniform cluster gives no alarm, and the forms agree."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import jsonschema
import pytest

import npuenv.report
from npuenv.checks import Finding, Status
from npuenv.cli import main
from npuenv.cluster import parallel_ssh
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_results import ClusterReport, NodeReport
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.messages import Message, say
from npuenv.report.cluster import render, says_of
from npuenv.report.terminal import Manner, Page
from tests.cluster.scripted import Impatient, Nodes
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import part, says, sentence
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.usefixtures("home")
ROOT = Path(__file__).parents[2]
SCHEMA = Path(npuenv.report.__file__).parent / "schemas" / "cluster-1.schema.json"
# Every kind of the scripted client that gives no capture -> the trouble and the exit code of that node.
SILENT = {
    "unreachable": ("unreachable", 1),
    "silent-net": ("unreachable", 1),
    "jump-gone": ("unreachable", 1),
    "refused": ("refused", 1),
    "through-jump": ("refused", 1),
    "not-found": ("not-found", 1),
    "denied": ("denied", 3),
    "unknown-key": ("host-key", 3),
    "changed-key": ("host-key-changed", 3),
    "banner": ("unreachable", 1),
    "closed": ("broken", 1),
    "config": ("client", 3),
    "no-python": ("no-python", 3),
    "old": ("too-old", 3),
    "dies": ("broken", 1),
    "slow": ("timed-out", 1),
    "full": ("broken", 1),
    "half": ("broken", 1),
    "garbles": ("broken", 1),
    "hangs": ("timed-out", 1),
}


def ask(nodes: Nodes, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of one run."""
    capsys.readouterr()
    code = main(["doctor", "--hosts", str(nodes.inventory), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def troubles(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: node["trouble"]["kind"] for name, node in document["nodes"].items() if node["trouble"]}


def test_a_uniform_cluster_gives_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 4, {"node03": "greets"})
    code, document = ask(nodes, capsys, "--for", "roll")
    assert (code, document["exit"], document["schema"]) == (0, 0, "npuenv.cluster/1")
    assert list(document["nodes"]) == nodes.names
    assert document["summary"] == {"nodes": 4, "fine": 4, "problems": 0, "unknown": 0, "silent": 0}
    alarms = [each for each in document["agreement"]["findings"] if each["status"] in ("fail", "warn")]
    assert alarms == [] and document["agreement"]["summary"]["ok"] > 20
    assert main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("count", "apart"), [(24, 1), pytest.param(64, 3, marks=pytest.mark.long)])
@pytest.mark.slow
def test_of_many_nodes_with_every_trouble_planted_each_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, apart: int
) -> None:
    kinds = {f"node{apart * at + 2:02}": kind for at, kind in enumerate(SILENT)}
    nodes = Nodes(tmp_path, monkeypatch, count, kinds, machine="cpu-debian")
    monkeypatch.setattr(parallel_ssh, "time", Impatient(nodes, [name for name in kinds if kinds[name] == "hangs"]))
    code, document = ask(nodes, capsys, "--for", "cpu", "--limit", "90")
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert troubles(document) == {name: SILENT[kind][0] for name, kind in kinds.items()}
    assert {name: document["nodes"][name]["exit"] for name in kinds} == {
        name: SILENT[kind][1] for name, kind in kinds.items()
    }
    assert all(
        document["nodes"][name]["trouble"]["line"] for name, kind in kinds.items() if kind not in ("slow", "hangs")
    )
    assert (code, document["summary"]["silent"], document["summary"]["fine"]) == (1, 20, count - 20)
    assert document["agreement"]["summary"]["fail"] == 0, "those that answered agree"


@pytest.mark.slow
def test_the_text_folds_what_is_alike_and_names_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 4, {"node02": "refused", "node04": "changed-key"})
    assert main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll"]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "npuenv doctor  4 nodes: node[01-04]"
    assert any("node[01,03] (2)" in line for line in lines)
    refused = sentence("cluster.trouble-refused", address="node02")
    assert f"FAIL    {silent('node02', 1, refused)}" in lines
    assert any("ssh: connect to host node02 port 22: Connection refused" in line for line in lines)
    assert f"unknown {silent('node04', 1, sentence('cluster.trouble-host-key-changed'))}" in lines
    assert says(said.out, "cluster.summary", fine=2, nodes=4, silent=2)
    assert says(lines[-1], "cluster.next-host-key-changed", name="node04")
    assert "[4/4]" in said.err
    assert main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll", "--lang", "zh"]) == 1
    assert sentence("cluster.trouble-host-key-changed", "zh") in capsys.readouterr().out


def silent(names: str, count: int, says: str) -> str:
    return sentence("cluster.node-silent", names=names, count=count, says=says)


def test_nodes_that_are_silent_alike_are_told_with_all_their_addresses() -> None:
    judged = [
        NodeReport(Node(f"node{n}", f"10.0.0.{n}", port=2222), failure=NodeFailure.CHANGED_KEY, line="?")
        for n in range(1, 4)
    ]
    unknown = [replace(each, failure=NodeFailure.NOT_FOUND) for each in judged]
    nowhere = sentence("cluster.trouble-not-found", address="10.0.0.[1-3]")
    assert say(says_of(unknown)[1]) == silent("node[1-3]", 3, nowhere)
    page = Page(is_terminal=False)
    said = render(ClusterReport(tuple(judged), why_no_agreement=Message("cluster.one-node")), page, Manner())
    assert "`ssh-keygen -R '[10.0.0.1]:2222'`" in said


def test_what_could_not_be_told_between_nodes_is_counted_and_shown_when_quiet() -> None:
    unknown = Finding("agree.names", Status.UNKNOWN, Message("agree.blind", {"who": "node2"}), (), "npuenv", None)
    verdict = ClusterReport((NodeReport(Node("node1", "node1")), NodeReport(Node("node2", "node2"))), (unknown,))
    said = render(verdict, Page(is_terminal=False), Manner(is_quiet=True))
    assert says(said, "agree.blind", who="node2")
    assert says(said, "cluster.summary", apart=0, warn=0, unknown=1)


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ({"node02": "denied"}, 3),
        ({"node02": "no-python"}, 3),
        ({"node02": "refused"}, 1),
        ({"node01": "denied", "node02": "unreachable"}, 1),
        ({"node01": "denied", "node02": "denied", "node03": "denied"}, 3),
    ],
)
@pytest.mark.slow
def test_a_dead_node_is_a_problem_and_one_that_could_not_be_asked_is_unknown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kinds: dict[str, str],
    code: int,
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, kinds, machine="cpu-debian")
    assert ask(nodes, capsys, "--for", "cpu")[0] == code


def test_one_node_that_answers_has_nothing_to_agree_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 2, {"node02": "denied"})
    _, document = ask(nodes, capsys)
    assert document["agreement"] == {**document["agreement"], "skipped": sentence("cluster.one-node"), "findings": []}


@pytest.mark.parametrize("old", [["node02"], ["node01", "node02", "node03"]])
@pytest.mark.slow
def test_nodes_with_an_old_python_take_part_in_what_is_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], old: list[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, dict.fromkeys(old, "old"), machine="cpu-debian")
    code, document = ask(nodes, capsys, "--for", "cpu")
    assert (code, troubles(document)) == (3, dict.fromkeys(old, "too-old"))
    found = {each["check"]: each for each in document["agreement"]["findings"]}
    assert {name: found[f"agree.{name}"]["status"] for name in ("names", "clock")} == {"names": "ok", "clock": "ok"}
    assert "3" in found["agree.names"]["says"] and "3" in found["agree.clock"]["says"], "of all three"
    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_a_configuration_that_keeps_no_keys_is_said_to_be_the_reason() -> None:
    silent = NodeReport(
        Node("node1", "node1"), failure=NodeFailure.NO_KEYS, line="No ED25519 host key is known for node1"
    )
    said = render(
        ClusterReport((silent,), why_no_agreement=Message("cluster.one-node")), Page(is_terminal=False), Manner()
    )
    assert "UserKnownHostsFile /dev/null" in said and "--ssh-config FILE" in said
    assert silent.code == 3


@pytest.mark.slow
def test_a_node_is_judged_exactly_as_its_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, {"node02": "dies"})
    saved = tmp_path / "saved"
    words = ["--for", "roll"]
    code, document = ask(nodes, capsys, *words, "--save", str(saved))
    assert sorted(path.name for path in saved.iterdir()) == ["node01.json", "node03.json", "nodes.json"]
    assert (saved / "node03.json").read_text() == (tmp_path / "captures" / "node03.json").read_text()
    main(["doctor", "--from", str(saved / "node01.json"), "--json", *words])
    alone = json.loads(capsys.readouterr().out)
    assert alone["findings"] == document["nodes"]["node01"]["findings"]
    assert main(["doctor", "--from", str(saved), "--json", *words]) == code
    again = json.loads(capsys.readouterr().out)
    assert again["nodes"] == document["nodes"], "as it was, the node that died included"
    assert again["summary"] == document["summary"]
    told_live = ("agree.hostname", "agree.names", "agree.clock", "agree.ports", "agree.packets", "agree.storage")
    first, second = (
        [each for each in found["agreement"]["findings"] if each["check"] not in told_live]
        for found in (document, again)
    )
    assert first == second and len(first) > 20
    (saved / "nodes.json").unlink()
    assert main(["doctor", "--from", str(saved), "--json", *words]) == 0
    assert list(json.loads(capsys.readouterr().out)["nodes"]) == ["node01", "node03"]


@pytest.mark.slow
def test_cards_are_counted_against_the_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 4, {})
    bare = tmp_path / "captures" / "node04.json"
    bare.write_text(
        (Path(__file__).parents[1] / "support" / "hosts" / "no_card.json").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    nodes.inventory.write_text("node01 slots=8\nnode02 cards=16\nnode[03-04] cards=0\n")
    code, document = ask(nodes, capsys, "--for", "roll")
    found = {
        name: [each["status"] for each in node["findings"] if each["check"] == "cluster.cards"]
        for name, node in document["nodes"].items()
    }
    assert (code, found) == (1, {"node01": ["ok"], "node02": ["fail"], "node03": ["warn"], "node04": ["ok"]})
    assert document["nodes"]["node04"]["exit"] == 0, "it is to have none, and has none"


@pytest.mark.slow
def test_what_differs_between_nodes_is_named_with_the_odd_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, {})
    odd = tmp_path / "captures" / "node03.json"
    odd.write_text(odd.read_text().replace("25.3.rc1", "25.2.0"))
    code, document = ask(nodes, capsys, "--for", "roll")
    found = {each["check"]: each for each in document["agreement"]["findings"]}
    assert (code, found["agree.driver"]["status"]) == (0, "warn")
    assert "node03: 25.2.0" in found["agree.driver"]["says"] and "25.3.rc1" in found["agree.driver"]["says"]
    assert main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll"]) == 0
    assert says(capsys.readouterr().out, "cluster.summary", apart=0, warn=1)


@pytest.mark.slow
def test_where_only_nodes_together_fail_the_next_command_looks_at_all_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, {})
    odd = tmp_path / "captures" / "node03.json"
    odd.write_text(re.sub(r"(tls_enable_\d)=0", r"\1=1", odd.read_text()))
    assert main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll"]) == 1
    again = shlex.join(["npuenv", "doctor", "--hosts", str(nodes.inventory), "--for", "roll"])
    assert says(capsys.readouterr().out.splitlines()[-1], "cluster.next-between", command=again)


@pytest.mark.slow
def test_a_published_stack_is_judged_on_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 2, {})
    _, document = ask(nodes, capsys, "--stack", "roll-guide-cann8.3.RC1")
    checks = {each["check"] for each in document["nodes"]["node01"]["findings"] if each["status"] != "skip"}
    assert any(check.startswith("stack.") for check in checks)
    before = len(nodes.calls())
    assert main(["doctor", "--hosts", str(nodes.inventory), "--stack", "no-such-stack"]) == 2
    assert len(nodes.calls()) == before, "nobody is asked for a stack that does not exist"


@pytest.mark.slow
def test_each_form_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, {"node02": "refused"})
    saved = str(tmp_path / "saved")
    live = ["doctor", "--hosts", str(nodes.inventory), "--for", "roll", "--save", saved]
    assert main([*live, "-o", str(tmp_path / "r.html")]) == 1
    run = ["doctor", "--from", saved, "--for", "roll", "-o"]
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "<script" not in page
    assert "node[01,03] (2)" in page and "Connection refused" in page
    assert main([*run, str(tmp_path / "r.xml")]) == 1
    suites = ElementTree.fromstring((tmp_path / "r.xml").read_text())
    assert [suite.get("name") for suite in suites] == ["node01", "node02", "node03", "between-nodes"]
    (silent,) = suites[1]
    assert silent.get("name") == "cluster.asked" and silent[0].tag == "failure"
    assert int(suites.get("failures", "0")) == sum(int(suite.get("failures", "0")) for suite in suites) == 1
    assert main([*run, str(tmp_path / "r.sarif")]) == 1
    runs = json.loads((tmp_path / "r.sarif").read_text())["runs"]
    assert [run["invocations"][0]["exitCode"] for run in runs] == [0, 1, 0, 1]
    assert runs[1]["results"][0]["ruleId"] == "cluster.asked"
    assert main([*run, str(tmp_path / "r.json"), "--lang", "zh"]) == 1
    assert json.loads((tmp_path / "r.json").read_text())["nodes"]["node02"]["trouble"]["kind"] == "refused"


def test_the_inventory_and_an_own_configuration_reach_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 1, {})
    line = b"node01 user=me port=2222 address=10.1.1.1 jump=bastion\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    own = tmp_path / "config"
    own.write_text("")
    assert main(["doctor", "--hosts", "-", "--ssh-config", str(own), "--for", "roll", "--quiet"]) == 0
    capsys.readouterr()
    ((name, _, options),) = nodes.calls()  # one connection for the whole look
    assert name == "node01" and options[:2] == ["-F", str(own)]
    assert "HostName=10.1.1.1" in options and options[options.index("-p") + 1] == "2222"
    assert any(option.startswith("ProxyCommand=") and option.endswith("-- bastion") for option in options)


@pytest.mark.parametrize(
    ("words", "key", "args"),
    [
        (["--fix"], "cluster.not-with-hosts", {"option": "--fix", "many": "--hosts"}),
        (["--from-report", "x"], "cluster.not-with-hosts", {"option": "--from-report", "many": "--hosts"}),
        (["--from", "{folder}"], "cluster.two-sources", {}),
        (["--save", "{file}"], "cluster.save-no-folder", {"path": part("hosts")}),
        (["--save", "{folder}"], "cluster.save-not-empty", {}),
        (["--ssh-config", "/no/such/config"], "cluster.no-ssh-config", {"path": "/no/such/config"}),
        (["--limit", "0"], "", {}),
        (["--hash", "--level", "0"], "doctor.hash-level", {}),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anybody_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    key: str,
    args: dict[str, Any],
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 1, {})
    full = [word.format(folder=tmp_path, file=nodes.inventory) for word in words]
    assert main(["doctor", "--hosts", str(nodes.inventory), *full]) == 2
    err = capsys.readouterr().err
    assert (says(err, key, **args) if key else words[0] in err) and nodes.calls() == []


def test_options_of_many_nodes_alone_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--limit", "5"], ["--parallel", "4"], ["--ssh-config", "x"]):
        assert main(["doctor", *words]) == 2
        assert says(capsys.readouterr().err, "cluster.only-with-hosts", option=words[0])
    assert main(["doctor", "--from", str(tmp_path)]) == 2
    assert says(capsys.readouterr().err, "cluster.no-captures", path=tmp_path)
    assert main(["doctor", "--from", str(tmp_path), "--fix"]) == 2
    assert says(capsys.readouterr().err, "cluster.not-with-hosts", option="--fix", many=f"--from {tmp_path}")
    (tmp_path / "nodes.json").write_text('{"schema": "npuenv.nodes/1", "nodes": [{"name": "../x"}]}')
    assert main(["doctor", "--from", str(tmp_path)]) == 2


@pytest.mark.slow
def test_ctrl_c_leaves_no_client_behind_and_what_came_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 3, {"node02": "hangs"})
    saved = tmp_path / "saved"
    argv = [sys.executable, "-m", "npuenv", "doctor", "--hosts", str(nodes.inventory), "--save", str(saved)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, cwd=ROOT, text=True, preexec_fn=as_from_a_terminal)
    has_come = until(lambda: len(list(saved.glob("node0*.json"))) == 2 and len(nodes.calls()) == 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, has_come) == (130, "", True), err
    assert all(until(partial(is_gone, pid)) for _, pid, _ in nodes.calls())
    listed = json.loads((saved / "nodes.json").read_text())["nodes"]
    assert [node["name"] for node in listed] == ["node01", "node03"]
