"""The lock as a file, and the published locks."""

from __future__ import annotations

import random
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.facts.pip import PipSettings
from npuenv.host.local import LocalHost
from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing, Proof, parse_lock, read_lock, write_lock
from npuenv.lock.inputs import inputs_of
from npuenv.lock.store import locks_named, put_lock, shelf_locks
from npuenv.lock.uv import Resolver, platform_tags, wheel_fits
from npuenv.maintain.lock_all import lock_all
from npuenv.matrix import load_matrix
from npuenv.report.shelf import shelf_page, shelf_rows
from npuenv.resolve import published, published_requests, resolve
from npuenv.resolve.types import Platform, Request, Stack

FOLDER = Path(__file__).parents[2] / "lockfiles"
FACTS = Path(__file__).parents[3] / "shared/facts/resolved"
PUBLISHED = sorted(FOLDER.glob("*.toml"))
DIGEST = "a" * 64
LOCK = Lock(
    "tiny",
    "x86_64-cp311-glibc2.28",
    "npuenv 1, uv 2",
    (
        LockedPackage("numpy", "2.4", (DIGEST,), None, ("stack", "torch")),
        LockedPackage("torch", "2.13.0+cpu", (), "pytorch-cpu", ("stack",)),
    ),
    (Missing("torch", "2.13.0+cpu", "index-out-of-reach", "pytorch-cpu"),),
    (LockedSource("vllm", "https://host/vllm.git", "v1", False, "install"),),
)


def names_of(path: Path) -> tuple[str, str]:
    """Stack and platform tag of a lock's file name; a stack's name may hold dots itself."""
    match = re.fullmatch(r"(.+)\.((?:x86_64|aarch64)-cp3\d+-glibc2\.\d+)\.toml", path.name)
    assert match, path.name
    return match[1], match[2]


def test_a_lock_is_read_as_it_was_written() -> None:
    assert parse_lock(write_lock(LOCK)) == LOCK


def test_the_hash_changes_with_a_version_and_not_with_the_tool() -> None:
    other = replace(LOCK.packages[0], version="2.5")
    assert replace(LOCK, packages=(other, LOCK.packages[1])).hash != LOCK.hash
    assert replace(LOCK, made_with="npuenv 9, uv 9").hash == LOCK.hash
    assert re.fullmatch("[0-9a-f]{12}", LOCK.hash)


def test_the_hash_changes_with_a_hash_an_index_or_a_source() -> None:
    numpy, torch = LOCK.packages
    (source,) = LOCK.sources
    others = [
        replace(LOCK, packages=(replace(numpy, sha256=("b" * 64,)), torch)),
        replace(LOCK, packages=(numpy, replace(torch, index="other"))),
        replace(LOCK, sources=(replace(source, ref="v2"),)),
        replace(LOCK, platform="aarch64-cp311-glibc2.28"),
    ]
    assert len({lock.hash for lock in (LOCK, *others)}) == 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('status = "partial"', 'status = "complete"'),
        ("schema = 2", "schema = 3"),
        (f'sha256 = ["{DIGEST}"]', "sha256 = []"),
        ('name = "numpy"', 'name = "torch"'),
        ('version = "2.4"\n', ""),
        ("schema", "schema ="),
        ('reason = "index-out-of-reach"', 'cause = "index-out-of-reach"'),
    ],
)
def test_a_lock_that_is_wrong_is_refused(old: str, new: str) -> None:
    text = write_lock(LOCK)
    assert old in text
    with pytest.raises(BadInput):
        parse_lock(text.replace(old, new, 1))


def flaw(text: str) -> tuple[int, str]:
    """The line that a lock is refused with, and what is said to be wrong there."""
    with pytest.raises(BadInput) as caught:
        parse_lock(text, "some.toml")
    assert caught.value.message.key == "lock.edited", caught.value.message
    assert caught.value.hint is not None and "--renew" in say(caught.value.hint)
    line, what = (caught.value.message.args[key] for key in ("line", "what"))
    assert isinstance(line, int) and isinstance(what, Message)
    assert f"line {line}: {say(what)}" in say(caught.value.message)
    return line, what.key


