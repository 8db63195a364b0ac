"""Reading files out of archives that may be hostile."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest

from npuenv.index.metadata import MAX_FILE, Unreadable, sdist_texts, wheel_metadata


def member(name: str, text: str = "", *, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = -1) -> bytes:
    """One member as it stands in a tar; `size`: what its head claims, whatever follows."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = size if size >= 0 else len(text.encode())
    return info.tobuf(tarfile.GNU_FORMAT) + text.encode() + b"\0" * (-len(text.encode()) % 512)


def packed(*members: bytes) -> io.BytesIO:
    return io.BytesIO(gzip.compress(b"".join(members) + b"\0" * 1024))


def test_only_files_that_a_pattern_names_are_read() -> None:
    archive = packed(
        member("p-1/PKG-INFO", "info"),
        member("p-1/Dockerfile.a3", "FROM x"),
        member("p-1/tools/Dockerfile", "FROM y"),
        member("p-1/docs/source/policy.md", "table"),
        member("p-1/big.bin", "x" * (MAX_FILE + 1)),
    )
    wanted = ("PKG-INFO", "Dockerfile*", "docs/source/policy.md")
    assert sdist_texts(archive, wanted) == {
        "PKG-INFO": "info",
        "Dockerfile.a3": "FROM x",
        "docs/source/policy.md": "table",
    }


@pytest.mark.parametrize("name", ["p-1/../../etc/PKG-INFO", "/etc/PKG-INFO", "../PKG-INFO"])
def test_a_member_that_points_outside_spoils_the_archive(name: str) -> None:
    with pytest.raises(Unreadable, match="PKG-INFO"):
        sdist_texts(packed(member(name, "x")), ("PKG-INFO",))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_a_wanted_name_that_is_no_regular_file_is_not_followed(kind: bytes) -> None:
    with pytest.raises(Unreadable, match=r"requirements\.txt"):
        sdist_texts(packed(member("p-1/requirements.txt", kind=kind, link="/etc/passwd")), ("requirements.txt",))


def test_a_link_that_nobody_wants_does_no_harm() -> None:
    archive = packed(member("p-1/link", kind=tarfile.SYMTYPE, link="/etc/passwd"), member("p-1/PKG-INFO", "info"))
    assert sdist_texts(archive, ("PKG-INFO",)) == {"PKG-INFO": "info"}


@pytest.mark.parametrize("name", ["p-1/PKG-INFO", "p-1/other"])
def test_a_claim_of_a_gigabyte_is_refused_before_it_is_read(name: str) -> None:
    with pytest.raises(Unreadable, match="1073741824"):
        sdist_texts(packed(member(name, size=1024**3)), ("PKG-INFO",))


def test_an_archive_that_unpacks_to_more_than_the_bound_is_refused() -> None:
    archive = packed(*(member(f"p-1/{number}", "0" * 100_000) for number in range(50)))
    with pytest.raises(Unreadable, match="> 1000000 bytes"):
        sdist_texts(archive, ("PKG-INFO",), max_unpacked=1_000_000)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", packed(member("p-1/PKG-INFO", "info")).getvalue()[:60], b"\x1f\x8b\x08\0\0\0\0\0\0\xff junk"],
    ids=["empty", "no archive", "cut off", "junk"],  # the bytes hold the time, a name must not
)
def test_what_is_no_archive_or_a_cut_one_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        sdist_texts(io.BytesIO(content), ("PKG-INFO",))


def test_a_text_that_is_not_utf8_is_unreadable() -> None:
    info = tarfile.TarInfo("p-1/PKG-INFO")
    info.size = 2
    head = info.tobuf(tarfile.GNU_FORMAT) + b"\xff\xfe" + b"\0" * 510
    with pytest.raises(Unreadable, match="PKG-INFO"):
        sdist_texts(packed(head), ("PKG-INFO",))


def wheel(files: dict[str, str]) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream


def test_the_metadata_of_a_wheel_is_the_one_in_its_own_dist_info() -> None:
    files = {"p/x.dist-info/METADATA": "inner", "p-1.dist-info/METADATA": "Name: p"}
    assert wheel_metadata(wheel(files)) == "Name: p"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"a-1.dist-info/METADATA": "a", "b-1.dist-info/METADATA": "b"},
        {"a-1.dist-info/METADATA": "x" * (MAX_FILE + 1)},
    ],
)
def test_a_wheel_without_one_metadata_of_sane_size_is_unreadable(files: dict[str, str]) -> None:
    with pytest.raises(Unreadable):
        wheel_metadata(wheel(files))


def test_what_is_no_wheel_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        wheel_metadata(io.BytesIO(b"PK nothing"))
