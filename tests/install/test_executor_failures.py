"""What a user can meet: one sentence each, with the log's place and how to go on; the former environment works."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import NpuenvError, StepFailed
from npuenv.core.messages import Message, say
from npuenv.core.plan import Condition
from npuenv.facts.conditions import ask
from npuenv.host.local import LocalHost
from npuenv.install.executor import Event, StepEvent
from npuenv.lock.uv import write_wheel
from npuenv.resolve.types import BuildStep, GitSource
from tests.support.sentences import part, says

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.lock.file import Lock
    from tests.install.conftest import World

pytestmark = pytest.mark.usefixtures("asked_here")

WHY = Message("plan.why-rest")
# A build backend of one file: it needs nothing but Python, and runs what BUILD_RUNS names.
BACKEND = """
import os, subprocess, time, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    if os.environ.get("BUILD_RUNS"):
        subprocess.check_call(os.environ["BUILD_RUNS"].split(), env={"PATH": "/nonexistent"})
    print("building now", flush=True)
    time.sleep(float(os.environ.get("BUILD_TAKES", "0")))
    info = "built-1.0.dist-info"
    rows = {"built.py": "D = 4\\n", f"{info}/METADATA": "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    rows[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*rows, f"{info}/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, "built-1.0-py3-none-any.whl"), "w") as wheel:
        for name, text in rows.items():
            wheel.writestr(name, text)
    return "built-1.0-py3-none-any.whl"
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def former(world: World, tmp_path: Path) -> Path:
    """A complete environment that `current` leads to; the world then goes on to another folder."""
    world.link = str(tmp_path / "current")
    world.installed()
    first = world.root
    world.root = tmp_path / "next"
    return first


def still_works(former: Path) -> bool:
    """The former environment is the current one, is whole, and its modules can be imported."""
    current = former.parent / "current"
    lock = json.loads((former / ".npuenv/verified.json").read_text())["lock"]
    is_whole = ask(LocalHost(), Condition("env.verified", (str(former),), lock)).value == lock
    return current.readlink() == former and is_whole and imports(current, "torch, numbers_a, tools")


def imports(root: Path, modules: str) -> bool:
    return subprocess.run([root / "bin/python", "-c", f"import {modules}"], capture_output=True).returncode == 0


def told(error: NpuenvError, world: World, *, step: str) -> str:
    """The sentence, after checking that it has one line, names step and log, and says how to go on."""
    text = say(error.message)
    assert "\n" not in text and "Traceback" not in text
    assert error.message.args["step"] == step
    log = Path(str(error.message.args["log"]))
    assert str(log) in text and log.read_text() and log.is_relative_to(world.root)
    assert error.hint is not None and "npuenv install" in say(error.hint)
    return text


def failure(world: World, lock: Lock, *, step: str) -> str:
    with pytest.raises(StepFailed) as caught:
        world.install(world.plan(lock))
    return told(caught.value, world, step=step)


def without_wheel(world: World, name: str) -> None:
    (world.wheels / name).unlink()
    shutil.rmtree(os.environ["UV_CACHE_DIR"])


