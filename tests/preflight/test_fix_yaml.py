"""One correction of a YAML text: the value changes, every other byte stays."""

from __future__ import annotations

from difflib import ndiff
from typing import Any

import pytest

from npuenv.preflight.launch import Change
from npuenv.preflight.yaml_text import edit_yaml

TEXT = """\
# ROLL, GPU
exp_name: 'x'   # the name
system_envs:
  A: '1'   # first
  B: "2"
actor_train:
  model_args:
    flash_attn: fa2
    dtype: bf16

  # cards
  device_mapping: list(range(0,8))   # all
  infer_batch_size: 2
  tags:
  - a
  - b
actor_infer: {name: vllm, batch: 4}
empty:
shared: &s
  p: 1
one:
  <<: *s
two: *s
"""


def changed(change: Change, text: str = TEXT) -> list[str]:
    """What a diff says, in order: "- old" and "+ new"."""
    edited = edit_yaml(text, change)
    assert edited is not None
    return [line for line in ndiff(text.splitlines(), edited.splitlines()) if line[0] in "+-"]


@pytest.mark.parametrize(
    ("key", "value", "diff"),
    [
        (
            "actor_train.device_mapping",
            "list(range(0,4))",
            ["-   device_mapping: list(range(0,8))   # all", "+   device_mapping: list(range(0,4))   # all"],
        ),
        ("exp_name", "y", ["- exp_name: 'x'   # the name", "+ exp_name: 'y'   # the name"]),
        ("actor_train.tags", ["c"], ["-   tags:", "+   tags: [c]", "-   - a", "-   - b"]),
        (
            "actor_infer.batch",
            1,
            ["- actor_infer: {name: vllm, batch: 4}", "+ actor_infer: {name: vllm, batch: 1}"],
        ),
        ("empty", 3, ["- empty:", "+ empty: 3"]),
    ],
)
def test_a_value_changes_in_its_place(key: str, value: Any, diff: list[str]) -> None:
    assert changed(Change(key, value)) == diff


@pytest.mark.parametrize(
    ("key", "value", "diff"),
    [
        ("actor_train.model_args.attn", "sdpa", ["+     attn: sdpa"]),
        ("actor_train.training_args.lr", 1e-6, ["+   training_args:", "+     lr: 1.0e-06"]),
        ("top.new", True, ["+ top:", "+   new: true"]),
        (
            "actor_infer.x",
            [1],
            ["- actor_infer: {name: vllm, batch: 4}", "+ actor_infer: {name: vllm, batch: 4, x: [1]}"],
        ),
        ("empty.deep.key", 1, ["- empty:", "+ empty: {deep: {key: 1}}"]),
        ("one.p", 2, ["+   p: 2"]),
    ],
)
def test_a_key_is_put_behind_its_neighbours(key: str, value: Any, diff: list[str]) -> None:
    assert changed(Change(key, value)) == diff


def test_a_new_key_stands_inside_its_own_mapping() -> None:
    edited = edit_yaml(TEXT, Change("actor_train.model_args.attn", "sdpa"))
    assert edited is not None
    assert "    dtype: bf16\n    attn: sdpa\n\n  # cards\n" in edited


@pytest.mark.parametrize(
    ("key", "diff"),
    [
        ("actor_train.infer_batch_size", ["-   infer_batch_size: 2"]),
        ("actor_train.tags", ["-   tags:", "-   - a", "-   - b"]),
        ("actor_infer.name", ["- actor_infer: {name: vllm, batch: 4}", "+ actor_infer: {batch: 4}"]),
        ("actor_infer.batch", ["- actor_infer: {name: vllm, batch: 4}", "+ actor_infer: {name: vllm}"]),
    ],
)
def test_a_key_is_taken_out_whole(key: str, diff: list[str]) -> None:
    assert changed(Change(key, None)) == diff


def test_a_mapping_that_loses_its_last_key_goes_too() -> None:
    assert changed(Change("a.b.c", None), "a:\n  b:\n    c: 1\n  d: 2\n") == ["-   b:", "-     c: 1"]


def test_a_key_is_renamed_in_its_place_with_or_without_another_value() -> None:
    renamed = Change("actor_train.model_args.attn", "fa2", renames="actor_train.model_args.flash_attn")
    assert changed(renamed) == ["-     flash_attn: fa2", "+     attn: fa2"]
    other = Change("actor_train.model_args.attn", "sdpa", renames="actor_train.model_args.flash_attn")
    assert changed(other) == ["-     flash_attn: fa2", "+     attn: sdpa"]


def test_a_key_moves_to_another_mapping() -> None:
    moved = Change("actor_infer.size", 2, renames="actor_train.infer_batch_size")
    assert changed(moved) == [
        "-   infer_batch_size: 2",
        "- actor_infer: {name: vllm, batch: 4}",
        "+ actor_infer: {name: vllm, batch: 4, size: 2}",
    ]


def test_variables_are_quoted_strings_of_system_envs() -> None:
    assert changed(Change("A", 2, is_variable=True)) == ["-   A: '1'   # first", "+   A: '2'   # first"]
    assert changed(Change("B", None, is_variable=True)) == ['-   B: "2"']
    assert changed(Change("C", 1, is_variable=True)) == ['+   C: "1"']
    assert changed(Change("Z", "2", is_variable=True, renames="B")) == ['-   B: "2"', '+   Z: "2"']


@pytest.mark.parametrize("key", ["shared.p", "two.p", "two.q", "shared", "missing"])
def test_what_would_touch_something_else_is_not_done(key: str) -> None:
    value = None if key in ("shared", "missing") else 5
    assert edit_yaml(TEXT, Change(key, value)) is None


def test_line_ends_of_windows_stay() -> None:
    assert edit_yaml("a: 1\r\nb: 2\r\n", Change("a", 3)) == "a: 3\r\nb: 2\r\n"


def test_a_text_without_a_last_line_end_takes_a_new_key() -> None:
    assert edit_yaml("a: 1", Change("b", 2)) == "a: 1\nb: 2\n"


def test_an_anchor_stays_at_its_value() -> None:
    assert edit_yaml("a: &x 1  # one\n", Change("a", 2)) == "a: &x 2  # one\n"
