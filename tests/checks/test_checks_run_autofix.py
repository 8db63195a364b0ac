"""Which cures may be run: packages of an environment, nothing that builds or fetches CUDA, never a system's Python."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import Context
from npuenv.checks.python.installed import pip_fix
from npuenv.core.fact import known
from npuenv.facts.collect import collect
from npuenv.facts.python import Python
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from npuenv.core.finding import Fix

EXE = "/env/bin/python"
PIP = (EXE, "-m", "pip")
UV = ("uv", "pip")
INSTALLED = {"pip": "25.0", "numpy": "2.1.0", "triton": "3.2.0", "triton-ascend": "3.2.0rc4"}


def context(prefix: str = "/env", *, has_pip: bool = True) -> Context:
    from tests.support.scripted_host import ScriptedHost

    facts = collect(ScriptedHost(), only=frozenset())
    installed = {name: version for name, version in INSTALLED.items() if has_pip or name != "pip"}
    python = Python(EXE, "3.11.14", "venv", prefix, "glibc 2.35", installed, {}, (), ())
    return Context(replace(facts, python=replace(facts.python, interpreter=known(python))), load_matrix(), None)


def judged(*install: str, prefix: str = "/env", options: tuple[str, ...] = ()) -> Fix:
    return pip_fix(context(prefix), "python.again", install=install, options=options)


def test_the_undo_brings_the_named_packages_back_as_they_are_now() -> None:
    install = ("Triton_Ascend==3.2.0", "decorator")
    fix = pip_fix(context(), "python.triton", remove=("triton", "triton-ascend"), install=install)
    assert fix.commands == (
        (*PIP, "uninstall", "-y", "triton", "triton-ascend"),
        (*PIP, "install", "Triton_Ascend==3.2.0", "decorator"),
    )
    assert fix.is_automatic
    assert fix.undo == (
        (*PIP, "uninstall", "-y", "decorator"),
        (*PIP, "install", "--no-deps", "--force-reinstall", "triton==3.2.0", "triton-ascend==3.2.0rc4"),
    )


def test_uv_takes_back_what_uv_does() -> None:
    fix = pip_fix(context(has_pip=False), "python.again", install=("numpy<2",))
    assert fix.is_automatic and fix.commands == ((*UV, "install", "--python", EXE, "numpy<2"),)
    assert fix.undo == ((*UV, "install", "--python", EXE, "--no-deps", "--force-reinstall", "numpy==2.1.0"),)


@pytest.mark.parametrize(
    ("requirement", "options"),
    [
        ("numpy>=1.26,<2", ()),
        ("torch-npu==2.8.0.post2", ("--force-reinstall", "--no-deps")),
        ("torchvision==0.23.0", ("--no-deps",)),
        ("torch==2.8.0+cpu", ("--extra-index-url", "https://index.invalid/cpu")),
        ("ray[default]==2.46.0", ()),
    ],
)
def test_these_may_be_run(requirement: str, options: tuple[str, ...]) -> None:
    assert judged(requirement, options=options).is_automatic
    assert judged(requirement, options=options, prefix="/usr/local/python3.11.13").is_automatic


def test_what_is_built_from_source_may_be_removed() -> None:
    assert pip_fix(context(), "python.again", remove=("vllm",)).is_automatic


@pytest.mark.parametrize(
    "requirement",
    [
        "torch==2.8.0",
        "torch",
        "torchvision==0.23.0",
        "vllm==0.13.0",
        "git+https://example.invalid/x.git",
        "./folder",
        "-r",
        "numpy==None",
        "numpy<2; python_version<'3.12'",
    ],
)
@pytest.mark.parametrize("has_pip", [True, False])
def test_these_are_left_to_a_person(requirement: str, has_pip: bool) -> None:
    fix = pip_fix(context(has_pip=has_pip), "python.again", install=("numpy<2", requirement))
    assert len(fix.commands) == 1 and not fix.is_automatic and fix.undo == ()


def test_a_systems_python_is_never_touched() -> None:
    assert not judged("numpy<2", prefix="/usr").is_automatic
