"""A lock as a uv project, which uv itself installs."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from npuenv.core.documents import parse_toml
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import say
from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.host.local import LocalHost
from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing
from npuenv.lock.forms import _project, write_uv_project
from npuenv.lock.uv import Resolver, find_uv, write_wheel
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = f"3.{sys.version_info[1]}"
TAG = Platform(platform.machine(), PYTHON).tag


@dataclass
class World:
    """A folder with two tiny wheels, their lock, and what is needed to write the project."""

    links: Path
    lock: Lock
    resolver: Resolver
    out: Path

    def write(self) -> Path:
        return write_uv_project(self.lock, Platform(platform.machine(), PYTHON), self.resolver, self.out)

    def sync(self) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        environ = {**kept, "UV_CACHE_DIR": str(self.out / "cache"), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
        argv = [find_uv(), "sync", "--frozen", "--extra", "npu", "--project", str(self.out), "--python", sys.executable]
        return subprocess.run([*argv, "--offline"], env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    links = tmp_path / "links"
    links.mkdir()
    # It asks for what is not there: the lock has decided to leave it out.
    base = write_wheel(links, "base", "1.0", requires=["no-such-package>=3"], files={"base.py": "number = 1\n"})
    upper = write_wheel(links, "up-per", "2.0+cpu", requires=["base"], files={"up_per.py": "import base\n"})
    packages = tuple(
        LockedPackage(name, version, (hashlib.sha256(path.read_bytes()).hexdigest(),))
        for name, version, path in (("base", "1.0", base), ("up-per", "2.0+cpu", upper))
    )
    settings = PipSettings(find_links=(PipSetting(str(links), "test"),), is_no_index=True)
    sources = (LockedSource("vllm", "https://host/vllm.git", "v1", False, "install"),)
    lock = Lock("tiny-1.0", TAG, "npuenv 1, uv 2", packages, (), sources)
    return World(links, lock, Resolver(LocalHost(), find_uv(), settings, {}), tmp_path / "out")


def test_uv_installs_the_locked_set_and_nothing_that_a_package_asks_for_beside_it(world: World) -> None:
    project = world.write()
    assert parse_toml(project.read_text())["project"]["optional-dependencies"] == {
        "npu": ["base==1.0", "up-per==2.0+cpu"]
    }
    assert "# built from source, not in here: vllm @ git+https://host/vllm.git@v1" in project.read_text()
    ran = world.sync()
    assert ran.returncode == 0, ran.stderr
    python = world.out / ".venv/bin/python"
    shown = subprocess.run([python, "-c", "import up_per; print(up_per.base.number)"], capture_output=True, text=True)
    assert shown.stdout == "1\n"


def test_a_file_that_changes_afterwards_is_refused_by_its_hash(world: World) -> None:
    world.write()
    write_wheel(world.links, "base", "1.0", files={"base.py": "number = 2\n"})
    ran = world.sync()
    assert ran.returncode != 0 and "hash" in ran.stderr.lower()


def test_a_file_that_the_lock_does_not_name_is_not_in_the_project(world: World) -> None:
    write_wheel(world.links, "base", "1.0", files={"base.py": "number = 2\n"})
    with pytest.raises(BadInput) as caught:
        world.write()
    assert caught.value.message.args["what"] == ("base 1.0",)
    assert not world.out.exists()


def test_files_of_the_main_index_come_before_those_of_an_extra_one(world: World, tmp_path: Path) -> None:
    """uv takes the files of a version from the first index that has it, and asks extra ones first."""
    main, extra = tmp_path / "main", tmp_path / "extra"
    for wheel in sorted(world.links.iterdir()):
        _serve(main, wheel)
    _serve(extra, write_wheel(tmp_path, "base", "1.0", files={"base.py": "number = 2\n"}))
    world.resolver = replace(world.resolver, settings=_indexes(main, extra))
    world.write()
    assert world.sync().returncode == 0


def test_what_only_an_extra_index_has_comes_from_there(world: World, tmp_path: Path) -> None:
    base, upper = sorted(world.links.iterdir())
    _serve(tmp_path / "main", base)
    _serve(tmp_path / "extra", upper)
    world.resolver = replace(world.resolver, settings=_indexes(tmp_path / "main", tmp_path / "extra"))
    world.write()
    assert world.sync().returncode == 0


def _indexes(main: Path, extra: Path) -> PipSettings:
    return PipSettings(
        index_url=PipSetting(main.as_uri(), "test"), extra_index_urls=(PipSetting(extra.as_uri(), "test"),)
    )


def _serve(index: Path, wheel: Path) -> None:
    """A wheel on an index that is a folder."""
    folder = index / wheel.name.partition("-")[0].replace("_", "-")
    folder.mkdir(parents=True)
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{quote(wheel.name)}#sha256={digest}">{wheel.name}</a>')


def test_an_index_of_a_package_is_named_without_its_password(world: World) -> None:
    lock = replace(world.lock, packages=(replace(world.lock.packages[0], index="cpu"),))
    resolver = replace(world.resolver, settings=PipSettings(), indexes={"cpu": "https://me:secret@host/whl"})
    project = parse_toml(_project(lock, Platform(platform.machine(), PYTHON), resolver))
    assert project["tool"]["uv"]["index"] == [{"name": "cpu", "url": "https://host/whl", "explicit": True}]


def test_what_the_indexes_do_not_have_ends_without_a_project(world: World) -> None:
    (world.links / "base-1.0-py3-none-any.whl").unlink()
    with pytest.raises(CannotTell) as caught:
        world.write()
    assert "base" in say(caught.value.message) and not world.out.exists()


def test_a_partial_lock_and_another_project_are_refused(world: World) -> None:
    world.out.mkdir()
    project = world.out / "pyproject.toml"
    project.write_text("[project]\nname = 'mine'\n")
    with pytest.raises(BadInput) as caught:
        world.write()
    assert caught.value.message.key == "lock.other-project" and "mine" in project.read_text()
    project.unlink()
    (world.out / "uv.lock").write_text("mine")
    with pytest.raises(BadInput):
        world.write()
    (world.out / "uv.lock").unlink()
    bare = replace(world.lock.packages[0], sha256=())
    world.lock = replace(world.lock, packages=(bare,), missing=(Missing("base", "1.0", "not-on-index"),))
    with pytest.raises(BadInput) as caught:
        world.write()
    assert caught.value.message.key == "lock.export-partial"
