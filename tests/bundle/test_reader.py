"""What a bundle must be before anything of it is used: exactly what was written, in a folder or an archive."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.bundle.layout import is_inside, manifest_text, parse_manifest, write_tar
from npuenv.bundle.reader import open_bundle
from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message, say
from tests.support.sentences import says

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = [
    "cann/toolkit.run",
    "install.sh",
    "locks/tiny.toml",
    "npuenv-doctor.pyz",
    "python/python.tar",
    "tools/npuenv-0.1.0-py3-none-any.whl",
    "wheels/one-1-py3-none-any.whl",
    "wheels/setuptools-80-py3-none-any.whl",
    "wheels/two-1.tar.gz",
]


def refusal(path: Path) -> str:
    """The one sentence with which a bundle is refused."""
    with pytest.raises(BadInput) as caught, open_bundle(path):
        pytest.fail("the bundle was opened")
    assert caught.value.hint is not None
    return say(caught.value.message)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_an_unaltered_bundle_gives_its_parts(form: str, bundle_folder: Path, bundle_archive: Path) -> None:
    path = bundle_folder if form == "folder" else bundle_archive
    with open_bundle(path) as bundle:
        root = Path(bundle.wheels).parent
        assert tree(root) == tree(bundle_folder)
        assert bundle.stack == bundle.lock.stack == bundle.request.stack == "tiny"
        assert bundle.request.arch == "aarch64"
        assert Path(bundle.zipapp).read_bytes() == b"doctor"
        assert os.access(bundle.zipapp, os.X_OK)
        assert Path(bundle.python_archive).name == "python.tar"
        assert [Path(file).name for file in bundle.cann_files] == ["toolkit.run"]
        assert Path(bundle.sources["name"]).read_bytes() == b"source" * 100
    assert root.exists() == (form == "folder")


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_any_kind_with_one_other_byte_is_named(file: str, bundle_folder: Path) -> None:
    path = bundle_folder / file
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if data else b"x")
    said = refusal(bundle_folder)
    assert file in said
    assert ("sha256" in said) == bool(data)


@pytest.mark.parametrize("file", [*FILES, "manifest.json"])
def test_a_file_that_is_cut_or_gone_is_named(file: str, bundle_folder: Path) -> None:
    path = bundle_folder / file
    if path.stat().st_size:
        path.write_bytes(path.read_bytes()[:-1])
        said = refusal(bundle_folder)
        assert file in said or (file == "manifest.json" and "manifest" in said)
    path.unlink()
    assert file in refusal(bundle_folder)


def _link(place: Path) -> None:
    place.symlink_to("install.sh")


def _folder_link(place: Path) -> None:
    place.symlink_to("wheels", target_is_directory=True)


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, _link, _folder_link])
def test_whatever_was_added_is_named(make: Callable[[Path], None], bundle_folder: Path) -> None:
    make(bundle_folder / "added")
    assert says(refusal(bundle_folder), "bundle.extra-file", file="added")


def test_a_link_in_the_place_of_a_file_is_refused_even_with_the_right_content(
    bundle_folder: Path, tmp_path: Path
) -> None:
    wheel = bundle_folder / "wheels/one-1-py3-none-any.whl"
    wheel.rename(tmp_path / "outside.whl")
    wheel.symlink_to(tmp_path / "outside.whl")
    assert says(refusal(bundle_folder), "bundle.no-plain-file", file="wheels/one-1-py3-none-any.whl")
    wheel.unlink()
    (tmp_path / "outside.whl").rename(wheel)
    (bundle_folder / "wheels").rename(tmp_path / "elsewhere")
    (bundle_folder / "wheels").symlink_to(tmp_path / "elsewhere")
    assert "wheels" in refusal(bundle_folder)


@pytest.mark.slow
def test_no_byte_of_an_archive_changes_what_is_unpacked(bundle_archive: Path) -> None:
    """Headers, contents, padding, the end: 100 places by chance, and each boundary of a block."""
    data = bundle_archive.read_bytes()
    with open_bundle(bundle_archive) as bundle:
        content = unpacked(bundle.root)
    chance = random.Random(5)
    places = {chance.randrange(len(data)) for _ in range(100)} | set(range(0, len(data), 512)) | {len(data) - 1}
    for place in sorted(places):
        altered = bytearray(data)
        altered[place] ^= 1 << chance.randrange(8)
        bundle_archive.write_bytes(altered)
        with contextlib.suppress(BadInput), open_bundle(bundle_archive) as bundle:
            assert unpacked(bundle.root) == content, place


def test_no_part_of_an_archive_can_be_cut_off_and_what_follows_its_end_is_not_read(bundle_archive: Path) -> None:
    data = bundle_archive.read_bytes()
    with open_bundle(bundle_archive) as bundle:
        content = unpacked(bundle.root)
    with tarfile.open(bundle_archive) as archive:
        last = archive.getmembers()[-1]
    for size in (0, 1, 511, 512, 1000, len(data) // 2, last.offset_data, last.offset_data + last.size - 1):
        bundle_archive.write_bytes(data[:size])
        assert refusal(bundle_archive)
    for more in (b"\0", b"x", bytes(512), bytes(10240)):
        bundle_archive.write_bytes(data + more)
        with open_bundle(bundle_archive) as bundle:
            assert unpacked(bundle.root) == content


def unpacked(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, with its permissions."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode) for path in files}


def _changed_member(kind: bytes, link: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, link

    return change


def _renamed(name: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.name = name

    return change


def _claims_more(member: tarfile.TarInfo) -> None:
    member.size = 1 << 40


CHANGES = {
    "leads up": _renamed("npuenv-tiny/../../evil"),
    "absolute": _renamed("/tmp/evil"),
    "another top": _renamed("other/install.sh"),
    "a soft link": _changed_member(tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": _changed_member(tarfile.LNKTYPE, "npuenv-tiny/install.sh"),
    "a device": _changed_member(tarfile.CHRTYPE),
    "a pipe": _changed_member(tarfile.FIFOTYPE),
    "a folder": _changed_member(tarfile.DIRTYPE),
    "a bomb": _claims_more,
}


def rewritten(source: Path, target: Path, change: Callable[[tarfile.TarInfo], None], name: str) -> None:
    """The archive with one member's header changed."""
    with tarfile.open(source) as old, target.open("wb") as new:
        for member in old.getmembers():
            content = old.extractfile(member)
            data = content.read() if content else b""
            if member.name.endswith(name):
                change(member)
            new.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
            new.write(data + bytes(-len(data) % 512))
        new.write(bytes(1024))
        new.write(bytes(-new.tell() % 10240))


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_nothing_but_plain_files_is_unpacked(change: str, bundle_archive: Path, tmp_path: Path) -> None:
    scratch, bad = tmp_path / "scratch", tmp_path / "bad.tar"
    scratch.mkdir()
    rewritten(bundle_archive, bad, CHANGES[change], "/install.sh")
    with pytest.raises(BadInput), open_bundle(bad, scratch):
        pytest.fail("the bundle was opened")
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "evil").exists() and not Path("/tmp/evil").exists()


