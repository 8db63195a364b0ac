"""The names of a request: hardware in the guides' words, and releases that exist without a stack."""

from __future__ import annotations

import pytest

from npuenv.core.errors import BadInput
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases
from npuenv.resolve.request import in_normal_form
from npuenv.resolve.types import Request

MATRIX = load_matrix()
CALLED = [(name, row.id) for row in MATRIX.hardware for name in row.called]


@pytest.mark.parametrize(("name", "generation"), CALLED)
def test_what_guides_call_a_generation_is_taken_for_it_in_any_spelling(name: str, generation: str) -> None:
    for each in (name, name.upper(), f" {name.lower()} ", name.replace(" ", "-"), name.replace(" ", "_")):
        assert in_normal_form(Request(hardware=each), MATRIX).hardware == generation


# The words of verl's and ROLL's guides and of vllm-ascend's list of products, written down apart from the table.
@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("910B", "a2"), ("Atlas 200T A2 Box16", "a2"), ("Atlas 900 A2 PODc", "a2"), ("Atlas 800I A2", "a2"),
        ("Atlas 800T A3", "a3"), ("910_93", "a3"), ("910C", "a3"), ("910_9391", "a3"), ("ascend910_9392", "a3"),
        ("Atlas 300I Duo", "310p"), ("Ascend310P3", "310p"), ("910B3", "a2"), ("A2", "a2"),
    ],
)  # fmt: skip
def test_the_guides_own_words_are_known(name: str, generation: str) -> None:
    assert in_normal_form(Request(hardware=name), MATRIX).hardware == generation


def test_no_word_is_of_two_generations_and_none_changes_what_is_read_from_a_machine() -> None:
    words = [name.casefold() for name, _ in CALLED]
    assert len(words) == len(set(words))
    first = MATRIX.hardware_of_chip("910B")
    assert first is not None and not first.accepted
    with pytest.raises(BadInput) as refused:
        in_normal_form(Request(hardware="910A"), MATRIX)
    assert refused.value.message.key == "resolve.hardware-not-accepted"


def test_leading_v_of_a_tag_is_no_part_of_a_version() -> None:
    tagged = Request(
        framework="verl", cann="v8.5.0", driver=" V25.5.1", python="v3.11.4", pins={"numpy": "v1.26.4", "ray": "2.48.0"}
    )
    plain = Request(
        framework="verl", cann="8.5.0", driver="25.5.1", python="3.11", pins={"numpy": "1.26.4", "ray": "2.48.0"}
    )
    assert in_normal_form(tagged, MATRIX) == plain
    with pytest.raises(BadInput):
        in_normal_form(Request(framework="verl", cann="version 8.5.0"), MATRIX)


def test_what_a_host_says_of_its_driver_is_not_refused() -> None:
    read = Request(framework="verl", driver="1.0.10", origins={"driver": "version.info"})
    assert in_normal_form(read, MATRIX) == read


def test_every_release_of_verl_has_a_stack_or_is_said_to_have_none() -> None:
    stacks = {recipe.release for recipe in MATRIX.recipes if recipe.framework == "verl"}
    without = [each for each in known_releases("verl") if each not in stacks]
    assert "0.6.0" in without
    for release in known_releases("verl"):
        assert refusal(release) == ("resolve.release-without-stack" if release in without else None)
    assert refusal("0.99.0") == "resolve.unknown"


def refusal(release: str) -> str | None:
    try:
        in_normal_form(Request(framework=f"verl=={release}"), MATRIX)
    except BadInput as error:
        return error.message.key
    return None
