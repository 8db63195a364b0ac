"""Lists of devices as ROLL's configurations spell them, friendly and hostile."""

from __future__ import annotations

import pytest

from trainer.overrides.device_mapping import parse_device_mapping
from trainer.sections import BadSetting


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("list(range(0,8))", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("[0,1,2]", (0, 1, 2)),
        ("list(range(0,4)) + [6]", (0, 1, 2, 3, 6)),
        ("0-3,5", (0, 1, 2, 3, 5)),
        (" 7 ", (7,)),
        ("0", (0,)),
        ("(2, 1)", (2, 1)),
        ("range(2)", (0, 1)),
        ("list(range(4, 0, -2))", (4, 2)),
        ("list(list([3]))", (3,)),
        ("[0]+[1]+[2]", (0, 1, 2)),
    ],
)
def test_every_spelling_gives_its_devices_in_order(text: str, devices: tuple[int, ...]) -> None:
    assert parse_device_mapping(text) == devices


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[0,1,0]", "names device 0 twice"),
        ("0-3,2", "names device 2 twice"),
        ("[-1]", "names device -1"),
        ("list(range(-2,1))", "names device -2"),
        ("[16384]", "16383"),
        ("list(range(0,1000000000))", "than 16384 devices"),
        ("list(range(99999999999999999999999))", "than 16384 devices"),
        ("0-99999", "than 16384 devices"),
        ("3-1", "from 3 down to 1"),
        ("[]", "no device"),
        ("list(range(3,3))", "no device"),
        ("", "be read"),
        ("1,,2", "be read"),
        ("[1", "be read"),
        ("[1.0]", "than numbers"),
        ("[True]", "than numbers"),
        ("['0']", "than numbers"),
        ("all", "than numbers"),
        ("list(range(0,4)) * 2", "than numbers"),
        ("__import__('os').system('touch /tmp/x')", "than numbers"),
        ("[i for i in range(3)]", "than numbers"),
        ("exec", "than numbers"),
        ("list(range(0,4,0))", "the spellings"),
        ("list(range(1),2)", "the spellings"),
        ("range()", "the spellings"),
        ("list", "the spellings"),
        ("[[0]]", "whole numbers"),
        ("range(list(1))", "whole numbers"),
        ("[0]-[1]", "another sign"),
        ("[--1]", "whole numbers"),
        ("\u0663", "than numbers"),
    ],
)
def test_what_is_no_list_of_devices_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(BadSetting) as caught:
        parse_device_mapping(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "[" * 63 + "]" * 63, "+" * 50_000 + "1", "-" * 50_000 + "1", "[1]" + "+[1]" * 20_000, "9" * 90_000,
     "[" + "9" * 9000 + "]", "0," * 60_000 + "0", "list(" * 60 + "[1]" + ")" * 60 + ")"],
)  # fmt: skip
def test_texts_made_to_exhaust_a_parser_are_refused_like_any_other(text: str) -> None:
    with pytest.raises(BadSetting, match="device_mapping"):
        parse_device_mapping(text)
