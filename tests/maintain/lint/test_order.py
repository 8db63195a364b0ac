"""What a later command changes about an earlier one: an uninstall, `--no-deps`, the same package once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.maintain.lint import lint_paths
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from pathlib import Path

ON_CANN = "FROM quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11\n"
ON_UBUNTU = "FROM ubuntu:22.04\n"
ONE_AFTER_THE_OTHER = "RUN pip install torch==2.9.0\nRUN pip install --no-deps torch_npu==2.8.0\n"


def rules(folder: Path, text: str) -> set[str]:
    """The rules that complain of a Dockerfile."""
    (folder / "Dockerfile").write_text(text, encoding="utf-8")
    return {each.check for each in lint_paths([folder], load_matrix())}


@pytest.mark.parametrize(
    ("rule", "text", "remedy"),
    [
        # What is taken out again is not there in the end.
        ("lint.torch-pair", ON_UBUNTU + ONE_AFTER_THE_OTHER, "pip uninstall -y torch"),
        # What owns the files of community triton in the end is what is installed last.
        (
            "lint.triton-ascend-not-last",
            ON_UBUNTU + "RUN pip install triton-ascend==3.2.0\nRUN pip install liger-kernel\n",
            "pip install --force-reinstall triton-ascend==3.2.0",
        ),
    ],
)
def test_a_later_command_puts_right_what_an_earlier_one_did(tmp_path: Path, rule: str, text: str, remedy: str) -> None:
    assert rule in rules(tmp_path, text)
    assert rule not in rules(tmp_path, f"{text}RUN {remedy}\n")


def test_without_dependencies_a_package_brings_nothing_along(tmp_path: Path) -> None:
    assert "lint.triton-ascend-cann" in rules(tmp_path, ON_CANN + "RUN pip install vllm-ascend==0.23.0\n")
    assert "lint.triton-ascend-cann" not in rules(tmp_path, ON_CANN + "RUN pip install --no-deps vllm-ascend==0.23.0\n")


def test_a_script_that_is_not_in_the_text_may_have_changed_any_version(tmp_path: Path) -> None:
    text = ON_UBUNTU + ONE_AFTER_THE_OTHER
    assert "lint.torch-pair" in rules(tmp_path, text)
    assert "lint.torch-pair" not in rules(tmp_path, f"{text}RUN bash /opt/more.sh\n")


@pytest.mark.parametrize("later", ["pip uninstall -y torch", "pip install vllm-ascend==0.13.0", "bash /opt/more.sh"])
def test_nothing_puts_right_a_command_that_pip_refuses(tmp_path: Path, later: str) -> None:
    text = f"{ON_UBUNTU}RUN pip install torch==2.9.0 torch_npu==2.8.0\n"
    assert "lint.torch-pair" in rules(tmp_path, f"{text}RUN {later}\n")


def test_what_is_for_one_architecture_is_not_held_against_the_other(tmp_path: Path) -> None:
    install = "pip install torch-npu==2.8.0.post2"
    only = {arch: f'RUN if [ "$(uname -m)" = "{arch}" ]; then {install}; fi\n' for arch in ("x86_64", "aarch64")}
    assert "lint.cpu-index" in rules(tmp_path, ON_CANN + only["x86_64"])
    assert "lint.cpu-index" not in rules(tmp_path, ON_CANN + only["aarch64"])


def test_a_clone_in_a_branch_that_the_text_does_not_decide_is_passed_over(tmp_path: Path) -> None:
    clone = "git clone https://github.com/verl-project/verl.git"
    assert rules(tmp_path, f"{ON_UBUNTU}RUN {clone}\n") == {"lint.moving-ref"}
    assert rules(tmp_path, f"{ON_UBUNTU}RUN if [ -f /x ]; then {clone}; fi\n") == set()


@pytest.mark.parametrize(
    ("line", "is_off"),
    [
        ("ENV GIT_SSL_NO_VERIFY=1", True),
        ("ENV GIT_SSL_NO_VERIFY=0", False),
        ("ENV PIP_TRUSTED_HOST=mirror.example", True),
        ("RUN export GIT_SSL_NO_VERIFY=true && git fetch", True),
        ("RUN export GIT_SSL_NO_VERIFY=false && git fetch", False),
        ("RUN GIT_SSL_NO_VERIFY=0 git fetch", False),
    ],
)
def test_a_variable_that_turns_certificates_off_is_seen_wherever_it_is_set(
    tmp_path: Path, line: str, is_off: bool
) -> None:
    assert rules(tmp_path, f"{ON_UBUNTU}{line}\n") == ({"lint.tls-off"} if is_off else set())


def complaints(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [f"{each.location} {each.check}" for each in lint_paths([folder], load_matrix())]


def test_a_build_may_want_another_setuptools_than_the_project_runs_with(tmp_path: Path) -> None:
    build = '[build-system]\nrequires = [\n  "setuptools>=64",\n  "numpy>=2",\n]\n'
    asked = {"pyproject.toml": build, "requirements.txt": "setuptools<60\nnumpy<2\n"}
    assert complaints(tmp_path, asked) == ["pyproject.toml:4 lint.disjoint"]


def test_a_limit_counts_only_below_the_version_that_brings_it(tmp_path: Path) -> None:
    assert complaints(tmp_path, {"requirements.txt": "numpy<2\npyarrow>=15\n"}) == [
        "requirements.txt:2 lint.undeclared-limit"
    ]
    assert complaints(tmp_path, {"requirements.txt": "numpy>=2\npyarrow>=15\n"}) == []
