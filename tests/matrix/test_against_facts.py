"""The tables against the collected facts they were made from, where those are at hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from npuenv.core import versions
from npuenv.matrix import load_matrix

FACTS = Path(__file__).parents[2].parent / "shared" / "facts"
MATRIX = load_matrix()
pytestmark = pytest.mark.skipif(not FACTS.is_dir(), reason="the collected facts are not beside this checkout")


def facts(name: str) -> list[dict[str, str]]:
    with (FACTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def python_tags(pythons: tuple[str, ...]) -> str:
    return " ".join("cp" + python.replace(".", "") for python in pythons)


def test_every_torch_npu_row_equals_the_facts() -> None:
    expected = {row["torch_npu"]: row for row in facts("torch_npu.csv")}
    assert set(expected) <= {row.version for row in MATRIX.torch_npu}
    for row in MATRIX.torch_npu:
        if row.version not in expected:  # found on the index since, by `npuenv matrix refresh`
            assert row.source.startswith("package index"), row.id
            continue
        fact = expected[row.version]
        assert row.torch == fact["torch"], row.id
        assert (row.index == "default") is (fact["pypi"] == "yes"), row.id
        assert python_tags(row.python_aarch64) == fact["pypi_py_aarch64"], row.id
        assert python_tags(row.python_x86_64) == fact["pypi_py_x86_64"], row.id
        assert row.requires_aarch64 == fact["requires_torch_aarch64"], row.id
        assert row.requires_x86_64 == fact["requires_torch_x86_64"], row.id
        if "not in the official table" not in fact["cann"]:
            assert row.cann == fact["cann"], row.id
        else:
            assert row.cann == "", row.id
            assert all(each in fact["cann"] for each in row.cann_unofficial), row.id
        named = fact["cann_also_compatible"].replace(";", " ").split()
        assert set(row.cann_compatible) == {
            each for each in named if each[0].isdigit() and "." in each and each[-1] != "]"
        } - {each.strip("[") for each in named if each.startswith("[")}, row.id


def test_every_vllm_ascend_row_equals_the_facts() -> None:
    expected = {row["vllm_ascend"]: row for row in facts("vllm_ascend.csv") if row["vllm"]}
    assert set(expected) == {row.version for row in MATRIX.vllm_ascend}
    for row in MATRIX.vllm_ascend:
        fact = expected[row.version]
        assert row.vllm == fact["vllm"].split("/")[0], row.id
        assert row.torch_npu == fact["torch_npu"], row.id
        assert row.requirement("torch-npu") == fact["pin_torch_npu"].replace(" ", ""), row.id
        assert row.requirement("torch") == fact["pin_torch"].replace(" ", ""), row.id
        assert row.python == fact["python"].replace(" ", ""), row.id
        wanted = fact["cann"] or fact["image_cann"]
        assert (row.cann.casefold() == wanted.casefold()) or not wanted, row.id


def test_every_soc_version_of_the_facts_has_its_generation() -> None:
    families = {"A2": "a2", "A3": "a3", "310P": "310p", "950": "950"}
    named = [
        row for row in facts("soc.csv") if row["soc_version"] != "910b"
    ]  # an alias that npu-smi uses for another chip
    for fact in named:
        row = MATRIX.hardware_of_chip(fact["soc_version"])
        assert row is not None, fact
        assert row.id == families[fact["family"]], fact
        assert row.image_chip == fact["cann_image_chip"], fact


def test_every_cann_version_of_the_facts_has_a_row() -> None:
    for fact in facts("cann.csv"):
        row = MATRIX.cann_row(fact["cann"])
        assert row is not None, fact["cann"]
        if fact["numpy"].startswith("<2"):
            assert row.numpy == "<2", fact["cann"]


def test_every_triton_ascend_release_of_the_facts_has_its_cann() -> None:
    for fact in facts("triton_ascend.csv"):
        row = MATRIX.triton_ascend_row(fact["triton_ascend"])
        if fact["triton_ascend"].startswith(("3.5", "3.2.0.dev")):
            assert row is None
            continue
        assert row is not None
        assert fact["cann"] == "" or fact["cann"] in row.cann


def test_every_base_image_of_the_facts_can_be_named() -> None:
    known = {
        f"{row.repository}:{row.tag}-{chip.image_chip}-{system}-py{row.python}{row.suffix}"
        for row in MATRIX.images
        for name in row.hardware
        for system in row.os
        if (chip := MATRIX.hardware_row(name)) is not None
    }
    named = {row["base_image"] for row in facts("vllm_ascend_images.csv") if "/cann:" in row["base_image"]}
    assert named <= known
    assert len(named) > 60


def test_wheels_of_pinned_torch_npu_exist() -> None:
    wheels = {
        (row["version"], row["python_tag"], row["arch"])
        for row in facts("wheels.csv")
        if row["package"] == "torch-npu" and row["exists"] == "yes"
    }
    for recipe in MATRIX.recipes:
        pins = {pin.name: pin.version for pin in recipe.pin}
        if "torch-npu" not in pins:
            continue
        for arch in recipe.arch:
            for python in recipe.python:
                assert (pins["torch-npu"], "cp" + python.replace(".", ""), arch) in wheels
                assert versions.accepts(f"=={pins['torch']}", pins["torch"])
