"""Sources: from a repository or as they were supplied, in place of the former one only once they are whole."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import say
from npuenv.host.local import LocalHost
from npuenv.install.cann import cann_scripts
from npuenv.install.components import Making, Tools, source_steps
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.target import digests_of
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import BuildStep, GitSource, Request, Stack
from tests.install.planning.plan_cases import NPU, carry_out, planned, runs, stack_and_lock, tiny, tiny_plan

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.core.plan import Step

ITEM = BuildStep("verl", "git", ("verl",), replace(stack_and_lock("cpu", "x86_64")[0].order[0].why))


def git(*argv: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *who, *argv], check=True, capture_output=True, text=True).stdout.strip()


def steps_for(
    root: Path, repo: str, *, ref: str = "v1", how: str = "editable", commit: str = "", **more: object
) -> list[Step]:
    stack, lock = stack_and_lock("cpu", "x86_64")
    tools = Tools(sys.executable, "uv", **more)  # type: ignore[arg-type]
    source = GitSource("verl", repo, ref, False, how=how, commit=commit)
    return source_steps(Making(stack, lock, EnvironmentPlace(str(root)), tools), ITEM, source)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    git("init", "--quiet", "-b", "main", str(folder))
    (folder / "x.py").write_text("first")
    git("-C", str(folder), "add", ".")
    git("-C", str(folder), "commit", "--quiet", "-m", "one")
    git("-C", str(folder), "tag", "v1")
    (folder / "x.py").write_text("second")
    git("-C", str(folder), "commit", "--quiet", "-am", "two")
    git("-C", str(folder), "tag", "v2")
    return folder


@pytest.mark.parametrize("name", NPU)
def test_builds_run_inside_cann_without_isolation_and_without_autoload(name: str) -> None:
    stack, _, plan = planned(name)
    for source in stack.git_sources:
        step = next((step for step in plan.steps if step.id == source.name), None)
        if source.how == "pythonpath":
            assert step is None
            continue
        assert step is not None
        run = runs(step)[-1]
        assert run.argv[:2] == ("sh", "/t/env/.npuenv/with-cann.sh")
        assert {"--no-build-isolation", "--no-deps", "--reinstall-package"} <= set(run.argv)
        assert run.env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert (run.env["NPUENV_CANN"], run.env["NPUENV_NNAL"]) == cann_scripts(stack)
        assert run.env.items() >= dict(source.build_env).items()
        fetch = next(step for step in plan.steps if step.id == f"{source.name}-source")
        ref = f"origin/{source.ref}" if source.is_moving else source.commit or source.ref
        folder = f"/t/env/src/{source.name}"
        commands = [run.argv for run in runs(fetch)]
        assert ("git", "-C", f"{folder}.new", "checkout", "--detach", ref) in commands
        assert commands[-1] == ("mv", f"{folder}.new", folder)
        assert ("moves" in say(fetch.why)) is source.is_moving
        assert source.commit in say(fetch.why) and (bool(source.commit) is (source.name == "vllm-ascend"))


def test_the_matrix_says_how_vllm_and_vllm_ascend_are_built() -> None:
    matrix = load_matrix()
    num_seen = 0
    for recipe in matrix.recipes:
        for arch in recipe.arch:
            stack = resolve(Request(stack=recipe.id, arch=arch), matrix)
            if not isinstance(stack, Stack):
                continue
            sources = {source.name: source for source in stack.git_sources}
            if "vllm" in sources:
                assert sources["vllm"].build_env["VLLM_TARGET_DEVICE"] == "empty", recipe.id
            if "vllm-ascend" in sources:
                env = sources["vllm-ascend"].build_env
                assert env["SOC_VERSION"] == stack.soc_version and env["COMPILE_CUSTOM_KERNELS"] in ("0", "1")
                num_seen += 1
    assert num_seen > 20


@pytest.mark.parametrize("is_moving", [False, True])
def test_the_git_commands_of_a_plan_get_a_tag_and_a_branch_from_a_real_repository(
    tmp_path: Path, origin: Path, is_moving: bool
) -> None:
    git("-C", str(origin), "branch", "release", "v1")
    ref = "release" if is_moving else "v1"
    stack, lock = stack_and_lock("cpu", "x86_64")
    source = GitSource("verl", str(origin), ref, is_moving, how="pythonpath")
    target = EnvironmentPlace(str(tmp_path / "env"))
    (fetch,) = source_steps(Making(stack, lock, target, Tools(sys.executable, "uv")), ITEM, source)
    assert carry_out(tmp_path / "env", fetch).done == ("verl-source",)
    folder = tmp_path / "env/src/verl"
    assert git("-C", str(folder), "rev-parse", "HEAD") == git("-C", str(origin), "rev-parse", "v1")
    assert carry_out(tmp_path / "env", fetch).done == ()


def test_a_tag_that_was_moved_gives_the_commit_that_is_recorded_or_nothing(tmp_path: Path, origin: Path) -> None:
    first = git("-C", str(origin), "rev-parse", "v1")
    git("-C", str(origin), "tag", "--force", "v1", "v2")
    (fetch, _) = steps_for(tmp_path / "env", str(origin), commit=first[:10])
    assert carry_out(tmp_path / "env", fetch).done == ("verl-source",)
    assert git("-C", str(tmp_path / "env/src/verl"), "rev-parse", "HEAD") == first
    (fetch, _) = steps_for(tmp_path / "other", str(origin), commit="0123456789")
    with pytest.raises(StepFailed) as caught:
        carry_out(tmp_path / "other", fetch)
    assert "0123456789" in say(caught.value.message)
    assert not (tmp_path / "other/src/verl").exists()


def test_a_repository_that_cannot_be_reached_leaves_the_former_source_in_place(tmp_path: Path, origin: Path) -> None:
    root = tmp_path / "env"
    (first, _) = steps_for(root, str(origin))
    carry_out(root, first)
    (other, _) = steps_for(root, str(tmp_path / "nowhere"), ref="v2")
    with pytest.raises(StepFailed) as caught:
        carry_out(root, other)
    assert "nowhere" in say(caught.value.message)
    assert (root / "src/verl/x.py").read_text() == "first"
    assert carry_out(root, first).done == ()  # it is still known to be what it was
    (unknown_ref, _) = steps_for(root, str(origin), ref="v3")
    with pytest.raises(StepFailed):
        carry_out(root, unknown_ref)
    assert (root / "src/verl/x.py").read_text() == "first"
    (second, _) = steps_for(root, str(origin), ref="v2")
    assert carry_out(root, second).done == ("verl-source",)
    assert (root / "src/verl/x.py").read_text() == "second"


def archive_of(folder: Path, path: Path, text: str) -> Path:
    (folder / "verl-1").mkdir(parents=True, exist_ok=True)
    if path.exists() and (folder / "verl-1/x.py").read_text() == text:
        return path  # made anew it would have other times in it
    (folder / "verl-1/x.py").write_text(text)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder / "verl-1", "verl-1")
    return path


@pytest.mark.slow
def test_an_archive_stands_in_for_the_repository_and_another_archive_is_another_source(tmp_path: Path) -> None:
    root, path = tmp_path / "env", tmp_path / "verl.tar.gz"

    def fetch() -> Step:
        digests = {"verl": digest_of(path)}
        return steps_for(root, "https://repo.invalid/verl", given={"verl": str(path)}, digests=digests)[0]

    archive_of(tmp_path / "made", path, "one")
    step = fetch()
    assert not step.needs_network
    assert carry_out(root, step).done == ("verl-source",)
    assert (root / "src/verl/x.py").read_text() == "one"
    assert carry_out(root, fetch()).done == ()
    archive_of(tmp_path / "made", path, "two")
    with pytest.raises(StepFailed) as caught:  # exchanged after it was looked at
        carry_out(root, replace(step, done_when=()))
    assert "sha256:" in say(caught.value.message)
    assert (root / "src/verl/x.py").read_text() == "one"
    assert carry_out(root, fetch()).done == ("verl-source",)
    assert (root / "src/verl/x.py").read_text() == "two"
    assert (root / ".npuenv/source-verl.txt").read_text() == f"{digest_of(path)}\n"
    elsewhere = path.rename(tmp_path / "moved.tar.gz")
    digests = {"verl": digest_of(elsewhere)}
    (moved, _) = steps_for(root, "https://repo.invalid/verl", given={"verl": str(elsewhere)}, digests=digests)
    assert carry_out(root, moved).done == ()  # the same archive at another place is the same source


def digest_of(path: Path) -> str:
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    return digests_of(LocalHost(), {"verl": str(path)}, stack, sys.executable)["verl"]


def test_a_supplied_folder_that_stays_editable_is_used_where_it_lies_and_else_copied(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x.py").write_text("mine")
    more: dict[str, Any] = {"given": {"verl": str(mine)}, "digests": {"verl": digest_of(mine)}}
    (linked, _) = steps_for(tmp_path / "a", "r", **more)
    carry_out(tmp_path / "a", linked)
    assert (tmp_path / "a/src/verl").resolve() == mine
    (copied, _) = steps_for(tmp_path / "b", "r", how="install", **more)
    carry_out(tmp_path / "b", copied)
    (mine / "x.py").write_text("changed")
    assert (tmp_path / "a/src/verl/x.py").read_text() == "changed"
    assert (tmp_path / "b/src/verl/x.py").read_text() == "mine"
    # Another source takes the link's place, and what it led to is left alone.
    archive = archive_of(tmp_path / "made", tmp_path / "verl.tar.gz", "packed")
    (other, _) = steps_for(tmp_path / "a", "r", given={"verl": str(archive)}, digests={"verl": digest_of(archive)})
    carry_out(tmp_path / "a", other)
    assert (tmp_path / "a/src/verl/x.py").read_text() == "packed" and (mine / "x.py").read_text() == "changed"


def test_an_archive_of_a_release_tells_the_build_its_version(tmp_path: Path) -> None:
    def variables(ref: str, **more: Any) -> dict[str, str]:
        _, built = steps_for(tmp_path, "r", ref=ref, **more)
        return dict(runs(built)[-1].env)

    given = {"given": {"verl": "/x/verl.zip"}}
    assert variables("v0.11.0rc1", **given)["SETUPTOOLS_SCM_PRETEND_VERSION"] == "0.11.0rc1"
    assert "SETUPTOOLS_SCM_PRETEND_VERSION" not in variables("634bd935", **given)
    assert "SETUPTOOLS_SCM_PRETEND_VERSION" not in variables("v0.11.0")  # a clone has its history


def test_another_source_or_another_build_setting_is_built_again(tmp_path: Path) -> None:
    _, one = steps_for(tmp_path, "r", ref="v1")
    _, other = steps_for(tmp_path, "r", ref="v2")
    assert one.done_when != other.done_when
    first = next(run.argv for run in runs(one))
    assert first == ("rm", "-f", f"{tmp_path}/.npuenv/built-verl.txt")  # claimed anew only when it is done
    assert one.do[-1].path == f"{tmp_path}/.npuenv/built-verl.txt"  # type: ignore[union-attr]


def test_a_source_that_nobody_builds_and_a_file_that_is_no_archive_are_refused(tmp_path: Path) -> None:
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    note = tmp_path / "verl.txt"
    note.write_text(json.dumps({}))
    for given, expected in [
        ({"vlm": str(tmp_path)}, "vllm-ascend"),
        ({"verl": str(note)}, ".tar.gz"),
        ({"verl": str(tmp_path / "gone.zip")}, "gone.zip"),
    ]:
        with pytest.raises(BadInput) as caught:
            digests_of(LocalHost(), given, stack, sys.executable)
        assert expected in say(caught.value.message)
    assert digests_of(LocalHost(), {}, stack, sys.executable) == {}
    with pytest.raises(BadInput) as caught:
        digests_of(LocalHost(), {"verl": str(tmp_path)}, stack_and_lock("cpu", "x86_64")[0], sys.executable)
    assert caught.value.hint is not None and caught.value.hint.key == "plan.no-sources-hint"


def test_with_a_bundle_builds_stay_off_the_network(tmp_path: Path) -> None:
    _, built = steps_for(tmp_path, "r", wheels="/bundle/wheels", given={"verl": "/x/verl.zip"})
    assert "--offline" in runs(built)[-1].argv and not built.needs_network


# A build backend that needs nothing installed: the module it makes says which source and which settings it was made of.
BACKEND = """
import base64, hashlib, os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    said = (open("x.py").read(), os.environ.get("VERL_SETTING"), os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION"))
    files = {
        "verl.py": f"said = {said!r}\\\\n",
        "verl-1.dist-info/METADATA": "Metadata-Version: 2.1\\\\nName: verl\\\\nVersion: 1\\\\n",
        "verl-1.dist-info/WHEEL": "Wheel-Version: 1.0\\\\nRoot-Is-Purelib: true\\\\nTag: py3-none-any\\\\n",
    }
    def row(name, text):
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(text)}"
    record = [row(*item) for item in files.items()] + ["verl-1.dist-info/RECORD,,"]
    files["verl-1.dist-info/RECORD"] = "\\\\n".join(record) + "\\\\n"
    with zipfile.ZipFile(os.path.join(folder, "verl-1-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "verl-1-py3-none-any.whl"
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.mark.slow
@pytest.mark.usefixtures("own_uv")
def test_a_build_is_done_again_for_another_source_and_for_another_setting_and_not_else(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "made/verl-1").mkdir(parents=True)
    (tmp_path / "made/verl-1/backend.py").write_text(BACKEND.replace("\\\\n", "\\n"))
    (tmp_path / "made/verl-1/pyproject.toml").write_text(PYPROJECT)
    plain, lock = tiny(tmp_path / "wheels", one="1.0")
    target = EnvironmentPlace(str(tmp_path / "env"))

    def install(text: str, setting: str) -> tuple[tuple[str, ...], str]:
        archive = archive_of(tmp_path / "made", tmp_path / "verl.tar.gz", text)
        source = GitSource("verl", "r", "v0.7.1", False, {"VERL_SETTING": setting})
        stack = replace(plain, git_sources=(source,), order=(ITEM,))
        more = {"given": {"verl": str(archive)}, "digests": {"verl": digest_of(archive)}}
        plan = tiny_plan(stack, lock, target, tmp_path / "wheels", **more)
        assert not any(step.needs_network for step in plan.steps)
        done = carry_out(tmp_path / "env", *plan.steps).done
        # uv leaves the byte code of a module beside it, and two modules of one size and second would share it.
        argv = [target.python, "-I", "-B", "-c", "import verl; print(*verl.said)"]
        ran = subprocess.run(argv, capture_output=True, text=True)
        return tuple(step for step in done if step.startswith("verl")), ran.stdout.strip() or ran.stderr

    assert install("one", "a") == (("verl-source", "verl"), "one a 0.7.1")
    assert install("one", "a") == ((), "one a 0.7.1")
    assert install("two", "a") == (("verl-source", "verl"), "two a 0.7.1")
    assert install("two", "b") == (("verl",), "two b 0.7.1")
