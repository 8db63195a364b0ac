"""Requirements are taken apart as packaging does it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from npuenv.core.errors import BadInput
from npuenv.lock.inputs import RequirementName, parse_requirement
from npuenv.matrix import load_matrix

hypothesis = pytest.importorskip("hypothesis", reason="the property is checked with hypothesis")
st = hypothesis.strategies

MATRIX = load_matrix()
LETTERS = "ab1.-_ [],;()<>=!~*+\"'\u00e9\n"


@functools.cache
def texts() -> tuple[str, ...]:
    """Every requirement of the tables."""
    recipes = {text for recipe in MATRIX.recipes for text in recipe.requirements}
    return tuple(sorted(recipes | {text for row in MATRIX.built for text in row.requires}))


def by_packaging(text: str) -> RequirementName | None:
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    exact = [each for each in found.specifier if each.operator in ("==", "===") and not each.version.endswith(".*")]
    return RequirementName(found.name, tuple(sorted(found.extras)), bool(exact))


def ours(text: str) -> RequirementName | None:
    try:
        return parse_requirement(text)
    except BadInput:
        return None


def test_requirements_of_all_tables_are_taken_apart_as_packaging_does_it() -> None:
    assert len(texts()) > 100
    assert [text for text in texts() if ours(text) != by_packaging(text)] == []


@st.composite
def spoilt(draw: Any) -> str:
    """A requirement of the tables with one letter put in, taken out or changed."""
    text: str = draw(st.sampled_from(texts()))
    place = draw(st.integers(0, len(text) - 1))
    letter: str = draw(st.sampled_from(["", *LETTERS]))
    return text[:place] + letter + text[place + draw(st.integers(0, 1)) :]


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(spoilt())
def test_a_spoilt_requirement_that_packaging_reads_is_read_as_it_does(text: str) -> None:
    assert by_packaging(text) in (None, ours(text))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Torch_NPU==2.9.0+cpu", RequirementName("Torch_NPU", (), is_exact=True)),
        (
            'ray[default,Tune]>=2.41; python_version > "3.11"',
            RequirementName("ray", ("Tune", "default"), is_exact=False),
        ),
        ("numpy == 1.*", RequirementName("numpy", (), is_exact=False)),
        ("base===1.0", RequirementName("base", (), is_exact=True)),
    ],
)
def test_name_extras_and_exactness_are_told(text: str, asked: RequirementName) -> None:
    assert parse_requirement(text) == asked


def test_the_name_of_a_requirement_is_normal() -> None:
    assert parse_requirement("Torch_NPU==2.9.0").name == "torch-npu"


def test_what_has_no_name_is_refused() -> None:
    with pytest.raises(BadInput) as error:
        parse_requirement("=>2")
    assert error.value.message.args["text"] == "=>2"
