"""What is proposed from frozen states of upstream: `states/NAME.toml` holds the files, `states/NAME.diff` the proposal.

`states/tables` holds the rows as they stood before the first one. To freeze another state, write both files by hand.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.core.documents import load_toml
from npuenv.core.errors import BadInput
from npuenv.maintain.refresh import as_diff, propose_from_tree
from npuenv.matrix import load_matrix
from npuenv.matrix.tables import Matrix
from tests.support.archives import pack

if TYPE_CHECKING:
    from npuenv.core.messages import Message

STATES = Path(__file__).parent / "states"
DAY = "2026-11-27"


def unpack(name: str, folder: Path) -> Path:
    for path, text in load_toml(STATES / f"{name}.toml").items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / name


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STATES / "tables", tmp_path / "tables"))


def proposed(tree: Path, tables: Path, *, tag: str = "", steps: list[Message] | None = None) -> str:
    say = (steps if steps is not None else []).append
    matrix = Matrix(tables)
    return as_diff(propose_from_tree(tree, matrix, say, tag=tag, today=DAY), matrix.folder)


def test_each_state_gives_its_diff_and_an_applied_diff_leaves_nothing(tables: Path, tmp_path: Path) -> None:
    """A release, then the main branch that corrects its line in the policy table, then a release of verl."""
    for name in ("vllm-ascend-0.23.0", "vllm-ascend-main", "verl-0.9.0"):
        tree = unpack(name, tmp_path)
        difference = proposed(tree, tables)
        assert difference == (STATES / f"{name}.diff").read_text(encoding="utf-8"), name
        subprocess.run(["patch", "-s", "-p1", "-d", str(tables)], input=difference, text=True, check=True)
        assert proposed(tree, tables) == "", name


def test_the_tables_of_today_have_all_of_the_frozen_states(tmp_path: Path) -> None:
    for state in sorted(STATES.glob("*.toml")):
        assert proposed(unpack(state.stem, tmp_path), load_matrix().folder) == "", state.stem


def test_a_table_of_a_release_does_not_undo_what_a_later_one_corrected(tables: Path, tmp_path: Path) -> None:
    for name in ("vllm-ascend-0.23.0", "vllm-ascend-main"):
        difference = proposed(unpack(name, tmp_path), tables)
        subprocess.run(["patch", "-s", "-p1", "-d", str(tables)], input=difference, text=True, check=True)
    assert proposed(tmp_path / "vllm-ascend-0.23.0", tables) == ""


def test_an_archive_says_the_same_as_its_tree(tables: Path, tmp_path: Path) -> None:
    name = "vllm-ascend-0.23.0"
    archive = pack(tmp_path, name, load_toml(STATES / f"{name}.toml"))
    assert proposed(archive, tables) == proposed(unpack(name, tmp_path), tables)


def test_a_tag_names_the_release_where_the_tree_does_not(tables: Path, tmp_path: Path) -> None:
    tree = unpack("vllm-ascend-0.23.0", tmp_path).rename(tmp_path / "checkout")
    assert "vllm-ascend.0.23.0" not in proposed(tree, tables)
    assert proposed(tree, tables, tag="v0.23.0") == (STATES / "vllm-ascend-0.23.0.diff").read_text(encoding="utf-8")


def test_a_development_version_has_no_row(tables: Path, tmp_path: Path) -> None:
    tree = unpack("verl-0.9.0", tmp_path).rename(tmp_path / "verl")
    (tree / "verl/version/version").write_text("0.10.0.dev\n")
    steps: list[Message] = []
    difference = proposed(tree, tables, steps=steps)
    assert "built.verl" not in difference and "image.swr.9.1.0.py3.12" in difference
    assert [step.key for step in steps] == ["refresh.no-release"]


def test_other_trees_and_unreadable_files_are_refused(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        proposed(tmp_path / "tables", tables)
    assert caught.value.message.key == "refresh.unknown-tree"
    tree = unpack("verl-0.9.0", tmp_path)
    (tree / "setup.py").write_text("install_requires = read()\n")
    with pytest.raises(BadInput) as caught:
        proposed(tree, tables)
    assert caught.value.message.key == "refresh.tree-unreadable"
    with pytest.raises(BadInput):
        proposed(tree / "setup.py", tables)  # no archive


def test_the_command_prints_the_diff(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = unpack("verl-0.9.0", tmp_path)
    assert main(["matrix", "refresh", "--tree", str(tree), "--tables", str(tables)]) == 1
    assert capsys.readouterr().out.startswith("# built.verl.0.9.0: verl-project/verl @v0.9.0 setup.py\n")


def test_a_tree_is_read_alone(tmp_path: Path) -> None:
    assert main(["matrix", "refresh", "vllm", "--tree", str(tmp_path)]) == 2
    assert main(["matrix", "refresh", "--tag", "v0.9.0"]) == 2
