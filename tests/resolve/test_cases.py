"""Requests as files: what each resolves to, or what clashes and what to do, or why it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.errors import BadInput, ExitCode
from npuenv.resolve import resolve
from npuenv.resolve.types import Conflict, Request, Stack
from tests.support.tables import MATRIX

CASES = {path.stem: load_toml(path) for path in sorted((Path(__file__).parent / "cases").glob("*.toml"))}


def of_kind(kind: str) -> list[str]:
    return [name for name, case in CASES.items() if kind in case]


def request_of(case: dict[str, Any]) -> Request:
    return Request(**case["request"])


def test_every_case_says_what_it_expects() -> None:
    assert len(CASES) >= 25
    kinds = {"stack", "conflict", "refused"}
    assert [name for name, case in CASES.items() if len(kinds & set(case)) != 1] == []


@pytest.mark.parametrize("name", of_kind("stack"))
def test_request_resolves_to_the_expected_stack(name: str) -> None:
    expected = CASES[name]["stack"]
    stack = resolve(request_of(CASES[name]), MATRIX)
    assert isinstance(stack, Stack), stack
    assert stack.name == expected["name"]
    assert stack.verified_by == expected["verified_by"]
    assert (stack.image or "") == expected["image"]
    assert {key: pin.version for key in expected["pins"] if (pin := stack.pin(key))} == expected["pins"]
    assert {key: getattr(stack.pin(key), "index", "") for key in expected.get("index", {})} == expected.get("index", {})
    strength = expected.get("strength", {})
    assert {key: getattr(stack.pin(key), "strength", "") for key in strength} == strength
    assert stack.soc_version == expected.get("soc", stack.soc_version)
    git = {source.name: source.ref for source in stack.git_sources}
    assert {key: git.get(key) for key in expected.get("git", {})} == expected.get("git", {})
    assert set(expected.get("notes", [])) <= {note.key for note in stack.notes}


@pytest.mark.parametrize("name", of_kind("conflict"))
@pytest.mark.one_in(2)
def test_request_conflicts_over_the_expected_rules(name: str) -> None:
    expected = CASES[name]["conflict"]
    conflict = resolve(request_of(CASES[name]), MATRIX)
    assert isinstance(conflict, Conflict), conflict
    assert {clash.source for clash in conflict.clashes if clash.rule == "request"} == set(expected["asked"])
    rows = [clash.rule for clash in conflict.clashes if clash.rule != "request"]
    if "one_of" in expected:
        assert len(rows) == 1
        assert rows[0] in expected["one_of"]
    else:
        assert sorted(rows) == expected["rows"]
    offered = [" ".join(way.command) for way in conflict.ways_out]
    assert offered[: len(expected["ways_out"])] == expected["ways_out"]


@pytest.mark.parametrize("name", of_kind("refused"))
def test_misspelt_name_is_refused_with_the_nearest(name: str) -> None:
    expected = CASES[name]["refused"]
    with pytest.raises(BadInput) as refused:
        resolve(request_of(CASES[name]), MATRIX)
    assert refused.value.exit_code == ExitCode.INPUT
    assert refused.value.message.key == expected["message"]
    assert refused.value.hint is not None or expected["message"] == "resolve.pin-has-option"
    near = refused.value.hint.args.get("near", "") if refused.value.hint else ""
    assert near == expected["near"]
