"""YAML with exact places: values as OmegaConf's loader makes them, spans, merges, and what is no configuration."""

from __future__ import annotations

from typing import Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.preflight.yaml_text import YamlEntry, read_yaml, scalar, write_scalar

TEXT = """\
# head
base: &b
  x: 1   # one
  y: "2"
a:
  <<: *b
  y: 3
  items:
  - 1
  - {k: v}
empty:
flow: {g: 1, h: [a, b]}
alias: *b
folded: >
  one
  two
"""


def leaves(text: str) -> dict[str, YamlEntry]:
    return {leaf.dotted: leaf for entry in read_yaml(text, "f.yaml") for leaf in entry.leaves()}


def test_leaves_have_values_lines_and_the_text_as_written() -> None:
    found = leaves(TEXT)
    assert (found["base.y"].value, found["base.y"].text, found["base.y"].line) == ("2", '"2"', 4)
    assert (found["a.items"].value, found["a.items"].line) == ([1, {"k": "v"}], 8)
    assert (found["empty"].value, found["empty"].text) == (None, "")
    assert (found["flow.h"].value, found["flow.h"].text) == (["a", "b"], "[a, b]")
    assert found["folded"].value == "one two\n"


def test_spans_cut_the_very_text_out() -> None:
    for leaf in leaves(TEXT).values():
        assert TEXT[leaf.span.start : leaf.span.end] == leaf.text
        assert TEXT[leaf.key.start : leaf.key.end].strip("\"'") == leaf.path[-1]


def test_merged_keys_count_and_are_marked_and_own_ones_beat_them() -> None:
    found = leaves(TEXT)
    assert (found["a.x"].value, found["a.x"].is_merged, found["a.x"].line) == (1, True, 3)
    assert (found["a.y"].value, found["a.y"].is_merged) == (3, False)
    assert (found["alias.y"].value, found["alias.y"].is_merged) == ("2", True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("5", 5),
        ("-3", -3),
        ("1_000", 1000),
        ("010", 8),
        ("0x1F", 31),
        ("08", "08"),
        ("yes", True),
        ("Off", False),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("list(range(0,4))", "list(range(0,4))"),
        ("2026-04-27", "2026-04-27"),
    ],
)
def test_plain_scalars_are_read_as_omegaconf_reads_them(text: str, value: Any) -> None:
    assert (scalar(text), type(scalar(text))) == (value, type(value))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, 1e-06, 2.5, "a", "1", "yes", "null", "", "it's", "a: b", "a #b", "#x", "- x", "[x",
        "list(range(0,4))",
        " x", "a\nb", "${a.b}", "中文", "*x", "&x", "x:", ["a", None, "1", "x, y", "a: b"], {"a": [1, {"b": "c"}]},
        "%x", "@x",
    ],
)  # fmt: skip
def test_what_is_written_reads_back_as_the_same_value(value: Any) -> None:
    for quote in ("", "'", '"'):
        found = read_yaml(f"k: {write_scalar(value, quote)}\n", "f")[0]
        got = {leaf.path[1:]: leaf.value for leaf in found.leaves()} if isinstance(value, dict) else found.value
        assert got == ({("a",): value["a"]} if isinstance(value, dict) else value), quote


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("a: [1", "bad-yaml", 1),
        ("a: 1\na: 2\n", "bad-yaml", 2),
        ("a:\n\tb: 1\n", "bad-yaml", 2),
        ("a: *x\n", "bad-yaml", 1),
        ("a: 1\nb: c: d\n", "bad-yaml", 2),
        ("- 1\n", "not-a-mapping", None),
        ("just words\n", "not-a-mapping", None),
        ("a: 1\n---\nb: 2\n", "many-documents", None),
        ("# nothing\n", "empty", None),
    ],
)
def test_what_is_no_configuration_is_bad_input_with_its_line(text: str, key: str, line: int | None) -> None:
    with pytest.raises(BadInput) as caught:
        read_yaml(text, "gpu.yaml")
    assert caught.value.message.key == f"preflight.{key}"
    assert caught.value.message.args["path"] == "gpu.yaml"
    assert caught.value.message.args.get("line") == line