@pytest.mark.parametrize(
    "name",
    [
        "cpu.x86_64-cp311-glibc2.28.toml",
        pytest.param("verl-0.7.1-cann8.5.0.x86_64-cp311-glibc2.28.toml", marks=pytest.mark.slow),
    ],
)
def test_one_other_character_anywhere_is_refused_with_its_table(name: str) -> None:
    text, dice = (FOLDER / name).read_text(), random.Random(name)
    starts = [1, *(number for number, line in enumerate(text.split("\n"), 1) if line.startswith("[["))]
    for _ in range(100):
        place = dice.randrange(len(text))
        other = dice.choice([char for char in 'a19"#[]= \n\t\\.,é\x7f' if char != text[place]])
        changed = text.count("\n", 0, place) + 1
        first = max(start for start in starts if start <= changed)
        following = min((start for start in starts if start > changed), default=text.count("\n") + 2)
        line, _ = flaw(text[:place] + other + text[place + 1 :])
        assert first <= line <= following, (place, other, text[place - 20 : place + 20])


def test_a_hand_edited_hash_names_the_line_of_its_package() -> None:
    text = write_lock(LOCK)
    at = text.split("\n").index('name = "numpy"')
    assert flaw(text.replace(DIGEST, "b" * 64)) == (at, "lock.table-changed")
    assert flaw(text.replace('stack = "tiny"', 'stack = "tinx"')) == (1, "lock.head-changed")


def test_a_table_taken_away_or_moved_is_seen_by_the_digest() -> None:
    head, missing, source, numpy, torch = write_lock(LOCK).rstrip("\n").split("\n\n[[")
    for tables in ((missing, source, numpy), (missing, source, torch, numpy), (missing, source, numpy, torch, torch)):
        assert flaw("\n\n[[".join((head, *tables)) + "\n") == (1, "lock.tables-moved")


@pytest.mark.parametrize("end", ["", "\n\n", "\n ", " \n"])
def test_another_end_of_the_file_is_refused_at_the_last_table(end: str) -> None:
    text = write_lock(LOCK)
    last = max(number for number, line in enumerate(text.split("\n"), 1) if line.startswith("[["))
    assert flaw(text.rstrip("\n") + end) == (last, "lock.table-changed")


def test_a_merge_conflict_left_in_a_lock_is_refused_with_its_line() -> None:
    lines = write_lock(LOCK).split("\n")
    lines[20:20] = ["<<<<<<< HEAD"]
    assert flaw("\n".join(lines)) == (21, "lock.no-toml")
    assert flaw('a = 1\nb = {"at line " = 1, "at line " = 2}\n') == (2, "lock.no-toml")


def test_a_sealed_package_without_a_hash_and_without_a_reason_is_refused() -> None:
    packages = (replace(LOCK.packages[0], sha256=()), LOCK.packages[1])
    assert flaw(write_lock(replace(LOCK, packages=packages))) == (1, "lock.no-hash")


def test_a_lock_without_seals_is_of_an_older_form_and_says_the_way_out() -> None:
    lines = [line for line in write_lock(LOCK).split("\n") if not line.startswith(("seal", "digest"))]
    with pytest.raises(BadInput) as caught:
        parse_lock("\n".join(lines).replace("schema = 2", "schema = 1"))
    assert caught.value.message.key == "lock.older-form"
    assert caught.value.hint is not None and "npuenv lock tiny --renew" in say(caught.value.hint)


def test_a_lock_of_a_set_that_does_not_resolve_keeps_its_proof() -> None:
    proof = (Proof("base>=7", "tiny"), Proof("base<2", "upper 1.0 (Requires-Dist)"))
    lock = replace(
        LOCK, packages=(), missing=(Missing("*", "", "does-not-resolve", detail='it "clashes"'),),
        inputs=DIGEST, newest="2026-01-31", proof=proof,
    )  # fmt: skip
    assert parse_lock(write_lock(lock)) == lock
    assert (lock.status, LOCK.status, replace(LOCK, missing=()).status) == ("impossible", "partial", "complete")


def test_the_hash_does_not_change_with_what_was_asked() -> None:
    assert replace(LOCK, inputs=DIGEST, newest="2026-01-31").hash == LOCK.hash


def test_any_word_of_the_resolver_can_be_kept(tmp_path: Path) -> None:
    detail = 'line\nnext\t"quoted" \\ é \x7f \x1b[31m [[package]]'
    lock = replace(LOCK, missing=(replace(LOCK.missing[0], detail=detail),))
    assert read_lock(put_lock(lock, tmp_path)) == lock