@pytest.mark.slow
def test_a_wheel_that_is_nowhere_is_named(world: World, former: Path) -> None:
    lock = world.lock()
    without_wheel(world, "tools-0.3-py3-none-any.whl")
    text = failure(world, lock, step="torch+rest")
    assert says(text, "execute.no-wheel") and "tools" in text
    assert still_works(former)
    write_wheel(world.wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": "C = 3\n"})
    assert world.install(world.plan(lock)).done == ("torch+rest", "activate", "verify", "finish")


def test_a_wheel_with_another_hash_is_refused_and_the_former_environment_stays(world: World, former: Path) -> None:
    lock = world.lock()
    without_wheel(world, "tools-0.3-py3-none-any.whl")
    write_wheel(world.wheels, "tools", "0.3", files={"tools.py": "C = 'something else'\n"})
    assert says(failure(world, lock, step="torch+rest"), "execute.hash-mismatch")
    assert still_works(former)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    ran = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", str(place)], capture_output=True)
    if ran.returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_leaves_the_former_environment_and_says_so_in_one_sentence(
    world: World, former: Path, small_disk: Path
) -> None:
    world.root = small_disk / "env"
    with pytest.raises(StepFailed) as caught:
        world.install()
    text = say(caught.value.message)
    assert says(text, "execute.disk-full") and "\n" not in text
    assert still_works(former)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_the_cache_is_told_alike(
    world: World, former: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = world.lock()
    files = {"torch/__init__.py": "__version__ = '9.1+cpu'\n", "torch/big.txt": "x" * 900_000}
    write_wheel(world.wheels, "torch", "9.1+cpu", requires=["numbers"], files=files)
    lock = world.lock()
    monkeypatch.setenv("UV_CACHE_DIR", str(small_disk / "cache"))
    assert says(failure(world, lock, step="torch+rest"), "execute.disk-full")
    assert still_works(former)
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert world.install(world.plan(lock)).done[-1] == "finish"


def test_a_folder_that_may_not_be_written_to_is_named(world: World, former: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        place = tmp_path / "frozen"
        place.mkdir()
        ran = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=100k", "tmpfs", str(place)], capture_output=True)
        if ran.returncode != 0:
            pytest.skip("nothing is read-only to this user")
    else:
        place = tmp_path / "frozen"
        place.mkdir(mode=0o500)
    try:
        world.root = place / "env"
        with pytest.raises(StepFailed) as caught:
            world.install()
        text = say(caught.value.message)
        assert says(text, "execute.not-writable", line=part(place))
        assert still_works(former)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(place)], check=True)


def proxy_that_says(answer: bytes) -> tuple[str, threading.Event]:
    """The address of a proxy that gives one answer to everything, and what ends it."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        server.settimeout(0.1)
        while not ended.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            # A uv that has failed already hangs up on the rest.
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(4096)
                connection.sendall(answer)
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}", ended


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        pytest.param(
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", marks=pytest.mark.slow
        ),
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["407", "403", "nobody-there"],
)
def test_a_proxy_that_refuses_is_told_as_such(
    world: World, former: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    lock = world.lock()
    without_wheel(world, "tools-0.3-py3-none-any.whl")
    address, ended = proxy_that_says(answer) if answer else ("http://127.0.0.1:9", threading.Event())
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("HTTPS_PROXY", address)
    monkeypatch.setenv("PIP_RETRIES", "0")
    text = failure(world, lock, step="torch+rest")
    ended.set()
    assert says(text, "execute.proxy-refuses") and "HTTPS_PROXY" in text
    assert still_works(former)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a package that its own backend builds."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT + '[project]\nname = "built"\nversion = "1.0"\n')
    (folder / "backend.py").write_text(BACKEND)
    for argv in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"], ["tag", "v1"]):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@host", "-C", folder, *argv], check=True)
    return folder


def with_source(world: World, repo: str, ref: str = "v1", **build_env: str) -> None:
    source = GitSource("built", repo, ref, is_moving=False, build_env=build_env)
    order = (*world.stack.order, BuildStep("built", "git", ("built",), WHY))
    world.stack = replace(world.stack, git_sources=(source,), order=order)


def test_a_repository_that_is_not_there_is_told_and_named(world: World, former: Path, tmp_path: Path) -> None:
    with_source(world, str(tmp_path / "no-such-repository"))
    text = failure(world, world.lock(), step="built-source")
    assert says(text, "execute.broken-remote") and "no-such-repository" in text
    assert still_works(former)


def test_a_tag_that_the_repository_does_not_have_is_told(world: World, former: Path, repository: Path) -> None:
    with_source(world, str(repository), "v9")
    assert says(failure(world, world.lock(), step="built-source"), "execute.broken-remote")
    assert still_works(former)


@pytest.mark.slow
def test_a_build_without_its_compiler_is_told_and_the_compiler_named(
    world: World, former: Path, repository: Path
) -> None:
    with_source(world, str(repository), BUILD_RUNS="gcc -c x.c")
    text = failure(world, world.lock(), step="built")
    assert says(text, "execute.no-compiler") and "'gcc'" in text
    assert still_works(former)
    with_source_again = replace(world.stack.git_sources[0], build_env={})
    world.stack = replace(world.stack, git_sources=(with_source_again,))
    assert world.install().done == ("built", "activate", "verify", "finish")
    assert (world.site / "built.py").read_text() == "D = 4\n"


@pytest.mark.parametrize(
    "step",
    [
        "torch+rest",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("venv", "built-source", "built", "verify")),
    ],
)
def test_an_interrupt_in_every_kind_of_step_ends_its_program_and_can_be_resumed(
    world: World, former: Path, repository: Path, step: str
) -> None:
    with_source(world, str(repository))
    lock = world.lock()

    def interrupt(event: Event) -> None:
        if event.step.id == step and event.state is StepEvent.LINE:
            raise KeyboardInterrupt

    plan = world.plan(lock)
    with pytest.raises(KeyboardInterrupt):
        world.install(plan, tell=interrupt)
    assert still_works(former)
    journal = [json.loads(line) for line in (world.root / ".npuenv/journal.jsonl").read_text().splitlines()]
    assert (journal[-1]["step"], journal[-1]["state"]) == (step, "interrupted")
    assert world.install(plan).done[-1] == "finish"
    assert imports(world.root, "torch, numbers_a, tools, built")
    assert (former.parent / "current").readlink() == world.root


def test_an_interrupt_while_mending_can_be_resumed(world: World) -> None:
    plan = world.installed()
    (world.site / "tools.py").unlink()

    def interrupt(event: Event) -> None:
        if event.step.id == "mend" and event.state is StepEvent.LINE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.install(plan, tell=interrupt)
    world.install(plan)
    assert (world.site / "tools.py").read_text() == "C = 3\n"


@pytest.mark.slow
def test_an_editable_package_whose_sources_are_gone_is_fetched_again(world: World, repository: Path) -> None:
    (repository / "backend.py").write_text(BACKEND + "\nbuild_editable = build_wheel\n")
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@host", "-C", str(repository)]
    subprocess.run([*git, "commit", "-q", "-a", "-m", "second"], check=True)
    subprocess.run([*git, "tag", "v2"], check=True)
    with_source(world, str(repository), "v2")
    world.stack = replace(world.stack, git_sources=(replace(world.stack.git_sources[0], how="editable"),))
    plan = world.plan()
    world.install(plan)
    shutil.rmtree(world.root / "src/built")
    assert world.install(plan).done == ("mend", "built-source", "built", "verify", "finish")
    (world.root / "src/built/backend.py").write_text("# altered\n")
    (world.root / ".npuenv/verified.json").unlink()
    world.events.clear()
    world.install(plan)
    changed = re.escape(str(world.root / "src/built"))
    assert any(re.search(rf"^note: .*\bbuilt\b.*{changed}\b", line) for line in world.lines())
