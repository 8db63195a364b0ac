"""What lies in a folder against its lock and against what the distributions ask for."""

from __future__ import annotations

import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import Message
from npuenv.lock.checking import Inconsistency, find_inconsistencies
from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing
from npuenv.lock.uv import write_wheel
from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from pathlib import Path

BECAUSE = Message("stack.vllm-torch")
REASON = Reason(BECAUSE, ("row",), ("source",))


def a_stack(*, arch: str = "aarch64") -> Stack:
    """Pins torch, overrules what asks for fastapi, leaves out xformers, builds vllm later."""
    return Stack(
        name="small", framework="vllm-ascend", platform=Platform(arch, "3.11"),
        pins=(Pin("torch", "2.8.0", REASON, REASON, "identity"),),
        requirements=(),
        overrides=(
            Override("vllm", "replace", "fastapi[standard]<0.124", REASON),
            Override("x", "exclude", "xformers", REASON),
        ),
        git_sources=(GitSource("vllm", "https://example.invalid/vllm.git", "v1", False),),
        order=(), env={}, image=None, cann_root=None, soc_version=None, system_packages=(),
        verified_by="satisfiable", sources=(),
    )  # fmt: skip


def a_lock(*packages: str, missing: tuple[str, ...] = ()) -> Lock:
    rows = tuple(LockedPackage(*text.split("=="), ("0" * 64,)) for text in packages)  # type: ignore[arg-type, call-arg]
    gaps = tuple(Missing(name, "1", "index-out-of-reach", "pytorch-cpu") for name in missing)
    source = LockedSource("vllm", "https://example.invalid/vllm.git", "v1", False, "install")
    return Lock("small", "aarch64-cp311-glibc2.28", "npuenv", rows, gaps, (source,))


