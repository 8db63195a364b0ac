"""Plans as data: what goes where and in which order, for the published stacks and their locks."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

from npuenv.core.messages import say
from npuenv.core.plan import WriteFile
from npuenv.facts.pip import UvSettings
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace, default_environment, target_for
from npuenv.install.planning import plan_install
from npuenv.install.target import room_mib
from npuenv.render.script import render_script
from tests.install.planning.plan_cases import INDEXES, NPU, planned, requirements, runs, stack_and_lock, step_of


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
    torch = ids.index(step_of(plan, "torch").id)
    assert torch < ids.index("vllm-source") < ids.index("vllm") < ids.index("triton-leftovers")
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
    _, lock, plan = planned("verl-cann9.1.0")
    triton = step_of(plan, "triton-ascend")
    assert [missing.name for missing in lock.missing] == ["triton-ascend"]
    assert "--require-hashes" not in runs(triton)[0].argv
    assert triton.why.key == "plan.why-group-unhashed"


def test_a_hash_from_public_lock_files_is_checked_like_any_other() -> None:
    _, lock, plan = planned("cpu", "aarch64")
    torch = lock.package("torch")
    assert torch is not None and torch.witnesses and torch.sha256
    assert "--require-hashes" in runs(step_of(plan, "torch"))[0].argv


def test_wheels_from_one_place_go_in_together_and_the_step_names_what_it_does() -> None:
    _, lock, plan = planned("verl-0.7.1-cann8.5.0")
    ids = [step.id for step in plan.steps]
    assert ids[:4] == ["venv", "inspector", "mend", "ray+torch+torch-npu+rest"]
    (run,) = runs(plan.steps[3])
    assert len(requirements(plan.steps[3])) == len(lock.packages) - 1  # all but triton-ascend, which is last
    assert run.argv[run.argv.index("-r") + 1] == "/t/env/.npuenv/ray+torch+torch-npu+rest.txt"
    assert "Ray" in say(plan.steps[3].why) or "ray" in say(plan.steps[3].why)


def test_wheels_of_another_place_have_a_step_of_their_own_and_do_not_end_the_others() -> None:
    _, _, plan = planned("verl-0.7.1-cann8.5.0", "x86_64")
    ids = [step.id for step in plan.steps if requirements(step)]
    assert ids == ["ray+torch-npu+rest", "torch", "triton-ascend"]


def test_an_entry_that_comes_from_two_places_is_named_after_each() -> None:
    stack, lock = stack_and_lock("verl-0.7.1-cann8.5.0")
    moved = [replace(p, index="pytorch-cpu") if p.name == "torchvision" else p for p in lock.packages]
    tools = Tools("/usr/bin/pythonX", "/opt/uv", indexes=INDEXES)
    plan = plan_install(stack, replace(lock, packages=tuple(moved)), EnvironmentPlace("/t"), tools, activation="")
    ids = [step.id for step in plan.steps if requirements(step)]
    assert ids == ["ray+torch+torch-npu+rest@default", "torch@pytorch-cpu", "triton-ascend"]


@pytest.mark.parametrize("name", ["cpu", *NPU])
def test_with_a_bundle_every_wheel_comes_from_its_folder_and_nothing_asks_the_network(name: str) -> None:
    _, lock, plan = planned(name, "x86_64", wheels="/bundle/wheels")
    steps = [step for step in plan.steps if requirements(step)]
    assert sum(len(requirements(step)) for step in steps) == len(lock.packages)
    for step in steps:
        (run,) = runs(step)
        at = run.argv.index("--no-index")
        assert run.argv[at : at + 4] == ("--no-index", "--find-links", "/bundle/wheels", "--offline")
        assert run.env == {} and {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "HTTPS_PROXY"} <= set(run.unset)
        assert not step.needs_network
    num_calls = {"cpu": 1}.get(name, 3)  # hashed, unhashed, and triton-ascend at the end
    assert len(steps) <= num_calls + (name == "cpu" and not all(p.sha256 for p in lock.packages))


def test_groups_of_one_step_are_parted_by_where_they_come_from() -> None:
    _, _, plan = planned("roll-cann9.1.0", "x86_64")
    for step in plan.steps:
        labels = {run.env.get("UV_DEFAULT_INDEX", "").partition("=")[0] for run in runs(step)}
        assert len(labels) <= 1, step.id


@pytest.mark.slow
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


def test_the_last_steps_prove_what_was_installed_and_write_down_what_it_is() -> None:
    stack, lock = stack_and_lock("verl-0.7.1-cann8.5.0")
    _, _, plan = planned("verl-0.7.1-cann8.5.0", target=EnvironmentPlace("/d/e", "/d/current"))
    (verify,) = runs(plan.steps[-2])
    probes = [verify.argv[at + 1] for at, word in enumerate(verify.argv) if word == "--import"]
    torch = lock.package("torch")
    assert torch is not None and probes[0] == f"torch=={torch.version}"
    assert {"numpy", "pandas", "pyarrow", "ray", "transformers", "datasets", "tensordict"} <= set(probes)
    assert verify.argv[6:9] == (lock.hash, "--over", "triton-ascend=triton")
    assert {f"{p.name}=={p.version}" for p in lock.packages} < set(verify.argv)
    assert {source.name for source in stack.git_sources if source.how != "pythonpath"} < set(verify.argv)
    finish = plan.steps[-1]
    (switch,) = runs(finish)
    assert switch.argv == ("/d/e/bin/python", "-I", "-B", "/d/e/.npuenv/inspector.py", "switch", "/d/e", "/d/current")
    manifest = json.loads(next(a.text for a in finish.do if isinstance(a, WriteFile) and a.path.endswith(".json")))
    assert manifest["lock"] == lock.hash and manifest["steps"] == [step.id for step in plan.steps]
    assert manifest["origin"] == "indexes" and manifest["kind"] == "venv"
    assert {source["name"] for source in manifest["sources"]} == {source.name for source in stack.git_sources}


def test_only_modules_of_the_lock_are_probed() -> None:
    _, lock, plan = planned("cpu", "x86_64")
    (verify,) = runs(plan.steps[-2])
    probes = [verify.argv[at + 1] for at, word in enumerate(verify.argv) if word == "--import"]
    assert probes[0].startswith("torch==") and ("numpy" in probes) is (lock.package("numpy") is not None)
    assert "ray" not in probes and "--over" not in verify.argv


def test_the_environment_of_a_lock_lies_under_its_hash_and_never_moves() -> None:
    _, lock = stack_and_lock("cpu", "x86_64")
    target = target_for(lock, {"XDG_DATA_HOME": "/d"})
    assert target == EnvironmentPlace(f"/d/npuenv/envs/cpu/{lock.hash}", "/d/npuenv/envs/cpu/current")
    assert target_for(lock, {"HOME": "/h"}).root == f"/h/.local/share/npuenv/envs/cpu/{lock.hash}"
    assert target_for(lock, {"HOME": "/h"}, "/my/dir/") == EnvironmentPlace("/my/dir")
    assert str(default_environment("cpu", {"HOME": "/h"})) == "/h/.local/share/npuenv/envs/cpu/current"


def test_the_estimate_of_disk_space_is_near_what_was_measured() -> None:
    # Measured: 827 MiB for the CPU stack on x86_64, Python 3.11.
    _, lock = stack_and_lock("cpu", "x86_64")
    assert 827 < room_mib(lock.packages) < 1.3 * 827


@pytest.mark.parametrize("kind", ["venv", "conda", "existing"])
def test_what_puts_back_npuenvs_own_is_told_from_what_takes_or_replaces(kind: str) -> None:
    _, _, plan = planned("verl-0.7.1-cann8.5.0", target=EnvironmentPlace("/t/env", kind=kind), conda="/c/conda")
    upkeep = {step.id for step in plan.steps if step.is_upkeep}
    own = {"inspector", "activate", "verify", "finish"}
    if kind == "existing":  # what differs there may be meant so
        assert upkeep == own
        return
    rest = {step.id for step in plan.steps} - upkeep
    assert own < upkeep and {"mend", "vllm", "triton-ascend"} < upkeep
    assert rest == {kind, "triton-leftovers", *(step.id for step in plan.steps if step.id.endswith("-source"))}
