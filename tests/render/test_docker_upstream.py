"""Each stack beside the Dockerfile it was made from: which one, and what differs in meaning."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import say
from npuenv.lock.file import read_lock
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.release_stacks import all_recipes
from npuenv.matrix.rows import Upstream
from npuenv.render.upstream import Comparison, Difference, compare
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import SimpleNamespace

ROOT = Path(__file__).parents[2]


def theirs(**changes: object) -> Upstream:
    """What `sample` would correspond to, equal in everything."""
    row = Upstream(
        id="upstream.sample",
        source="example docker/Dockerfile @1",
        seen="2026-11-21",
        framework="verl",
        hardware="a2",
        os="ubuntu22.04",
        stacks=("sample-1.0",),
        base="registry.example.org/cann:8.3.rc1-910b-ubuntu22.04-py3.11",
        cann="8.3.rc1",
        python="3.11",
        system_packages=("gcc", "g++", "git"),
        packages={"torch": "==2.7.1", "torch_npu": ">=2.7.1", "triton-ascend": "==3.2.0rc4"},
        sources={
            "vllm": "v0.11.0",
            "vllm-ascend": "0" * 40,
            "mindspeed": "f2b0977e0000",
            "megatron-lm": "core_v0.12.1",
            "verl": "main",
        },
        moving=("verl",),
        order=("torch", "torch-npu", "vllm", "vllm-ascend", "mindspeed", "-triton", "triton-ascend"),
        env={"VLLM_USE_V1": "1", "HCCL_CONNECT_TIMEOUT": "1500"},
    )
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def beside(sample: SimpleNamespace, row: Upstream, **changes: object) -> tuple[Difference, ...]:
    matrix = load_matrix()
    found = compare(sample.stack("aarch64", **changes), _With(matrix, row), sample.lock())  # type: ignore[arg-type]
    assert found.row is row
    return found.differences


class _With:
    """A matrix with one published Dockerfile."""

    def __init__(self, matrix: Matrix, *rows: Upstream) -> None:
        self.upstream = rows
        self.packages_among, self.dnf_names = matrix.packages_among, matrix.dnf_names


def test_an_equal_file_differs_in_nothing(sample: SimpleNamespace) -> None:
    assert beside(sample, theirs()) == ()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"base": "other:1"}, Difference("base", "base image", "other:1", theirs().base)),
        ({"cann": "8.5.0"}, Difference("cann", "CANN", "8.5.0", "8.3.RC1")),
        ({"python": "3.10"}, Difference("python", "Python", "3.10", "3.11")),
        ({"system_packages": ("gcc", "git")}, Difference("system-package", "g++", None, "g++")),
        ({"system_packages": ("gcc", "g++", "git", "jq")}, Difference("system-package", "jq", "jq", None)),
        ({"env": {"VLLM_USE_V1": "0", "HCCL_CONNECT_TIMEOUT": "1500"}}, Difference("setting", "VLLM_USE_V1", "0", "1")),
        ({"env": {"VLLM_USE_V1": "1"}}, Difference("setting", "HCCL_CONNECT_TIMEOUT", None, "1500")),
        ({"patches": ("a file",)}, Difference("patch", "a file", "a file", None)),
        ({"sources": {**theirs().sources, "vllm": "v0.12.0"}}, Difference("source", "vllm", "v0.12.0", "v0.11.0")),
        ({"sources": {**theirs().sources, "mooncake": "v1"}}, Difference("source", "mooncake", "v1", None)),
        (
            {"sources": {**theirs().sources, "mindspeed": "f2b0977f"}},
            Difference("source", "mindspeed", "f2b0977f", "f2b0977e"),
        ),
        (
            {"packages": {**theirs().packages, "torch_npu": "==2.7.1.post1"}},
            Difference("package", "torch-npu", "==2.7.1.post1", "==2.7.1"),
        ),
        ({"packages": {**theirs().packages, "torch": ""}}, Difference("package", "torch", "*", "==2.7.1")),
        ({"packages": {**theirs().packages, "ray": ">=2.42"}}, Difference("package", "ray", ">=2.42", "==2.41.0")),
        ({"packages": {**theirs().packages, "nvtx": ""}}, Difference("package", "nvtx", "*", None)),
        (
            {"order": ("vllm", "torch")},
            Difference("order", "order", "vllm > torch", "torch > vllm"),
        ),
    ],
)
def test_each_kind_of_difference_is_found_alone(
    sample: SimpleNamespace, change: dict[str, object], wanted: Difference
) -> None:
    assert beside(sample, theirs(**change)) == (wanted,)


def test_a_package_of_ours_alone_is_a_pin_and_not_what_others_require(sample: SimpleNamespace) -> None:
    packages = {"torch": "==2.7.1", "torch-npu": "==2.7.1"}
    assert beside(sample, theirs(packages=packages)) == (Difference("package", "triton-ascend", None, "==3.2.0rc4"),)


def test_the_file_of_the_same_system_is_taken_before_another(sample: SimpleNamespace) -> None:
    other = theirs(os="openeuler24.03", base="x")
    same = theirs()
    found = compare(sample.stack(), _With(load_matrix(), other, same))  # type: ignore[arg-type]
    assert found.row is same


def test_a_stack_without_a_file_says_so(sample: SimpleNamespace) -> None:
    found = compare(sample.stack(name="mine"), load_matrix())
    assert found == Comparison("mine", None, ())
    assert [each.key for each in found.says] == ["render.upstream-none"]


def stacks() -> Iterator[Stack]:
    matrix = load_matrix()
    for recipe in all_recipes(matrix):
        for hardware in recipe.hardware if recipe.framework != "torch-npu" else ():
            found = resolve(Request(stack=recipe.id, hardware=hardware, arch="aarch64"), matrix)
            if isinstance(found, Stack):
                yield found


@pytest.mark.slow
def test_every_stack_is_compared_and_every_sentence_exists_in_both_languages() -> None:
    matrix = load_matrix()
    compared = [compare(stack, matrix) for stack in stacks()]
    named = {recipe.id for recipe in all_recipes(matrix) if any("Dockerfile" in each for each in recipe.sources)}
    without = {each.stack for each in compared if each.row is None}
    assert len(compared) > 100
    assert {name for name in without & named if not name.startswith("vllm-ascend-")} == set()
    for each in compared:
        for lang in ("en", "zh"):
            texts = [say(message, lang) for message in each.says]
            assert len(set(texts)) == len(each.differences) + 1
            assert [text for text in texts if "{" in text or "render." in text] == []


def test_every_row_names_stacks_that_exist() -> None:
    known = {recipe.id for recipe in all_recipes(load_matrix())}
    rows = load_matrix().upstream
    assert [name for row in rows for name in row.stacks if name not in known] == []
    assert [row.id for row in rows if not row.stacks] == []


def differences(name: str, hardware: str) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    stack = resolve(Request(stack=name, hardware=hardware, arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)
    lock = read_lock(ROOT / "lockfiles" / f"{name}.{stack.platform.tag}.toml")
    found = compare(stack, load_matrix(), lock)
    return {(each.kind, each.name): (each.theirs, each.ours) for each in found.differences}


def test_names_of_another_distribution_are_no_difference_and_a_preloaded_library_is_a_setting(
    sample: SimpleNamespace,
) -> None:
    ours = {"system_packages": ("g++", "libnuma-dev", "libjemalloc2")}
    fit = theirs(
        system_packages=ours["system_packages"], env={**theirs().env, "LD_PRELOAD": "libjemalloc.so.2 prepended"}
    )
    assert beside(sample, fit, **ours) == ()
    named = ("gcc-c++", "numactl-devel", "jemalloc")
    other = dataclasses.replace(fit, os="openeuler24.03", system_packages=named)
    assert beside(sample, other, **ours) == ()
    bare = beside(sample, dataclasses.replace(other, env=theirs().env, system_packages=(*named, "clang")), **ours)
    preload = Difference("setting", "LD_PRELOAD", None, "libjemalloc.so.2 prepended")
    assert bare == (Difference("system-package", "clang", "clang", None), preload)


def test_the_system_packages_of_every_published_file_are_recorded() -> None:
    for row in load_matrix().upstream:
        has = set(row.system_packages)
        if row.framework == "llama-factory":  # its Dockerfile takes what the base image has
            assert has == set(), row.id
        elif row.framework == "sglang":  # git comes with the base image
            assert "build-essential" in has, row.id
        else:
            assert {"gcc", "git"} <= has or {"build-essential", "git"} <= has, row.id


def test_a_vllm_ascend_image_names_what_it_leaves_out_and_what_upstream_put_in_last() -> None:
    found = differences("vllm-ascend-0.18.0", "a3")
    left_out = {name for kind, name in found if kind == "system-package"}
    assert {"net-tools", "vim", "wget"} == left_out
    assert {"modelscope", "vllm[audio]"} <= {name for kind, name in found if kind == "package"}
    assert found["setting", "LD_LIBRARY_PATH"] == ("/usr/local/lib appended", None)
    assert ("setting", "LD_PRELOAD") not in found
    assert found["package", "torch-npu"] == ("==2.9.0.post1+gitee7ba04", "==2.9.0")
    assert found["package", "triton-ascend"] == ("==3.2.0.dev20260322", "==3.2.0")


@pytest.mark.parametrize("hardware", ["a2", "a3"])
def test_the_deliberate_differences_appear(hardware: str) -> None:
    """torch-npu of another CANN release, sources that follow a branch, and the edit of mbridge."""
    found = differences("verl-0.7.1-cann8.5.0", hardware)
    assert found["package", "torch-npu"] == ("==2.8.0", "==2.8.0.post2")
    assert found["source", "vllm-ascend"] == ("releases/v0.13.0", "v0.13.0")
    assert next(name for kind, name in found if kind == "patch").startswith("mbridge")
    newest = differences("verl-cann9.1.0", hardware)
    assert newest["source", "transformers"] == ("cc7ab9be", "==5.5.4")
    assert newest["source", "verl"] == ("HEAD", "v0.9.0")
    assert ("package", "torch-npu") not in newest
