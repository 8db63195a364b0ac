"""A lock in the forms of other installers, and that pip and uv install from them."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import parse_toml
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.lock.export import files_by_hash, pylock_toml, requirement_lines, requirements_txt
from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing
from npuenv.lock.uv import find_uv, write_wheel

if TYPE_CHECKING:
    from pathlib import Path

TAG = f"{platform.machine()}-cp3{sys.version_info[1]}-glibc2.28"
ELSEWHERE = "f" * 64  # a file of the same version that the folder does not have


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Bundle:
    """A folder of tiny wheels in two levels, and the lock of them."""

    folder: Path
    lock: Lock

    def pylock(self) -> str:
        return pylock_toml(self.lock, files_by_hash(self.folder))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    folder = tmp_path / "bundle"
    (folder / "wheels").mkdir(parents=True)
    base = write_wheel(folder / "wheels", "base", "1.0", files={"base.py": "number = 1\n"})
    upper = write_wheel(folder, "up-per", "2.0+cpu", requires=["base"], files={"up_per.py": "import base\n"})
    (folder / "notes.txt").write_text("no package")
    packages = (
        LockedPackage("base", "1.0", tuple(sorted((digest(base), ELSEWHERE))), None, ("up-per",)),
        LockedPackage("up-per", "2.0+cpu", (digest(upper),), "special", ("stack",)),
    )
    sources = (LockedSource("vllm", "https://host/vllm.git", "v1", False, "install"),)
    return Bundle(folder, Lock("tiny-1.0", TAG, "npuenv 1, uv 2", packages, (), sources))


def test_a_pylock_names_each_file_by_its_path_and_hash(bundle: Bundle) -> None:
    table = parse_toml(bundle.pylock())
    base, upper = table["packages"]
    name = "base-1.0-py3-none-any.whl"
    hashes = {"sha256": digest(bundle.folder / "wheels" / name)}
    assert base == {
        "name": "base", "version": "1.0", "wheels": [{"name": name, "path": f"wheels/{name}", "hashes": hashes}],
    }  # fmt: skip
    assert upper["wheels"][0]["path"] == "up_per-2.0+cpu-py3-none-any.whl"
    assert table["tool"]["npuenv"]["built"] == ["vllm @ git+https://host/vllm.git@v1"]
    assert bundle.pylock() == bundle.pylock()
    assert str(bundle.folder) not in bundle.pylock()


def test_a_pylock_is_valid_by_the_specification(bundle: Bundle) -> None:
    pylock = pytest.importorskip("packaging.pylock", reason="this packaging does not know the format yet")
    parsed = pylock.Pylock.from_dict(parse_toml(bundle.pylock()))
    parsed.validate()
    assert [(str(p.name), str(p.version)) for p in parsed.packages] == [("base", "1.0"), ("up-per", "2.0+cpu")]


@pytest.mark.parametrize(
    ("machine", "python", "is_meant"),
    [(platform.machine(), sys.version_info[1], True), ("riscv64", sys.version_info[1], False), (None, 9, False)],
)
def test_a_pylock_is_for_its_platform_only(bundle: Bundle, machine: str | None, python: int, is_meant: bool) -> None:
    from packaging.markers import Marker
    from packaging.specifiers import SpecifierSet

    bundle.lock = replace(bundle.lock, platform=f"{machine or platform.machine()}-cp3{python}-glibc2.28")
    table: dict[str, Any] = parse_toml(bundle.pylock())
    assert Marker(table["environments"][0]).evaluate() is is_meant
    running = f"3.{sys.version_info[1]}.4"
    fits_python = SpecifierSet(table["requires-python"]).contains(running, prereleases=False)
    assert fits_python is (python == sys.version_info[1])


def test_a_source_archive_stands_in_where_there_is_no_wheel(bundle: Bundle) -> None:
    archive = bundle.folder / "old-1.tar.gz"
    archive.write_bytes(b"an archive")
    old = LockedPackage("old", "1", (digest(archive),))
    bundle.lock = replace(bundle.lock, packages=(bundle.lock.packages[0], old, bundle.lock.packages[1]))
    row = parse_toml(bundle.pylock())["packages"][1]
    assert row["sdist"]["path"] == "old-1.tar.gz" and "wheels" not in row


def test_everything_that_the_folder_lacks_is_named(bundle: Bundle) -> None:
    for path in bundle.folder.rglob("*.whl"):
        path.write_bytes(b"damaged")
    with pytest.raises(BadInput) as caught:
        bundle.pylock()
    assert "base 1.0, up-per 2.0+cpu" in say(caught.value.message)


def test_a_folder_that_cannot_be_read_is_bad_input(bundle: Bundle) -> None:
    for path in (bundle.folder / "none", bundle.folder / "notes.txt"):
        with pytest.raises(BadInput) as caught:
            files_by_hash(path)
        assert str(path) in say(caught.value.message)


def test_paths_are_given_from_where_the_pylock_lies(bundle: Bundle, tmp_path: Path) -> None:
    found = files_by_hash(bundle.folder, tmp_path / "out")
    assert sorted(found.values())[0] == "../bundle/up_per-2.0+cpu-py3-none-any.whl"


@pytest.mark.parametrize("form", ["pylock", "requirements"])
def test_a_partial_lock_has_no_other_form(bundle: Bundle, form: str) -> None:
    missing = (Missing("up-per", "2.0+cpu", "index-out-of-reach", "special"),)
    bare = replace(bundle.lock.packages[1], sha256=())
    bundle.lock = replace(bundle.lock, packages=(bundle.lock.packages[0], bare), missing=missing)
    with pytest.raises(BadInput) as caught:
        bundle.pylock() if form == "pylock" else requirements_txt(bundle.lock)
    assert "up-per 2.0+cpu" in say(caught.value.message)


@pytest.mark.parametrize("form", ["pylock", "requirements"])
def test_a_set_that_does_not_resolve_has_no_other_form(bundle: Bundle, form: str) -> None:
    missing = (Missing("*", "", "does-not-resolve", detail="base<1 and base>=1"),)
    bundle.lock = replace(bundle.lock, packages=(), missing=missing)
    with pytest.raises(BadInput):
        bundle.pylock() if form == "pylock" else requirements_txt(bundle.lock)


def test_a_wheel_goes_before_a_source_archive_of_the_same_package(bundle: Bundle) -> None:
    archive = bundle.folder / "base-1.0.tar.gz"
    archive.write_bytes(b"an archive")
    base = bundle.lock.packages[0]
    both = replace(base, sha256=tuple(sorted((*base.sha256, digest(archive)))))
    bundle.lock = replace(bundle.lock, packages=(both, bundle.lock.packages[1]))
    row = parse_toml(bundle.pylock())["packages"][0]
    assert [wheel["name"] for wheel in row["wheels"]] == ["base-1.0-py3-none-any.whl"] and "sdist" not in row


def test_of_two_equal_files_the_first_by_path_is_named(bundle: Bundle) -> None:
    wheel = bundle.folder / "wheels" / "base-1.0-py3-none-any.whl"
    for folder in ("a", "z"):
        (bundle.folder / folder).mkdir()
        (bundle.folder / folder / wheel.name).write_bytes(wheel.read_bytes())
    assert files_by_hash(bundle.folder)[digest(wheel)] == f"a/{wheel.name}"


def test_a_requirement_carries_all_hashes_of_its_files() -> None:
    package = LockedPackage("base", "1.0", ("a" * 64, "b" * 64))
    assert requirement_lines(package) == [
        "base==1.0 \\", f"    --hash=sha256:{'a' * 64} \\", f"    --hash=sha256:{'b' * 64}",
    ]  # fmt: skip
    assert requirement_lines(replace(package, sha256=())) == ["base==1.0"]


def test_a_list_names_only_the_indexes_that_its_packages_come_from(bundle: Bundle) -> None:
    text = requirements_txt(bundle.lock, {"special": "https://special/simple/", "other": "https://other/simple/"})
    assert "--extra-index-url https://special/simple/\n" in text
    assert "other" not in text
    assert "--extra-index-url" not in requirements_txt(bundle.lock)
    assert text == requirements_txt(bundle.lock, {"special": "https://special/simple/"})


def environ(tmp_path: Path) -> dict[str, str]:
    """The environment without anybody's settings of pip and uv."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    cache = {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return {**kept, **cache, "UV_PYTHON_DOWNLOADS": "never"}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a new, empty environment."""
    subprocess.run([find_uv(), "venv", "-q", "--python", sys.executable, str(tmp_path / "env")],
                   check=True, env=environ(tmp_path))  # fmt: skip
    return tmp_path / "env/bin/python"


