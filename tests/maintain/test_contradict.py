"""Contradictions computed from rows: every kind, made by editing a copy of the tables, and who settles them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import LANGUAGES, say
from npuenv.maintain.contradict import find_contradictions
from npuenv.matrix import Matrix, load_matrix

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.maintain.contradict import RowConflict

MATRIX = load_matrix()


@pytest.fixture(scope="module")
def found_here() -> tuple[RowConflict, ...]:
    """Of the tables as they are."""
    return find_contradictions(MATRIX)


# A release as it should be: what nothing is to be found about, until something in it is changed.
RELEASE = """
[[row]]
id = "vllm-ascend.0.13.0"
version = "0.13.0"
vllm = "0.13.0"
python = ">=3.10,<3.12"
cann = "8.5.0"
torch_npu = "2.8.0.post2"
released = "2026-02-06"
triton_ascend = "3.2.0"
image = [
  { hardware = ["a2", "a3"], os = ["ubuntu22.04"], cann = "8.5.0", python = "3.11", ray = ">=2.47.1" },
  { hardware = ["310p"], os = ["ubuntu22.04"], cann = "8.5.0", python = "3.11" },
]
source = "made up"
seen = "2026-11-21"
"""
RECIPE = """
[[row]]
id = "made-up"
framework = "verl"
release = "1"
date = "2026-02-06"
cann = "8.5.0"
python = ["3.11"]
arch = ["aarch64"]
hardware = ["a2"]
verified_by = "published"
sources = ["made up"]
step = []
source = "made up"
seen = "2026-11-21"
requirements = ["ray[default]>=2.41"]
pin = [
  { name = "torch", version = "2.8.0", strength = "identity", source = "made up" },
  { name = "torchvision", version = "0.23.0", strength = "identity", source = "made up" },
  { name = "torch-npu", version = "2.8.0.post2", strength = "identity", source = "made up" },
  { name = "vllm", version = "0.13.0", strength = "identity", source = "made up" },
  { name = "vllm-ascend", version = "0.13.0", strength = "identity", source = "made up" },
  { name = "triton-ascend", version = "3.2.0", strength = "identity", source = "made up" },
  { name = "transformers", version = "4.57.6", strength = "identity", source = "made up" },
  { name = "ray", version = "2.48.0", strength = "identity", source = "made up" },
]
range = [{ name = "transformers", spec = "<5", source = "made up" }]
git = [
  { name = "vllm", repo = "https://example.org/vllm.git", ref = "v0.13.0" },
  { name = "vllm-ascend", repo = "https://example.org/va.git", ref = "v0.13.0" },
]
override = []
"""
NOTHING = "row = []\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tables with one release, one recipe, and nothing written down about them."""
    copy = tmp_path / "matrix"
    shutil.copytree(MATRIX.folder, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (copy / "vllm_ascend.toml").write_text(RELEASE, encoding="utf-8")
    for path in (copy / "contradictions.toml", *(copy / "frameworks").glob("*.toml")):
        path.write_text(NOTHING, encoding="utf-8")
    (copy / "frameworks" / "verl.toml").write_text(RECIPE, encoding="utf-8")
    return copy


def found_after(folder: Path, file: str, old: str, new: str) -> list[RowConflict]:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return list(find_contradictions(Matrix(folder)))


def test_nothing_is_found_where_nothing_is_wrong(folder: Path) -> None:
    assert find_contradictions(Matrix(folder)) == ()


RELEASES, ASKED, RECIPES = "vllm_ascend.toml", "built/vllm_ascend.toml", "frameworks/verl.toml"
OF_0_13 = 'version = "0.13.0"\nrequires = ['


@pytest.mark.parametrize(
    ("file", "old", "new", "kind", "said"),
    [
        (RELEASES, 'torch_npu = "2.8.0.post2"', 'torch_npu = "2.8.0.post1"', "policy-torch-npu", "2.8.0.post1"),
        (ASKED, OF_0_13, f'{OF_0_13}"torch==2.9.0", ', "torch-npu-torch", "torch==2.9.0"),
        (RELEASES, '\ntriton_ascend = "3.2.0"', '\ntriton_ascend = "3.2.1"', "policy-triton-ascend", "3.2.1"),
        (RELEASES, '\ncann = "8.5.0"', '\ncann = "9.0.0"', "image-cann", "a2, a3, 310p has CANN 8.5.0"),
        (
            RELEASES,
            'python = "3.11", ray',
            'torch_npu = "2.8.0.post4", python = "3.11", ray',
            "image-torch-npu",
            "post4",
        ),
        (
            RECIPES,
            '{ name = "transformers", spec = "<5"',
            '{ name = "transformers", spec = ">=5"',
            "recipe-range",
            ">=5",
        ),
        (RECIPES, "ray[default]>=2.41", "ray[default]>=2.49", "recipe-range", ">=2.49"),
        (RECIPES, 'cann = "8.5.0"', 'cann = "8.3.RC2"', "torch-npu-cann", "with CANN 8.3.RC2"),
        (RECIPES, '"torchvision", version = "0.23.0"', '"torchvision", version = "0.22.1"', "recipe-pair", "0.23.0"),
        (RECIPES, 'name = "vllm", version = "0.13.0"', 'name = "vllm", version = "0.14.1"', "recipe-pair", "0.13.0"),
        (
            RECIPES,
            '"transformers", version = "4.57.6"',
            '"transformers", version = "4.57.1"',
            "recipe-requires",
            "4.57.1",
        ),
    ],
)
def test_a_changed_field_is_found(folder: Path, file: str, old: str, new: str, kind: str, said: str) -> None:
    found = [each for each in found_after(folder, file, old, new) if each.kind == kind]
    assert len(found) == 1
    assert found[0].standing == "unsettled"
    assert found[0].by == ()
    assert said in say(found[0].says)
    assert all(say(found[0].says, lang) for lang in LANGUAGES)


def test_triton_ascend_of_another_series_of_cann_is_found(folder: Path) -> None:
    found = found_after(folder, RECIPES, '"triton-ascend", version = "3.2.0"', '"triton-ascend", version = "3.2.2"')
    kinds = {each.kind: each.rows for each in found}
    assert kinds["triton-ascend-cann"] == ("made-up", "triton-ascend.3.2.2")
    assert kinds["recipe-requires"] == ("made-up",)


def test_a_python_without_wheels_is_found_for_each_architecture(folder: Path) -> None:
    found = found_after(folder, RELEASES, 'python = "3.11", ray', 'python = "3.13", ray')
    missing = [(each.says.args["package"], each.says.args["arch"]) for each in found if each.kind == "no-wheel"]
    packages = ("torch-npu 2.8.0.post2", "triton-ascend 3.2.0")
    assert missing == [(package, arch) for package in packages for arch in ("aarch64", "x86_64")]


def test_triton_wheels_of_one_architecture_are_found_to_lack_the_other(folder: Path) -> None:
    path = folder / "triton_ascend.toml"
    text = path.read_text(encoding="utf-8")
    at = text.index('id = "triton-ascend.3.2.0"\n')
    path.write_text(
        text[:at] + text[at:].replace('arch = ["aarch64", "x86_64"]', 'arch = ["aarch64"]', 1), encoding="utf-8"
    )
    (found,) = find_contradictions(Matrix(folder))
    assert (found.kind, found.rows) == ("no-wheel", ("vllm-ascend.0.13.0", "triton-ascend.3.2.0"))
    assert found.says.args == {
        "row": "vllm-ascend.0.13.0", "package": "triton-ascend 3.2.0", "python": "3.11", "arch": "x86_64",
    }  # fmt: skip


def test_a_310p_image_is_not_asked_for_triton_wheels(folder: Path) -> None:
    found = found_after(folder, RELEASES, 'python = "3.11" }', 'python = "3.13" }')
    assert {each.says.args["package"] for each in found if each.kind == "no-wheel"} == {"torch-npu 2.8.0.post2"}


def test_ranges_of_vllm_and_vllm_ascend_that_never_meet_are_found(folder: Path) -> None:
    found = found_after(
        folder, "built/vllm.toml", '"opencv-python-headless>=4.11.0"', '"opencv-python-headless>=4.11.0"'
    )
    assert found == []
    path = folder / "built" / "vllm_ascend.toml"
    text = path.read_text(encoding="utf-8")
    at = text.index('id = "built.vllm-ascend.0.13.0"')
    path.write_text(text[:at] + text[at:].replace("<=4.11.0.86", "<4.11", 1), encoding="utf-8")
    (clash,) = find_contradictions(Matrix(folder))
    assert (clash.kind, clash.rows) == ("vllm-against-vllm-ascend", ("vllm-ascend.0.13.0",))
    assert clash.says.args["own"] == "<4.11"


def test_an_override_with_what_is_asked_anyway_is_pointless(folder: Path) -> None:
    line = '{ package = "vllm-ascend", does = "replace", requirement = "torch=={torch}", why = "w", source = "s" }'
    (found,) = found_after(folder, RECIPES, "override = []", f"override = [{line}]")
    assert (found.kind, found.says.args["requirement"]) == ("pointless-override", "torch==2.8.0")


def test_an_override_settles_what_it_overrules(folder: Path) -> None:
    line = (
        '{ package = "vllm-ascend", does = "replace", requirement = "transformers==4.57.1", why = "w", source = "s" }'
    )
    found_after(folder, RECIPES, "override = []", f"override = [{line}]")
    (found,) = found_after(folder, RECIPES, '"transformers", version = "4.57.6"', '"transformers", version = "4.57.1"')
    assert (found.standing, found.by) == ("settled", ("made-up",))


@pytest.mark.parametrize(("believe", "standing"), [("one", "settled"), ("open", "open")])
def test_a_dispute_settles_unless_it_is_open(folder: Path, believe: str, standing: str) -> None:
    sides = f'one = "a", one_source = "s", other = "b", other_source = "s", believe = "{believe}", why = "w"'
    found_after(folder, RECIPES, "override = []", f'override = []\ndispute = [{{ about = "transformers", {sides} }}]')
    (found,) = found_after(folder, RECIPES, '"transformers", version = "4.57.6"', '"transformers", version = "4.57.1"')
    assert found.standing == standing


def test_a_dispute_about_something_else_settles_nothing(folder: Path) -> None:
    sides = 'one = "a", one_source = "s", other = "b", other_source = "s", believe = "one", why = "w"'
    found_after(folder, RECIPES, "override = []", f'override = []\ndispute = [{{ about = "numpy", {sides} }}]')
    (found,) = found_after(folder, RECIPES, '"transformers", version = "4.57.6"', '"transformers", version = "4.57.1"')
    assert (found.standing, found.by) == ("unsettled", ())


WRITTEN = """
[[row]]
id = "contradiction.made-up"
about = "{about}"
rows = {rows}
one = "a"
one_source = "s"
other = "b"
other_source = "s"
believe = "{believe}"
why = "w"
source = "s"
seen = "2026-11-21"
"""


@pytest.mark.parametrize(
    ("about", "rows", "believe", "standing"),
    [
        ("torch_npu of vllm-ascend 0.13.0", ["vllm-ascend.0.13.0", "torch-npu.2.8.0.post2"], "one", "settled"),
        ("torch_npu of vllm-ascend 0.13.0", ["vllm-ascend.0.13.0", "torch-npu.2.8.0.post2"], "both", "settled"),
        ("torch_npu of vllm-ascend 0.13.0", ["vllm-ascend.0.13.0", "torch-npu.2.8.0.post2"], "open", "open"),
        ("torch_npu of vllm-ascend 0.13.0", ["vllm-ascend.0.13.0"], "one", "unsettled"),  # another torch_npu row
        ("torch of vllm-ascend 0.13.0", ["vllm-ascend.0.13.0", "torch-npu.2.8.0.post2"], "one", "unsettled"),
    ],
)
def test_a_written_contradiction_settles_what_has_its_rows_and_its_subject(
    folder: Path, about: str, rows: list[str], believe: str, standing: str
) -> None:
    text = WRITTEN.format(about=about, rows=str(rows).replace("'", '"'), believe=believe)
    (folder / "contradictions.toml").write_text(text, encoding="utf-8")
    (found,) = found_after(folder, RELEASES, 'torch_npu = "2.8.0.post2"', 'torch_npu = "2.8.0.post1"')
    assert found.standing == standing
    assert found.by == (() if standing == "unsettled" else ("contradiction.made-up",))


def test_of_two_written_contradictions_the_open_one_counts(folder: Path) -> None:
    rows = '["vllm-ascend.0.13.0", "torch-npu.2.8.0.post2"]'
    one, other = (WRITTEN.format(about="torch_npu", rows=rows, believe=believe) for believe in ("one", "open"))
    text = one + other.replace("contradiction.made-up", "contradiction.other")
    (folder / "contradictions.toml").write_text(text, encoding="utf-8")
    (found,) = found_after(folder, RELEASES, 'torch_npu = "2.8.0.post2"', 'torch_npu = "2.8.0.post1"')
    assert (found.standing, found.by) == ("open", ("contradiction.made-up", "contradiction.other"))


def test_of_the_tables_that_come_with_npuenv_none_is_left_unsettled(found_here: tuple[RowConflict, ...]) -> None:
    assert [each for each in found_here if each.standing == "unsettled"] == []
    assert len(found_here) >= 50


@pytest.mark.parametrize(
    ("kind", "row", "standing", "by"),
    [
        ("policy-torch-npu", "vllm-ascend.0.11.0", "settled", "contradiction.vllm-ascend-0.11.0-table-torch-npu"),
        ("policy-torch-npu", "vllm-ascend.0.18.0", "settled", "contradiction.vllm-ascend-0.18.0-one-off-builds"),
        ("image-torch-npu", "vllm-ascend.0.13.0rc2", "settled", "contradiction.vllm-ascend-0.13.0rc2-image-torch-npu"),
        ("image-cann", "vllm-ascend.0.23.0rc1", "settled", "contradiction.vllm-ascend-310p-cann"),
        ("image-cann", "vllm-ascend.0.30.0rc1", "open", "contradiction.vllm-ascend-0.30.0rc1-cann"),
        ("torch-npu-cann", "vllm-ascend.0.12.0rc1", "settled", "contradiction.vllm-ascend-on-cann-8.3.RC2"),
        (
            "vllm-against-vllm-ascend",
            "vllm-ascend.0.26.0rc1",
            "settled",
            "contradiction.vllm-fastapi-against-vllm-ascend",
        ),
        ("triton-ascend-cann", "roll-cann9.1.0", "open", "contradiction.roll-triton-ascend"),
        ("recipe-requires", "verl-cann9.1.0", "settled", "contradiction.verl-0.9-numpy"),
    ],
)
def test_known_contradictions_are_found_and_lead_to_who_decided(
    found_here: tuple[RowConflict, ...], kind: str, row: str, standing: str, by: str
) -> None:
    found = [each for each in found_here if each.kind == kind and each.rows[0] == row and by in each.by]
    assert [each.standing for each in found] == [standing]
