"""The lock as a file, and the published locks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from npuenv.errors import BadInput
from npuenv.lock import Lock, LockedPackage, LockedSource, Missing, parse_lock, read_lock, write_lock
from npuenv.lock.wheels import fits, platform_tags
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
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
    match = re.fullmatch(r"(.+)\.((?:x86_64|aarch64)-cp3\d+-glibc2\.28)\.toml", path.name)
    assert match, path.name
    return match[1], match[2]


def test_a_lock_is_read_as_it_was_written() -> None:
    assert parse_lock(write_lock(LOCK)) == LOCK


def test_the_hash_changes_with_a_version_and_not_with_the_tool() -> None:
    other = replace(LOCK.packages[0], version="2.5")
    assert replace(LOCK, packages=(other, LOCK.packages[1])).hash != LOCK.hash
    assert replace(LOCK, made_with="npuenv 9, uv 9").hash == LOCK.hash
    assert re.fullmatch("[0-9a-f]{12}", LOCK.hash)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('status = "partial"', 'status = "complete"'),
        ("schema = 1", "schema = 2"),
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
    assert fits(name, platform_tags(Platform("x86_64", "3.11"))) is is_fit


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_a_published_lock_says_what_the_stack_says(path: Path) -> None:
    lock, (name, tag) = read_lock(path), names_of(path)
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


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_a_published_lock_holds_no_address_of_a_package_and_no_cuda(path: Path) -> None:
    text = path.read_text()
    assert all(line.startswith("repo = ") for line in text.splitlines() if "://" in line)
    names = {package.name for package in read_lock(path).packages}
    accelerators = {n for n in names if n.startswith(("nvidia-", "cuda-", "cupy"))}
    assert accelerators <= {"nvidia-ml-py", "nvidia-modelopt"}
    assert not names & {"triton", "xformers", "flashinfer-python"}


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_what_a_published_lock_lacks_comes_from_an_index_of_its_own(path: Path) -> None:
    lock = read_lock(path)
    lacking = {p.name for p in lock.packages if not p.sha256}
    assert lacking == {missing.name for missing in lock.missing}
    assert all(missing.index and missing.reason == "index-out-of-reach" for missing in lock.missing)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for p in lock.packages for digest in p.sha256)


def test_the_published_locks_are_those_of_every_stack() -> None:
    cpu = {("cpu", f"{arch}-cp3{v}-glibc2.28") for arch in ("x86_64", "aarch64") for v in (10, 11, 12)}
    npu = {
        "verl-0.7.0-cann8.3.RC1",
        "verl-qwen3.5-cann8.5.0",
        "verl-0.7.1-cann8.5.0",
        "verl-cann9.1.0",
        "roll-cann9.1.0",
    }
    python = {name: "312" if "9.1" in name else "311" for name in npu}
    wanted = cpu | {("cpu-full", "x86_64-cp311-glibc2.28")}
    wanted |= {(name, f"{arch}-cp{python[name]}-glibc2.28") for name in npu for arch in ("x86_64", "aarch64")}
    assert {names_of(path) for path in PUBLISHED} == wanted


def test_the_numpy_rule_of_each_era_holds_in_the_locks() -> None:
    for path in PUBLISHED:
        package = read_lock(path).package("numpy")
        assert package is not None
        assert package.version.startswith("2." if path.name.startswith("cpu") else "1.26."), path.name


def test_the_lock_of_the_old_verl_agrees_with_an_independent_resolution_on_most_versions() -> None:
    facts = FACTS / "verl071-va0130-aarch64-py311.txt"
    if not facts.is_file():
        pytest.skip("the recorded resolutions are not here")
    lock = read_lock(FOLDER / "verl-0.7.1-cann8.5.0.aarch64-cp311-glibc2.28.toml")
    other = dict(line.split("==") for line in facts.read_text().splitlines() if "==" in line and line[0] != "#")
    both = [package for package in lock.packages if package.name in other]
    same = [package for package in both if package.version == other[package.name]]
    # Our pins (setuptools, tensordict) and limits (pyarrow<26, click<8.2) account for the rest.
    assert len(both) > 200 and len(same) / len(both) > 0.9
