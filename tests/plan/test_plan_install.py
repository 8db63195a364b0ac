"""Plans as data: what goes where and in which order, for the published stacks and their locks."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from npuenv.facts.pip import UvSettings
from npuenv.lock import Lock, read_lock
from npuenv.matrix import load_matrix
from npuenv.messages import say
from npuenv.plan import Plan, Run, Step, WriteFile
from npuenv.plan.cann import cann_scripts
from npuenv.plan.install import Tools, plan_install
from npuenv.plan.target import room_mib
from npuenv.render.activate import render_activation
from npuenv.render.script import render_script
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from npuenv.store.places import Target, default_environment, target_for

FOLDER = Path(__file__).parents[2] / "lockfiles"
NPU = ["verl-0.7.0-cann8.3.RC1", "verl-qwen3.5-cann8.5.0", "verl-0.7.1-cann8.5.0", "verl-cann9.1.0", "roll-cann9.1.0"]
INDEXES = {row.label: row.url for row in load_matrix().indexes if row.url}


def stack_and_lock(name: str, arch: str = "aarch64") -> tuple[Stack, Lock]:
    stack = resolve(Request(stack=name, arch=arch), load_matrix())
    assert isinstance(stack, Stack)
    return stack, read_lock(FOLDER / f"{name}.{stack.platform.tag}.toml")


def planned(name: str, arch: str = "aarch64", **more: object) -> tuple[Stack, Lock, Plan]:
    stack, lock = stack_and_lock(name, arch)
    tools = Tools("/usr/bin/pythonX", "/opt/uv", indexes=INDEXES, **more)  # type: ignore[arg-type]
    return (
        stack,
        lock,
        plan_install(stack, lock, Target("/t/env"), tools, activation=render_activation(stack, "/t/env")),
    )


def runs(step: Step) -> list[Run]:
    return [action for action in step.do if isinstance(action, Run)]


def requirements(step: Step) -> list[str]:
    return [
        line for a in step.do if isinstance(a, WriteFile) and a.path.endswith(".txt") for line in a.text.splitlines()
    ]


@pytest.mark.parametrize("arch", ["aarch64", "x86_64"])
@pytest.mark.parametrize("name", ["cpu", *NPU])
def test_every_locked_package_goes_in_exactly_once(name: str, arch: str) -> None:
    _, lock, plan = planned(name, arch)
    lines = Counter(line.split(" ")[0] for step in plan.steps for line in requirements(step) if "==" in line)
    assert lines == Counter(f"{p.name}=={p.version}" for p in lock.packages)
    assert len({step.id for step in plan.steps}) == len(plan.steps)
    assert [step.after for step in plan.steps[1:]] == [(step.id,) for step in plan.steps[:-1]]


@pytest.mark.parametrize("name", NPU)
def test_triton_ascend_is_the_last_thing_installed_and_triton_never_is(name: str) -> None:
    _, lock, plan = planned(name)
    ids = [step.id for step in plan.steps]
    assert ids[-4:] == ["triton-ascend", "activate", "verify", "finish"]
    assert ids.index("torch") < ids.index("vllm-source") < ids.index("vllm") < ids.index("triton-leftovers")
    assert lock.package("triton") is None
    leftovers = plan.steps[ids.index("triton-leftovers")]
    assert [want.of[1] for want in leftovers.done_when] == ["triton"]


def test_a_labelled_package_is_fetched_from_its_index_alone() -> None:
    _, _, plan = planned("cpu", "x86_64")
    torch = next(step for step in plan.steps if step.id == "torch")
    (run,) = runs(torch)
    assert run.env == {"UV_DEFAULT_INDEX": f"pytorch-cpu={INDEXES['pytorch-cpu']}"}
    assert set(run.unset) == {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY"}
    assert "--require-hashes" in run.argv and "--no-deps" in run.argv and torch.needs_network


def test_a_wheel_in_find_links_is_taken_without_any_index() -> None:
    _, _, plan = planned("cpu", "x86_64", in_links={"torch": "/wheels"})
    torch = next(step for step in plan.steps if step.id == "torch")
    (run,) = runs(torch)
    at = run.argv.index("--no-index")
    assert run.argv[at : at + 3] == ("--no-index", "--find-links", "/wheels")
    assert "UV_FIND_LINKS" in run.unset and not torch.needs_network


def test_packages_without_a_hash_have_a_step_of_their_own_that_says_so() -> None:
    _, _, plan = planned("cpu", "aarch64")
    torch = next(step for step in plan.steps if step.id == "torch")
    assert "--require-hashes" not in runs(torch)[0].argv
    assert "hashes not known" in say(torch.why)


def test_groups_of_one_step_are_parted_by_where_they_come_from() -> None:
    _, _, plan = planned("roll-cann9.1.0", "x86_64")
    for step in plan.steps:
        labels = {run.env.get("UV_DEFAULT_INDEX", "").partition("=")[0] for run in runs(step)}
        assert len(labels) <= 1, step.id


@pytest.mark.parametrize("name", NPU)
def test_builds_run_inside_cann_without_isolation_and_without_autoload(name: str) -> None:
    stack, _, plan = planned(name)
    for source in stack.git_sources:
        step = next((step for step in plan.steps if step.id == source.name), None)
        if source.how == "pythonpath":
            assert step is None
            continue
        assert step is not None
        (run,) = runs(step)
        assert run.argv[:2] == ("sh", "/t/env/.npuenv/with-cann.sh")
        assert "--no-build-isolation" in run.argv and "--no-deps" in run.argv
        assert run.env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert (run.env["NPUENV_CANN"], run.env["NPUENV_NNAL"]) == cann_scripts(stack)
        assert run.env.items() >= dict(source.build_env).items()
        fetch = next(step for step in plan.steps if step.id == f"{source.name}-source")
        ref = f"origin/{source.ref}" if source.is_moving else source.ref
        folder = f"/t/env/src/{source.name}"
        assert ("git", "-C", folder, "checkout", "--detach", ref) in [run.argv for run in runs(fetch)]
        assert ("moves" in say(fetch.why)) is source.is_moving


@pytest.mark.parametrize("wanted", ["verl", "mindspeed"])
def test_the_git_commands_of_a_plan_get_a_tag_and_a_branch_from_a_real_repository(tmp_path: Path, wanted: str) -> None:
    stack, _, plan = planned("verl-cann9.1.0")
    source = next(source for source in stack.git_sources if source.name == wanted)
    origin = tmp_path / "origin"

    def git(*argv: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always")
        return subprocess.run(["git", *who, *argv], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "-b", "main", str(origin))
    git("-C", str(origin), "commit", "--quiet", "--allow-empty", "-m", "the release")
    git("-C", str(origin), "branch" if source.is_moving else "tag", source.ref)
    released = git("-C", str(origin), "rev-parse", "HEAD")
    git("-C", str(origin), "commit", "--quiet", "--allow-empty", "-m", "later work")
    clone = str(tmp_path / "clone")
    places = {source.repo: str(origin), f"/t/env/src/{source.name}": clone}
    fetch = next(step for step in plan.steps if step.id == f"{source.name}-source")
    for run in runs(fetch):
        if run.argv[0] == "git":
            git(*(places.get(word, word) for word in run.argv[1:]))
    assert git("-C", clone, "rev-parse", "HEAD") == released
    assert source.is_moving is (wanted == "mindspeed")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("name", ["cpu", *NPU])
def test_the_script_of_every_stack_is_posix_and_holds_no_secret(name: str, shell: str, lang: str) -> None:
    _, _, plan = planned(name)
    settings = UvSettings({"UV_INDEX": "a=https://h/s 'q"}, {"HTTP_PROXY": "http://u:hidden-word@p:1"})
    text = render_script(plan, settings, title=name, lang=lang)
    assert subprocess.run([shell, "-n"], input=text, text=True, capture_output=True).returncode == 0
    assert "hidden-word" not in text and "HTTP_PROXY" in text
    assert render_script(plan, settings, title=name, lang=lang) == text


def test_the_environment_of_a_lock_lies_under_its_hash_and_never_moves() -> None:
    _, lock = stack_and_lock("cpu", "x86_64")
    target = target_for(lock, {"XDG_DATA_HOME": "/d"})
    assert target == Target(f"/d/npuenv/envs/cpu/{lock.hash}", "/d/npuenv/envs/cpu/current")
    assert target_for(lock, {"HOME": "/h"}).root == f"/h/.local/share/npuenv/envs/cpu/{lock.hash}"
    assert target_for(lock, {"HOME": "/h"}, "/my/dir/") == Target("/my/dir")
    assert str(default_environment("cpu", {"HOME": "/h"})) == "/h/.local/share/npuenv/envs/cpu/current"


def test_the_estimate_of_disk_space_is_near_what_was_measured() -> None:
    # Measured: 827 MiB for the CPU stack on x86_64, Python 3.11.
    _, lock = stack_and_lock("cpu", "x86_64")
    assert 827 < room_mib(lock) < 1.3 * 827
