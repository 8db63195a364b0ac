"""Every published stack of verl and ROLL stands for a recipe here, or the reason why it does not is written down."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pytest

from npuenv.core.documents import load_toml
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Conflict, Request, Stack

FOLDER = Path(__file__).parent / "published"
FACTS = Path(__file__).parents[2].parent / "shared" / "facts" / "frameworks.toml"
MATRIX = load_matrix()
RECIPES = {recipe.id: recipe for recipe in MATRIX.recipes}


@functools.cache
def mapped() -> list[dict[str, str]]:
    return [row for path in sorted(FOLDER.glob("*.toml")) for row in load_toml(path)["stack"]]


@functools.cache
def collected() -> dict[str, dict[str, str]]:
    rows = load_toml(FACTS)["stack"]
    return {row["name"]: row for row in rows if row["framework"].casefold() in ("verl", "roll")}


needs_facts = pytest.mark.skipif(not FACTS.is_file(), reason="the collected facts are not beside this checkout")


@needs_facts
def test_every_collected_stack_is_mapped_exactly_once() -> None:
    times = Counter(row["published"] for row in mapped())
    assert times == Counter(dict.fromkeys(collected(), 1))


@needs_facts
def test_a_recipe_has_the_cann_and_the_hardware_of_what_it_stands_for() -> None:
    generations = {"a2": "A2", "a3": "A3", "950": "950"}
    for row in mapped():
        recipe = RECIPES.get(row.get("stack", ""))
        if recipe is None or "cann" in recipe.lacks:
            continue
        published = collected()[row["published"]]
        if published["cann"][0].isdigit():
            wanted = published["cann"].partition(".B")[0]
            assert recipe.cann.casefold() == wanted.casefold(), row
        named = {hardware for hardware, said in generations.items() if said in published["hardware"]}
        assert named <= set(recipe.hardware), row


def test_a_mapping_names_a_recipe_that_exists_or_a_reason() -> None:
    rows = mapped()
    assert len(rows) >= 40
    for row in rows:
        assert set(row) in ({"published", "stack"}, {"published", "reason"}), row
        if "stack" in row:
            assert row["stack"] in RECIPES, row
        else:
            assert len(row["reason"]) > 20, row


@pytest.mark.parametrize("name", sorted({row["stack"] for row in mapped() if "stack" in row}))
def test_a_mapped_recipe_resolves_on_all_its_hardware_unless_it_lacks_something(name: str) -> None:
    recipe = RECIPES[name]
    for hardware in recipe.hardware:
        found = resolve(Request(stack=name, hardware=hardware), MATRIX)
        if recipe.lacks:
            assert isinstance(found, Conflict)
            assert any(clash.rule != "request" for clash in found.clashes), "a proof names more than the wish itself"
        else:
            assert isinstance(found, Stack), (hardware, found)
            assert found.name == name
            assert found.platform.hardware == hardware
