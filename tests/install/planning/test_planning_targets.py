"""Where packages go: an environment of their own, one of conda, or one that the user had; and from a bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message, say
from npuenv.facts.conditions import _ALL_VERSIONS
from npuenv.host.local import LocalHost
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.executor import ExecutionContext, Outcome, execute
from npuenv.install.planning import replaced_packages
from npuenv.install.target import existing_target, find_conda, present_in
from npuenv.lock.uv import find_uv, write_wheel
from tests.install.planning.plan_cases import Scripted, planned, runs, stack_and_lock, step_of, tiny, tiny_plan
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.core.plan import Plan

pytestmark = pytest.mark.usefixtures("own_uv")

BASE = getattr(sys, "_base_executable", sys.executable)
# What `conda create` leaves in a new prefix, as far as it counts here; it notes what it was asked.
CONDA = f"""#!/bin/sh
echo "$*" >> "$(dirname "$0")/log"
while [ $# -gt 0 ]; do case "$1" in --prefix) prefix=$2; shift;; esac; shift; done
[ -d "$prefix/conda-meta" ] && {{ echo "would remove the environment that is there" >&2; exit 1; }}
mkdir -p "$prefix/conda-meta"
{BASE} -m venv --without-pip "$prefix"
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def install(plan: Plan, target: EnvironmentPlace) -> Outcome:
    return execute(plan, ExecutionContext(LocalHost(), target.root))


def version_of(python: str, module: str) -> str:
    code = f"import {module}; print({module}.__version__)"
    # No byte code: uv leaves it beside a module, and the next version's may have the same size and second.
    ran = subprocess.run([python, "-I", "-B", "-c", code], capture_output=True, text=True)
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1]


def venv(folder: Path) -> str:
    subprocess.run([find_uv(), "venv", "--quiet", "--python", BASE, str(folder)], check=True)
    return str(folder / "bin/python")