@pytest.mark.parametrize("verb", ["install", "sync"])
def test_uv_installs_from_a_pylock_without_any_index(bundle: Bundle, python: Path, tmp_path: Path, verb: str) -> None:
    file = bundle.folder / "pylock.toml"
    file.write_text(bundle.pylock())
    words = ("install", "-r", str(file)) if verb == "install" else ("sync", str(file))
    argv = [find_uv(), "pip", *words, "--offline", "--no-index", "--python", str(python)]
    subprocess.run(argv, check=True, env=environ(tmp_path), capture_output=True)
    ran = subprocess.run([python, "-c", "import up_per; print(up_per.base.number)"], capture_output=True, text=True)
    assert ran.stdout == "1\n"


def test_uv_refuses_a_file_that_was_exchanged_after_the_pylock_was_written(
    bundle: Bundle, python: Path, tmp_path: Path
) -> None:
    file = bundle.folder / "pylock.toml"
    file.write_text(bundle.pylock())
    write_wheel(bundle.folder / "wheels", "base", "1.0", files={"base.py": "number = 2\n"})
    argv = [find_uv(), "pip", "install", "-r", str(file), "--offline", "--no-index", "--python", str(python)]
    ran = subprocess.run(argv, env=environ(tmp_path), capture_output=True, text=True)
    assert ran.returncode != 0 and "Hash mismatch" in ran.stderr


def test_uv_installs_the_list_with_every_hash_required(bundle: Bundle, python: Path, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(requirements_txt(bundle.lock))
    links = [word for folder in (bundle.folder, bundle.folder / "wheels") for word in ("--find-links", str(folder))]
    argv = [find_uv(), "pip", "install", "--require-hashes", "--no-index", *links, "-r", str(file)]
    subprocess.run([*argv, "--python", str(python)], check=True, env=environ(tmp_path), capture_output=True)
    ran = subprocess.run([python, "-c", "import up_per; print(up_per.base.number)"], capture_output=True, text=True)
    assert ran.stdout == "1\n"
