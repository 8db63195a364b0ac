"""The stacks that follow from single rows: vllm-ascend releases, torch_npu alone."""

from __future__ import annotations

import dataclasses

import pytest

from npuenv.core import versions
from npuenv.matrix import Matrix
from npuenv.matrix.release_stacks import all_recipes, of_torch_npu, pairing, partner_overrides, recipe_named
from npuenv.matrix.rows import RecipePin
from npuenv.resolve import resolve
from npuenv.resolve.rules import matrix_conflicts
from npuenv.resolve.search import broader_clash, candidate_of, choices
from npuenv.resolve.types import Conflict, Request, Stack
from tests.support.tables import MATRIX

RECIPES = {recipe.id: recipe for recipe in all_recipes(MATRIX)}


def version_in(name: str, package: str) -> str | None:
    return next((pin.version for pin in RECIPES[name].pin if pin.name == package), None)


def test_names_of_stacks_are_unique() -> None:
    assert len(RECIPES) == len(all_recipes(MATRIX))


def test_one_off_build_of_the_table_is_a_dispute_and_the_metadata_is_taken() -> None:
    recipe = RECIPES["vllm-ascend-0.18.0"]
    disputed = {each.about: (each.one, each.other, each.believe) for each in recipe.dispute}
    assert disputed["torch-npu"] == ("2.9.0.post1+git4c901a4", "2.9.0", "other")
    assert disputed["triton-ascend"] == ("3.2.0.dev20260322", "3.2.0", "other")
    assert (version_in(recipe.id, "torch-npu"), version_in(recipe.id, "triton-ascend")) == ("2.9.0", "3.2.0")
    stack = resolve(Request(stack=recipe.id), MATRIX)
    assert isinstance(stack, Stack)
    assert "resolve.dispute-other" in {note.key for note in stack.notes}


