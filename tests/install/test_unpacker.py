"""Supplied sources: what is unpacked, what is refused, and how one is told from another."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from npuenv.install import unpacker

Member = tuple[str, bytes | None, dict[str, object]]


def tar(path: Path, *members: Member) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            info.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content or b""))
    return path


def zipped(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return path


def unpacked(archive: Path, folder: Path, digest: str = "-") -> int:
    return unpacker.main(["unpack", str(archive), digest, str(folder)])


def tree(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_an_archive_of_one_folder_gives_that_folders_content(tmp_path: Path) -> None:
    archive = tar(
        tmp_path / "a.tar.gz",
        ("./v-1.0/", None, {}),
        ("./v-1.0/setup.py", b"s", {}),
        ("./v-1.0/run.sh", b"r", {"mode": 0o755}),
        ("./v-1.0/link", None, {"type": tarfile.SYMTYPE, "linkname": "v/x.py"}),
        ("./v-1.0/same.sh", None, {"type": tarfile.LNKTYPE, "linkname": "./v-1.0/run.sh", "mode": 0o755}),
        ("./v-1.0/v/x.py", b"x", {}),
    )
    assert unpacked(archive, tmp_path / "out") == 0
    assert tree(tmp_path / "out") == {"setup.py": "s", "run.sh": "r", "link": "x", "same.sh": "r", "v/x.py": "x"}
    assert os.readlink(tmp_path / "out/link") == "v/x.py"
    assert stat.S_IMODE((tmp_path / "out/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "out/setup.py").stat().st_mode) == 0o644


def test_an_archive_without_a_common_folder_is_taken_as_it_stands(tmp_path: Path) -> None:
    assert unpacked(zipped(tmp_path / "a.zip", setup="s", v__x="x"), tmp_path / "out") == 0
    assert tree(tmp_path / "out") == {"setup": "s", "v/x": "x"}
    assert unpacked(zipped(tmp_path / "b.zip", v__setup="s", v__w__x="x"), tmp_path / "out2") == 0
    assert tree(tmp_path / "out2") == {"setup": "s", "w/x": "x"}


LINK = {"type": tarfile.SYMTYPE}


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", b"e", {}),
        ("v/../../evil", b"e", {}),
        ("/etc/evil", b"e", {}),
        ("C:/evil", b"e", {}),
        ("v\\evil", b"e", {}),
        ("v/link", None, {**LINK, "linkname": "../../evil"}),
        ("v/link", None, {**LINK, "linkname": "/etc/passwd"}),
        ("v/deep/link", None, {**LINK, "linkname": "../../.."}),
        ("v/link", None, {"type": tarfile.LNKTYPE, "linkname": "../evil"}),
        ("v/pipe", None, {"type": tarfile.FIFOTYPE}),
        ("v/card", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
    ],
)
def test_what_would_lead_out_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], member: tuple[str, bytes | None, dict[str, object]]
) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("v/good", b"g", {}), member)
    assert unpacked(archive, tmp_path / "out") == 1
    assert capsys.readouterr().out.startswith("problem: ")
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    archive = tar(
        tmp_path / "a.tar.gz",
        ("v/to", None, {**LINK, "linkname": "sub"}),
        ("v/to/evil", b"e", {}),
    )
    assert unpacked(archive, tmp_path / "out") == 1  # a link and a folder of one name
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["../../evil", "/etc/passwd"])
def test_a_link_of_a_zip_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("v/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
        archive.writestr("v/x", "x")
    assert unpacked(tmp_path / "a.zip", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()


def test_what_unpacks_to_more_than_any_source_is_refused_before_it_is_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "MOST_BYTES", 20_000)
    hard: dict[str, object] = {"type": tarfile.LNKTYPE, "linkname": "v/x"}
    links: list[Member] = [(f"v/{number}", b"", hard) for number in range(3)]
    files: list[Member] = [(f"v/{number}", b"", {}) for number in range(100)]
    several: list[list[Member]] = [[("v/x", bytes(8000), {}), *links], [("v/x", bytes(20_001), {})], files]
    for members in several:
        archive = tar(tmp_path / "a.tar.gz", *members)
        assert unpacked(archive, tmp_path / "out") == 1
        assert "unpacked" in capsys.readouterr().out


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    assert unpacked(tar(tmp_path / "a.tar.gz", ("v/x", b"1", {}), ("v/x", b"2", {})), tmp_path / "out") == 1


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08broken"])
def test_what_is_no_archive_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    assert unpacked(tmp_path / "a.tar.gz", tmp_path / "out") == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and "a.tar.gz" in said[0]


def test_another_archive_than_the_one_that_was_looked_at_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = zipped(tmp_path / "a.zip", x="1")
    seen = unpacker.digest(str(archive))
    assert unpacked(archive, tmp_path / "out", seen) == 0
    zipped(tmp_path / "a.zip", x="2")
    assert unpacked(archive, tmp_path / "out2", seen) == 1
    assert seen in capsys.readouterr().out


def test_a_folder_is_known_by_its_files_without_what_building_leaves(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("setup.py", "v/build/x.py", ".git/HEAD"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    before = unpacker.digest(str(source))
    for name in ("build/lib/x.py", "v.egg-info/PKG-INFO", "v/__pycache__/x.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    assert unpacker.digest(str(source)) == before and before.startswith("tree:")
    assert unpacked(source, tmp_path / "out", before) == 0
    assert set(tree(tmp_path / "out")) == {"setup.py", "v/build/x.py", ".git/HEAD"}
    (source / "v/build/x.py").write_text("other")
    assert unpacker.digest(str(source)) != before


def test_a_folder_with_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/keys").symlink_to("/etc")
    assert unpacked(tmp_path / "source", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()


def test_it_runs_alone_and_knows_wrong_usage(tmp_path: Path) -> None:
    program = tmp_path / "unpacker.py"
    program.write_text(Path(unpacker.__file__).read_text())
    archive = zipped(tmp_path / "a.zip", x="1")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-B", program, "digest", archive], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == unpacker.digest(str(archive))
    assert subprocess.run([sys.executable, "-I", program], capture_output=True).returncode == 2
