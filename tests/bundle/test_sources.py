"""What a bundle takes from repositories and from the user, and what it says that it lacks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.bundle import sources as needed
from npuenv.bundle.layout import write_tar
from npuenv.bundle.make import check_room, make_bundle
from npuenv.bundle.reader import open_bundle
from npuenv.bundle.sources import check_cann_files, check_python_archive, check_sources, find_needed
from npuenv.core.errors import BadInput, CannotTell, NothingFits, StepFailed
from npuenv.core.messages import say
from npuenv.host.local import LocalHost
from npuenv.install.prerequisites import expected_names
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import GitSource, Platform, Request, Stack
from tests.bundle.conftest import git, python_archive, repository, write_sdist

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bundle.conftest import Shop


pytestmark = pytest.mark.slow


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with a tag, a branch that has moved on, a submodule, a program and a link."""
    inner = tmp_path / "inner"
    repository(inner, {"deep.txt": "deep\n"})
    place = tmp_path / "origin"
    repository(place, {"setup.py": "print(1)\n", "dir/run.sh": "#!/bin/sh\n"})
    (place / "dir/run.sh").chmod(0o755)
    (place / "link").symlink_to("dir/run.sh")
    git(place, "submodule", "--quiet", "add", str(inner), "sub")
    repository(place, {}, tag="v1.5")
    repository(place, {"setup.py": "print(2)\n"})
    return place