def test_torch_npu_that_an_image_forces_in_wins_over_the_metadata_and_overrules_it() -> None:
    recipe = RECIPES["vllm-ascend-0.13.0rc2"]
    assert version_in(recipe.id, "torch-npu") == "2.8.0.post1"
    assert {(each.package, each.does, each.requirement) for each in recipe.override} >= {
        ("vllm-ascend", "replace", "torch-npu==2.8.0.post1")
    }
    assert {(each.one, each.other, each.believe) for each in recipe.dispute} == {("2.8.0", "2.8.0.post1", "other")}


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("vllm-ascend-") and "310p" in name])
def test_310p_stack_has_no_triton_in_pins_or_order(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.hardware == ("310p",)
    assert version_in(name, "triton-ascend") is None
    assert "triton-ascend" not in {step.id for step in recipe.step}


def test_310p_rides_another_cann_where_its_image_does() -> None:
    recipe = RECIPES["vllm-ascend-0.20.2rc1-310p"]
    assert recipe.cann == "9.1.0-beta.1"
    assert RECIPES["vllm-ascend-0.20.2rc1"].cann == "9.0.0"
    assert [(each.about, each.one, each.other) for each in recipe.dispute if each.about == "CANN"] == [
        ("CANN", "9.0.0", "9.1.0-beta.1")
    ]


def test_python_of_the_image_comes_first_then_the_newest_that_the_table_allows() -> None:
    assert RECIPES["vllm-ascend-0.23.0"].python == ("3.12", "3.11", "3.10")
    assert RECIPES["vllm-ascend-0.18.0"].python == ("3.11", "3.10")
    assert RECIPES["vllm-ascend-0.7.3"].python == ("3.10", "3.11", "3.9")


def test_standing_follows_from_what_the_image_installs() -> None:
    expected = {
        "vllm-ascend-0.13.0": "published",
        "vllm-ascend-0.18.0": "compatible",
        "vllm-ascend-0.8.4rc1": "satisfiable",
    }
    assert {name: RECIPES[name].verified_by for name in expected} == expected


def test_release_without_a_torch_npu_says_what_it_lacks() -> None:
    assert RECIPES["vllm-ascend-0.8.4rc1"].lacks == ("torch-npu",)
    assert not RECIPES["vllm-ascend-0.13.0"].lacks


def test_ray_of_the_image_is_asked_for() -> None:
    assert "ray>=2.47.1,<=2.48.0" in RECIPES["vllm-ascend-0.13.0"].requirements
    assert not [text for text in RECIPES["vllm-ascend-0.7.3"].requirements if text.startswith("ray")]


def test_torch_npu_alone_stands_for_each_recommended_pair_newest_cann_first() -> None:
    names = [recipe.id for recipe in all_recipes(MATRIX) if recipe.framework == "torch-npu"]
    assert names[0] == "torch-npu-2.12.0"
    canns = [versions.cann(RECIPES[name].cann) for name in names]
    assert canns == sorted(canns, reverse=True)
    assert "torch-npu-2.13.0" not in RECIPES
    assert "torch-npu-2.1.0.post4" not in RECIPES
    stack = resolve(Request(stack="torch-npu-2.9.0.post2"), MATRIX)
    assert isinstance(stack, Stack)
    assert {name: pin.version for name in ("torch", "cann") if (pin := stack.pin(name))} == {
        "torch": "2.9.0",
        "cann": "9.0.0",
    }
    assert stack.verified_by == "recommended"


def test_wheels_that_need_a_newer_c_library_than_the_system_has_are_an_objection() -> None:
    recipe = dataclasses.replace(RECIPES["vllm-ascend-0.23.0"], glibc="2.34")
    found = {}
    for system in ("ubuntu20.04", "ubuntu22.04"):
        open_to = choices(recipe, Request(os=system))
        candidate = candidate_of(recipe, {name: values[0] for name, values in open_to.items()}, MATRIX)
        found[system] = [(clash.rule, clash.says.key) for clash in matrix_conflicts(candidate, MATRIX)]
    assert found == {"ubuntu20.04": [("ubuntu20.04", "resolve.system-glibc")], "ubuntu22.04": []}


def test_reason_of_many_stacks_names_them_and_that_of_all_names_the_framework() -> None:
    some = resolve(Request(framework="verl==0.7.1", cann="9.0.0"), MATRIX)
    every = resolve(Request(framework="verl", python="3.13"), MATRIX)
    assert isinstance(some, Conflict)
    assert isinstance(every, Conflict)
    (of_some,) = (clash for clash in some.clashes if clash.rule == "frameworks.verl")
    (of_all,) = (clash for clash in every.clashes if clash.rule == "frameworks.verl")
    assert of_some.says.key == "resolve.some-cann"
    assert "verl-0.7.1-cann8.5.0" in str(of_some.says.args["stacks"])
    assert of_all.says.key == "resolve.stacks-no-python"
    assert of_all.says.args["python"] == "3.13"


def test_what_is_said_of_a_framework_is_about_the_pin_that_was_taken() -> None:
    recipe = RECIPES["verl-0.7.1-cann8.5.0"]
    request = Request(framework="verl", pins={"torch": "2.13.0"})
    open_to = choices(recipe, request)
    taken = candidate_of(recipe, {name: values[0] for name, values in open_to.items()}, MATRIX)
    (clash,) = (each for each in matrix_conflicts(taken, MATRIX) if each.says.key == "resolve.torch-npu-torch")
    more = broader_clash(clash, taken, request)
    assert more is not None
    assert more.says.args["version"] == "2.13.0"
    assert broader_clash(clash, taken.with_version("torch", "2.9.0"), request) is None
    assert broader_clash(clash, taken, Request(stack=recipe.id, pins=request.pins)) is None


def test_a_derived_stack_takes_nothing_younger_than_what_it_follows_from() -> None:
    assert RECIPES["vllm-ascend-0.13.0"].date == RECIPES["vllm-ascend-0.13.0-310p"].date == "2026-02-06"
    for row in MATRIX.vllm_ascend:
        assert RECIPES[f"vllm-ascend-{row.version}"].date == row.released != ""
    alone = {recipe.release: recipe.date for recipe in RECIPES.values() if recipe.framework == "torch-npu"}
    assert alone == {row.version: row.published for row in MATRIX.torch_npu if row.version in alone}
    assert "" not in alone.values()


def test_what_drags_cuda_along_is_excluded_from_every_release() -> None:
    for row in MATRIX.vllm_ascend:
        overrides = RECIPES[f"vllm-ascend-{row.version}"].override
        assert {each.requirement for each in overrides if each.does == "exclude"} >= {"xformers", "triton"}


def test_numpy_stays_bounded_where_the_release_bounds_it() -> None:
    bounded = [row for row in MATRIX.vllm_ascend if row.requirement("numpy")]
    assert len(bounded) >= 10
    for row in bounded:
        overrides = RECIPES[f"vllm-ascend-{row.version}"].override
        found = [(each.does, each.requirement) for each in overrides if each.package == "numpy"]
        assert found == [("constrain", f"numpy{row.requirement('numpy')}")]


def test_an_image_pairs_a_torch_npu_only_where_table_and_metadata_agree() -> None:
    def how(version: str, cann: str) -> str | None:
        row = MATRIX.torch_npu_row(version)
        assert row is not None
        return pairing(row, cann, MATRIX)

    assert how("2.8.0", "8.3.RC2") == "image-practice"
    # vllm-ascend 0.13.0rc2 is built on 8.5.0; its table has the one, its metadata the other.
    assert (how("2.8.0.post1", "8.5.0"), how("2.8.0", "8.5.0")) == (None, None)


def test_what_the_stack_pins_itself_is_not_overruled_for_a_partner() -> None:
    recipe = RECIPES["vllm-ascend-0.30.0rc1"]
    found = [(each.package, each.requirement) for each in partner_overrides(recipe, MATRIX)]
    assert found == [("vllm-ascend", "fastapi[standard]<0.137.0,>=0.133.0")]  # what vllm serves with is for vllm to say
    fastapi = RecipePin("fastapi", "0.123.0", "identity", "made up")
    assert partner_overrides(dataclasses.replace(recipe, pin=(*recipe.pin, fastapi)), MATRIX) == ()
    assert partner_overrides(dataclasses.replace(recipe, framework="verl"), MATRIX) == ()


@pytest.mark.parametrize("lacking", [{"published": ""}, {"index": "pytorch-cpu"}, {"cann": ""}, {"cann": "99.0.0"}])
def test_a_torch_npu_without_a_day_wheels_or_a_cann_makes_no_stack(lacking: dict[str, str]) -> None:
    row = MATRIX.torch_npu_row("2.9.0.post2")
    assert row is not None
    small = Matrix(MATRIX.folder)
    vars(small)["torch_npu"] = (row,)
    assert [recipe.id for recipe in of_torch_npu(small)] == ["torch-npu-2.9.0.post2"]
    vars(small)["torch_npu"] = (dataclasses.replace(row, **lacking),)  # type: ignore[arg-type]
    assert list(of_torch_npu(small)) == []


def test_a_recipe_found_by_its_name_is_the_one_among_all() -> None:
    alone = Matrix(MATRIX.folder)
    assert {name: recipe_named(name, alone) for name in RECIPES} == RECIPES


@pytest.mark.parametrize("name", ["verl", "vllm-ascend-0.18", "vllm-ascend-0.18.0-a9", 'x"\nid = "y', ""])
def test_no_recipe_is_found_by_a_name_that_no_stack_has(name: str) -> None:
    assert recipe_named(name, MATRIX) is None


def test_a_named_stack_is_put_together_without_the_other_frameworks() -> None:
    alone = Matrix(MATRIX.folder)
    assert isinstance(resolve(Request(stack="verl-cann9.1.0", hardware="a2"), alone), Stack)
    assert "recipes" not in vars(alone)
