"""Parts of a stack that cases do not show: settings by release, overrides from limits, paths by architecture."""

from __future__ import annotations

import re

from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

MATRIX = load_matrix()


def stack_of(request: Request) -> Stack:
    stack = resolve(request, MATRIX)
    assert isinstance(stack, Stack)
    return stack


def test_java_home_follows_the_architecture() -> None:
    homes = [stack_of(Request(stack="roll-cann9.1.0", arch=arch)).env["JAVA_HOME"] for arch in ("aarch64", "x86_64")]
    assert homes == ["/usr/lib/jvm/java-21-openjdk-arm64", "/usr/lib/jvm/java-21-openjdk-amd64"]
    euler = stack_of(Request(stack="roll-cann9.1.0", hardware="a2", os="openeuler24.03"))
    assert euler.env["JAVA_HOME"] == "/usr/lib/jvm/java-21-openjdk"


def test_settings_are_those_this_vllm_ascend_reads() -> None:
    assert stack_of(Request(stack="verl-0.7.0-cann8.3.RC1")).env["VLLM_USE_V1"] == "1"
    assert "VLLM_USE_V1" not in stack_of(Request(stack="verl-cann9.1.0")).env
    assert stack_of(Request(stack="verl-cann9.1.0")).env["VLLM_ASCEND_ENABLE_NZ"] == "0"


def test_settings_of_one_role_are_left_to_launch_files() -> None:
    assert "PYTORCH_NPU_ALLOC_CONF" not in stack_of(Request(stack="roll-cann9.1.0")).env
    assert "TASK_QUEUE_ENABLE" not in stack_of(Request(stack="roll-cann9.1.0")).env


def constraints(stack: Stack) -> set[str]:
    return {each.requirement for each in stack.overrides if each.does == "constrain"}


def test_undeclared_limits_become_constraints() -> None:
    found = constraints(stack_of(Request(stack="verl-0.8.0-cann9.0.0")))
    assert {"numpy<2", "pyarrow<26", "datasets>=2.16.1"} <= found


def test_a_limit_on_releases_that_are_younger_than_the_stack_does_not_apply() -> None:
    by_age = {name: stack_of(Request(stack=name)) for name in ("vllm-ascend-0.7.3", "verl-0.8.0-cann9.0.0")}
    # pyarrow 21, from which on datasets must be newer, came out on 2025-07-18.
    assert by_age["vllm-ascend-0.7.3"].date < "2025-07-18" < by_age["verl-0.8.0-cann9.0.0"].date
    assert [name for name, stack in by_age.items() if "datasets>=2.16.1" in constraints(stack)] == [
        "verl-0.8.0-cann9.0.0"
    ]


def test_limit_of_one_python_applies_only_to_it() -> None:
    found = {
        each: constraints(stack_of(Request(stack="verl-0.7.1-cann8.5.0", python=each))) for each in ("3.10", "3.11")
    }
    assert [python for python, bounds in found.items() if "click<8.3" in bounds] == ["3.10"]


def test_pinned_requirement_keeps_its_extras() -> None:
    stack = stack_of(Request(stack="verl-0.7.1-cann8.5.0", pins={"ray": "2.47.1"}))
    assert "ray[default]" in stack.requirements
    assert not [text for text in stack.requirements if text.startswith("ray[default]>")]


def test_a_pinned_package_brings_what_it_imports() -> None:
    stack = stack_of(Request(framework="verl", pins={"verl": "0.9.1"}))
    found = [text for text in stack.requirements if text.startswith(("transferqueue", "cachetools"))]
    assert sorted(found) == ["cachetools", "transferqueue>=0.1.10"]


def test_pinned_release_moves_the_tag_and_its_requirements() -> None:
    request = Request(stack="verl-0.7.1-cann8.5.0", pins={"vllm-ascend": "0.13.0rc3"}, cann="8.5.1")
    (source,) = (each for each in stack_of(request).git_sources if each.name == "vllm-ascend")
    assert (source.ref, source.commit) == ("v0.13.0rc3", "bbe9bc0d90")


def test_the_commit_of_a_tag_is_known_where_it_was_recorded_and_of_nothing_else() -> None:
    def commits(name: str) -> dict[str, str]:
        sources = stack_of(Request(stack=name)).git_sources
        return {f"{each.name}@{each.ref}": each.commit for each in sources if each.commit}

    assert commits("verl-0.7.1-cann8.5.0") == {"vllm-ascend@v0.13.0": "6281c1207a"}
    assert commits("verl-qwen3.5-cann8.5.2") == {}  # a commit itself
    assert commits("cpu") == {}
    recorded = [row.commit for row in load_matrix().vllm_ascend if row.commit]
    assert len(recorded) > 30 and all(re.fullmatch(r"[0-9a-f]{10}", commit) for commit in recorded)


def test_override_of_vllm_names_the_torch_of_this_platform() -> None:
    for arch, torch in (("x86_64", "torch==2.8.0+cpu"), ("aarch64", "torch==2.8.0")):
        overrides = stack_of(Request(stack="verl-0.7.1-cann8.5.0", arch=arch)).overrides
        assert torch in {each.requirement for each in overrides if each.package == "vllm"}


def test_moving_branches_are_marked() -> None:
    moving = {each.name for each in stack_of(Request(stack="verl-cann9.1.0")).git_sources if each.is_moving}
    assert moving == {"mindspeed", "megatron-lm"}
    assert not [each for each in stack_of(Request(stack="verl-0.7.0-cann8.3.RC1")).git_sources if each.is_moving]


def test_cpu_stack_of_any_torch_comes_from_the_cpu_index() -> None:
    pin = stack_of(Request(stack="cpu", pins={"torch": "2.9.0"})).pin("torch")
    assert pin is not None
    assert (pin.version, pin.index, pin.strength) == ("2.9.0+cpu", "pytorch-cpu", "request")


def test_a_companion_of_torch_says_that_torch_decides_it() -> None:
    pin = stack_of(Request(stack="verl-cann9.1.0")).pin("torchvision")
    assert pin is not None and pin.because.says.key == "resolve.because-companion"
