"""Inventories at their edges: what is the last that is accepted, which of two values holds, what is no comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.cluster.inventory import MOST_NODES, Node, fold, parse, read
from tests.cluster.test_inventory import names, refusal

if TYPE_CHECKING:
    from pathlib import Path


def test_the_nodes_of_all_lines_together_are_counted() -> None:
    assert len(names(f"n[1-{MOST_NODES - 1}]\nhead")) == MOST_NODES
    many = {"says": "too-many", "most": MOST_NODES}
    assert many.items() <= refusal(f"n[1-{MOST_NODES - 1}]\nhead\nlast").items()


def test_what_stands_at_a_name_holds_before_what_its_line_says() -> None:
    assert parse("me@box:22 other user=you port=2222", "hosts").nodes == (
        Node("box", "box", user="me", port=22),
        Node("other", "other", user="you", port=2222),
    )


def test_a_mark_before_the_first_letter_of_a_file_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes("\ufeffhead\r\nnode[1-2]\r\n".encode())
    assert [node.name for node in read(str(path)).nodes] == ["head", "node1", "node2"]


def test_a_node_can_have_the_name_of_a_key_on_a_line_of_its_own() -> None:
    assert names("host user=root\ncards,port") == ["host", "cards", "port"]


def test_only_a_word_of_its_own_begins_a_comment() -> None:
    (node,) = parse("box python=/opt/a#b #c d", "hosts").nodes
    assert node.python == "/opt/a#b"
    assert {"says": "name", "name": "node01#x"}.items() <= refusal("node01#x").items()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a port=\uff12\uff12", {"says": "number", "least": 1, "most": 65535}),
        ("a cards=-1", {"says": "number", "key": "cards", "value": "-1", "least": 0, "most": 1024}),
        ("node[\uff11-\uff13]", {"says": "range"}),
        ("a port=65536", {"says": "number", "key": "port", "value": "65536"}),
        ("a cards=1025", {"says": "number", "key": "cards", "value": "1025"}),
    ],
)
def test_numbers_are_written_with_ascii_digits_and_have_a_bound(text: str, wrong: dict[str, object]) -> None:
    assert wrong.items() <= refusal(text).items()


def test_the_largest_numbers_are_accepted() -> None:
    assert parse("a port=65535 cards=1024", "hosts").nodes == (Node("a", "a", port=65535, cards=1024),)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("n[098-102]", "n[098-102]"),
        ("n[98-102]", "n[98-102]"),
        ("n[0998-1001]", "n[0998-1001]"),
        ("r[1-2]c1 r[1-2]c2", "r1c[1-2], r2c[1-2]"),
        ("r[1-3]c[5]", "r[1-3]c5"),
    ],
)
def test_names_fold_over_a_change_of_their_length_and_are_read_again(text: str, folded: str) -> None:
    assert fold(names(text)) == folded
    assert sorted(names(folded)) == sorted(names(text))
