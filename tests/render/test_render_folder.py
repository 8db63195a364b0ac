"""Writing rendered folders: whole, only over our own, and not at all when nothing changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.render.docker import MARK
from npuenv.render.folder import write_folders

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCKERFILE = f"{MARK}one\nFROM x\n"


def files(**changes: str) -> Mapping[str, str]:
    return {"one/Dockerfile": DOCKERFILE, "one/requirements.x86_64.txt": "numpy==1.26.4\n", **changes}


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_a_folder_is_written_with_readable_files(tmp_path: Path) -> None:
    parent = tmp_path / "deep" / "images"
    assert write_folders(files(), parent) == (parent / "one",)
    assert (parent / "one" / "Dockerfile").read_text() == DOCKERFILE
    assert stat.S_IMODE((parent / "one" / "Dockerfile").stat().st_mode) == 0o644
    assert stat.S_IMODE((parent / "one").stat().st_mode) == 0o755
    assert [entry.name for entry in parent.iterdir()] == ["one"]


def test_a_folder_with_the_same_texts_is_left_alone(tmp_path: Path) -> None:
    write_folders(files(), tmp_path)
    before = state(tmp_path / "one")
    assert write_folders(files(), tmp_path) == ()
    assert state(tmp_path / "one") == before


def test_an_earlier_rendering_is_replaced_whole_on_request(tmp_path: Path) -> None:
    write_folders({**files(), "one/requirements.aarch64.txt": "old\n", "one/activate.sh": "old\n"}, tmp_path)
    assert write_folders(files(), tmp_path, is_forced=True) == (tmp_path / "one",)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["Dockerfile", "requirements.x86_64.txt"]


def test_an_earlier_rendering_that_differs_is_kept_without_a_request_and_named(tmp_path: Path) -> None:
    write_folders(files(), tmp_path)
    (tmp_path / "one" / "Dockerfile").write_text(f"{DOCKERFILE}RUN mine\n")
    with pytest.raises(BadInput) as caught:
        write_folders({**files(), "one/activate.sh": "new\n", "two/Dockerfile": DOCKERFILE}, tmp_path)
    assert caught.value.message.key == "render.differs"
    assert caught.value.message.args == {"path": str(tmp_path / "one"), "files": ("Dockerfile", "activate.sh")}
    assert (tmp_path / "one" / "Dockerfile").read_text().endswith("mine\n")
    assert not (tmp_path / "two").exists()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert write_folders(files(), tmp_path) == (tmp_path / "one",)


@pytest.mark.parametrize("name", ["notes.txt", "Dockerfile", "requirements.x86_64.txt"])
def test_what_was_not_rendered_here_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / name).write_text("mine\n")
    with pytest.raises(BadInput) as caught:
        write_folders(files(), tmp_path)
    assert caught.value.message.key == "render.foreign-folder"
    assert caught.value.message.args == {"path": str(tmp_path / "one"), "found": (name,)}
    assert (tmp_path / "one" / name).read_text() == "mine\n"


def test_a_file_of_the_user_beside_a_rendering_stops_it(tmp_path: Path) -> None:
    write_folders(files(), tmp_path)
    (tmp_path / "one" / "model.bin").write_text("mine\n")
    with pytest.raises(BadInput) as caught:
        write_folders({**files(), "one/activate.sh": "new\n"}, tmp_path)
    assert caught.value.message.args["found"] == ("model.bin",)


def test_no_folder_is_written_when_one_of_them_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "mine").write_text("mine\n")
    with pytest.raises(BadInput):
        write_folders({**files(), "two/Dockerfile": DOCKERFILE}, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["two"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_link_in_the_place_of_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "one"
    if kind == "file":
        place.write_text("mine\n")
    else:
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput) as caught:
        write_folders(files(), tmp_path)
    assert caught.value.message.key == "render.not-a-folder"


@pytest.mark.parametrize(
    "path", ["../one/Dockerfile", "/one/Dockerfile", "one/../Dockerfile", "one/two/three", "one", ".."]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadInput) as caught:
        write_folders({path: "x"}, tmp_path / "images")
    assert caught.value.message.key == "render.outside-folder"
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    with pytest.raises(BadInput) as caught:
        write_folders(files(), tmp_path / "file")
    assert caught.value.message.key == "render.cannot-write"
    assert str(tmp_path / "file") in str(caught.value.message.args["path"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(BadInput) as caught:
        write_folders(files(), tmp_path)
    tmp_path.chmod(0o755)
    assert caught.value.message.args["reason"] == "Permission denied"


def test_a_failed_write_leaves_the_earlier_rendering(tmp_path: Path) -> None:
    write_folders(files(), tmp_path)
    before = state(tmp_path / "one")
    with pytest.raises(BadInput) as caught:
        write_folders({**files(), f"one/requirements.{'x' * 300}.txt": "too long\n"}, tmp_path, is_forced=True)
    assert caught.value.message.key == "render.cannot-write"
    assert state(tmp_path / "one") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


def test_a_rename_that_fails_puts_the_earlier_rendering_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(files(), tmp_path)
    before = state(tmp_path / "one")
    rename = Path.rename

    def refuses_the_new_one(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "No space left on device", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuses_the_new_one)
    with pytest.raises(BadInput) as caught:
        write_folders({**files(), "one/activate.sh": "new\n"}, tmp_path, is_forced=True)
    assert caught.value.message.args["reason"] == "No space left on device"
    assert state(tmp_path / "one") == before
