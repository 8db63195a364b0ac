"""A small stack of its own with locks for both architectures, so that these tests do not move with the matrix."""

from __future__ import annotations

import dataclasses
import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.messages import Message
from npuenv.lock.file import Lock, LockedPackage, Missing
from npuenv.matrix.rows import Index
from npuenv.resolve.types import BuildStep, GitSource, Override, Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping

WHY = Message("cli.yes")  # a sentence that exists; what it says does not matter here
REASON = Reason(WHY)


def pin(name: str, version: str, index: str | None = None, *, is_python: bool = True) -> Pin:
    return Pin(name, version, REASON, REASON, "identity", index, is_python)


def step(id: str, does: str, *what: str) -> BuildStep:
    return BuildStep(id, does, what, WHY)


def make_stack(arch: str = "aarch64", **changes: Any) -> Stack:
    """A stack with one of everything: a tag, a commit, a short commit, a branch; install, editable and PYTHONPATH."""
    torch = pin("torch", "2.7.1+cpu", "pytorch-cpu") if arch == "x86_64" else pin("torch", "2.7.1")
    stack = Stack(
        name="sample-1.0",
        framework="verl",
        platform=Platform(arch, "3.11", "a2", "ubuntu22.04"),
        pins=(
            pin("cann", "8.3.RC1", is_python=False),
            torch,
            pin("torch-npu", "2.7.1"),
            pin("triton-ascend", "3.2.0rc4", "huawei-ascend"),
        ),
        requirements=("pyarrow>=15",),
        overrides=(Override("vllm", "exclude", "triton", REASON), Override("verl", "constrain", "numpy<2", REASON)),
        git_sources=(
            GitSource("vllm", "https://example.org/vllm.git", "v0.11.0", False, {"VLLM_TARGET_DEVICE": "empty"}),
            GitSource(
                "vllm-ascend", "https://example.org/vllm-ascend.git", "0" * 40, False, {"COMPILE_CUSTOM_KERNELS": "0"}
            ),
            GitSource("MindSpeed", "https://example.org/MindSpeed.git", "f2b0977e", False),
            GitSource("Megatron-LM", "https://example.org/Megatron-LM.git", "core_v0.12.1", False, how="pythonpath"),
            GitSource("verl", "https://example.org/verl.git", "main", True, how="editable"),
        ),
        order=(
            step("torch", "pip", "torch", "torch-npu"),
            step("grpcio", "pip", "grpcio"),
            step("ray", "pip", "ray"),
            step("vllm", "git", "vllm"),
            step("vllm-ascend", "git", "vllm-ascend"),
            step("trees", "git", "MindSpeed", "Megatron-LM"),
            step("rest", "rest"),
            step("verl", "git", "verl"),
            step("no-triton", "uninstall", "triton", "triton-ascend"),
            step("triton-ascend", "pip", "triton-ascend"),
        ),
        env={"VLLM_USE_V1": "1", "HCCL_CONNECT_TIMEOUT": "1500"},
        image="registry.example.org/cann:8.3.rc1-910b-ubuntu22.04-py3.11",
        cann_root="/usr/local/Ascend/ascend-toolkit/8.3.RC1",
        soc_version="ascend910b1",
        system_packages=("gcc", "g++", "git"),
        verified_by="published",
        sources=("docker/Dockerfile",),
    )
    return dataclasses.replace(stack, **changes)


def locked(name: str, version: str, index: str | None = None, *, is_hashed: bool = True) -> LockedPackage:
    hashes = (hashlib.sha256(f"{name} {version}".encode()).hexdigest(),) if is_hashed else ()
    return LockedPackage(name, version, hashes, index, ("stack",))


def make_lock(arch: str = "aarch64", *, is_partial: bool = False) -> Lock:
    torch = locked("torch", "2.7.1+cpu", "pytorch-cpu", is_hashed=not is_partial)
    packages = (
        locked("grpcio", "1.76.0"),
        locked("pyarrow", "24.0.0"),
        locked("ray", "2.41.0"),
        torch if arch == "x86_64" else locked("torch", "2.7.1"),
        locked("torch-npu", "2.7.1"),
        locked("triton-ascend", "3.2.0rc4", "huawei-ascend"),
    )
    missing = (Missing("torch", "2.7.1+cpu", "index-out-of-reach", "pytorch-cpu"),) if torch in packages else ()
    platform = Platform(arch, "3.11", "a2", "ubuntu22.04").tag
    return Lock("sample-1.0", platform, "npuenv 0.1.0", packages, missing if is_partial else ())


def make_index(label: str, argument: str) -> Index:
    url = f"https://{label}.example.org/simple/"
    return Index(f"index.{label}", "tests", "2026-11-21", label, url, "simple", (), argument)


def indexes() -> Mapping[str, Index]:
    return {
        "pytorch-cpu": make_index("pytorch-cpu", "PYTORCH_CPU_INDEX"),
        "huawei-ascend": make_index("huawei-ascend", "HUAWEI_ASCEND_INDEX"),
    }


@pytest.fixture
def sample() -> SimpleNamespace:
    """What a rendering takes, for both architectures, and the functions that make variants of it."""
    return SimpleNamespace(
        stacks={arch: make_stack(arch) for arch in ("x86_64", "aarch64")},
        locks={arch: make_lock(arch) for arch in ("x86_64", "aarch64")},
        indexes=indexes(),
        stack=make_stack,
        lock=make_lock,
    )
