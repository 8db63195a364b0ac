"""Writing rendered files: only over our own or on request, and not at all when nothing changed."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.render.files import changed_files, write_files

if TYPE_CHECKING:
    from pathlib import Path

FILES: dict[str, str | bytes] = {"run.sh": "#!/bin/sh\n", "compose.yaml": "a: 1\n"}


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_files_are_written_readable_and_scripts_executable(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    assert write_files({**FILES, "doctor.pyz": b"\x80"}, folder) == ("run.sh", "compose.yaml", "doctor.pyz")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"run.sh": 0o755, "compose.yaml": 0o644, "doctor.pyz": 0o644}
    assert (folder / "doctor.pyz").read_bytes() == b"\x80"


def test_files_alike_are_left_and_others_only_replaced_on_request(tmp_path: Path) -> None:
    write_files(FILES, tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    before = state(tmp_path)
    assert write_files(FILES, tmp_path) == ()
    assert state(tmp_path) == before
    (tmp_path / "compose.yaml").write_text("edited by hand")
    other: dict[str, str | bytes] = {name: f"# more in {name}\n" for name in FILES}
    for refuse in (write_files, changed_files):
        with pytest.raises(BadInput) as caught:
            refuse({**other, "new": "x"}, tmp_path)
        assert caught.value.message.key == "render.exists"
        assert caught.value.message.args == {"path": str(tmp_path), "files": ("run.sh", "compose.yaml")}
    assert (tmp_path / "run.sh").read_text() == FILES["run.sh"] and not (tmp_path / "new").exists()
    assert write_files(other, tmp_path, is_forced=True) == ("run.sh", "compose.yaml")
    assert (tmp_path / "compose.yaml").read_text() == other["compose.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compose.yaml", "mine.txt", "run.sh"]


def test_files_of_an_earlier_rendering_go_on_request(tmp_path: Path) -> None:
    write_files({**FILES, "old.sh": "x"}, tmp_path)
    with pytest.raises(BadInput) as caught:
        write_files(FILES, tmp_path, stale=("old.sh",))
    assert caught.value.message.args["files"] == ("old.sh",)
    assert write_files(FILES, tmp_path, stale=("old.sh",), is_forced=True) == ()
    assert not (tmp_path / "old.sh").exists()


def test_a_link_is_never_written_through_and_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("other")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "compose.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput) as caught:
        write_files(FILES, folder, is_forced=True)
    assert caught.value.message.key == "render.not-a-file"
    assert (tmp_path / "elsewhere").read_text() == "other" and not (folder / "run.sh").exists()
    with pytest.raises(BadInput) as caught:
        write_files(FILES, tmp_path / "elsewhere" / "run", is_forced=True)
    assert caught.value.message.key == "render.cannot-write"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(BadInput) as caught:
        write_files(FILES, tmp_path)
    tmp_path.chmod(0o755)
    assert caught.value.message.args["reason"] == "Permission denied"


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(FILES, tmp_path)
    before = state(tmp_path)

    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("pathlib.Path.replace", no_space)
    with pytest.raises(BadInput) as caught:
        write_files({"compose.yaml": "b: 2\n"}, tmp_path, is_forced=True)
    assert caught.value.message.args["reason"] == "No space left on device"
    assert state(tmp_path) == before


def test_a_folder_below_may_be_a_link_to_another_place(tmp_path: Path) -> None:
    """As each new file is written beside its place, it may be on another file system."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "deep").symlink_to(tmp_path / "elsewhere")
    assert write_files({"deep/a.sh": "x", "b.sh": "y"}, tmp_path / "out") == ("deep/a.sh", "b.sh")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["a.sh"]


def test_a_failure_before_all_are_written_leaves_the_earlier_files(tmp_path: Path) -> None:
    write_files({**FILES, "deep": "a file"}, tmp_path)
    before = state(tmp_path)
    with pytest.raises(BadInput) as caught:
        write_files({"run.sh": "#!/bin/sh\n# other\n", "deep/more.sh": "x"}, tmp_path, is_forced=True)
    assert caught.value.message.key == "render.cannot-write"
    assert state(tmp_path) == before