@pytest.mark.parametrize("kind", ["folder", "bytes", "absent"])
def test_what_is_no_file_of_text_is_bad_input(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.toml"
    if kind == "folder":
        path.mkdir()
    if kind == "bytes":
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput) as caught:
        read_lock(path)
    assert str(path) in say(caught.value.message) and len(say(caught.value.message).splitlines()) == 1


@pytest.mark.parametrize("kind", ["folder-in-its-place", "file-in-the-way", "full"])
def test_a_lock_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "locks"
    if kind == "folder-in-its-place":
        (folder / LOCK.file_name).mkdir(parents=True)
    if kind == "file-in-the-way":
        folder.write_text("")
    before = sorted(tmp_path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(BadInput) as caught:
        try:
            if kind == "full":  # the nearest to a full disk that a test may ask for
                resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
            put_lock(LOCK, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.message.key == "lock.unwritable" and caught.value.hint is not None
    assert [path for path in sorted(tmp_path.rglob("*")) if path != folder] == [p for p in before if p != folder]


def test_a_lock_that_cannot_be_written_does_not_harm_the_one_that_is_there(tmp_path: Path) -> None:
    path = put_lock(LOCK, tmp_path)
    (tmp_path / f".{LOCK.file_name}.new").mkdir()
    with pytest.raises(BadInput):
        put_lock(replace(LOCK, packages=()), tmp_path)
    assert read_lock(path) == LOCK


def test_locks_are_named_by_file_by_stack_or_not_at_all(tmp_path: Path) -> None:
    own, shelf = tmp_path / "own", tmp_path / "shelf"
    other = replace(LOCK, platform="aarch64-cp311-glibc2.28")
    put_lock(replace(LOCK, made_with="own"), own)
    for lock in (LOCK, other, replace(LOCK, stack="tiny-2.0")):
        put_lock(lock, shelf)
    assert [lock.stack for lock in locks_named((), (own, shelf))] == ["tiny-2.0", "tiny", "tiny"]
    found = {(lock.platform, lock.made_with) for lock in locks_named(("tiny",), (own, shelf))}
    assert found == {(LOCK.platform, "own"), (other.platform, LOCK.made_with)}
    path = shelf / LOCK.file_name
    assert locks_named((str(path), "tiny-2.0"), (own, shelf)) == (LOCK, replace(LOCK, stack="tiny-2.0"))
    with pytest.raises(BadInput) as caught:
        locks_named(("tini",), (own, shelf))
    assert "tiny, tiny-2.0" in say(caught.value.message)


def test_a_lock_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        read_lock(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "is_fit"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("cryptography-50.0.2-cp311-abi3-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("vllm_ascend-0.23.0-cp311-cp311-manylinux_2_34_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("notes.txt", False),
        ("torch-.whl", False),
    ],
)
def test_a_wheel_fits_by_its_tags(name: str, is_fit: bool) -> None:
    assert wheel_fits(name, platform_tags(Platform("x86_64", "3.11"))) is is_fit


@pytest.mark.parametrize(
    "path",
    [path if at % 6 == 0 else pytest.param(path, marks=pytest.mark.slow) for at, path in enumerate(PUBLISHED)],
    ids=lambda path: path.name,
)
@pytest.mark.one_in(3)
def test_a_published_lock_says_what_the_stack_says_and_what_it_lacks_and_holds_no_cuda(path: Path) -> None:
    lock = read_lock(path)
    says_what_the_stack_says(lock, path)
    holds_no_address_of_a_package_and_no_cuda(lock, path)
    lacks_only_what_comes_from_an_index_of_its_own(lock)


def says_what_the_stack_says(lock: Lock, path: Path) -> None:
    name, tag = names_of(path)
    assert (lock.stack, lock.platform, lock.file_name) == (name, tag, path.name)
    arch, python = tag.split("-")[0], f"3.{tag.split('-')[1][3:]}"
    stack = resolve(Request(stack=name, arch=arch, python=python), load_matrix())
    assert isinstance(stack, Stack)
    built = {source.name for source in stack.git_sources}
    wanted = {pin.name: (pin.version, pin.index) for pin in stack.pins if pin.is_python and pin.name not in built}
    locked = {p.name: (p.version, p.index) for p in lock.packages}
    assert {name: locked.get(name) for name in wanted} == wanted
    assert {s.name: s.ref for s in lock.sources} == {s.name: s.ref for s in stack.git_sources}
    assert not built & set(locked)
    assert lock.inputs in ("", inputs_of(stack).digest)


def holds_no_address_of_a_package_and_no_cuda(lock: Lock, path: Path) -> None:
    assert all(line.startswith("repo = ") for line in path.read_text().splitlines() if "://" in line)
    names = {package.name for package in lock.packages}
    accelerators = {n for n in names if n.startswith(("nvidia-", "cuda-", "cupy"))}
    assert accelerators <= {"nvidia-ml-py", "nvidia-modelopt"}
    assert not names & {"triton", "xformers", "flashinfer-python"}


def lacks_only_what_comes_from_an_index_of_its_own(lock: Lock) -> None:
    lacking = {p.name for p in lock.packages if not p.sha256}
    assert lacking == {missing.name for missing in lock.missing}
    assert all(missing.index and missing.reason == "index-out-of-reach" for missing in lock.missing)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for p in lock.packages for digest in p.sha256)


@pytest.mark.slow
@pytest.mark.long
def test_every_published_stack_has_a_lock_or_a_proof_and_the_page_says_which(tmp_path: Path) -> None:
    """The shelf answers what is published today: nothing has to be asked of any index to say so."""
    if not (FOLDER / "README.md").is_file():
        pytest.skip("the shelf has no page yet: npuenv lock --all -o lockfiles")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    every = tuple(published(load_matrix()))
    stacks = [result for _, result in every if isinstance(result, Stack)]
    no_uv = Resolver(LocalHost(), str(tmp_path / "no-uv"), PipSettings(), {})
    rows = lock_all(stacks, no_uv, tmp_path, on_done=lambda row: None)
    assert [(row.stack, row.platform) for row in rows if not row.reused] == []
    assert {row.status for row in rows} <= {"complete", "partial", "impossible"}
    assert all(row.proof for row in rows if row.status == "impossible")
    assert (FOLDER / "README.md").read_text() == shelf_page(shelf_rows(every, shelf_locks(FOLDER), rows))


def test_every_published_stack_is_on_the_page_and_only_cpu_stacks_have_locks_beyond_their_python() -> None:
    wanted = {(request.stack, request.python) for request in published_requests(load_matrix())}
    found = {(name, f"3.{tag.split('-')[1][3:]}") for name, tag in map(names_of, PUBLISHED)}
    assert {name for name, _ in found - wanted} <= {"cpu"}
    page = (FOLDER / "README.md").read_text()
    assert [name for name in sorted({name for name, _ in wanted if name}) if f"| {name} |" not in page] == []


def test_the_lock_of_the_old_verl_has_the_packages_of_an_independent_resolution_and_nothing_younger() -> None:
    facts = FACTS / "verl071-va0130-aarch64-py311.txt"
    if not facts.is_file():
        pytest.skip("the recorded resolutions are not here")
    lock = read_lock(FOLDER / "verl-0.7.1-cann8.5.0.aarch64-cp311-glibc2.28.toml")
    other = dict(line.split("==") for line in facts.read_text().splitlines() if "==" in line and line[0] != "#")
    both = [package for package in lock.packages if package.name in other]
    younger = {package.name for package in both if Version(package.version) > Version(other[package.name])}
    assert len(both) > 200
    # That one had no day, and went back: to datasets 2.14 with dill and multiprocess, to numba of vllm's CUDA list.
    assert younger <= {"datasets", "dill", "multiprocess", "llvmlite", "numba", "tensordict"}


@pytest.mark.parametrize(
    "path", [path for path in PUBLISHED if re.match(r"verl-(0\.[89]|cann9)", path.name)], ids=lambda path: path.stem
)
def test_locks_hold_what_verl_imports_without_declaring_it(path: Path) -> None:
    lock = read_lock(path)
    queue, cache = lock.package("transferqueue"), lock.package("cachetools")
    assert queue is not None and cache is not None
    # verl 0.9.1 writes the queue into its checkpoints, and its extra verl-core asks for the release that can.
    assert not path.name.startswith("verl-0.9.1") or Version(queue.version) >= Version("0.1.10")
