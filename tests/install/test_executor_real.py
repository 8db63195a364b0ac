"""The real CPU stack from its published lock: cold, again, damaged. Needs the package index and a +cpu torch wheel."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npuenv.core.errors import NpuenvError
from npuenv.facts.pip import for_uv, pip_settings
from npuenv.host.local import LocalHost
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.executor import ExecutionContext, execute
from npuenv.install.planning import plan_install
from npuenv.install.target import check_target, find_python
from npuenv.lock.checking import require_complete, require_sources
from npuenv.lock.file import read_lock
from npuenv.lock.make import make_lock, wheel_hashes
from npuenv.lock.store import fits_stack
from npuenv.lock.uv import Resolver, find_uv
from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

pytestmark = [pytest.mark.registry, pytest.mark.slow]
FOLDER = Path(__file__).parents[2] / "lockfiles"


@pytest.mark.long
@pytest.mark.parametrize("name", ["cpu", "cpu-full"])
def test_the_published_lock_installs_and_trains_one_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    host, matrix = LocalHost(), load_matrix()
    stack = resolve(Request(stack=name, arch=platform.machine(), python="3.11"), matrix)
    assert isinstance(stack, Stack)
    lock = read_lock(FOLDER / f"{name}.{stack.platform.tag}.toml")
    settings = pip_settings(host)
    indexes = {row.label: row.url for row in matrix.indexes if row.url}
    resolver = Resolver(host, find_uv(), settings, indexes)
    target = EnvironmentPlace(str(tmp_path / "env"))
    try:
        check_target(host, target, lock)
        assert fits_stack(lock, stack)
        require_complete(lock, resolver)
        tools = Tools(
            find_python(host, "3.11", stack.platform.arch), find_uv(), for_uv(settings, indexes), indexes,
            require_sources(stack, lock, resolver),
        )  # fmt: skip
    except NpuenvError as error:
        pytest.skip(f"this machine cannot have the stack: {error.message}")
    plan = plan_install(stack, lock, target, tools, activation=render_activations(stack, target.root))
    session = ExecutionContext(host, target.root, for_uv(settings, indexes))
    began = time.monotonic()
    assert execute(plan, session).done[-1] == "finish"
    cold_s = time.monotonic() - began
    began = time.monotonic()
    assert execute(plan, session).done == ()
    again_s = time.monotonic() - began
    library = next(Path(target.root).rglob("libtorch_cpu.so"))
    os.truncate(library, 1000)
    began = time.monotonic()
    assert execute(plan, session).done == ("mend", "torch+rest", "verify", "finish")
    mended_s = time.monotonic() - began
    code = "import torch; x = torch.ones(3, requires_grad=True); (x * 2).sum().backward(); print(x.grad.tolist())"
    ran = subprocess.run([target.python, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "[2.0, 2.0, 2.0]", ran.stderr
    sys.stderr.write(f"{name}: cold {cold_s:.1f} s, again {again_s:.1f} s, torch mended {mended_s:.1f} s\n")


def test_with_its_index_out_of_reach_torch_has_the_hash_of_public_lock_files(tmp_path: Path) -> None:
    """Not that of a CUDA build of the same number, which the default index has."""
    stack = resolve(Request(stack="cpu", arch="aarch64", python="3.10"), load_matrix())
    assert isinstance(stack, Stack)
    resolver = Resolver(
        LocalHost(), find_uv(), pip_settings(LocalHost()), {"pytorch-cpu": "https://index.invalid/whl/"}
    )
    lock = make_lock(dataclasses.replace(stack), resolver)
    torch = lock.package("torch")
    assert torch is not None and lock.is_complete
    recorded = {row.sha256 for row in wheel_hashes("torch", torch.version)}
    assert torch.witnesses and set(torch.sha256) < recorded
    assert not [package.name for package in lock.packages if package.name.startswith("nvidia")]
