"""The doctor for many nodes as a Python program uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import DoctorOptions, NodesOptions, doctor_nodes
from npuenv.core.errors import BadInput
from tests.cluster.scripted import capture_text

if TYPE_CHECKING:
    from pathlib import Path


def test_saved_captures_are_examined_and_compared(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"node{number:02}.json").write_text(capture_text(number), encoding="utf-8")
    report = doctor_nodes(NodesOptions(), DoctorOptions(framework="verl", capture=tmp_path))
    assert [each.node.name for each in report.nodes] == ["node01", "node02"]
    assert all(each.findings and each.framework == "verl" for each in report.nodes)
    assert report.why_no_agreement is None and report.agreement


def test_an_inventory_beside_captures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cluster\.two-sources"):
        doctor_nodes(NodesOptions(hosts="hosts"), DoctorOptions(capture=tmp_path))
