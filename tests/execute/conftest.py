"""A world without network: tiny wheels in a folder, a stack of them, an empty uv cache; and the command line on it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import installing, main, proving
from npuenv.execute import Event, Outcome, Session, State, execute
from npuenv.facts.pip import PipSettings, for_uv, pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.make import Resolver, find_uv, make_lock
from npuenv.lock.refuse import require_sources
from npuenv.lock.wheels import write_wheel
from npuenv.messages import Message
from npuenv.plan.install import Tools, plan_install
from npuenv.render.activate import render_activations
from npuenv.resolve.types import BuildStep, Pin, Platform, Reason, Stack
from npuenv.store.places import Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.checks import Finding
    from npuenv.lock import Lock
    from npuenv.plan import Plan

INDEXES = {"pytorch-cpu": "https://index.invalid/whl/cpu/"}
WHY = Message("plan.why-rest")


@dataclass(slots=True)
class World:
    """Where everything lies, and one call for each thing a test does with it."""

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
        return make_lock(self.stack, self.resolver)

    def plan(self, lock: Lock | None = None) -> Plan:
        lock = lock or self.lock()
        links = require_sources(self.stack, lock, self.resolver)
        base = getattr(sys, "_base_executable", sys.executable)
        tools = Tools(base, self.uv, for_uv(self.settings, INDEXES), INDEXES, links)
        target = Target(str(self.root), self.link)
        return plan_install(self.stack, lock, target, tools, activation=render_activations(self.stack, str(self.root)))

    def install(self, plan: Plan | None = None, *, tell: Callable[[Event], None] | None = None) -> Outcome:
        session = Session(
            LocalHost(),
            str(self.root),
            for_uv(self.settings, INDEXES),
            tell or self.events.append,
            ("npuenv", "install"),
        )
        return execute(plan or self.plan(), session)

    def lines(self) -> list[str]:
        return [event.text for event in self.events if event.state is State.LINE]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    torch = {"torch/__init__.py": "__version__ = '9.1+cpu'\n", "torch/big.txt": "x" * 50_000}
    write_wheel(wheels, "torch", "9.1+cpu", requires=["numbers"], files=torch)
    write_wheel(wheels, "numbers", "2.4", files={"numbers_a.py": "A = 1\n", "numbers_b/__init__.py": "B = 2\n"})
    write_wheel(wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": "C = 3\n"})
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
    return World(wheels, tmp_path / "env", stack)


@pytest.fixture
def other_world(world: World, tmp_path: Path) -> World:
    """The same wheels and stack, going to another folder."""
    return replace(world, root=tmp_path / "other", events=[])


class Product:
    """The command line with one stack, of which a newer lock may come out."""

    def __init__(self, world: World, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self.data, self._capsys = world, data, capsys
        self.stack: Stack = world.stack
        self.lock: Lock = world.lock()
        self.objections: tuple[Finding, ...] = ()  # what the doctor says of tiny wheels, which are no torch

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
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Product:
    data = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.setenv("LANG", "C")
    product = Product(world, data, capsys)
    monkeypatch.setattr(installing, "for_this_machine", lambda request: request)
    monkeypatch.setattr(installing, "resolve_or_stop", lambda ui, request: product.stack)
    monkeypatch.setattr(proving, "objections", lambda host, stack, python: product.objections)
    monkeypatch.setattr(installing, "lock_of", lambda ui, stack, machine, fill: product.lock)
    code, _, err = product.run("install", "tiny", "--yes")
    assert code == 0, err
    return product
