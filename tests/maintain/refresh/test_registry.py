"""The matrix against the package index that this machine's pip is set up with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.maintain.refresh import propose
from npuenv.matrix import load_matrix
from npuenv.matrix.load import parse_table
from npuenv.matrix.rows import VllmAscend

if TYPE_CHECKING:
    from npuenv.core.messages import Message

pytest.importorskip("pypi_simple", reason="reading an index needs the package pypi-simple")


@pytest.mark.registry
def test_the_index_knows_no_vllm_ascend_that_the_matrix_should_have_seen() -> None:
    matrix, steps = load_matrix(), list["Message"]()
    found = propose(matrix, pip_settings(LocalHost()), ("vllm-ascend",), steps.append)
    read = max(row.seen for row in matrix.vllm_ascend)
    rows = [
        row
        for item in found
        if item.file == "vllm_ascend.toml" and item.kind == "new"
        for row in parse_table(item.text, VllmAscend, item.file)
    ]
    late = [row.version for row in rows if row.released < read]
    assert late == []
    if not rows:  # without a new release nothing was read that could speak of an old one
        assert found == ()
    assert [step.key for step in steps].count("refresh.page") >= 1
