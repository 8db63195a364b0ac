"""YAML at the borders of what merges."""

from __future__ import annotations

import pytest

from npuenv.preflight.yaml_text import read_yaml


@pytest.mark.parametrize(
    ("key", "names"), [("<<", ["b", "a"]), ('"<<"', ["<<", "b"]), ("'<<'", ["<<", "b"]), ("!!str <<", ["b", "a"])]
)
def test_only_a_bare_merge_key_merges(key: str, names: list[str]) -> None:
    (_, second) = read_yaml(f"x: &x\n  a: 1\ny:\n  {key}: *x\n  b: 2\n", "f.yaml")
    assert [each.path[-1] for each in second.children] == names
