"""Words, arrays and blocks of shell text; what the linter and preflight make of them is tested with those."""

from __future__ import annotations

import pytest

from npuenv.core.shellscript import commands, holds
from npuenv.core.shellwords import UNKNOWN, expand, open_quote, source_of


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ('"${X:-"${Y}/z"}"', "y/z"),
        ("${X:-${Z:-3}}", "3"),
        ("$((1024 * N + 2))", "4098"),
        ("$((${Z:-7} / 2))", "3"),
        ("$((N / 0))", UNKNOWN),
        ("$((N ** N))", UNKNOWN),
        ('"a\\"b\\$Y"', 'a"b$Y'),
        ("~/a", "/home/me/a"),
        ("P=~/a", "P=/home/me/a"),
        ("'~'/a", "~/a"),
        ("${1:-vllm}", UNKNOWN),
        ("${" * 500 + "X" + "}" * 500, UNKNOWN),
    ],
)
def test_a_word_is_filled_in_as_bash_does(word: str, expected: str) -> None:
    assert expand(word, {"Y": "y", "N": "4", "HOME": "/home/me"}) == expected


def test_a_default_of_an_argument_counts_where_the_arguments_are_known() -> None:
    assert expand("${1:-vllm}", {"#": "0"}) == "vllm"
    assert expand("${1:-vllm}", {"#": "1", "1": "sglang"}) == "sglang"
    assert expand("$1", {"#": "1", "1": "sglang"}) == UNKNOWN  # in a function it is another one


def test_an_array_is_one_word_and_no_function() -> None:
    text = "A=(one 'two three'\n  four)\nA+=(five)\nf() { inside; }\nlast\n"
    found = list(commands(source_of(text), {}))
    arrays = [
        (token.array, token.is_more, [item.text for item in token.items]) for each in found for token in each.tokens
    ]
    assert [each for each in arrays if each[0]] == [
        ("A", False, ["one", "'two three'", "four"]),
        ("A", True, ["five"]),
    ]
    assert [(each.words, each.certain) for each in found[2:]] == [(("inside",), False), (("last",), True)]


def test_offsets_lead_to_the_words() -> None:
    text = "if true; then\n  x \\\n    'y z' # no\nfi\n"
    (command,) = commands(source_of(text), {})
    assert [text[token.start : token.end] for token in command.tokens] == ["x", "'y z'"]
    assert command.line == 2


def test_blocks_tell_whether_one_command_has_run_before_another() -> None:
    text = "if a; then\nb\nelse\nc\nfi\nd\n{ e; }\nf && g\n"
    blocks = {each.words[0]: each.blocks for each in commands(source_of(text), {})}
    assert holds(blocks["d"], blocks["b"]) is True
    assert holds(blocks["b"], blocks["c"]) is False
    assert holds(blocks["b"], blocks["d"]) is None
    assert holds(blocks["g"], blocks["e"]) is None


def test_variables_grow_by_plus_and_equals() -> None:
    env = {"A": "x"}
    assert [each.words for each in commands(source_of("A+=y\necho $A"), env)] == [(), ("echo", "xy")]


@pytest.mark.parametrize(("text", "line"), [("a\nb 'c\nd", 2), ("a 'b'\n", 0), ("", 0), ("a $'b\n", 0)])
def test_an_open_quote_is_found(text: str, line: int) -> None:
    assert open_quote(text) == line
