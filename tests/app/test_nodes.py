"""The doctor for many nodes as a Python program uses it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.app import DoctorOptions, NodesOptions, doctor_nodes
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.errors import BadInput, ExitCode
from tests.cluster.scripted import capture_text
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path


def test_saved_captures_are_examined_and_compared(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"node{number:02}.json").write_text(capture_text(number), encoding="utf-8")
    report = doctor_nodes(NodesOptions(), DoctorOptions(framework="verl", capture=tmp_path))
    assert [each.node.name for each in report.nodes] == ["node01", "node02"]
    assert all(each.findings and each.framework == "verl" for each in report.nodes)
    assert report.why_no_agreement is None and report.agreement


def test_captures_put_beside_the_list_are_used_and_reports_are_not(tmp_path: Path) -> None:
    """A capture made on the node itself takes the place of its recorded failure."""
    rows = [{"name": f"node{number:02}", "trouble": "refused", "line": "no", "seconds": 1.5} for number in (1, 2)]
    (tmp_path / "nodes.json").write_text(json.dumps({"schema": "npuenv.nodes/1", "nodes": rows}), encoding="utf-8")
    (tmp_path / "report.json").write_text(json.dumps({"schema": "npuenv.cluster/1"}, indent=2), encoding="utf-8")
    for number in (2, 3):
        (tmp_path / f"node{number:02}.json").write_text(capture_text(number), encoding="utf-8")
    report = doctor_nodes(NodesOptions(), DoctorOptions(framework="verl", capture=tmp_path))
    failures = {each.node.name: each.failure for each in report.nodes}
    assert failures == {"node01": NodeFailure.REFUSED, "node02": None, "node03": None}
    assert [each.seconds for each in report.nodes] == [1.5, 0.0, 0.0]
    assert report.agreement, "the two are compared"


def test_a_capture_that_cannot_be_read_is_the_failure_of_its_node(tmp_path: Path) -> None:
    whole = capture_text(1)
    for name, text in {"node01": whole, "node02": whole[:500], "node03": "{}", "node04": whole}.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    doctor = DoctorOptions(framework="verl", capture=tmp_path)
    report = doctor_nodes(NodesOptions(), doctor)
    broken = {each.node.name: each.line for each in report.silent if each.failure is NodeFailure.BROKEN}
    assert list(broken) == ["node02", "node03"] and report.code is ExitCode.PROBLEMS
    assert says(broken["node02"], "host.bad-capture", file=tmp_path / "node02.json")
    assert report.agreement, "the others are compared"
    for name in ("node01", "node04"):
        (tmp_path / f"{name}.json").unlink()
    with pytest.raises(BadInput, match=r"host\.bad-capture"):
        doctor_nodes(NodesOptions(), doctor)


def test_an_inventory_beside_captures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cluster\.two-sources"):
        doctor_nodes(NodesOptions(hosts="hosts"), DoctorOptions(capture=tmp_path))


@pytest.mark.slow
def test_a_doctor_that_refuses_on_its_node_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"node01 python={sys.executable}\n")
    report = doctor_nodes(NodesOptions(hosts=str(hosts)), DoctorOptions(python="/no/such/python"))
    assert "/no/such/python" in report.nodes[0].line
