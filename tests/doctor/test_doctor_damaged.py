"""An answer of npu-smi that is cut or damaged never makes a healthy host ill: what it says no more is unknown."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.doctor.test_seeded_faults import EditedHost, _capture, findings, of_healthy
from tests.facts.test_damaged_outputs import cut, damaged


def queries_of(host: str) -> dict[str, int]:
    """The first command of each kind -> its place in the recording."""
    found: dict[str, int] = {}
    for number, item in enumerate(json.loads(_capture(host))["commands"]):
        if item["argv"][0] == "npu-smi":
            found.setdefault(" ".join(item["argv"][: 4 if "-t" in item["argv"] else 3]), number)
    return found


CASES = [(host, query) for host in ("a2_healthy", "a3_healthy") for query in queries_of(host)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, pytest.param(25, marks=pytest.mark.long)])
@pytest.mark.parametrize(("host", "query"), CASES)
def test_no_damaged_answer_makes_a_healthy_host_ill(host: str, query: str, count: int) -> None:
    chance = random.Random(query)
    number = queries_of(host)[query]
    text = json.loads(_capture(host))["commands"][number]["out"]
    for kind in (cut, damaged):
        variants = list(kind(text, chance))
        for variant in chance.sample(variants, min(count, len(variants))):
            document: dict[str, Any] = json.loads(_capture(host))
            document["commands"][number]["out"] = variant
            changed = {
                check: finding
                for check, finding in findings(EditedHost(document)).items()
                if finding.status.value not in (of_healthy(host, 2, None)[check], "unknown", "skip")
            }
            assert changed == {}, variant
