"""A world without network: tiny wheels in a folder, a stack of them, a uv cache; and the command line on it.

An installation takes a second of a core, so what every test would install first is installed once per process and then
copied. Paths stand inside an environment and in uv's cache: `tmp_path` is therefore one folder, the same for all tests
of a process, empty at the beginning of each.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.app import installation, resolution
from npuenv.cli import main
from npuenv.core.messages import Message
from npuenv.facts import conditions
from npuenv.facts.pip import PipSettings, for_uv, pip_settings
from npuenv.host.local import LocalHost
from npuenv.host.writing import sha256_of
from npuenv.install import executor as work
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.executor import Event, ExecutionContext, Outcome, StepEvent, execute
from npuenv.install.planning import plan_install
from npuenv.lock.checking import require_sources
from npuenv.lock.make import make_lock
from npuenv.lock.uv import Resolver, find_uv, write_wheel
from npuenv.render.variables import render_activations
from npuenv.resolve.types import BuildStep, Pin, Platform, Reason, Stack
from tests.support.inspecting import inspect_here, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npuenv.core.finding import Finding
    from npuenv.core.plan import Plan
    from npuenv.host import Ran
    from npuenv.lock.file import Lock

INDEXES = {"pytorch-cpu": "https://index.invalid/whl/cpu/"}
WHY = Message("plan.why-rest")
WHEELS, PRODUCT, PYTHONS = "wheels", "product", "what uv knows of each interpreter"


class Kept:
    """Folders as they were once, by what was done in them; each place is always the same, so that paths stay valid."""

    def __init__(self, shelf: Path) -> None:
        self._shelf = shelf
        self._kept: dict[str, Path] = {}
        self.locks: dict[str, Lock] = {}
        self.answers: dict[tuple[str, ...], Ran] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def keep(self, key: str, folder: Path, *names: str) -> None:
        """Copies what lies in `folder` under these names."""
        place = self._kept.setdefault(key, self._shelf / str(len(self._kept)))
        for name in names:
            copy(folder / name, place / name)

    def restore(self, key: str, folder: Path) -> None:
        """Puts it back to where it was."""
        copy(self._kept[key], folder)


def copy(source: Path, to: Path) -> None:
    """Times stay, and links: the packages' files count as old as they are."""
    if source.is_symlink():
        to.unlink(missing_ok=True)
        to.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True)
    elif source.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ground") / "now"


@pytest.fixture
def tmp_path(ground: Path) -> Path:
    """Empty, and the same for every test of this process."""
    if ground.exists():  # a process that an earlier test left may still write: it does so beside
        before = Path(tempfile.mkdtemp(dir=ground.parent))
        ground.rename(before / "now")
        shutil.rmtree(before, ignore_errors=True)
    ground.mkdir()
    return ground


@dataclass(slots=True)
class World:
    """Where everything lies, and one call for each thing a test does with it."""

    kept: Kept
    wheels: Path
    root: Path
    stack: Stack
    events: list[Event] = field(default_factory=list)
    link: str | None = None
    uv: str = field(default_factory=find_uv)  # what the plan's steps run

    @property
    def site(self) -> Path:
        version = self.stack.platform.python
        return self.root / f"lib/python{version}/site-packages"

    @property
    def settings(self) -> PipSettings:
        return pip_settings(LocalHost())

    @property
    def resolver(self) -> Resolver:
        return Resolver(LocalHost(), find_uv(), self.settings, INDEXES)

    def lock(self) -> Lock:
        """Of the stack and the wheels as they are now."""
        files = sorted((path.name, sha256_of(path)) for path in self.wheels.glob("*.whl"))
        key = repr((self.stack, files, [pair for pair in os.environ.items() if pair[0].startswith("PIP_")]))
        if key not in self.kept.locks:
            self.kept.locks[key] = make_lock(self.stack, self.resolver)
        return self.kept.locks[key]

    def plan(self, lock: Lock | None = None) -> Plan:
        lock = lock or self.lock()
        links = require_sources(self.stack, lock, self.resolver)
        base = getattr(sys, "_base_executable", sys.executable)
        tools = Tools(base, self.uv, for_uv(self.settings, INDEXES), INDEXES, links)
        target = EnvironmentPlace(str(self.root), self.link)
        return plan_install(self.stack, lock, target, tools, activation=render_activations(self.stack, str(self.root)))

    def install(self, plan: Plan | None = None, *, tell: Callable[[Event], None] | None = None) -> Outcome:
        session = ExecutionContext(
            LocalHost(),
            str(self.root),
            for_uv(self.settings, INDEXES),
            tell or self.events.append,
            ("npuenv", "install"),
        )
        return execute(plan or self.plan(), session)

    def installed(self) -> Plan:
        """The plan, carried out: a copy of what its first installation left. For tests of what comes after."""
        plan = self.plan()
        if repr(plan) in self.kept:
            self.kept.restore(repr(plan), self.root.parent)
        else:
            self.install(plan, tell=lambda event: None)
            names = [self.root.name, "cache", *([Path(self.link).name] if self.link else [])]
            self.kept.keep(repr(plan), self.root.parent, *names)
        return plan

    def lines(self) -> list[str]:
        return [event.text for event in self.events if event.state is StepEvent.LINE]


