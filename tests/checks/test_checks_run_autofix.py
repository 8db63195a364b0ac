"""Which cures may be run: packages of an environment, nothing that builds or fetches CUDA, never a system's Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from npuenv.checks import Context, mark_automatic
from npuenv.core.fact import known
from npuenv.core.finding import Fix
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.facts.python import Python
from npuenv.matrix import load_matrix

EXE = "/env/bin/python"
PIP = (EXE, "-m", "pip")
UV = ("uv", "pip")
SAYS = Message("doctor.title")


def context(prefix: str = "/env") -> Context:
    from tests.support.scripted_host import ScriptedHost

    facts = collect(ScriptedHost(), only=frozenset())
    installed = {"numpy": "2.1.0", "triton": "3.2.0", "triton-ascend": "3.2.0rc4"}
    python = Python(EXE, "3.11.14", "venv", prefix, "glibc 2.35", installed, {}, (), ())
    return Context(replace(facts, python=replace(facts.python, interpreter=known(python))), load_matrix(), None)


def judged(*commands: tuple[str, ...], prefix: str = "/env", **more: Any) -> Fix:
    fix = mark_automatic(Fix(SAYS, commands, **more), context(prefix))
    assert fix is not None
    return fix


def test_the_undo_brings_the_named_packages_back_as_they_are_now() -> None:
    fix = judged(
        (*PIP, "uninstall", "-y", "triton", "triton-ascend"),
        (*PIP, "install", "Triton_Ascend==3.2.0", "decorator"),
    )
    assert fix.is_automatic
    assert fix.undo == (
        (*PIP, "uninstall", "-y", "decorator"),
        (*PIP, "install", "--no-deps", "--force-reinstall", "triton==3.2.0", "triton-ascend==3.2.0rc4"),
    )


def test_uv_takes_back_what_uv_does() -> None:
    fix = judged((*UV, "install", "--python", EXE, "numpy<2"))
    assert fix.is_automatic
    assert fix.undo == ((*UV, "install", "--python", EXE, "--no-deps", "--force-reinstall", "numpy==2.1.0"),)


@pytest.mark.parametrize(
    "command",
    [
        (*PIP, "install", "numpy>=1.26,<2"),
        (*PIP, "install", "--force-reinstall", "--no-deps", "torch-npu==2.8.0.post2"),
        (*PIP, "install", "--no-deps", "torchvision==0.23.0"),
        (*PIP, "install", "--extra-index-url", "https://index.invalid/cpu", "torch==2.8.0+cpu"),
        (*PIP, "install", "ray[default]==2.46.0"),
        (*PIP, "uninstall", "-y", "vllm"),
    ],
)
def test_these_may_be_run(command: tuple[str, ...]) -> None:
    assert judged(command).is_automatic
    assert judged(command, prefix="/usr/local/python3.11.13").is_automatic


@pytest.mark.parametrize(
    "command",
    [
        (*PIP, "install", "torch==2.8.0"),
        (*PIP, "install", "torch"),
        (*PIP, "install", "torchvision==0.23.0"),
        (*PIP, "install", "vllm==0.13.0"),
        (*UV, "install", "--python", EXE, "torch==2.8.0"),
        (*UV, "install", "--python", EXE, "vllm==0.13.0"),
        (*PIP, "install", "git+https://example.invalid/x.git"),
        (*PIP, "install", "./folder"),
        (*PIP, "install", "-r", "requirements.txt"),
        (*PIP, "install", "--index-url", "https://index.invalid", "numpy"),
        (*PIP, "install"),
        (*PIP, "install", "numpy==None"),
        (*PIP, "download", "numpy"),
        ("/other/python", "-m", "pip", "install", "numpy<2"),
        ("pip", "install", "numpy<2"),
        ("npuenv", "install", "cpu"),
        ("source", "/opt/set_env.sh"),
    ],
)
def test_these_are_left_to_a_person(command: tuple[str, ...]) -> None:
    fix = judged((*PIP, "install", "numpy<2"), command)
    assert not fix.is_automatic and fix.undo == ()


def test_a_systems_python_is_never_touched_and_a_danger_stays_one() -> None:
    good = (*PIP, "install", "numpy<2")
    assert not judged(good, prefix="/usr").is_automatic
    assert not judged(good, is_dangerous=True).is_automatic
    assert not judged(good, needs_root=True).is_automatic
    assert mark_automatic(None, context()) is None
    proposal = mark_automatic(Fix(SAYS, (good,)), context(), "python.requirements")
    assert proposal is not None and not proposal.is_automatic