def test_a_file_that_stands_twice_in_an_archive_is_refused(bundle_archive: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice.tar"
    with tarfile.open(bundle_archive) as old, tarfile.open(twice, "w", format=tarfile.GNU_FORMAT) as new:
        for member in old.getmembers():
            for _ in range(2 if member.name.endswith("install.sh") else 1):
                new.addfile(member, old.extractfile(member))
    assert says(refusal(twice), "bundle.extra-file", file="install.sh")


@pytest.mark.parametrize("first", ["install.sh", ""])
def test_an_archive_that_does_not_begin_with_the_manifest_is_refused(
    first: str, bundle_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.tar"
    write_tar(bundle_folder, path, top="npuenv-tiny", first=(first,))
    assert says(refusal(path), "bundle.no-manifest", name="manifest.json")


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b" + bytes(600), bytes(10240), os.urandom(4096)])
def test_what_is_no_archive_is_refused_in_one_sentence(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    path.write_bytes(data)
    assert "\n" not in refusal(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught, open_bundle(tmp_path / "nothing"):
        pass
    assert caught.value.message == Message("bundle.absent", {"path": str(tmp_path / "nothing")})
    (tmp_path / "empty").mkdir()
    assert "manifest.json" in refusal(tmp_path / "empty")


def _edit(bundle: Path, **values: object) -> None:
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}), encoding="utf-8")


def test_an_edited_manifest_is_refused(bundle_folder: Path) -> None:
    _edit(bundle_folder, stack="other")
    assert says(refusal(bundle_folder), "bundle.changed-manifest")
    _edit(bundle_folder, schema="npuenv.bundle/2")
    assert "npuenv.bundle/2" in refusal(bundle_folder)
    (bundle_folder / "manifest.json").write_bytes(b"\xff{")
    assert says(refusal(bundle_folder), "bundle.no-json")


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "a\nb", "manifest.json", "é"])
def test_a_manifest_that_names_a_path_outside_is_refused_whatever_its_seal(path: str, bundle_folder: Path) -> None:
    manifest = parse_manifest((bundle_folder / "manifest.json").read_bytes(), "x")
    row = manifest.files[0]
    rows = tuple(sorted((*manifest.files[1:], type(row)(path, row.kind, 0, row.sha256)), key=lambda row: row.path))
    forged = type(manifest)(**{name: getattr(manifest, name) for name in manifest.__slots__} | {"files": rows})
    (bundle_folder / "manifest.json").write_text(manifest_text(forged), encoding="utf-8")
    assert says(refusal(bundle_folder), "bundle.bad-manifest")


def test_a_lock_other_than_the_one_named_is_refused(bundle_folder: Path) -> None:
    manifest = parse_manifest((bundle_folder / "manifest.json").read_bytes(), "x")
    forged = type(manifest)(**{name: getattr(manifest, name) for name in manifest.__slots__} | {"lock": "0" * 12})
    (bundle_folder / "manifest.json").write_text(manifest_text(forged), encoding="utf-8")
    assert says(refusal(bundle_folder), "bundle.other-lock", file="locks/tiny.toml")


def test_names_inside_are_plain() -> None:
    assert is_inside("wheels/torch-2.8.0+cpu-cp311-cp311-linux_x86_64.whl")
    assert not any(map(is_inside, ("", ".", "..", "/a", "a/..", "a b", "a\\b", "a/", "a/./b", "$HOME")))


def test_a_disk_without_room_to_unpack_is_told_as_such(
    bundle_archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", _no_space)
    with pytest.raises(StepFailed) as caught, open_bundle(bundle_archive, tmp_path):
        pass
    assert caught.value.message.key == "bundle.disk-full"
    assert caught.value.hint is not None and "TMPDIR=" in say(caught.value.hint)


def _no_space(path: Path, *_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_member_has_nothing_of_the_machine_in_its_header(bundle_archive: Path) -> None:
    with tarfile.open(bundle_archive) as archive:
        found = {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in archive.getmembers()}
    assert found == {(0, 0, "", "", 315532800)}
