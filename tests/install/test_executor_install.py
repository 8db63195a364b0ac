"""Installing tiny wheels for real: again, after stops, after damage, and where it cannot work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, NothingFits, StepFailed
from npuenv.core.messages import Message, say
from npuenv.core.plan import Condition, Plan, Run, Step
from npuenv.facts.manifest import MARKER
from npuenv.facts.pip import for_uv
from npuenv.host.local import LocalHost
from npuenv.host.writing import claim
from npuenv.install.executor import Event, ExecutionContext, StepEvent, deciding_line, execute
from npuenv.lock.file import parse_lock, write_lock
from npuenv.lock.uv import write_wheel
from npuenv.render.script import render_script
from tests.support.own_signals import interruptible
from tests.support.waiting import is_gone, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.lock.file import Lock
    from tests.install.conftest import World

ALL = ("venv", "inspector", "torch+rest", "activate", "verify", "finish")


def imported(root: Path, module: str) -> str:
    ran = subprocess.run([root / "bin/python", "-c", f"import {module}; print('ok')"], capture_output=True, text=True)
    return ran.stdout.strip() or ran.stderr


def why_of(error: StepFailed) -> Message:
    why = error.message.args["why"]
    assert isinstance(why, Message)
    return why


def one_step(do: tuple[Run, ...], *wants: Condition) -> Plan:
    return Plan((Step("only", Message("plan.why-rest"), do, wants),))


def session(root: Path, events: list[Event] | None = None) -> ExecutionContext:
    return ExecutionContext(LocalHost(), str(root), tell=(events if events is not None else []).append)


def test_a_first_run_does_every_step_and_the_environment_works(world: World) -> None:
    outcome = world.install()
    assert outcome.done == ALL
    assert outcome.skipped == ("mend",)
    assert imported(world.root, "torch, numbers_a, tools") == "ok"
    marker = json.loads((world.root / "npuenv-env.json").read_text())
    assert (marker["stack"], marker["status"], marker["lock"]) == ("tiny", "complete", world.lock().hash)
    num_files = sum(len(path.read_text().splitlines()) for path in world.site.glob("*.dist-info/RECORD"))
    assert [str(num_files), "3", str(num_files)] in [re.findall(r"\d+", line) for line in world.lines()]


@pytest.mark.usefixtures("asked_here")
def test_a_second_run_does_nothing_and_is_quick(world: World) -> None:
    plan = world.installed()
    began = time.monotonic()
    outcome = world.install(plan)
    assert outcome.done == ()
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", ALL)
@pytest.mark.usefixtures("asked_here")
def test_a_stop_before_any_step_can_be_resumed(world: World, stop_at: str) -> None:
    plan = world.plan()

    def stop(event: Event) -> None:
        if event.step.id == stop_at and event.state is StepEvent.START:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.install(plan, tell=stop)
    outcome = world.install(plan)
    assert outcome.done == ALL[ALL.index(stop_at) :]
    assert imported(world.root, "torch, numbers_a, tools") == "ok"


def test_an_interrupt_inside_a_step_ends_the_program_and_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    plan = one_step((Run(("sh", "-c", f"sh -c 'echo $$ > {marker}; sleep 600' & wait")),))

    def interrupt() -> None:
        # The step does not end by itself, so that nobody else is met.
        if until(lambda: marker.exists() and marker.read_text().endswith("\n")):
            os.kill(os.getpid(), signal.SIGINT)

    impatient = threading.Thread(target=interrupt)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        impatient.start()
        execute(plan, session(tmp_path / "env"))
    impatient.join()
    child = int(marker.read_text())
    assert until(lambda: is_gone(child))
    journal = [json.loads(line) for line in (tmp_path / "env/.npuenv/journal.jsonl").read_text().splitlines()]
    assert [entry["state"] for entry in journal] == ["start", "interrupted"]


@pytest.mark.usefixtures("asked_here")
def test_what_a_kill_inside_an_installation_leaves_is_taken_out_and_installed_again(world: World) -> None:
    plan = world.installed()
    # What uv leaves when it is killed while it copies: some files, and a dist-info without RECORD.
    (world.site / "numbers-2.4.dist-info/RECORD").unlink()
    (world.site / "numbers_b/__init__.py").unlink()
    (world.site / "numbers_b/.tmptkOJDv").write_text("half a fi")
    (world.root / ".tmpLeBmn1").write_text("half a fi")
    (world.root / "bin/.tmpqR7_x2").mkdir()
    (world.root / ".npuenv/verified.json").unlink()
    outcome = world.install(plan)
    assert outcome.done == ("mend", "torch+rest", "verify", "finish")
    assert not list(world.root.rglob(".tmp*"))
    assert imported(world.root, "numbers_a, numbers_b") == "ok"


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, 1)


def change_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [delete, truncate, change_one_byte])
@pytest.mark.usefixtures("asked_here")
def test_a_damaged_file_is_found_and_its_package_installed_again(world: World, damage: object) -> None:
    plan = world.installed()
    damage(world.site / "torch/big.txt")  # type: ignore[operator]
    world.events.clear()
    outcome = world.install(plan)
    assert outcome.done == ("mend", "torch+rest", "verify", "finish")
    assert "taking out torch" in " ".join(world.lines())
    assert (world.site / "torch/big.txt").read_text() == "x" * 50_000


@pytest.mark.usefixtures("asked_here")
def test_damage_in_the_environment_never_reaches_the_cache(world: World, other_world: World) -> None:
    world.installed()
    truncate(world.site / "torch/big.txt")
    other_world.install()
    assert (other_world.site / "torch/big.txt").stat().st_size == 50_000


@pytest.mark.usefixtures("asked_here")
def test_a_wheel_other_than_the_locked_one_is_refused(world: World) -> None:
    lock = world.lock()
    write_wheel(world.wheels, "tools", "0.3", files={"tools.py": "C = 'something else'\n"})
    shutil.rmtree(os.environ["UV_CACHE_DIR"])
    with pytest.raises(StepFailed) as caught:
        world.install(world.plan(lock))
    assert caught.value.message.args["step"] == "torch+rest"
    assert why_of(caught.value).key == "execute.hash-mismatch"
    assert not (world.site / "tools.py").exists()


@pytest.mark.usefixtures("asked_here")
def test_another_lock_in_the_same_folder_starts_afresh(world: World) -> None:
    world.installed()
    (world.wheels / "tools-0.3-py3-none-any.whl").unlink()
    write_wheel(world.wheels, "tools", "0.4", files={"tools.py": "C = 4\n"})
    assert world.install().done == ("venv", "torch+rest", "verify", "finish")
    assert not list(world.site.glob("tools-0.3*"))
    assert list(world.site.glob("tools-0.4*"))


def test_without_the_torch_wheel_nothing_is_begun_and_the_places_are_named(world: World) -> None:
    lock = world.lock()
    (world.wheels / "torch-9.1+cpu-py3-none-any.whl").unlink()
    with pytest.raises(NothingFits) as caught:
        world.plan(lock)
    text = say(caught.value.message)
    assert "pytorch-cpu" in text and "https://index.invalid/whl/cpu/" in text and str(world.wheels) in text
    assert not world.root.exists()


@pytest.mark.usefixtures("asked_here")
def test_a_file_that_two_packages_want_differently_is_a_failure_that_names_both(world: World) -> None:
    write_wheel(world.wheels, "tools", "0.3", requires=["numbers"], files={"numbers_a.py": "A = 7\n"})
    with pytest.raises(StepFailed) as caught:
        world.install()
    assert any(re.search(r"numbers_a\.py .*\bnumbers and tools$", line) for line in world.lines())
    assert "numbers_a.py" in say(caught.value.message)


@pytest.mark.slow
@pytest.mark.usefixtures("asked_here")
def test_a_file_that_two_packages_want_alike_is_fine_and_survives_the_mending_of_one(world: World) -> None:
    files = {"numbers_b/__init__.py": "B = 2\n", "tools.py": "C = 3\n"}
    write_wheel(world.wheels, "tools", "0.3", requires=["numbers"], files=files)
    plan = world.installed()
    truncate(world.site / "tools.py")
    assert world.install(plan).done == ("mend", "torch+rest", "verify", "finish")
    assert imported(world.root, "numbers_b, tools") == "ok"


@pytest.mark.usefixtures("asked_here")
def test_a_package_of_another_accelerator_fails_the_verification(world: World) -> None:
    plan = world.installed()
    info = world.site / "nvidia_cublas-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: nvidia-cublas\nVersion: 1.0\n")
    (info / "RECORD").write_text("nvidia_cublas-1.0.dist-info/METADATA,,\n")
    (world.root / ".npuenv/verified.json").unlink()
    with pytest.raises(StepFailed, match="step-failed") as caught:
        world.install(plan)
    assert "problem: nvidia-cublas " in say(caught.value.message)


@pytest.mark.usefixtures("asked_here")
def test_a_torch_that_calls_itself_otherwise_fails_the_verification(world: World) -> None:
    write_wheel(
        world.wheels, "torch", "9.1+cpu", requires=["numbers"], files={"torch/__init__.py": "__version__ = '9.0'\n"}
    )
    with pytest.raises(StepFailed) as caught:
        world.install()
    assert "torch calls itself 9.0 instead of 9.1+cpu" in say(caught.value.message)


@pytest.mark.usefixtures("asked_here")
def test_the_current_link_moves_only_when_all_is_verified(world: World, tmp_path: Path) -> None:
    world.link = str(tmp_path / "current")
    plan = world.plan()

    def stop(event: Event) -> None:
        if event.step.id == "verify":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.install(plan, tell=stop)
    assert not (tmp_path / "current").exists()
    world.install(plan)
    assert (tmp_path / "current").readlink() == world.root


@pytest.mark.usefixtures("asked_here")
def test_credentials_reach_no_file_and_no_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:hidden-word@127.0.0.1:9/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy-user:hidden-word@127.0.0.1:9")
    lock_text = write_lock(world_lock_without_network(world, monkeypatch))
    plan = world.plan(parse_lock(lock_text))
    with pytest.raises(StepFailed) as caught:
        world.install(drop_links(plan, world, monkeypatch))
    shown = say(caught.value.message) + repr(plan) + render_script(plan, for_uv(world.settings), title="t") + lock_text
    shown += " ".join(world.lines())
    for path in world.root.rglob("*"):
        if path.is_file() and path.suffix in (".log", ".txt", ".toml", ".json", ".jsonl", ".sh"):
            shown += path.read_text()
    assert "hidden-word" not in shown
    assert why_of(caught.value).key == "execute.no-network"


def world_lock_without_network(world: World, monkeypatch: pytest.MonkeyPatch) -> Lock:
    with monkeypatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        return world.lock()


def drop_links(plan: Plan, world: World, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Takes the wheels of the default index away, so that the index has to be asked."""
    for name in ("numbers-2.4", "tools-0.3"):
        (world.wheels / f"{name}-py3-none-any.whl").unlink()
    shutil.rmtree(os.environ["UV_CACHE_DIR"])
    monkeypatch.setenv("PIP_RETRIES", "0")
    return plan


