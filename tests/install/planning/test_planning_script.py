"""A plan as a script, with everything that can be in one: it is POSIX, clean, and does what the plan does."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import Message, say
from npuenv.core.plan import Condition, Plan, Run, Step, WriteFile
from npuenv.facts.pip import PipSettings, UvSettings
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.prerequisites import PackageManager, _part_want, system_steps
from npuenv.render.script import render_script
from npuenv.report.plan import list_plan
from tests.install.planning.plan_cases import NPU, planned, stack_and_lock, tiny, tiny_plan
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from pathlib import Path

WHY = Message("plan.why-rest")
DEBIAN = PackageManager("Debian", "dpkg", "apt-get", ("g++", "libnuma-dev"), True, "sudo")
EULER = PackageManager("openEuler", "rpm", "dnf", ("gcc-c++",), True, "root")


def before(name: str, system: PackageManager) -> list[Step]:
    stack, _ = stack_and_lock(name)
    parts = [
        Step(f"cann-{part}", WHY, (Run(("bash", "/f/it's.run", "--install")),), (_part_want(stack, part),))
        for part in ("toolkit", "ops", "nnal")
    ]
    return [*system_steps(stack, system, is_allowed=True).steps, *parts]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", NPU)
@pytest.mark.parametrize("kind", ["venv", "conda", "existing"])
def test_a_script_with_everything_in_it_has_nothing_to_be_found_fault_with(
    tmp_path: Path, name: str, kind: str, lang: str
) -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    system = DEBIAN if lang == "en" else EULER
    more = {"wheels": "/b/wheels", "given": {"verl": "/s/verl.zip"}} if kind == "venv" else {"conda": "/c/conda"}
    target = EnvironmentPlace("/t/my env", "/t/current", kind)
    _, _, plan = planned(name, target=target, before=before(name, system), **more)
    text = render_script(plan, UvSettings({"UV_INDEX": "a=https://h/s"}), title=name, lang=lang)
    file = tmp_path / "install.sh"
    file.write_text(text)
    for shell in ("sh", "dash"):
        ran = subprocess.run([checker, "--shell", shell, file], capture_output=True, text=True)
        assert ran.stdout == ""
    assert subprocess.run(["sh", "-n", file], capture_output=True).returncode == 0
    skipped = say(Message("plan.script-skipped"), lang)
    assert text.count(f" - {skipped}'\nelse\n") == len(plan.steps)  # every step asks first whether it is done


@pytest.mark.slow
@pytest.mark.usefixtures("own_uv")
def test_the_script_of_a_plan_does_what_the_plan_does_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    stack, lock = tiny(wheels, one="1.0", two="2.0")
    target = EnvironmentPlace(str(tmp_path / "my envs/a"), str(tmp_path / "my envs/current"))
    plan = tiny_plan(stack, lock, target, wheels)
    file = tmp_path / "install.sh"
    file.write_text(render_script(plan, UvSettings(), title="tiny"))
    first = subprocess.run(["sh", file], capture_output=True, text=True, timeout=300)
    assert first.returncode == 0, first.stderr
    code = "import one, two; print(one.__version__, two.__version__)"
    ran = subprocess.run([target.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "1.0 2.0\n" and os.readlink(tmp_path / "my envs/current") == target.root
    again = subprocess.run(["sh", file], capture_output=True, text=True, timeout=300)
    skipped = f" - {sentence('plan.script-skipped')}"
    assert [line.endswith(skipped) for line in again.stdout.splitlines()] == [True] * len(plan.steps)


def asked(want: Condition, tmp_path: Path, **programs: str) -> bool:
    """Whether the script holds the condition for met, with these programs in front on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    mark = tmp_path / "mark"
    mark.unlink(missing_ok=True)
    plan = Plan((Step("x", WHY, (Run(("touch", str(mark))),), (want,)),))
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    script = render_script(plan, UvSettings(), title="t")
    subprocess.run(["sh", "-c", script], check=True, env=env, capture_output=True)
    return not mark.exists()


def test_the_script_asks_dpkg_and_rpm_as_the_plan_does(tmp_path: Path) -> None:
    dpkg = Condition("system.packages", ("dpkg", "gcc", "g++"), "installed")
    assert asked(dpkg, tmp_path, dpkg_query="echo install ok installed; echo install ok installed")
    assert not asked(dpkg, tmp_path, dpkg_query="echo install ok installed; echo deinstall ok config-files")
    assert not asked(dpkg, tmp_path, dpkg_query="echo install ok installed; echo no packages found >&2; exit 1")
    assert not asked(dpkg, tmp_path, dpkg_query="echo dpkg-query: not found >&2; exit 127")
    rpm = Condition("system.packages", ("rpm", "gcc"), "installed")
    assert asked(rpm, tmp_path, rpm="exit 0")
    assert not asked(rpm, tmp_path, rpm="echo no such package; exit 1")


@pytest.mark.parametrize(
    ("part", "file", "good", "bad"),
    [
        ("toolkit", "cann-8.5.0/aarch64-linux/ascend_toolkit_install.info", "version=8.5.0\n", "version=8.5.01\n"),
        ("toolkit", "cann-8.5.0/x86_64-linux/ascend_toolkit_install.info", "version=8.5.0.B160\n", "inner=8.5.0"),
        ("ops", "cann-8.5.0/aarch64-linux/ascend_ops_install.info", "package_name=x\nversion=8.5.0\n", "version=8\n"),
        ("nnal", "nnal/atb/latest/version.info", "Ascend-cann-atb : 8.5.0\n", "Ascend-cann-atb : 8.3.RC1\n"),
    ],
)  # fmt: skip
def test_the_script_finds_the_parts_of_cann(tmp_path: Path, part: str, file: str, good: str, bad: str) -> None:
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    want = _part_want(stack, part)
    here = Condition(want.fact, (want.of[0].replace("/usr/local", str(tmp_path)), *want.of[1:]), want.value)
    assert not asked(here, tmp_path)
    path = tmp_path / "Ascend" / file
    path.parent.mkdir(parents=True)
    path.write_text(bad)
    assert not asked(here, tmp_path)
    path.write_text(good)
    assert asked(here, tmp_path)


def test_the_listing_shows_what_needs_roots_rights_and_what_is_written() -> None:
    _, _, plan = planned("verl-0.7.1-cann8.5.0", before=before("verl-0.7.1-cann8.5.0", DEBIAN), wheels="/b/wheels")
    text = list_plan(plan, PipSettings())
    packages = ("g++", "libnuma-dev")
    why = Message("plan.why-system", {"system": "Debian", "stack": "verl-0.7.1-cann8.5.0", "packages": packages})
    assert text.startswith(f"1. system: {say(why)}\n")
    assert "     sudo -n env DEBIAN_FRONTEND=noninteractive apt-get" in text
    assert "write /t/env/.npuenv/manifest.json" in text
    written = [action.path for step in plan.steps for action in step.do if isinstance(action, WriteFile)]
    assert all(f"write {path}" in text for path in written)
