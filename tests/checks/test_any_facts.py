"""What holds for all checks together: none breaks over a fact that is not there, none about cards speaks for cpu."""

from __future__ import annotations

import dataclasses

import pytest

from npuenv.checks import check_all
from npuenv.core.fact import Fact
from npuenv.core.finding import Status
from tests.support.changes import HEALTHY, WHY, gone

GROUPS = [field.name for field in dataclasses.fields(HEALTHY) if field.name != "environment"]
OF_CARDS = (
    "network.tls-agrees",
    "network.hccn-conf",
    "network.card-addresses",
    "network.addresses-agree",
    "network.addresses-valid",
    "network.addresses-unique",
    "network.netmasks-agree",
    "network.card-subnets",
    "network.card-gateways",
    "network.card-mtu",
    "network.hccn-tool",
    "network.card-links",
    "network.card-health",
    "network.card-speeds",
    "network.optical",
    "network.vnic",
    "network.card-ping",
    "network.tls-certificate",
    "network.card-ports",
    "network.rank-table",
    "network.rank-table-addresses",
    "session.visible-devices",
    "stack.cann",
)


@pytest.mark.parametrize("group", GROUPS)
def test_no_check_breaks_over_one_fact_that_is_absent(group: str) -> None:
    values = getattr(HEALTHY, group)
    names = [field.name for field in dataclasses.fields(values) if isinstance(getattr(values, field.name), Fact)]
    assert names
    for name in names:
        found = check_all(gone(f"{group}.{name}", WHY)(HEALTHY), framework="verl", level=3)
        assert [(name, item.check, item.evidence) for item in found if item.says.key == "checks.crashed"] == []


def test_for_cpu_everything_about_cards_is_left_out() -> None:
    found = {item.check: item.status for item in check_all(HEALTHY, framework="cpu", level=3)}
    areas = ("cards.", "devices.", "driver.", "cann.", "nnal.")
    told = {check for check, status in found.items() if check.startswith(areas) and status is not Status.SKIP}
    assert told == set()
    assert {check: found[check] for check in OF_CARDS if found[check] is not Status.SKIP} == {}