@pytest.fixture
def any_submodule(monkeypatch: pytest.MonkeyPatch) -> None:
    """git refuses submodules from local folders unless told otherwise."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")


@pytest.mark.slow
@pytest.mark.usefixtures("any_submodule")
def test_a_repository_goes_in_at_the_commit_of_its_tag(shop: Shop, origin: Path, tmp_path: Path) -> None:
    shop.git_sources = (GitSource("My-Source", str(origin), "v1.5", False),)
    shop.make(tmp_path / "out")
    shop.make(tmp_path / "again")
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    with open_bundle(tmp_path / "out") as bundle, tarfile.open(bundle.sources["my-source"]) as archive:
        (row,) = bundle.manifest.sources
        assert (row.origin, row.commit, row.is_moving) == ("git", git(origin, "rev-parse", "v1.5^{commit}"), False)
        names = {member.name: member for member in archive.getmembers()}
        assert {"my-source/setup.py", "my-source/dir/run.sh", "my-source/link", "my-source/sub/deep.txt"} < set(names)
        assert not any(".git/" in name or name.endswith("/.git") for name in names)
        assert names["my-source/dir/run.sh"].mode == 0o755
        assert names["my-source/link"].linkname == "dir/run.sh"
        content = archive.extractfile("my-source/setup.py")
        assert content is not None and content.read() == b"print(1)\n"
        note = archive.extractfile("my-source/.git_archival.txt")
        assert note is not None
        assert note.read().decode() == f"node: {row.commit}\ndescribe-name: v1.5-0-g{row.commit[:7]}\n"


@pytest.mark.usefixtures("any_submodule")
@pytest.mark.slow
def test_a_branch_goes_in_at_the_commit_it_had_when_asked(shop: Shop, origin: Path, tmp_path: Path) -> None:
    shop.git_sources = (GitSource("moving", str(origin), "main", True),)
    contents = shop.gather()
    then = git(origin, "rev-parse", "main")
    repository(origin, {"setup.py": "print(3)\n"})
    manifest = make_bundle(contents, tmp_path / "out", tell=shop.told.append)
    (row,) = manifest.sources
    assert (row.commit, row.is_moving, row.ref) == (then, True, "main")
    with tarfile.open(tmp_path / "out" / row.path) as archive:
        content = archive.extractfile("moving/setup.py")
        assert content is not None and content.read() == b"print(2)\n"


def test_a_place_that_the_repository_does_not_have_is_named(shop: Shop, origin: Path) -> None:
    shop.git_sources = (GitSource("some", str(origin), "v9", False),)
    with pytest.raises(NothingFits) as caught:
        shop.gather()
    assert f"{origin} has no v9" in say(caught.value.message)


@pytest.mark.slow
def test_a_tag_that_is_not_at_its_recorded_commit_is_refused(shop: Shop, origin: Path) -> None:
    commit = git(origin, "rev-parse", "v1.5^{commit}")
    recorded = GitSource("some", str(origin), "v1.5", False, commit=commit[:10])
    shop.git_sources = (recorded,)
    assert shop.gather().sources[0].commit == commit
    git(origin, "tag", "--force", "v1.5", "main")
    with pytest.raises(NothingFits) as caught:
        shop.gather()
    assert f"was commit {commit[:10]}" in say(caught.value.message)
    shop.git_sources = (replace(recorded, commit=""),)
    assert shop.gather().sources[0].commit != commit


@pytest.mark.slow
def test_the_index_stands_in_for_a_repository_out_of_reach(shop: Shop, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    path = write_sdist(shop.wheels, "some-source", "1.5")
    shop.git_sources = (GitSource("Some-Source", gone, "v1.5", False),)
    manifest = shop.make(tmp_path / "out")
    (row,) = manifest.sources
    assert (row.origin, row.commit) == ("sdist", "")
    assert (tmp_path / "out" / row.path).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("ref", "is_moving"), [("v1.6", False), ("v1.5", True), ("main", False)])
def test_nothing_stands_in_for_another_version_or_a_branch(
    ref: str, is_moving: bool, shop: Shop, tmp_path: Path
) -> None:
    write_sdist(shop.wheels, "some-source", "1.5")
    shop.git_sources = (GitSource("some-source", str(tmp_path / "gone"), ref, is_moving),)
    with pytest.raises(CannotTell) as caught:
        shop.gather()
    assert caught.value.hint is not None
    assert "--without-source some-source" in say(caught.value.hint)


def test_all_sources_that_cannot_be_had_are_named_at_once(shop: Shop, tmp_path: Path) -> None:
    lost = [GitSource(name, str(tmp_path / "gone" / name), "main", True) for name in ("one", "two")]
    shop.git_sources = (*lost, GitSource("three", str(tmp_path / "gone"), "v1", False))
    with pytest.raises(CannotTell) as caught:
        shop.gather(left_out=frozenset({"three"}))
    assert [name for name in ("one", "two", "three") if f"{name}, " in say(caught.value.message)] == ["one", "two"]
    assert caught.value.hint is not None
    assert "--without-source one --without-source two" in say(caught.value.hint)
    assert "one" in say(caught.value.message, "zh")


@pytest.mark.usefixtures("any_submodule")
@pytest.mark.slow
def test_what_the_user_gives_goes_in(shop: Shop, origin: Path, tmp_path: Path) -> None:
    names = ("folder", "archive", "checkout", "absent")
    shop.git_sources = tuple(GitSource(name, "https://git.invalid/x", "v1", False) for name in names)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "setup.py").write_text("print(4)\n", encoding="utf-8")
    archive = tmp_path / "some.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        target.add(plain, "top")
    given = {"folder": str(plain), "archive": str(archive), "checkout": str(origin)}
    manifest = shop.make(tmp_path / "out", given=given, left_out=frozenset({"absent"}))
    rows = {row.name: row for row in manifest.sources}
    assert [rows[name].origin for name in names] == ["given", "given", "given", "left-out"]
    assert (tmp_path / "out" / rows["archive"].path).read_bytes() == archive.read_bytes()
    assert rows["checkout"].commit == git(origin, "rev-parse", "HEAD") and rows["folder"].commit == ""
    assert [row.name for row in manifest.needed if row.kind == "source"] == ["absent"]
    with open_bundle(tmp_path / "out") as bundle:
        assert set(bundle.sources) == {"folder", "archive", "checkout"} and bundle.left_out == ("absent",)


def test_a_source_the_stack_does_not_have_is_refused(shop: Shop, tmp_path: Path) -> None:
    stack = replace(shop.stack, git_sources=(GitSource("Some.Name", "x", "v1", False),))
    assert check_sources(stack, {"some-name": str(tmp_path)}, []) == ({"some-name": str(tmp_path)}, frozenset())
    for given, left_out in (({"other": str(tmp_path)}, []), ({}, ["other"]), ({"some-name": "/x"}, []),
                            ({"some-name": str(tmp_path)}, ["Some_Name"])):  # fmt: skip
        with pytest.raises(BadInput):
            check_sources(stack, given, left_out)


def test_a_link_out_of_a_given_folder_and_odd_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for target in ("/etc/passwd", "../outside"):
        (tmp_path / "in/link").symlink_to(target)
        with pytest.raises(StepFailed):
            write_tar(tmp_path / "in", tmp_path / "out.tar", top="x")
        (tmp_path / "in/link").unlink()
    os.mkfifo(tmp_path / "in/pipe")
    with pytest.raises(StepFailed):
        write_tar(tmp_path / "in", tmp_path / "out.tar", top="x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


# What the user adds


def npu_stack() -> Stack:
    stack = resolve(Request(stack="verl-0.7.1-cann8.5.0", arch="aarch64", cann="8.5.0"), load_matrix())
    assert isinstance(stack, Stack)
    return stack


def test_what_a_stack_lacks_is_listed_with_names_and_sizes() -> None:
    stack = npu_stack()
    needed = find_needed(stack, load_matrix(), cann_files=(), has_python=False, left_out=("verl",))
    named = {row.name: row for row in needed if row.kind != "system"}
    toolkit, ops, nnal = expected_names(stack)
    assert toolkit == "Ascend-cann-toolkit_8.5.0_linux-aarch64.run"
    assert ops == "Ascend-cann-910b-ops_8.5.0_linux-aarch64.run"
    assert nnal == "Ascend-cann-nnal_8.5.0_linux-aarch64.run"
    assert named[toolkit].size == 1104308866 and named[nnal].size == 0
    assert named["Python 3.11 (aarch64)"].detail == "3.10"
    assert "verl v" not in named["verl"].detail and "v0.7.1" in named["verl"].detail
    assert {row.name for row in needed if row.kind == "system"} >= {"gcc", "cmake"}


def test_what_the_user_adds_is_not_asked_for(tmp_path: Path) -> None:
    names = expected_names(npu_stack())
    files = [tmp_path / name for name in names[:2]]
    needed = find_needed(npu_stack(), load_matrix(), cann_files=files, has_python=True, left_out=())
    assert [row.name for row in needed if row.kind in ("cann", "python", "source")] == [names[2]]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Ascend-cann-nnal_8.5.0_linux-x86_64.run", "for x86_64"),
        ("Ascend-cann-nnal_8.3.RC1_linux-aarch64.run", "is for 8.3.RC1"),
        ("Ascend-cann-A3-ops_8.5.0_linux-aarch64.run", "is for a3"),
        ("Ascend-cann-kernels-310p_8.5.0_linux-aarch64.run", "is for 310p"),
        ("readme.txt", "plan.cann-name"),
        ("Ascend-cann-toolkit_8.5.0_linux-aarch64.run", "plan.cann-hash"),
        ("nnal with a blank.run", "bundle.odd-name"),
        ("absent.run", "bundle.no-file"),
    ],
)
def test_a_file_of_cann_that_does_not_fit_is_refused(name: str, part: str, tmp_path: Path) -> None:
    if name != "absent.run":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadInput) as caught:
        check_cann_files(LocalHost(), [tmp_path / name], npu_stack())
    assert part == caught.value.message.key or part in say(caught.value.message)


@pytest.mark.parametrize("names", ["nnal_8.5.0", "nnal_8.5.0 910b-ops_8.5.0.B160"])
def test_files_of_cann_that_fit_are_taken(names: str, tmp_path: Path) -> None:
    files = [tmp_path / f"Ascend-cann-{name}_linux-aarch64.run" for name in names.split()]
    for file in files:
        file.write_bytes(b"x")
    check_cann_files(LocalHost(), files, npu_stack())


def test_two_files_of_one_part_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / f"Ascend-cann-nnal_{version}_linux-aarch64.run" for version in ("8.5.0", "8.5.0.B160")]
    for file in files:
        file.write_bytes(b"x")
    with pytest.raises(BadInput, match=r"plan\.cann-twice"):
        check_cann_files(LocalHost(), files, npu_stack())


@pytest.mark.parametrize(("hardware", "cann"), [("a3", "8.3.RC1"), ("a3", "8.5.0"), ("a2", "8.3.rc1"), ("a2", "8.5")])
def test_the_bundle_lists_the_files_that_an_installation_asks_for(hardware: str, cann: str) -> None:
    request = Request(framework="vllm-ascend", hardware=hardware, arch="aarch64", cann=cann)
    stack = resolve(request, load_matrix())
    assert isinstance(stack, Stack)
    needed = find_needed(stack, load_matrix(), cann_files=(), has_python=True, left_out=())
    names = [row.name for row in needed if row.kind == "cann"]
    assert names == list(expected_names(stack))
    version = {"8.5": "8.5.0"}.get(cann, cann.upper())
    assert all(f"_{version}_linux" in name for name in names)
    assert names[1].startswith("Atlas-A3-cann-kernels_") == (hardware == "a3" and version.startswith("8.3"))


def test_an_interpreter_for_the_target_is_looked_into(tmp_path: Path) -> None:
    platform = Platform("aarch64", "3.11")
    check_python_archive(python_archive(tmp_path / "good.tar.gz", machine=0xB7), platform)
    (tmp_path / "bad.tar.gz").write_bytes(b"no archive")
    for path, part in (
        (python_archive(tmp_path / "x86.tar.gz", machine=0x3E), "for x86_64"),
        (python_archive(tmp_path / "old.tar.gz", machine=0xB7, version="3.9"), "no bin/python3.11; found: 3.9"),
        (tmp_path / "bad.tar.gz", "bundle.no-tar"),
        (tmp_path / "none.tar.gz", "bundle.no-file"),
    ):
        with pytest.raises(BadInput) as caught:
            check_python_archive(path, platform)
        assert part == caught.value.message.key or part in say(caught.value.message)


def test_an_archive_that_unpacks_to_more_than_any_python_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed, "_MOST_BYTES", 1000)
    with pytest.raises(BadInput) as caught:
        check_python_archive(python_archive(tmp_path / "good.tar.gz", machine=0xB7), Platform("aarch64", "3.11"))
    assert caught.value.message.key == "bundle.bad-python-archive"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_is_no_archive_at_all_is_one_short_sentence(lang: str, tmp_path: Path) -> None:
    path = tmp_path / "foo.run"
    path.write_bytes(b"#!/bin/sh\n" * 99)
    with pytest.raises(BadInput) as caught:
        check_python_archive(path, Platform("aarch64", "3.11"))
    text = say(caught.value.message, lang)
    assert "\n" not in text and "--python-archive" in text and ".tar.gz" in text and "lzma" not in text
    assert len(text) < len(str(path)) + 100


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_an_archive_that_breaks_off_or_is_damaged_further_on_is_one_sentence(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"lib/{number}")
            member.size = 50_000
            archive.addfile(member, io.BytesIO(os.urandom(member.size)))
    whole, path = pack(plain.getvalue()), tmp_path / "python.tar"
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 5000] = bytes(5000)
    for content in (whole[: len(whole) // 2], bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(BadInput) as caught:
            check_python_archive(path, Platform("aarch64", "3.11"))
        assert "\n" not in say(caught.value.message)


@pytest.mark.slow
def test_files_the_user_adds_are_part_of_the_bundle(shop: Shop, tmp_path: Path) -> None:
    archive = python_archive(tmp_path / "cpython.tar.gz", machine=0xB7)
    (tmp_path / "toolkit.run").write_bytes(b"run")
    manifest = shop.make(tmp_path / "out", python_archive=archive, cann_files=(tmp_path / "toolkit.run",))
    rows = {row.path: row.kind for row in manifest.files}
    assert rows["python/cpython.tar.gz"] == "python" and rows["cann/toolkit.run"] == "cann"
    assert not [row for row in manifest.needed if row.kind == "python"]
    assert "python/cpython.tar.gz" in (tmp_path / "out/install.sh").read_text(encoding="utf-8")


@pytest.mark.slow
def test_too_small_a_disk_is_told_before_anything_is_fetched(shop: Shop, tmp_path: Path) -> None:
    contents = shop.gather()
    check_room(contents, tmp_path / "deep/er/out")
    items = (replace(item, download=replace(item.download, size=1 << 50)) for item in contents.items)
    huge = replace(contents, items=tuple(items))
    with pytest.raises(BadInput) as caught:
        check_room(huge, tmp_path / "out.tar")
    assert "MiB free" in say(caught.value.message)
