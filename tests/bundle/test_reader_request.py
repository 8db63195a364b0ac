"""What is said beside `--offline` against what the bundle holds, and bundles of another npuenv's tables."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.bundle.layout import FileRow, Manifest, manifest_text, request_values
from npuenv.cli import main
from npuenv.lock.file import Lock, read_lock, write_lock
from npuenv.lock.store import shipped_folder
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")
VERL, CPU = "verl-0.7.1-cann8.5.0.x86_64-cp311-glibc2.28.toml", "cpu.x86_64-cp311-glibc2.28.toml"


def bundle_of(folder: Path, lock: Lock, request: Request) -> Path:
    """A bundle with nothing in it but its lock: enough for a plan that is only shown."""
    (folder / "locks").mkdir(parents=True)
    data = write_lock(lock).encode()
    place = f"locks/{lock.file_name}"
    (folder / place).write_bytes(data)
    rows = (FileRow(place, "lock", len(data), hashlib.sha256(data).hexdigest()),)
    asked = request_values(request)
    manifest = Manifest("0.0.9", lock.stack, lock.platform, lock.hash, place, asked, ("3.11",), rows, (), ())
    (folder / "manifest.json").write_text(manifest_text(manifest), encoding="utf-8")
    return folder


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    request = Request(stack="verl-0.7.1-cann8.5.0", arch="x86_64")
    return bundle_of(tmp_path / "verl", read_lock(shipped_folder() / VERL), request)


@pytest.fixture
def cpu(tmp_path: Path) -> Path:
    request = Request(framework="cpu", arch="x86_64", python="3.11", is_newest=True, as_of="2026-12-01")
    return bundle_of(tmp_path / "cpu", read_lock(shipped_folder() / CPU), request)


TAKEN = 0  # a bundle that is not what the words mean is refused with 2


def shown(bundle: Path, *words: str) -> int:
    return main(["install", *words, "--offline", str(bundle), "--dry-run"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--for", "verl==0.7.1"),
        ("--for", "VERL==v0.7.1"),
        ("VERL-0.7.1-cann8.5.0",),
        ("--arch", "amd64"),
        ("--hardware", "910B3"),
        ("--python", "3.11.9"),
        ("--cann", "8.5.0"),
        ("--pin", "torch==2.8.0"),
    ],
)
def test_the_same_in_another_spelling_is_taken(words: tuple[str, ...], verl: Path) -> None:
    assert shown(verl, *words) == TAKEN


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "verl==0.7.0"),
        ("--for", "verl==0.7"),
        ("--for", "verl==8.5.0"),
        ("--for", "vllm-ascend"),
        ("verl-cann9.1.0",),
        ("--arch", "arm64"),
        ("--hardware", "a3"),
        ("--python", "3.10"),
        ("--cann", "9.0.0"),
        ("--pin", "torch==2.9.0"),
        ("--newest",),
        ("--as-of", "2026-12-01"),
    ],
)
def test_another_wish_than_the_bundle_meets_is_refused(words: tuple[str, ...], verl: Path) -> None:
    assert shown(verl, *words) == 2


def test_what_the_bundle_itself_was_asked_for_is_taken(cpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which is what an environment that was made from it asks for when it is repaired or updated."""
    assert shown(cpu, "--for", "CPU", "--newest", "--as-of", "2026-12-01", "--pin", "torch==2.13.0") == 0
    assert shown(cpu, "--as-of", "2026-11-30") == 2
    assert "--as-of 2026-11-30" in capsys.readouterr().err


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.slow
def test_a_bundle_of_other_tables_is_left_to_the_npuenv_that_made_it(
    lang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for by use alone, today's tables find a younger stack; its recipe must not be run on the older lock."""
    lock, request = read_lock(shipped_folder() / VERL), Request(framework="verl", arch="x86_64", python="3.11")
    assert shown(bundle_of(tmp_path / "same", lock, request)) == TAKEN
    assert "verl-0.7.1-cann8.5.0" in capsys.readouterr().out
    packages = tuple(
        replace(package, version="2.8.1") if package.name == "torch" else package for package in lock.packages
    )
    others = {
        "pins": replace(lock, packages=packages),
        "inputs": replace(lock, inputs="0" * 64),
        "name": replace(lock, stack="verl-0.1"),
    }
    for what, other in others.items():
        assert main(["install", "--offline", str(bundle_of(tmp_path / what, other, request)), "--lang", lang]) == 2
        said = capsys.readouterr().err
        assert "npuenv 0.0.9" in said and "`sh install.sh`" in said
    assert shown(bundle_of(tmp_path / "cann", lock, replace(request, cann="7.7.7"))) == 2
    assert "`sh install.sh`" in capsys.readouterr().err


def test_sources_are_spoken_of_as_the_bundle_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = read_lock(shipped_folder() / VERL)
    sources = tuple(replace(each, ref="v0.0.1") if each.name == "verl" else each for each in lock.sources)
    request = Request(stack=lock.stack, arch="x86_64")
    assert shown(bundle_of(tmp_path / "own", replace(lock, sources=sources), request)) == TAKEN
    assert "v0.0.1" in capsys.readouterr().out