@pytest.fixture
def world(tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    if WHEELS in kept:
        kept.restore(WHEELS, tmp_path)
    else:
        torch = {"torch/__init__.py": "__version__ = '9.1+cpu'\n", "torch/big.txt": "x" * 50_000}
        write_wheel(wheels, "torch", "9.1+cpu", requires=["numbers"], files=torch)
        write_wheel(wheels, "numbers", "2.4", files={"numbers_a.py": "A = 1\n", "numbers_b/__init__.py": "B = 2\n"})
        write_wheel(wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": "C = 3\n"})
        kept.keep(WHEELS, tmp_path, "wheels")
    reason = Reason(WHY)
    stack = Stack(
        name="tiny",
        framework="cpu",
        platform=Platform(platform.machine(), f"{sys.version_info[0]}.{sys.version_info[1]}"),
        pins=(Pin("torch", "9.1+cpu", reason, reason, "wheel-exists", "pytorch-cpu"),),
        requirements=("tools",),
        overrides=(),
        git_sources=(),
        order=(BuildStep("torch", "pip", ("torch",), WHY), BuildStep("rest", "rest", (), WHY)),
        env={"TINY_SETTING": "a b"},
        image=None,
        cann_root=None,
        soc_version=None,
        system_packages=(),
        verified_by="measured-here",
        sources=(),
    )
    if PYTHONS in kept:
        kept.restore(PYTHONS, tmp_path)
    yield World(kept, wheels, tmp_path / "env", stack)
    kept.keep(PYTHONS, tmp_path, *(f"cache/{path.name}" for path in (tmp_path / "cache").glob("interpreter-v*")))


@pytest.fixture
def other_world(world: World, tmp_path: Path) -> World:
    """The same wheels and stack, going to another folder."""
    return replace(world, root=tmp_path / "other", events=[])


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions of steps are asked, and what is installed is verified, without a process each."""
    monkeypatch.setattr(conditions, "_inspect", inspect_here)
    monkeypatch.setattr(work, "_run", run_here)


def answered_once(answers: dict[tuple[str, ...], Ran]) -> Callable[..., Ran]:
    """`LocalHost.run`, which asks the Python of the tests itself only once what it is."""
    ask = LocalHost.run

    def run(host: LocalHost, argv: Sequence[str], **more: Any) -> Ran:
        if argv[0] != sys.executable or len(argv) != 4:  # more words: about a file
            return ask(host, argv, **more)
        if tuple(argv) not in answers:
            answers[tuple(argv)] = ask(host, argv, **more)
        return answers[tuple(argv)]

    return run


class Product:
    """The command line with one stack, of which a newer lock may come out."""

    def __init__(self, world: World, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.data, self._capsys = world, data, capsys
        self.stack: Stack = world.stack
        self.lock: Lock = world.lock()
        self.failed_checks: tuple[Finding, ...] = ()  # what the doctor says of tiny wheels, which are no torch

    @property
    def home(self) -> Path:
        return self.data / "npuenv" / "envs" / "tiny"

    @property
    def current(self) -> Path:
        return (self.home / "current").resolve()

    def run(self, *words: str) -> tuple[int, str, str]:
        code = main([*words])
        out, err = self._capsys.readouterr()
        return code, out, err

    def release(self) -> None:
        """A newer `tools` comes out, and the stack's lock follows."""
        write_wheel(self.world.wheels, "tools", "0.4", requires=["numbers>=2"], files={"tools.py": "C = 4\n"})
        reason = Reason(self.stack.order[0].why)
        newer = Pin("tools", "0.4", reason, reason, "request")
        self.change(pins=(*self.stack.pins, newer))

    def change(self, **values: Any) -> None:
        """The stack becomes another, and its lock follows."""
        self.stack = replace(self.stack, **values)
        self.world.stack = self.stack
        self.lock = self.world.lock()


@pytest.fixture
def product(
    world: World,
    asked_here: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Product:
    data = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.setenv("LANG", "C")
    product = Product(world, data, capsys)
    monkeypatch.setattr(LocalHost, "run", answered_once(world.kept.answers))
    monkeypatch.setattr(resolution, "for_this_machine", lambda request: request)
    monkeypatch.setattr(resolution, "resolve", lambda request: product.stack)
    monkeypatch.setattr(installation, "failed_checks", lambda host, stack, python: product.failed_checks)
    monkeypatch.setattr(resolution, "lock", lambda stack, resolver, **more: product.lock)
    if PRODUCT in world.kept:
        world.kept.restore(PRODUCT, tmp_path)
        return product
    code, _, err = product.run("install", "tiny", "--yes")
    assert code == 0, err
    world.kept.keep(PRODUCT, tmp_path, "data", "cache")
    return product
