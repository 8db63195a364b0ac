"""What the tests of plans share: a stack with its lock, a plan for it, a scripted machine, and steps that are run."""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message
from npuenv.core.plan import Plan, Run, Step, WriteFile
from npuenv.host import Looked, PathState, Ran
from npuenv.host.local import LocalHost
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.executor import ExecutionContext, Outcome, execute
from npuenv.install.planning import plan_install
from npuenv.lock.file import Lock, LockedPackage, read_lock
from npuenv.lock.uv import find_uv, write_wheel
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Pin, Platform, Reason, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = Path(__file__).parents[3] / "lockfiles"
NPU = ["verl-0.7.0-cann8.3.RC1", "verl-qwen3.5-cann8.5.0", "verl-0.7.1-cann8.5.0", "verl-cann9.1.0", "roll-cann9.1.0"]
INDEXES = {row.label: row.url for row in load_matrix().indexes if row.url}


def stack_and_lock(name: str, arch: str = "aarch64") -> tuple[Stack, Lock]:
    stack = resolve(Request(stack=name, arch=arch), load_matrix())
    assert isinstance(stack, Stack)
    return stack, read_lock(FOLDER / f"{name}.{stack.platform.tag}.toml")


def planned(
    name: str,
    arch: str = "aarch64",
    *,
    target: EnvironmentPlace | None = None,
    before: Sequence[Step] = (),
    **more: Any,
) -> tuple[Stack, Lock, Plan]:
    stack, lock = stack_and_lock(name, arch)
    tools = Tools("/usr/bin/pythonX", "/opt/uv", indexes=INDEXES, **more)
    plan = plan_install(
        stack, lock, target or EnvironmentPlace("/t/env"), tools, activation="# nothing\n", before=before
    )
    return stack, lock, plan


def runs(step: Step) -> list[Run]:
    return [action for action in step.do if isinstance(action, Run)]


def requirements(step: Step) -> list[str]:
    return [
        line
        for action in step.do
        if isinstance(action, WriteFile) and action.path.endswith(".txt")
        for line in action.text.splitlines()
        if "==" in line
    ]


def step_of(plan: Plan, name: str) -> Step:
    """The step that does an entry of the stack's order, alone or together with others."""
    return next(step for step in plan.steps if name in step.id.partition("@")[0].split("+"))


def carry_out(root: Path, *steps: Step) -> Outcome:
    return execute(Plan(steps), ExecutionContext(LocalHost(), str(root)))


@dataclass(frozen=True, slots=True)
class Scripted:
    """A machine that answers from tables: argv -> (code, output), path -> text (None: a folder). All else is absent."""

    answers: Mapping[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)
    paths: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    writable: tuple[str, ...] = ()
    name: str = "scripted"

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        code, out = self.answers.get(tuple(argv), (None, ""))
        return Ran(tuple(argv), code, out, "")

    def look(self, path: str) -> Looked:
        if path not in self.paths:
            is_above = path == "/" or any(place.startswith(f"{path}/") for place in self.paths)
            return Looked(path, PathState.FOLDER if is_above else PathState.ABSENT, is_writable=path in self.writable)
        text = self.paths[path]
        state = PathState.FOLDER if text is None else PathState.FILE
        return Looked(path, state, text or "", is_writable=path in self.writable)

    def environ(self) -> Mapping[str, str]:
        return self.variables


def tiny(wheels: Path, **versions: str) -> tuple[Stack, Lock]:
    """A stack of tiny wheels for this machine, written into a folder; each with one module."""
    reason = Reason(Message("plan.why-rest"))
    here = Platform(platform.machine(), f"{sys.version_info[0]}.{sys.version_info[1]}")
    packages = []
    for name, version in versions.items():
        path = write_wheel(wheels, name, version, files={f"{name}.py": f"__version__ = {version!r}\n"})
        packages.append(LockedPackage(name, version, (hashlib.sha256(path.read_bytes()).hexdigest(),)))
    stack = Stack(
        name="tiny", framework="cpu", platform=here, pins=(Pin("one", "1.0", reason, reason, "wheel-exists"),),
        requirements=(), overrides=(), git_sources=(), order=(), env={}, image=None, cann_root=None, soc_version=None,
        system_packages=(), verified_by="measured-here", sources=(),
    )  # fmt: skip
    return stack, Lock("tiny", here.tag, "m", tuple(packages))


def tiny_plan(stack: Stack, lock: Lock, target: EnvironmentPlace, wheels: Path, **more: Any) -> Plan:
    base = getattr(sys, "_base_executable", sys.executable)
    tools = Tools(base, find_uv(), wheels=str(wheels), **more)
    return plan_install(stack, lock, target, tools, activation="# nothing\n")