@pytest.mark.slow
def test_a_bundles_folder_is_all_that_an_installation_needs(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0", two="2.0")
    target = EnvironmentPlace(str(tmp_path / "envs/a"), str(tmp_path / "envs/current"))
    plan = tiny_plan(stack, lock, target, wheels)
    assert not any(step.needs_network for step in plan.steps)
    assert install(plan, target).done == ("venv", "inspector", "rest", "activate", "verify", "finish")
    assert version_of(target.python, "two") == "2.0"
    assert os.readlink(tmp_path / "envs/current") == target.root
    manifest = json.loads((tmp_path / "envs/a/.npuenv/manifest.json").read_text())
    assert (manifest["origin"], manifest["kind"], manifest["lock"]) == ("bundle", "venv", lock.hash)
    assert install(plan, target).done == ()


@pytest.mark.slow
def test_a_new_environment_takes_the_links_place_and_the_old_one_stays_reachable(tmp_path: Path, wheels: Path) -> None:
    link = tmp_path / "envs/current"
    for name, version in (("a", "1.0"), ("b", "1.1")):
        stack, lock = tiny(wheels, one=version)
        target = EnvironmentPlace(str(tmp_path / "envs" / name), str(link))
        install(tiny_plan(stack, lock, target, wheels), target)
    assert os.readlink(link) == str(tmp_path / "envs/b")
    assert os.readlink(tmp_path / "envs/previous") == str(tmp_path / "envs/a")


def test_a_wheel_of_the_bundle_with_another_content_is_refused(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0")
    write_wheel(wheels, "one", "1.0", files={"one.py": "evil = 1\n"})
    target = EnvironmentPlace(str(tmp_path / "env"))
    with pytest.raises(StepFailed) as caught:
        install(tiny_plan(stack, lock, target, wheels), target)
    assert "ash" in say(caught.value.message) and not (tmp_path / "env/.npuenv/manifest.json").exists()


@pytest.mark.slow
def test_conda_makes_the_environment_and_uv_fills_it(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0")
    conda = tmp_path / "conda"
    conda.write_text(CONDA)
    conda.chmod(0o755)
    target = EnvironmentPlace(str(tmp_path / "env"), kind="conda")
    plan = tiny_plan(stack, lock, target, wheels, conda=str(conda))
    assert install(plan, target).done == ("conda", "inspector", "rest", "activate", "verify", "finish")
    python = f"python={stack.platform.python}"
    options = f"create --yes --quiet --no-default-packages --offline --prefix {target.root} {python}"
    assert (tmp_path / "log").read_text() == f"{options}\n"
    assert version_of(target.python, "one") == "1.0" and install(plan, target).done == ()
    # Another lock in the same folder: conda must not find its own traces, it would remove everything.
    stack, lock = tiny(wheels, one="1.1")
    assert "conda" in install(tiny_plan(stack, lock, target, wheels, conda=str(conda)), target).done
    assert version_of(target.python, "one") == "1.1"


def test_conda_asks_the_network_only_where_there_is_no_bundle() -> None:
    _, _, plan = planned("cpu", "x86_64", target=EnvironmentPlace("/t", kind="conda"), conda="/c/conda")
    create = runs(plan.steps[0])[-1]
    assert create.argv[:2] == ("/c/conda", "create") and "--offline" not in create.argv
    assert plan.steps[0].id == "conda" and plan.steps[0].needs_network


@pytest.mark.slow
def test_an_environment_that_is_there_already_keeps_what_is_not_in_the_lock(tmp_path: Path, wheels: Path) -> None:
    python = venv(tmp_path / "mine")
    (tmp_path / "mine/src").mkdir()
    (tmp_path / "mine/src/thesis.py").write_text("x = 1\n")
    tiny(wheels, own="3.0", one="0.9")
    command = [find_uv(), "pip", "install", "--quiet", "--offline", "--no-index", "--python", python]
    subprocess.run([*command, "-f", wheels, "own", "one==0.9"], check=True)
    stack, lock = tiny(wheels, one="1.0", two="2.0")
    target = existing_target(LocalHost(), python, lock, stack)
    assert target == EnvironmentPlace(str(tmp_path / "mine"), kind="existing")
    plan = tiny_plan(stack, lock, target, wheels)
    assert install(plan, target).done == ("prepare", "inspector", "rest", "activate", "verify", "finish")
    assert [version_of(python, name) for name in ("one", "two", "own")] == ["1.0", "2.0", "3.0"]
    assert (tmp_path / "mine/src/thesis.py").read_text() == "x = 1\n"
    assert json.loads((tmp_path / "mine/.npuenv/manifest.json").read_text())["kind"] == "existing"
    assert install(plan, target).done == ()


@pytest.mark.slow
def test_a_file_that_lacks_in_an_environment_of_the_users_comes_back_and_nothing_else_goes(
    tmp_path: Path, wheels: Path
) -> None:
    python = venv(tmp_path / "mine")
    stack, lock = tiny(wheels, one="1.0")
    target = existing_target(LocalHost(), python, lock, stack)
    plan = tiny_plan(stack, lock, target, wheels)
    install(plan, target)
    site = tmp_path / f"mine/lib/python{stack.platform.python}/site-packages"
    (site / "one.py").unlink()
    assert "rest" in install(plan, target).done
    assert version_of(python, "one") == "1.0"


@pytest.mark.parametrize(
    ("present", "expected"),
    [(None, ["--reinstall"]), ((), []), (("torch", "other"), ["--reinstall-package", "torch"])],
)
def test_only_what_is_there_goes_in_anew_into_an_environment_of_the_users(
    present: tuple[str, ...] | None, expected: list[str]
) -> None:
    there = None if present is None else frozenset(present)
    _, _, plan = planned("cpu", "x86_64", target=EnvironmentPlace("/p", kind="existing"), present=there)
    argv = runs(step_of(plan, "torch"))[0].argv
    assert [word for word in argv if word in ("torch", "other") or word.startswith("--reinstall")] == expected


def test_a_package_without_its_metadata_is_present_all_the_same(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("torch_npu-2.8.0.dist-info", "six-1.17.0-py3.11.egg-info", "numpy"):
        (site / name).mkdir(parents=True)
    found = present_in(LocalHost(), EnvironmentPlace(str(tmp_path), kind="existing"), "3.11")
    assert found == {"torch-npu", "six"}


@pytest.mark.slow
def test_what_an_installation_replaces_in_an_environment_of_the_users_is_told_before(
    tmp_path: Path, wheels: Path
) -> None:
    python = venv(tmp_path / "mine")
    tiny(wheels, own="3.0", one="0.9", two="2.0")
    command = [find_uv(), "pip", "install", "--quiet", "--offline", "--no-index", "--python", python]
    subprocess.run([*command, "-f", wheels, "own", "one==0.9", "two==2.0"], check=True)
    stack, lock = tiny(wheels, one="1.0", two="2.0", three="3.1")
    target = existing_target(LocalHost(), python, lock, stack)
    plan = tiny_plan(stack, lock, target, wheels)
    said = [say(note) for note in replaced_packages(LocalHost(), target, plan)]
    assert said == [
        sentence("plan.changes-version", path=target.root, count=1, names="one 0.9 -> 1.0"),
        sentence("plan.changes-again", path=target.root, count=1, names="two 2.0"),
        sentence("plan.changes-new", path=target.root, count=1, names="three 3.1"),
    ]
    site = tmp_path / f"mine/lib/python{stack.platform.python}/site-packages"
    (tmp_path / "kept").hardlink_to(site / "two.py")  # else a new file may get the number of the one that went
    install(plan, target)
    assert not (site / "two.py").samefile(tmp_path / "kept")  # it was put in again, as told
    assert replaced_packages(LocalHost(), target, plan) == ()


def test_a_build_and_a_package_taken_out_are_told_too_and_an_own_environment_is_not_asked() -> None:
    stack, lock, plan = planned("verl-0.7.1-cann8.5.0", target=EnvironmentPlace("/p", kind="existing"))
    there = {package.name: package.version for package in lock.packages}
    built = stack.git_sources[0].name
    steps = [step for step in plan.steps if any(want.fact == "dist.version" for want in step.done_when)]
    out = [want.of[1] for step in steps for want in step.done_when]
    assert out == ["triton"]
    host = Scripted({("/p/bin/python", "-I", "-c", _ALL_VERSIONS): (0, json.dumps({**there, built: "0.1"}))})
    said = [say(note) for note in replaced_packages(host, EnvironmentPlace("/p", kind="existing"), plan)]
    assert any(says(line, "plan.built-from-source", name=built, before="0.1") for line in said)
    host = Scripted({
        ("/p/bin/python", "-I", "-c", _ALL_VERSIONS): (0, json.dumps({**there, **dict.fromkeys(out, "9.9")}))
    })  # fmt: skip
    said = [say(note) for note in replaced_packages(host, EnvironmentPlace("/p", kind="existing"), plan)]
    assert sentence("plan.changes-out", path="/p", count=1, names="triton 9.9") in said
    assert replaced_packages(Scripted(), EnvironmentPlace("/p"), plan) == ()
    assert [note.key for note in replaced_packages(Scripted(), EnvironmentPlace("/p", kind="existing"), plan)] == [
        "plan.changes-unknown"
    ]


def answers(version: str, machine: str, prefix: str, *, whose: str = "") -> Scripted:
    import npuenv.install.target as module

    code = module._PREFIX
    text = json.dumps([version, machine, prefix, whose])
    return Scripted({("/p/bin/python", "-I", "-c", code): (0, text)}, {f"{prefix}/bin/python": ""}, writable=(prefix,))


@pytest.mark.parametrize(
    ("host", "key", "args"),
    [
        (answers("3.9", "x86_64", "/p"), "into-unfit", {"is": "3.9 x86_64"}),
        (answers("3.11", "aarch64", "/p"), "into-unfit", {"is": "3.11 aarch64"}),
        (answers("3.11", "x86_64", "/usr", whose="system"), "into-system", {"path": "/usr"}),
        (answers("3.11", "x86_64", "/usr/local", whose="shared"), "into-shared", {"path": "/usr/local"}),
        (answers("3.11", "x86_64", "/opt/conda", whose="conda"), "into-conda", {"path": "/opt/conda"}),
        (answers("3.11", "x86_64", sys.prefix), "into-own", {"path": sys.prefix}),
        (Scripted(), "into-no-python", {}),
        (Scripted({}, {"/p/bin/python": ""}), "into-no-python", {}),
    ],
)
def test_an_environment_that_cannot_take_the_stack_is_refused(host: Scripted, key: str, args: dict[str, str]) -> None:
    stack, lock = stack_and_lock("cpu", "x86_64")
    with pytest.raises(BadInput) as caught:
        existing_target(host, "/p/bin/python", lock, stack)
    assert caught.value.message.key == f"plan.{key}"
    assert args.items() <= caught.value.message.args.items()
    assert "--into" in say(caught.value.hint) if caught.value.hint else False


def script(folder: Path, **prefixes: str) -> str:
    """A Python that calls these prefixes its own and answers with this machine's interpreter for the rest."""
    (folder / "bin").mkdir(parents=True)
    setting = "".join(f"sys.{name} = {value!r}; " for name, value in prefixes.items())
    text = f"""#!{sys.executable} -I
import sys
from dataclasses import replace
{setting}
exec(sys.argv[sys.argv.index("-c") + 1])
"""
    (folder / "bin/python").write_text(text)
    (folder / "bin/python").chmod(0o755)
    return str(folder / "bin/python")


@pytest.mark.slow
def test_an_interpreter_that_others_stand_on_is_known_by_what_it_says_of_itself(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0")
    root = tmp_path / "py"
    python = script(root, prefix=str(root), base_prefix=str(root))
    with pytest.raises(BadInput) as caught:
        existing_target(LocalHost(), python, lock, stack)
    assert caught.value.message.key in ("plan.into-shared", "plan.into-system")  # the base may be a distribution's
    assert caught.value.hint is not None
    assert caught.value.hint.key == "plan.into-venv-hint"
    assert caught.value.hint.args["version"] == stack.platform.python
    (root / "conda-meta").mkdir()
    if caught.value.message.key == "plan.into-shared":
        assert existing_target(LocalHost(), python, lock, stack) == EnvironmentPlace(str(root), kind="existing")
    (root / "conda-meta/conda-26.5.0-py311_0.json").write_text("{}")
    with pytest.raises(BadInput) as caught:
        existing_target(LocalHost(), python, lock, stack)
    assert caught.value.message.key == "plan.into-conda"


def test_the_environment_that_npuenv_runs_in_is_refused_by_any_of_its_names(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0")
    (tmp_path / "other").symlink_to(sys.prefix)
    python = script(tmp_path / "py", prefix=str(tmp_path / "other"))
    with pytest.raises(BadInput) as caught:
        existing_target(LocalHost(), python, lock, stack)
    assert caught.value.message.key in ("plan.into-own", "plan.into-shared", "plan.into-system")
    assert (caught.value.message.key == "plan.into-own") == (sys.prefix != sys.base_prefix)


def test_a_folder_instead_of_a_python_is_answered_with_the_python_in_it(tmp_path: Path) -> None:
    stack, lock = stack_and_lock("cpu", "x86_64")
    venv(tmp_path / "mine")
    with pytest.raises(BadInput) as caught:
        existing_target(LocalHost(), str(tmp_path / "mine"), lock, stack)
    assert caught.value.hint == Message("plan.into-folder-hint", {"path": f"{tmp_path}/mine/bin/python"})
    with pytest.raises(BadInput) as caught:
        existing_target(LocalHost(), str(tmp_path), lock, stack)
    assert caught.value.hint is not None and caught.value.hint.key == "plan.into-hint"


def test_an_environment_that_cannot_be_written_to_is_refused() -> None:
    stack, lock = stack_and_lock("cpu", "x86_64")
    host = answers("3.11", "x86_64", "/p")
    assert existing_target(host, "/p/bin/python", lock, stack).kind == "existing"
    sealed = Scripted(host.answers, host.paths)
    with pytest.raises(BadInput) as caught:
        existing_target(sealed, "/p/bin/python", lock, stack)
    assert caught.value.message == Message("plan.target-read-only", {"path": "/p"})


@pytest.mark.parametrize(
    ("paths", "variables", "found"),
    [
        ({"/x/conda": "", "/b/conda": ""}, {"CONDA_EXE": "/x/conda", "PATH": "/b"}, "/x/conda"),
        ({"/b/conda": "", "/a/mamba": ""}, {"PATH": "/a:/b"}, "/b/conda"),
        ({"/a/mamba": ""}, {"PATH": "/a:relative"}, "/a/mamba"),
        ({"/h/miniforge3/bin/conda": ""}, {"PATH": "/a", "HOME": "/h"}, "/h/miniforge3/bin/conda"),
        ({"/opt/conda/bin/conda": ""}, {}, "/opt/conda/bin/conda"),
    ],
)
def test_conda_is_found_where_its_installers_leave_it(
    paths: dict[str, str | None], variables: dict[str, str], found: str
) -> None:
    assert find_conda(Scripted({}, paths, variables)) == found


def test_no_conda_is_told_with_what_to_do() -> None:
    with pytest.raises(BadInput) as caught:
        find_conda(Scripted({}, {}, {"PATH": "/a"}))
    assert caught.value.exit_code == 2
    assert caught.value.hint is not None and "--as conda" in say(caught.value.hint)


def test_an_environment_that_npuenv_made_takes_no_other_stack(tmp_path: Path, wheels: Path) -> None:
    stack, lock = tiny(wheels, one="1.0")
    python = venv(tmp_path / "mine")
    target = EnvironmentPlace(str(tmp_path / "mine"))
    install(tiny_plan(stack, lock, target, wheels), target)
    with pytest.raises(BadInput, match=r"plan\.into-made"):
        existing_target(LocalHost(), python, lock, stack)


def test_room_is_wanted_only_for_what_lacks() -> None:
    stack, lock = stack_and_lock("cpu", "x86_64")
    has = {package.name: package.version for package in lock.packages}
    df = ("df", "-Pk", "/p")
    small = (0, "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 99 9 10240 1% /\n")
    asked = ("/p/bin/python", "-I", "-c", _ALL_VERSIONS)
    host = answers("3.11", "x86_64", "/p")
    for there, fits in ((has, True), ({**has, "numpy": "0.1"}, False), ({}, False)):
        known = replace(host, answers={**host.answers, df: small, asked: (0, json.dumps(there))})
        if fits:
            assert existing_target(known, "/p/bin/python", lock, stack).root == "/p"
            continue
        with pytest.raises(BadInput, match=r"plan\.disk-too-small") as caught:
            existing_target(known, "/p/bin/python", lock, stack)
        assert caught.value.hint is not None and caught.value.hint.key == "plan.make-room"
