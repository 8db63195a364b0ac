"""Refreshing a small matrix from an index made on the spot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message, say
from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.maintain.refresh import Proposal, as_diff, propose
from npuenv.maintain.refresh.proposal import changed_keys, new_row
from npuenv.matrix import load_matrix
from npuenv.matrix.load import parse_table
from npuenv.matrix.rows import Built, TorchNpu, TritonAscend, VllmAscend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.matrix.load import Row
    from npuenv.matrix.tables import Matrix
    from tests.support.package_index import Served

pytest.importorskip("pypi_simple", reason="reading an index needs the package pypi-simple")

POLICY_2_0 = "| v2.0.0rc1 | v2.0.0 | >= 3.11, < 3.14 | 9.2.0 | 2.11.0 / 2.11.0.post1 | N/A | v0.4 |\n"
SAME_1_0 = "| v1.0.0 | v1.0.0 | >= 3.10, < 3.13 | 9.1.0 | 2.10.0 / 2.10.0.post4 | 3.2.2 | v0.3 |\n"


def refreshed(
    matrix: Matrix,
    settings: PipSettings,
    *names: str,
    steps: list[Message] | None = None,
    is_thorough: bool = False,
) -> tuple[Proposal, ...]:
    said = steps if steps is not None else []
    return propose(matrix, settings, names, said.append, is_thorough=is_thorough, today="2026-02-02")


def keys(steps: list[Message]) -> list[str]:
    return [step.key for step in steps]


def test_an_index_that_says_what_the_rows_say_gives_no_proposal(
    matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    assert refreshed(matrix, settings, steps=steps) == ()
    assert keys(steps).count("refresh.page") == 4
    assert "refresh.skipped" not in keys(steps)


def test_a_new_release_brings_its_row_its_requirements_and_those_of_its_vllm(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    asks = ["numpy", "torch==2.11.0", "torch-npu==2.11.0.post1", "fastapi<0.124.0", "opencv-python-headless<=4.11.0.86"]
    index.uploaded = "2026-01-30"
    index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0 + SAME_1_0, requires=asks, cann="9.2.0")
    index.add_vllm("2.0.0", "regex\nsix >= 1.16.0; python_version > '3.11' # pandas\n")

    found = {item.file: item for item in refreshed(matrix, settings, "vllm-ascend")}

    assert {file: (item.row_id, item.kind) for file, item in found.items()} == {
        "vllm_ascend.toml": ("vllm-ascend.2.0.0rc1", "new"),
        "built/vllm_ascend.toml": ("built.vllm-ascend.2.0.0rc1", "new"),
        "built/vllm.toml": ("built.vllm.2.0.0", "new"),
    }
    (row,) = parse_table(found["vllm_ascend.toml"].text, VllmAscend, "vllm_ascend.toml")
    assert (row.vllm, row.python, row.cann, row.cann_image) == ("2.0.0", ">=3.11,<3.14", "9.2.0", "")
    assert (row.torch_npu, row.triton_ascend, row.released) == ("2.11.0.post1", "", "2026-01-30")
    assert (row.in_policy_table, row.seen) == (True, "2026-02-02")
    (image,) = row.image
    assert (image.hardware, image.os) == (("a2", "a3"), ("ubuntu22.04", "openeuler24.03"))
    assert (image.cann, image.python, image.ray) == ("9.2.0", "3.12", ">=2.47.1,<=2.48.0")
    (built,) = parse_table(found["built/vllm_ascend.toml"].text, Built, "vllm_ascend.toml")
    assert built.requires == tuple(asks)
    (partner,) = parse_table(found["built/vllm.toml"].text, Built, "vllm.toml")
    assert partner.requires == ("regex", 'six>=1.16.0; python_version > "3.11"')


def test_a_release_outside_the_policy_table_gets_what_its_own_files_say(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.add_release("1.1.0rc1", vllm="1.0.1", cann="9.2.0")
    index.add_vllm("1.0.1", "regex\n")
    (row,) = parse_table(refreshed(matrix, settings, "vllm-ascend")[0].text, VllmAscend, "vllm_ascend.toml")
    assert (row.vllm, row.cann, row.torch_npu, row.triton_ascend) == ("1.0.1", "9.2.0", "2.10.0.post4", "3.2.2")
    assert (row.in_policy_table, row.python) == (False, "")


def test_images_with_another_cann_than_the_policy_table_are_said_to_have_it(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0, cann="9.1.0")
    index.add_vllm("2.0.0", "regex\n")
    (row,) = parse_table(refreshed(matrix, settings, "vllm-ascend")[0].text, VllmAscend, "vllm_ascend.toml")
    assert (row.cann, row.cann_image) == ("9.2.0", "9.1.0")


def test_a_changed_requirement_is_proposed_with_what_was_and_what_is(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.clear("vllm-ascend")
    asks = ["numpy", "torch==2.10.0", "torch-npu==2.10.0.post5", "transformers<5,>=4.57.4", "triton-ascend==3.2.2"]
    index.add_release("1.0.0", vllm="1.0.0", requires=asks)
    (built,) = refreshed(matrix, settings, "vllm-ascend")
    assert (built.row_id, built.key) == ("built.vllm-ascend.1.0.0", "requires")
    assert "torch-npu==2.10.0.post5" in built.new and "torch-npu==2.10.0.post4" in built.old


def test_the_newest_policy_table_speaks_of_older_releases_too(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0 + SAME_1_0.replace("9.1.0", "9.1.1"))
    index.add_vllm("2.0.0", "regex\n")
    changes = {item.key: item for item in refreshed(matrix, settings, "vllm-ascend") if item.kind == "changed"}
    assert {key: (item.row_id, item.old, item.new) for key, item in changes.items()} == {
        "cann": ("vllm-ascend.1.0.0", '"9.1.0"', '"9.1.1"'),
        "cann_image": ("vllm-ascend.1.0.0", "", '"9.1.0"'),
    }
    assert changes["cann"].source.startswith("versioning_policy.md inside the sdist of vllm-ascend 2.0.0rc1")


def test_files_of_one_release_that_contradict_each_other_are_named(
    index: Served, matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    index.add_release("2.0.0rc1", vllm="2.0.1", policy=POLICY_2_0)
    index.add_vllm("2.0.0", "regex\n")
    index.add_wheel("vllm-ascend", "2.0.0rc1", "cp312-cp312-manylinux_2_34_aarch64", ["numpy<2"])
    refreshed(matrix, settings, "vllm-ascend", steps=steps)
    said = [step.args for step in steps if step.key == "refresh.sources-differ"]
    assert [(each["what"], each["one"]) for each in said][1] == ("vllm", "2.0.0")
    assert (said[0]["what"], said[0]["other"]) == ("Requires-Dist", ("numpy<2",))
    assert said[1]["other"] == "2.0.1"


def test_a_new_torch_npu_gets_the_wheels_and_the_torch_of_both_architectures(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.uploaded = "2026-01-31"
    index.add_wheel("torch-npu", "2.11.0.post1", "cp310-cp310-manylinux_2_28_aarch64", ["numpy", "torch==2.11.0"])
    index.add_wheel("torch-npu", "2.11.0.post1", "cp312-cp312-manylinux_2_28_aarch64", ["torch==2.11.0"])
    index.add_wheel("torch-npu", "2.11.0.post1", "cp312-cp312-manylinux_2_28_x86_64", ["torch==2.11.0+cpu"])
    index.add_wheel("torch-npu", "2.9.0", "cp312-cp312-manylinux_2_28_x86_64", ["torch==2.9.0"])
    (found,) = refreshed(matrix, settings, "torch-npu")
    (row,) = parse_table(found.text, TorchNpu, "torch_npu.toml")
    assert (row.version, row.torch, row.status, row.index) == ("2.11.0.post1", "2.11.0", "unlisted", "default")
    assert (row.python_aarch64, row.python_x86_64) == (("3.10", "3.12"), ("3.12",))
    assert (row.requires_aarch64, row.requires_x86_64) == ("torch==2.11.0", "torch==2.11.0+cpu")
    assert (row.published, row.cann) == ("2026-01-31", "")
    assert row.source == "package index, 2026-02-02; its wheels need glibc 2.28"


def test_a_new_triton_ascend_leaves_empty_what_no_index_knows(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.add_wheel("triton-ascend", "3.3.0", "cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64")
    (found,) = refreshed(matrix, settings, "triton-ascend")
    (row,) = parse_table(found.text, TritonAscend, "triton_ascend.toml")
    assert (row.python, row.arch, row.index) == (("3.12",), ("aarch64",), "default")
    assert (row.cann, row.hardware) == ((), ())


def test_a_version_that_left_the_index_is_proposed_to_be_on_none(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.clear("torch-npu")
    (found,) = refreshed(matrix, settings, "torch-npu")
    assert (found.key, found.old, found.new, found.text) == ("index", '"default"', "", "")
    assert [line for line in as_diff([found], matrix.folder).splitlines() if line[0] in "#-+"] == [
        "# torch-npu.2.10.0.post4: package index: no such version",
        "--- a/torch_npu.toml",
        "+++ b/torch_npu.toml",
        '-index = "default"',
    ]


def test_a_wheel_for_one_more_python_is_proposed(index: Served, matrix: Matrix, settings: PipSettings) -> None:
    index.add_wheel("torch-npu", "2.10.0.post4", "cp313-cp313-manylinux_2_28_aarch64", ["torch==2.10.0"])
    (found,) = refreshed(matrix, settings, "torch-npu")
    assert found.text == 'python_aarch64 = ["3.11", "3.12", "3.13"]'


def test_files_older_than_their_row_are_read_again_only_when_asked(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.uploaded = "2025-12-31"
    for name in ("torch-npu", "vllm-ascend"):
        index.clear(name)
    for arch in ("aarch64", "x86_64"):
        for python in ("cp311", "cp312"):
            index.add_wheel("torch-npu", "2.10.0.post4", f"{python}-{python}-manylinux_2_28_{arch}", ["torch==2.10.1"])
    index.add_release("1.0.0", vllm="1.0.0", requires=["numpy"])

    quick: list[Message] = []
    assert [item.key for item in refreshed(matrix, settings, "torch-npu", "vllm-ascend", steps=quick)] == ["published"]
    assert "refresh.reading" not in keys(quick)
    thorough = refreshed(matrix, settings, "torch-npu", "vllm-ascend", is_thorough=True)
    assert {"requires_aarch64", "requires_x86_64", "requires"} <= {item.key for item in thorough}


def test_a_file_of_the_day_on_which_its_row_was_read_is_read_again(
    index: Served, matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    index.clear("vllm-ascend")
    index.uploaded = "2026-01-01"  # the `seen` of the row; the file may have come after the look
    index.add_release("1.0.0", vllm="1.0.0", requires=["numpy"])
    found = {item.key for item in refreshed(matrix, settings, "vllm-ascend", steps=steps)}
    assert "requires" in found and "refresh.reading" in keys(steps)


def test_a_version_is_published_on_the_day_of_its_first_file(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    for day, arch in (("2026-01-31", "aarch64"), ("2026-01-29", "x86_64"), ("2026-02-01", "aarch64")):
        index.uploaded = day
        python = "cp312" if day < "2026-02" else "cp313"
        index.add_wheel("torch-npu", "2.11.0", f"{python}-{python}-manylinux_2_28_{arch}", ["torch==2.11.0"])
    (found,) = refreshed(matrix, settings, "torch-npu")
    (row,) = parse_table(found.text, TorchNpu, "torch_npu.toml")
    assert row.published == "2026-01-29"


def test_a_version_of_another_index_is_not_missed_on_the_default_one(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    path = matrix.folder / "torch_npu.toml"
    row = path.read_text(encoding="utf-8")
    other = row.replace("2.10.0.post4", "2.10.0.post9").replace('index = "default"', 'index = "huawei-ascend"')
    path.write_text(row + other, encoding="utf-8")
    assert refreshed(matrix, settings, "torch-npu") == ()


def test_what_a_policy_table_said_of_a_release_outlives_that_table(
    index: Served, matrix: Matrix, settings: PipSettings
) -> None:
    index.clear("vllm-ascend")
    index.add_release("1.0.0", vllm="1.0.0", policy="", cann="9.2.0")
    found = {item.key: item.new for item in refreshed(matrix, settings, "vllm-ascend") if item.key != "image"}
    assert found == {"cann_image": '"9.2.0"'}


@pytest.mark.parametrize(
    ("asked", "pinned"), [("==2.10.0.post4", "2.10.0.post4"), ("==2.10.*", ""), ("!=2.9,==2.10.0", ""), (">=2.10", "")]
)
def test_only_an_exact_requirement_is_taken_for_the_version_of_a_release(
    index: Served, matrix: Matrix, settings: PipSettings, asked: str, pinned: str
) -> None:
    index.add_release("1.1.0rc1", vllm="1.0.0", requires=["numpy", f"torch-npu{asked}"])
    (row,) = parse_table(refreshed(matrix, settings, "vllm-ascend")[0].text, VllmAscend, "vllm_ascend.toml")
    assert (row.version, row.torch_npu) == ("1.1.0rc1", pinned)


@pytest.mark.parametrize("asked", ["torch!=2.11.1,==2.11.0", "torch>=2,==2.11.0", "torch>=2.11", "numpy"])
def test_a_torch_npu_without_an_exact_torch_goes_with_the_one_of_its_number(
    index: Served, matrix: Matrix, settings: PipSettings, asked: str
) -> None:
    index.add_wheel("torch-npu", "2.11.0.post1", "cp312-cp312-manylinux_2_28_aarch64", [asked])
    (found,) = refreshed(matrix, settings, "torch-npu")
    (row,) = parse_table(found.text, TorchNpu, "torch_npu.toml")
    assert row.torch == "2.11.0"


def test_broken_metadata_is_skipped_and_said(
    index: Served, matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    index.add_file("torch-npu", "torch_npu-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl", b"no wheel at all")
    index.add_wheel("vllm-ascend", "1.1.0", "cp312-cp312-manylinux_2_34_aarch64", ["numpy <>< 2"])
    index.add_file("vllm-ascend", "vllm_ascend-1.2.0.tar.gz", b"\x1f\x8b broken")
    (found,) = refreshed(matrix, settings, "torch-npu", "vllm-ascend", steps=steps)
    (row,) = parse_table(found.text, TorchNpu, "torch_npu.toml")
    assert (row.version, row.requires_aarch64, row.python_aarch64) == ("2.11.0", "", ("3.12",))
    skipped = {str(step.args["file"]): str(step.args["why"]) for step in steps if step.key == "refresh.skipped"}
    assert set(skipped) == {
        "torch_npu-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl",
        "vllm_ascend-1.1.0-cp312-cp312-manylinux_2_34_aarch64.whl",
        "vllm_ascend-1.2.0.tar.gz",
    }
    assert "numpy <>< 2" in skipped["vllm_ascend-1.1.0-cp312-cp312-manylinux_2_34_aarch64.whl"]


def test_a_file_with_another_hash_than_the_page_states_is_skipped(
    index: Served, matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    path = index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0)
    path.write_bytes(path.read_bytes() + b"\0")
    assert refreshed(matrix, settings, "vllm-ascend", steps=steps) == ()
    assert ["sha256" in str(step.args["why"]) for step in steps if step.key == "refresh.skipped"] == [True]


def test_a_vllm_without_an_sdist_is_read_from_its_wheel(index: Served, matrix: Matrix, settings: PipSettings) -> None:
    index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0)
    asks = ["regex", "psutil", "numba==0.61.2", "torch==2.11.0"]
    index.add_wheel("vllm", "2.0.0", "cp38-abi3-manylinux_2_31_x86_64", asks)
    partner = refreshed(matrix, settings, "vllm-ascend")[-1]
    (row,) = parse_table(partner.text, Built, "vllm.toml")
    assert row.requires == ("regex", "psutil")
    assert "first block" in row.source


def test_a_vllm_that_no_index_has_is_named(
    index: Served, matrix: Matrix, settings: PipSettings, steps: list[Message]
) -> None:
    index.add_release("2.0.0rc1", vllm="2.0.0", policy=POLICY_2_0)
    found = refreshed(matrix, settings, "vllm-ascend", steps=steps)
    assert [item.file for item in found] == ["vllm_ascend.toml", "built/vllm_ascend.toml"]
    assert [step.args["version"] for step in steps if step.key == "refresh.no-files"] == ["2.0.0"]


def test_an_index_that_is_gone_cannot_tell_and_shows_no_password(matrix: Matrix, home: object) -> None:
    gone = PipSettings(index_url=PipSetting("http://me:hidden@127.0.0.1:9/simple", "test"))
    with pytest.raises(CannotTell) as caught:
        refreshed(matrix, gone)
    text = say(caught.value.message)
    assert "127.0.0.1:9" in text and "hidden" not in text
    assert caught.value.hint is not None


def test_no_index_at_all_cannot_tell(matrix: Matrix, home: object) -> None:
    with pytest.raises(CannotTell) as caught:
        refreshed(matrix, PipSettings(is_no_index=True))
    assert caught.value.message.key == "refresh.no-index-configured"


def test_a_package_that_no_index_knows_cannot_tell(index: Served, matrix: Matrix, settings: PipSettings) -> None:
    for path in (index.folder / "simple" / "torch-npu").iterdir():
        path.unlink()
    (index.folder / "simple" / "torch-npu").rmdir()
    with pytest.raises(CannotTell) as caught:
        refreshed(matrix, settings, "torch-npu")
    assert caught.value.message.key == "refresh.not-on-index"
    assert caught.value.message.args == {"package": "torch-npu", "index": (index.url,)}


def test_a_name_that_cannot_be_read_is_refused_with_those_that_can(matrix: Matrix, settings: PipSettings) -> None:
    with pytest.raises(BadInput) as caught:
        refreshed(matrix, settings, "torch")
    assert caught.value.hint is not None
    assert say(caught.value.hint) == "choose from: torch-npu, triton-ascend, vllm-ascend, vllm"


def test_without_the_library_the_hint_is_the_command_that_installs_it(
    matrix: Matrix, settings: PipSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    with pytest.raises(BadInput) as caught:
        refreshed(matrix, settings)
    assert caught.value.hint is not None
    assert say(caught.value.hint) == "python -m pip install 'pypi-simple>=1.6'"


def table(path: Path, kind: type[Row]) -> dict[str, Row]:
    return {row.id: row for row in parse_table(path.read_text(encoding="utf-8"), kind, path.name)}


def _patch(folder: Path, diff: str) -> None:
    subprocess.run(["patch", "-p1", "--fuzz=0", "-d", str(folder)], input=diff, text=True, check=True)


def _git_apply(folder: Path, diff: str) -> None:
    subprocess.run(["git", "apply", "-p1"], input=diff, text=True, check=True, cwd=folder)


@pytest.mark.parametrize("apply", [_patch, _git_apply])
def test_a_diff_can_be_applied_to_the_tables_that_are_shipped(
    apply: Callable[[Path, str], None], tmp_path: Path
) -> None:
    """Every kind of change at once: a value of one line and of several, a key that comes or goes, new rows."""
    if apply is _patch and shutil.which("patch") is None:
        pytest.skip("needs patch")
    shipped, folder = load_matrix(), tmp_path / "tables"
    shutil.copytree(shipped.folder, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    torch, vllm = shipped.torch_npu[7], shipped.built[-1]
    ascend = parse_table((shipped.folder / "vllm_ascend.toml").read_text(), VllmAscend, "vllm_ascend.toml")
    wanted: dict[tuple[str, type[Row]], list[Row]] = {
        ("torch_npu.toml", TorchNpu): [replace(torch, index="", published="2026-01-01"), replace(torch, id="new.1")],
        ("vllm_ascend.toml", VllmAscend): [
            replace(ascend[0], commit="", cann_image="9.9.9", image=(*ascend[0].image, *ascend[-1].image)),
            replace(ascend[-1], image=ascend[0].image),
            *(replace(ascend[-1], id=f"new.{at}") for at in (1, 2)),
        ],
        ("built/vllm_ascend.toml", Built): [replace(vllm, requires=("one", "two"))],
    }
    proposals: list[Proposal] = []
    before = {row.id: row for row in (*shipped.torch_npu, *ascend, vllm)}
    for (file, _), rows in wanted.items():
        for row in rows:
            changes = changed_keys(file, before[row.id], row, "an index") if row.id in before else [new_row(file, row)]
            proposals += changes
    apply(folder, as_diff(proposals, folder))
    for (file, kind), rows in wanted.items():
        old, new = (table(root / file, kind) for root in (shipped.folder, folder))
        assert new == {**old, **{row.id: row for row in rows}}
    assert as_diff([], folder) == ""
