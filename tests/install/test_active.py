"""Which environment a command is about where none is named."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.facts.manifest import MANIFEST
from npuenv.host.local import LocalHost
from npuenv.install.active import active_environment
from npuenv.install.environments import CURRENT, remember
from tests.install.test_environments import made

if TYPE_CHECKING:
    from pathlib import Path

HOST = LocalHost()


@pytest.fixture
def envs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of environments of an empty home, in a session that has activated none."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    return home / "data" / "npuenv" / "envs"


def in_force(home: Path, stack: str, lock: str, *, at: int, framework: str = "", status: str = "complete") -> Path:
    """An environment that came into force at a second."""
    root = made(home / stack / lock, stack=stack, status=status)
    if framework:
        (root / MANIFEST).write_text(f'{{"lock": "{lock}", "framework": "{framework}"}}')
    link = home / stack / CURRENT
    link.symlink_to(root)
    os.utime(link, (at, at), follow_symlinks=False)
    return root


def with_torch(root: Path) -> Path:
    (root / "lib" / "python3.11" / "site-packages" / "torch").mkdir(parents=True)
    return root


def test_the_newest_in_force_is_meant_where_none_is_activated(envs: Path) -> None:
    new = in_force(envs, "verl-x", "bbb", at=200)
    in_force(envs, "cpu", "aaa", at=100)
    found = active_environment(HOST)
    assert (found.name, found.origin, found.python) == ("verl-x", "newest", f"{new}/bin/python")
    assert found.says.key == "store.environment-newest"


def test_one_that_was_never_finished_is_not_meant(envs: Path) -> None:
    in_force(envs, "cpu", "aaa", at=100)
    in_force(envs, "verl-x", "bbb", at=200, status="building")
    assert active_environment(HOST).name == "cpu"


def test_one_in_a_folder_of_the_users_counts_from_when_it_was_finished(envs: Path, tmp_path: Path) -> None:
    in_force(envs, "cpu", "aaa", at=100)
    own = made(tmp_path / "mine", stack="roll-x")
    remember(own, envs.parent)
    assert active_environment(HOST).name == "roll-x"


def test_for_a_use_only_an_environment_of_that_use_is_meant(envs: Path) -> None:
    in_force(envs, "verl-x", "bbb", at=200, framework="verl")
    in_force(envs, "cpu", "aaa", at=100, framework="cpu")
    assert active_environment(HOST, "cpu").name == "cpu"
    assert active_environment(HOST, "roll").origin == "session"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_one_is_meant_before_any(
    envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    in_force(envs, "cpu", "aaa", at=100)
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    found = active_environment(HOST)
    assert (found.origin, found.python) == ("activated", f"{tmp_path}/own/bin/python")


@pytest.mark.parametrize("has_torch", [True, False])
@pytest.mark.parametrize("which", ["npuenv's own", "conda's base"])
def test_one_that_is_activated_by_the_way_is_meant_only_with_torch_in_it(
    envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, has_torch: bool
) -> None:
    in_force(envs, "cpu", "aaa", at=100)
    root = tmp_path / "own"
    if has_torch:
        with_torch(root)
    if which == "npuenv's own":
        monkeypatch.setattr(sys, "prefix", str(root))
        monkeypatch.setenv("VIRTUAL_ENV", str(root))
    else:
        monkeypatch.setenv("CONDA_PREFIX", str(root))
        monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert active_environment(HOST).origin == ("activated" if has_torch else "newest")


def test_without_any_it_is_the_python_of_the_session(
    envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (active_environment(HOST).python, active_environment(HOST).origin) == (f"{tmp_path}/python3", "session")
    monkeypatch.setenv("PATH", "/absent")
    assert active_environment(HOST).python == sys.executable
