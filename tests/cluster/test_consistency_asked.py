"""What the user asked for by name and could not be told: exit code 3, and never 0. Folders and names that mislead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import Finding, Status
from npuenv.cli import main
from npuenv.cluster.inventory import Inventory, Node
from npuenv.cluster.node_results import CaptureWriter, ClusterReport, NodeCapture, NodeReport, load_captures
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message
from npuenv.host.recorded import parse_capture
from tests.cluster.scripted import Nodes, capture_text
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.host.recorded import RecordedHost

pytestmark = pytest.mark.usefixtures("home")
SHARED = frozenset({"agree.storage"})


def verdict(status: Status, asked: frozenset[str], *, failure: NodeFailure | None = None) -> ClusterReport:
    finding = Finding("agree.storage", status, Message("agree.skip-nothing"), (), "test", None)
    nodes = (NodeReport(Node("n1", "n1")), NodeReport(Node("n2", "n2"), failure=failure))
    return ClusterReport(nodes, (finding,), asked=asked)


@pytest.mark.parametrize(
    ("status", "asked", "code"),
    [
        (Status.UNKNOWN, SHARED, ExitCode.UNKNOWN),
        (Status.UNKNOWN, frozenset({"agree.ports"}), ExitCode.FINE),
        (Status.UNKNOWN, frozenset(), ExitCode.FINE),
        (Status.FAIL, SHARED, ExitCode.PROBLEMS),
        (Status.WARN, SHARED, ExitCode.FINE),
        (Status.OK, SHARED, ExitCode.FINE),
    ],
)
def test_an_unknown_counts_where_just_that_was_asked_for(status: Status, asked: frozenset[str], code: ExitCode) -> None:
    assert verdict(status, asked).code is code


def test_a_problem_outranks_what_could_not_be_told() -> None:
    assert verdict(Status.UNKNOWN, SHARED, failure=NodeFailure.REFUSED).code is ExitCode.PROBLEMS


@pytest.mark.parametrize(
    ("words", "check", "code"),
    [
        pytest.param(["--shared", "/data"], "agree.storage", 3, marks=pytest.mark.slow),
        (["--level", "2"], "agree.ports", 3),
        ([], "agree.ports", 0),
    ],
)
@pytest.mark.slow
def test_nodes_that_do_not_try_each_other_leave_the_question_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    check: str,
    code: int,
) -> None:
    """The scripted client gives captures, and no answer when nodes are asked about each other."""
    nodes = Nodes(tmp_path, monkeypatch, 2, {})
    for number, name in enumerate(nodes.names, start=1):
        (tmp_path / "captures" / f"{name}.json").write_text(capture_text(number, level=2), encoding="utf-8")
    said = main(["doctor", "--hosts", str(nodes.inventory), "--for", "roll", "--json", *words])
    document = json.loads(capsys.readouterr().out)
    found = {each["check"]: each["status"] for each in document["agreement"]["findings"]}
    assert (said, document["exit"], found[check]) == (code, code, "unknown" if code else "skip")


def test_a_relative_folder_is_refused_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, monkeypatch, 2, {})
    for folder in ("data", "./data", "~/data", "-"):
        assert main(["doctor", "--hosts", str(nodes.inventory), "--shared", folder]) == 2
        assert says(capsys.readouterr().err, "cluster.shared-relative", path=folder)
    assert nodes.calls() == []


@pytest.mark.parametrize("has_list", [True, False])
def test_a_node_called_like_the_list_keeps_its_capture(tmp_path: Path, has_list: bool) -> None:
    names = ("node", "nodes")
    inventory = Inventory(tuple(Node(name, name) for name in names), "hosts")
    texts = {name: capture_text(number) for number, name in enumerate(names, start=1)}
    folder = tmp_path / "saved"
    with CaptureWriter(folder, inventory) as keeper:
        for node in inventory.nodes:
            text = texts[node.name]
            keeper.add(NodeCapture(node, 1.0, text, parse_capture(text, folder)))
    if not has_list:
        (folder / "nodes.json").unlink()
    again, answers = load_captures(folder)
    assert [node.name for node in again.nodes] == list(names)
    found = {got.node.name: said(got.host) for got in answers if got.host}
    assert found == {name: said(parse_capture(text, folder)) for name, text in texts.items()}
    assert found["node"] != found["nodes"]


def test_the_list_of_saved_captures_names_neither_users_nor_jump_hosts(tmp_path: Path) -> None:
    nodes = [
        Node("n1", "8.8.4.4", user="zhangsan", jump="ops@bastion.corp", cards=8, python="/home/zhangsan/bin/python3"),
        Node("n2", "10.0.0.2", jump="ops@bastion.corp"),
    ]
    lines = ["zhangsan@8.8.4.4: Permission denied (publickey).", "ops@bastion.corp: Permission denied (publickey)."]
    folder = tmp_path / "saved"
    with CaptureWriter(folder, Inventory(tuple(nodes), "/home/zhangsan/hosts")) as keeper:
        for node, line, at in zip(nodes, lines, ("", "bastion.corp")):
            keeper.add(NodeCapture(node, 1.0, failure=NodeFailure.DENIED, line=line, at=at))
    text = (folder / "nodes.json").read_text(encoding="utf-8")
    assert not [word for word in ("zhangsan", "ops", "bastion", "8.8.4.4", "python3") if word in text]
    again, answers = load_captures(folder)
    assert [(node.name, node.address, node.cards) for node in again.nodes] == [
        ("n1", "203.0.113.1", 8),
        ("n2", "10.0.0.2", None),
    ]
    first, second = answers
    assert (first.failure, first.line) == (NodeFailure.DENIED, "user1@203.0.113.1: Permission denied (publickey).")
    assert (second.at, second.line) == ("host1", "***: Permission denied (publickey).")


def said(host: RecordedHost) -> list[str]:
    """All that the commands of a capture printed."""
    return [host.run(argv).out for argv in host.commands()]