def waits_for(world: World, plan: Plan, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Installs while another process is at work there for a moment, which has to be named once."""
    running, told = str(world.root / ".npuenv/running"), list[tuple[int, ...]]()
    held = claim(running)
    assert held is not None
    with subprocess.Popen(["sleep", "600"], pass_fds=(held,)) as other:
        os.close(held)

        def wait(pids: tuple[int, ...]) -> None:
            told.append(pids)
            meanwhile()
            other.kill()

        try:
            execute(plan, ExecutionContext(LocalHost(), str(world.root), for_uv(world.settings), wait=wait))
        finally:
            other.kill()
            assert told == [(other.pid,)]


@pytest.mark.slow
@pytest.mark.usefixtures("asked_here")
def test_another_execution_is_named_and_waited_for(world: World) -> None:
    waits_for(world, world.plan())
    assert json.loads((world.root / MARKER).read_text())["status"] == "complete"


@pytest.mark.slow
@pytest.mark.usefixtures("asked_here")
def test_what_another_one_put_in_meanwhile_is_not_undone(world: World) -> None:
    marker = world.root / MARKER
    text = json.dumps({"stack": "other", "lock": "0123", "status": "complete", "kind": "venv", "platform": "any"})
    with pytest.raises(BadInput) as caught:
        waits_for(world, world.plan(), lambda: marker.write_text(text))
    said = {"path": str(world.root), "stack": "other", "lock": "0123"}
    assert caught.value.message == Message("execute.taken-meanwhile", said)
    assert marker.read_text() == text
    assert sorted(path.name for path in world.root.iterdir()) == [".npuenv", MARKER]


def test_an_unknown_step_lists_those_there_are(world: World) -> None:
    with pytest.raises(BadInput) as caught:
        execute(world.plan(), session(world.root), only="trch")
    assert "venv, inspector, mend, torch+rest" in say(caught.value.message)


@pytest.mark.usefixtures("asked_here")
def test_only_one_step_runs_when_only_one_is_asked_for(world: World) -> None:
    plan = world.plan()
    own = ExecutionContext(LocalHost(), str(world.root), for_uv(world.settings))
    assert execute(plan, own, only="venv").done == ("venv",)
    assert execute(plan, own, start_at="inspector").done == ALL[1:]


@pytest.mark.parametrize("part", [{"only": "torch+rest"}, {"start_at": "verify"}, {"only": "inspector"}])
def test_a_part_of_an_installation_that_was_never_begun_is_refused_and_nothing_is_made(
    world: World, part: dict[str, str]
) -> None:
    with pytest.raises(BadInput) as caught:
        execute(world.plan(), session(world.root), **part)
    assert caught.value.message == Message("execute.not-begun", {"path": str(world.root)})
    assert caught.value.hint is not None and caught.value.hint.key == "execute.not-begun-hint"
    assert not world.root.exists()


@pytest.mark.slow
def test_a_part_wants_the_inspector_there_but_an_older_one_will_do(world: World) -> None:
    plan = world.plan()
    execute(plan, session(world.root), only="venv")
    with pytest.raises(BadInput):
        execute(plan, session(world.root), only="verify")
    world.install(plan)
    with (world.root / ".npuenv/inspector.py").open("a") as file:
        file.write("# of another version\n")
    assert execute(plan, session(world.root), only="verify").skipped == ("verify",)


def test_a_step_whose_conditions_do_not_hold_afterwards_has_failed(tmp_path: Path) -> None:
    want = Condition("path.state", (str(tmp_path / "never"),), "file")
    with pytest.raises(StepFailed) as caught:
        execute(one_step((Run(("true",)),), want), session(tmp_path / "env"))
    assert "path.state" in say(caught.value.message) and "absent" in say(caught.value.message)


def test_a_missing_program_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        execute(one_step((Run(("no-such-program-here",)),)), session(tmp_path / "env"))
    assert "no-such-program-here" in say(caught.value.message)


def test_a_failing_program_gives_its_deciding_line_and_the_log(tmp_path: Path) -> None:
    events: list[Event] = []
    run = Run(("sh", "-c", "echo first; echo 'error: moon'; echo last; exit 7"))
    with pytest.raises(StepFailed) as caught:
        execute(one_step((run,)), session(tmp_path / "env", events))
    text = say(caught.value.message)
    assert "error: moon" in text and "7" in text and "logs/only.log" in text
    assert [event.text for event in events if event.state is StepEvent.LINE] == ["first", "error: moon", "last"]
    assert events[-1].state is StepEvent.FAILED


def test_a_killed_program_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        execute(one_step((Run(("sh", "-c", "echo fine; kill -9 $$")),)), session(tmp_path / "env"))
    assert why_of(caught.value) == Message("execute.program-killed", {"program": "sh", "signal": 9})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "error: No solution found\n  cause: Because there is no x==1, so no.\n",
            "cause: Because there is no x==1, so no.",
        ),
        ("problem: torch is damaged\nother\n", "problem: torch is damaged"),
        ("fatal: could not read from https://me:pw@host/x\n", "fatal: could not read from https://***@host/x"),
        ("just\nthe end\n", "the end"),
        ("", ""),
    ],
)
def test_the_deciding_line_is_the_one_that_says_why(text: str, line: str) -> None:
    assert deciding_line(text) == line


@pytest.mark.parametrize(
    ("output", "key"),
    [
        ("error: failed to write: No space left on device (os error 28)", "disk-full"),
        ("error: failed to create file: Permission denied (os error 13)", "not-writable"),
        ("error: Read-only file system (os error 30)", "not-writable"),
        ("  cause: dns error\n  cause: failed to lookup address information", "no-network"),
        ("fatal: unable to access: Could not resolve host: example", "no-network"),
        ("  Hash mismatch for `six==1.16.0`", "hash-mismatch"),
    ],
)
def test_known_failures_have_a_sentence_of_their_own(tmp_path: Path, output: str, key: str) -> None:
    with pytest.raises(StepFailed) as caught:
        execute(one_step((Run(("sh", "-c", f"cat <<'X'\n{output}\nX\nexit 2")),)), session(tmp_path / "env"))
    assert why_of(caught.value).key == f"execute.{key}"


@pytest.mark.usefixtures("asked_here")
def test_a_full_disk_is_one_sentence_and_can_be_resumed(world: World, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    ran = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(place)], capture_output=True)
    if ran.returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        world.root = place / "env"
        plan = world.plan()
        with pytest.raises(StepFailed) as caught:
            world.install(plan)
        assert why_of(caught.value).key == "execute.disk-full"
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        world.install(plan)
        assert imported(world.root, "torch, tools") == "ok"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_place_is_one_sentence(world: World, tmp_path: Path) -> None:
    place = tmp_path / "frozen"
    place.mkdir()
    ran = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=100k", "tmpfs", str(place)], capture_output=True)
    if ran.returncode != 0:
        pytest.skip("a read-only tmpfs cannot be mounted here")
    try:
        world.root = place / "env"
        with pytest.raises(StepFailed) as caught:
            world.install()
        assert caught.value.message.key == "execute.not-writable"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_the_script_makes_the_same_environment(world: World, other_world: World, tmp_path: Path) -> None:
    world.install()
    script = tmp_path / "install.sh"
    script.write_text(render_script(other_world.plan(), for_uv(other_world.settings), title="tiny"))
    assert subprocess.run(["sh", "-n", script]).returncode == 0
    first = subprocess.run(["sh", script], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert content_of(other_world) == content_of(world)
    again = subprocess.run(["sh", script], capture_output=True, text=True)
    assert again.returncode == 0 and "Installed" not in again.stderr
    assert again.stdout.count(say(Message("plan.script-skipped"))) == 7
    assert world.install(other_world.plan()).done == ()


def content_of(world: World) -> dict[str, bytes]:
    # INSTALLER and direct_url files are the same; caches and byte code say nothing about what was installed.
    return {
        str(path.relative_to(world.site)): path.read_bytes()
        for path in sorted(world.site.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
