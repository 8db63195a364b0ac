"""What a node has against what the inventory says of it."""

from __future__ import annotations

import pytest

from npuenv.checks import Status
from npuenv.cluster.consistency.cards import check_card_count
from npuenv.cluster.inventory import Node
from tests.cluster.uniform import cluster
from tests.cluster.voting import USUAL
from tests.support.changes import lost, variables

NAME = "node01"


@pytest.mark.parametrize(
    ("value", "wanted", "status", "key"),
    [
        (None, 8, Status.OK, "as-expected"),
        ("0,1,2,3,4,5,6,7", 8, Status.OK, "as-expected"),
        ("0,1,2,3", 8, Status.FAIL, "visible-other"),
        ("0,1,2,3", 4, Status.OK, "visible-as-expected"),
        ("4,5", 4, Status.FAIL, "visible-other"),
        ("0,1,8,9", 4, Status.FAIL, "visible-other"),  # two of them are not there
        ("", 8, Status.FAIL, "visible-other"),
        ("NoDevFiles", 8, Status.FAIL, "visible-other"),
        ("0-3", 8, Status.UNKNOWN, "visible-unread"),
        (None, 16, Status.FAIL, "other"),
        (None, 4, Status.WARN, "other"),
    ],
)
def test_the_cards_that_a_session_sees_are_counted(value: str | None, wanted: int, status: Status, key: str) -> None:
    facts = variables(ASCEND_RT_VISIBLE_DEVICES=value)(cluster(USUAL, 1)[NAME])
    found = check_card_count(Node(NAME, NAME, cards=wanted), facts, "hosts")
    assert found is not None and (found.status, found.says.key) == (status, f"cluster.cards-{key}")


def test_what_the_inventory_does_not_say_is_not_judged_and_what_nobody_sees_is_unknown() -> None:
    facts = cluster(USUAL, 1)[NAME]
    assert check_card_count(Node(NAME, NAME), facts, "hosts") is None
    found = check_card_count(Node(NAME, NAME, cards=8), lost("smi", "npu.nodes")(facts), "hosts")
    assert found is not None and found.status is Status.UNKNOWN