def put(folder: Path, name: str, version: str, *requires: str) -> None:
    """Installs a small distribution into a folder."""
    wheels = folder.parent / "wheels"
    wheels.mkdir(exist_ok=True)
    with zipfile.ZipFile(write_wheel(wheels, name, version, requires=requires)) as archive:
        archive.extractall(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "site"
    made.mkdir()
    return made


@pytest.mark.parametrize("left", [None, "", "Metadata-Version: 2.1\nName: cap"])
def test_a_package_whose_metadata_is_gone_is_a_complaint(folder: Path, left: str | None) -> None:
    put(folder, "torch", "2.8.0")
    put(folder, "captum", "1.0")
    metadata = folder / "captum-1.0.dist-info" / "METADATA"
    metadata.unlink() if left is None else metadata.write_text(left)
    found = find_inconsistencies(folder, a_stack(), a_lock("torch==2.8.0", "captum==1.0"))
    assert [(each.who, each.says.key, each.because) for each in found] == [
        ("captum-1.0.dist-info", "consistent.no-metadata", None),
        ("captum", "consistent.not-as-locked", None),
    ]


def keys(found: tuple[Inconsistency, ...]) -> list[tuple[str, str, str | None]]:
    return [(each.who, each.says.key, each.because.key if each.because else None) for each in found]


def test_a_set_that_holds_together_gives_no_complaint(folder: Path) -> None:
    put(folder, "torch", "2.8.0+cpu", "numpy>=1.20", "colorama; sys_platform == 'win32'", "extra; extra == 'all'")
    put(folder, "numpy", "1.26.4")
    assert find_inconsistencies(folder, a_stack(), a_lock("torch==2.8.0", "numpy==1.26.4")) == ()


def test_another_version_a_lacking_and_a_stray_distribution_are_named(folder: Path) -> None:
    put(folder, "numpy", "2.1.0")
    put(folder, "stray", "1.0")
    found = find_inconsistencies(folder, a_stack(), a_lock("numpy==1.26.4", "torch==2.8.0"))
    assert keys(found) == [
        ("numpy", "consistent.not-as-locked", None),
        ("torch", "consistent.not-as-locked", None),
        ("stray", "consistent.not-in-lock", None),
    ]
    assert found[0].says.args == {"name": "numpy", "version": "1.26.4", "has": "2.1.0"}


def test_what_the_stack_overrules_carries_its_reason(folder: Path) -> None:
    put(folder, "fastapi", "0.123.0")
    put(folder, "torch", "2.8.0")
    put(folder, "asks", "1.0", "fastapi>=0.133", "xformers", "torch==2.9.0", "vllm>=1")
    found = find_inconsistencies(folder, a_stack(), a_lock("fastapi==0.123.0", "torch==2.8.0", "asks==1.0"))
    assert keys(found) == [
        ("asks", "consistent.unmet", "stack.vllm-torch"),
        ("asks", "consistent.unmet", "stack.vllm-torch"),
        ("asks", "consistent.unmet", "stack.vllm-torch"),
        ("asks", "consistent.unmet", "consistent.built-later"),
    ]


def test_what_nothing_explains_has_no_reason(folder: Path) -> None:
    put(folder, "asks", "1.0", "numpy<2", "lacking")
    put(folder, "numpy", "2.1.0")
    found = find_inconsistencies(folder, a_stack(), a_lock("asks==1.0", "numpy==2.1.0"))
    assert keys(found) == [("asks", "consistent.unmet", None)] * 2
    assert found[0].says.args == {"who": "asks", "needs": "numpy<2", "has": "2.1.0"}


def test_markers_are_those_of_the_locks_platform(folder: Path) -> None:
    put(folder, "asks", "1.0", "lacking; platform_machine == 'x86_64'")
    lock = a_lock("asks==1.0")
    assert find_inconsistencies(folder, a_stack(arch="aarch64"), lock) == ()
    assert keys(find_inconsistencies(folder, a_stack(arch="x86_64"), lock)) == [("asks", "consistent.unmet", None)]


def test_markers_are_those_of_the_locks_python(folder: Path) -> None:
    put(folder, "asks", "1.0", "old; python_version < '3.11'", "new; python_full_version >= '3.12'")
    assert find_inconsistencies(folder, a_stack(), a_lock("asks==1.0")) == ()
    put(folder, "more", "1.0", "lacking; python_version == '3.11'")
    found = find_inconsistencies(folder, a_stack(), a_lock("asks==1.0", "more==1.0"))
    assert keys(found) == [("more", "consistent.unmet", None)]


def test_a_pre_release_that_was_locked_meets_a_requirement(folder: Path) -> None:
    put(folder, "asks", "1.0", "numpy>=1.26")
    put(folder, "numpy", "2.0rc1")
    assert find_inconsistencies(folder, a_stack(), a_lock("asks==1.0", "numpy==2.0rc1")) == ()


def test_a_package_without_a_hash_is_explained_by_the_partial_lock(folder: Path) -> None:
    put(folder, "asks", "1.0", "torchvision")
    found = find_inconsistencies(
        folder, a_stack(), a_lock("asks==1.0", "torchvision==0.23.0", missing=("torchvision",))
    )
    assert keys(found) == [
        ("torchvision", "consistent.not-as-locked", "consistent.no-hash"),
        ("asks", "consistent.unmet", "consistent.no-hash"),
    ]


def test_a_requirement_that_cannot_be_read_is_a_complaint(folder: Path) -> None:
    put(folder, "asks", "1.0", "not a == requirement !!")
    assert keys(find_inconsistencies(folder, a_stack(), a_lock("asks==1.0"))) == [
        ("asks", "consistent.unreadable", None)
    ]


@pytest.mark.registry
@pytest.mark.slow
def test_a_real_set_for_aarch64_is_as_locked_and_explained(tmp_path: Path) -> None:
    """The smallest real stack, installed for the other architecture into a folder."""
    from npuenv.app import Progress
    from npuenv.app.resolution import this_resolver
    from npuenv.lock.export import requirements_txt
    from npuenv.lock.make import make_lock
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Request

    stack = resolve(Request(stack="torch-npu-2.8.0.post2", arch="aarch64", python="3.11", hardware="a2"), load_matrix())
    assert isinstance(stack, Stack)
    resolver = this_resolver(Progress())
    lock = make_lock(stack, resolver)
    assert lock.is_complete, lock.missing
    listed = tmp_path / "requirements.txt"
    listed.write_text(requirements_txt(lock), encoding="utf-8")
    where = ("--target", str(tmp_path / "site"), "--python", sys.executable)
    platform = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11")
    words = ("pip", "install", "--no-deps", "--require-hashes", *where, *platform, "-r", str(listed))
    ran = resolver.run(words)
    assert ran.code == 0, ran.err
    found = find_inconsistencies(tmp_path / "site", stack, lock)
    assert [each for each in found if each.because is None] == []
    assert list((tmp_path / "site").rglob("*x86_64*")) == []
