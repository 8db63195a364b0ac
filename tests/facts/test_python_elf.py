"""The look at extension modules on small libraries made here: what they need, where it lies, and damaged files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.facts.python.packages import WORD, elf
from npuenv.host import shared_objects as reader
from npuenv.host.local import LocalHost

pytest.importorskip("elftools", reason="needs pyelftools")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def compile_to(path: Path, source: str, *words: str) -> Path:
    """A shared library of this C source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(code), *words], check=True, capture_output=True)
    return path


def look(*files: Path, near: str = "") -> dict[str, Any]:
    text = reader.document((near, *map(str, files)))
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A library in a folder of its own, and an extension that needs it and does not say where it lies."""
    hccl = compile_to(
        tmp_path / "Ascend/cann-8.5.0/lib64/libhccl.so", "int hccl(void){return 0;}", "-Wl,-soname,libhccl.so"
    )
    user = "int hccl(void); int use(void){return hccl();}"
    return hccl, compile_to(tmp_path / "env/torch_npu/_C.so", user, f"-L{hccl.parent}", "-lhccl")


@needs_gcc
def test_a_library_that_is_not_on_the_path_is_named_with_its_folder(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hccl, extension = pair
    row = {"path": str(extension), "library": "libhccl.so"}
    assert look(extension)["missing"] == [{**row, "lies_in": ""}]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert look(extension)["missing"] == [{**row, "lies_in": str(hccl.parent)}]


@needs_gcc
def test_what_the_session_or_the_file_itself_names_is_found(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hccl, extension = pair
    assert look(extension, near=str(hccl.parent))["missing"] == []
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{hccl.parent}")
    assert look(extension)["missing"] == []
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert len(look(extension)["missing"]) == 1
    user = "int hccl(void); int use(void){return hccl();}"
    folders = (f"-L{hccl.parent}", "-lhccl", "-Wl,-rpath,$ORIGIN/../../Ascend/cann-8.5.0/lib64")
    assert look(compile_to(extension.parent / "own.so", user, *folders))["missing"] == []


@needs_gcc
def test_symbols_of_torch_that_nothing_defines_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "torch/lib"
    one = "int _ZN3c104kindEv(void){return 1;}"
    files = [compile_to(folder / f"{name}.so", one) for name in ("libc10", "libtorch_cpu", "libtorch_python")]
    both = "int _ZN3c104kindEv(void); int _ZN2at4goneEv(void); int use(void){return _ZN3c104kindEv()+_ZN2at4goneEv();}"
    extension = compile_to(tmp_path / "torch_npu/_C.so", both)
    assert look(*files, extension)["symbols"] == [{"path": str(extension), "count": 1, "symbols": ["_ZN2at4goneEv"]}]
    assert look(*files[:2], extension)["symbols"] == []  # a library that defines some was not read: no claim


@needs_gcc
def test_the_abi_of_strings_is_told_by_the_symbols(tmp_path: Path) -> None:
    new = compile_to(tmp_path / "new/libc10.so", "int _ZN3c103xNSt7__cxx1112basic_stringE(void){return 1;}")
    old = compile_to(tmp_path / "old/libc10.so", "int _ZN3c103xESs(void){return 1;}")
    assert look(new)["cxx11"] == {"libc10.so": True} and look(old)["cxx11"] == {"libc10.so": False}


@needs_gcc
def test_a_version_of_the_c_library_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = compile_to(tmp_path / "old/libc.so.6", "int x;", "-nostdlib", "-Wl,-soname,libc.so.6", _script(tmp_path))
    extension = compile_to(tmp_path / "env/_C.so", "#include <stdlib.h>\nvoid *use(void){return malloc(1);}")
    assert look(extension)["versions"] == []
    monkeypatch.setenv("LD_LIBRARY_PATH", str(own.parent))
    (row,) = look(extension)["versions"]
    assert row["version"].startswith("GLIBC_2.") and row["has"] == "GLIBC_1.0" and row["library"] == str(own)


def _script(folder: Path) -> str:
    script = folder / "versions.map"
    script.write_text("GLIBC_1.0 { global: x; };\n")
    return f"-Wl,--version-script={script}"


def test_a_file_that_is_no_library_is_unread_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.so").write_bytes(b"")
    (tmp_path / "text.so").write_text("not a library")
    found = look(tmp_path / "empty.so", tmp_path / "text.so", tmp_path / "gone.so")
    assert [Path(row["path"]).name for row in found["unread"]] == ["empty.so", "text.so", "gone.so"]
    assert found["looked"] == 0


def test_this_machine_answers_the_word_itself(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("x")
    found = elf(LocalHost(), [str(tmp_path / "text.so")], near=[], timeout_s=5.0)
    assert found.value is not None and list(found.value.unread) == [str(tmp_path / "text.so")]
    assert LocalHost().run([WORD, ""]).is_absent


def test_the_library_of_another_machine_is_foreign(tmp_path: Path) -> None:
    source = _library()
    other = bytearray(source)
    other[18:20] = (183 if platform.machine() == "x86_64" else 62).to_bytes(2, "little")
    (tmp_path / "other.so").write_bytes(other)
    (row,) = look(tmp_path / "other.so")["machine"]
    assert row["machine"] == ("aarch64" if platform.machine() == "x86_64" else "x86_64")


@pytest.mark.slow
@settings(deadline=None)
@given(cut=st.integers(0, 4000), at=st.integers(0, 4000), byte=st.integers(0, 255))
def test_no_damage_makes_the_look_raise(tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int) -> None:
    data = bytearray(_library())
    data[at % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(data[: len(data) - cut])
    found = look(path)
    assert found["looked"] + len(found["unread"]) == 1


def _library() -> bytes:
    """Some real shared library of this machine, a small one."""
    folder = Path(os.__file__).parent / "lib-dynload"
    return min((path for path in folder.glob("*.so")), key=lambda path: path.stat().st_size).read_bytes()
