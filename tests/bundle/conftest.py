"""A folder of tiny wheels as the only index, a stack of them for either architecture, and small ready-made bundles."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from npuenv.bundle.layout import FileRow, Manifest, SourceRow, manifest_text, request_values, settle, write_tar
from npuenv.bundle.make import BundleOptions, BundleRequest, Contents, gather, make_bundle
from npuenv.bundle.self_package import BOOTSTRAP, own_requirements
from npuenv.core.messages import Message
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.file import Lock, LockedPackage, write_lock
from npuenv.lock.make import make_lock
from npuenv.lock.uv import Resolver, find_uv, write_wheel
from npuenv.matrix import load_matrix
from npuenv.resolve.types import BuildStep, GitSource, Pin, Platform, Reason, Request, Stack
from tests.support.archives import pack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.bundle.fetch import DownloadProgress

HERE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[HERE]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
INDEXES = {"pytorch-cpu": "https://index.invalid/whl/cpu/"}
# What npuenv's own requirements require.
FURTHER = ("certifi", "charset-normalizer", "idna", "markdown-it-py", "markupsafe", "mdurl", "pygments", "urllib3")
WHY = Message("plan.why-rest")


@dataclass(slots=True)
class Shop:
    """A folder that pip's find-links names, and what is made from it."""

    wheels: Path
    home: Path
    arch: str = OTHER
    git_sources: tuple[GitSource, ...] = ()
    told: list[DownloadProgress] = field(default_factory=list)

    @property
    def resolver(self) -> Resolver:
        return Resolver(LocalHost(), find_uv(), pip_settings(LocalHost()), INDEXES)

    @property
    def stack(self) -> Stack:
        reason = Reason(WHY)
        return Stack(
            name="tiny",
            framework="cpu",
            platform=Platform(self.arch, PYTHON),
            pins=(Pin("torch", "9.1+cpu", reason, reason, "wheel-exists", "pytorch-cpu"),),
            requirements=("tools", "pure-source"),
            overrides=(),
            git_sources=self.git_sources,
            order=(BuildStep("torch", "pip", ("torch",), WHY), BuildStep("rest", "rest", (), WHY)),
            env={},
            image=None,
            cann_root=None,
            soc_version=None,
            system_packages=("g++",),
            verified_by="measured-here",
            sources=(),
        )

    def request(self, **more: object) -> BundleRequest:
        lock, options = make_lock(self.stack, self.resolver), BundleOptions(**more)  # type: ignore[arg-type]
        return BundleRequest(self.stack, lock, self.resolver, Request(stack="tiny", arch=self.arch), options)

    def gather(self, **more: object) -> Contents:
        return gather(self.request(**more), load_matrix())

    def make(self, out: Path, **more: object) -> Manifest:
        return make_bundle(self.gather(**more), out, tell=self.told.append)


@pytest.fixture
def shop(tmp_path: Path, home: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Wheels for both architectures, one package that is a source only, and stand-ins for what npuenv itself needs."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    # Asked for another Python than this one, uv starts each on PATH; those of pyenv and asdf are slow scripts.
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(each for each in folders if Path(each).name != "shims"))
    for arch in (HERE, OTHER):
        tag = f"{TAG}-{TAG}-manylinux_2_28_{arch}"
        write_wheel(wheels, "torch", "9.1+cpu", requires=["numbers"], files={"torch/arch.txt": arch}, tag=tag)
        for old in ("manylinux2014", "manylinux_2_28"):
            files = {"numbers_a.py": f"A = '{arch} {old}'\n"}
            write_wheel(wheels, "numbers", "2.4", files=files, tag=f"{TAG}-{TAG}-{old}_{arch}")
    write_wheel(wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": "C = 3\n"})
    write_sdist(wheels, "pure-source", "1.2")
    for distribution in ("setuptools", "wheel"):
        stand_in(wheels, distribution)
    for name in (*(Requirement(line).name for line in own_requirements()), *FURTHER, BOOTSTRAP):
        stand_in(wheels, name)
    return Shop(wheels, home)


def write_sdist(folder: Path, name: str, version: str) -> Path:
    """A source distribution of one module, built with what setup.py alone says."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "setup.py": f"import setuptools\nsetuptools.setup(name={name!r}, version={version!r}, py_modules=['pure'])\n",
        "pure.py": "VALUE = 7\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
    }
    return pack(folder, stem, files)


def stand_in(folder: Path, name: str) -> None:
    """A wheel of a distribution that is installed here, with nothing in it."""
    write_wheel(folder, name, version_of(name), files={f"stand_in_{name.replace('-', '_')}.py": ""})


def version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "99.0"


def repacked(folder: Path, name: str) -> Path:
    """The wheel that an installed distribution came from, as far as its files tell."""
    dist = importlib.metadata.distribution(name)
    tag = next(
        line.partition(": ")[2] for line in (dist.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")
    )
    site = Path(str(dist.locate_file("")))
    stem = next(file.parts[0] for file in dist.files or () if file.name == "METADATA").removesuffix(".dist-info")
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in dist.files or ():
            place = site / file
            if place.is_file() and ".." not in file.parts and file.suffix != ".pyc" and file.name != "RECORD":
                archive.write(place, str(file))
        if name == "uv":  # its program lies in the environment's bin, and in the wheel's scripts
            archive.write(find_uv(), f"{stem}.data/scripts/uv")
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(f"{entry},,\n" for entry in archive.namelist()))
    return path


def git(folder: Path, *argv: str) -> str:
    """Runs git as nobody in particular, at a fixed time."""
    who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"]}
    options = ("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main")
    ran = subprocess.run(
        ["git", *options, *argv], cwd=folder, env={**own, **who, **when}, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def repository(folder: Path, files: Mapping[str, str], tag: str = "") -> str:
    """A repository with one commit; the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "one")
    if tag:
        git(folder, "tag", "-a", "-m", tag, tag)
    return git(folder, "rev-parse", "HEAD")


def small_bundle(folder: Path) -> Manifest:
    """A valid bundle of a few bytes with a file of every kind."""
    lock = Lock("tiny", "aarch64-cp311-glibc2.28", "npuenv 0", (LockedPackage("one", "1", ("0" * 64,)),))
    contents = {
        "install.sh": ("program", b"#!/bin/sh\n"),
        "npuenv-doctor.pyz": ("program", b"doctor"),
        "locks/tiny.toml": ("lock", write_lock(lock).encode()),
        "wheels/one-1-py3-none-any.whl": ("wheel", b"wheel" * 300),
        "wheels/two-1.tar.gz": ("sdist", b"sdist"),
        "wheels/setuptools-80-py3-none-any.whl": ("build", b"build"),
        "tools/npuenv-0.1.0-py3-none-any.whl": ("tool", b"tool"),
        f"sources/{'long-' * 30}name.tar": ("source", b"source" * 100),
        "python/python.tar": ("python", b"python"),
        "cann/toolkit.run": ("cann", b""),
    }
    for path, (_, data) in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    rows = tuple(
        FileRow(path, kind, len(data), hashlib.sha256(data).hexdigest())
        for path, (kind, data) in sorted(contents.items())
    )
    source = next(row.path for row in rows if row.kind == "source")
    sources = (SourceRow("name", source, "git", "https://git.invalid/name", "v1", "a" * 40, False, "install"),)
    request = request_values(Request(stack="tiny", arch="aarch64"))
    manifest = Manifest(
        "0.1.0", "tiny", lock.platform, lock.hash, "locks/tiny.toml", request, ("3.11",), rows, sources, ()
    )
    (folder / "manifest.json").write_text(manifest_text(manifest), encoding="utf-8")
    settle(folder, ("install.sh", "npuenv-doctor.pyz"))
    return manifest


@pytest.fixture
def bundle_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    small_bundle(folder)
    return folder


@pytest.fixture
def bundle_archive(bundle_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "bundle.tar"
    write_tar(bundle_folder, path, top="npuenv-tiny", first=("manifest.json",))
    return path


def python_archive(path: Path, *, machine: int, version: str = "3.11") -> Path:
    """A small archive laid out as a whole Python, whose program claims to be for a machine."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine.to_bytes(2, "little")
    with tarfile.open(path, "w:gz") as archive:
        for name, data in ((f"python/bin/python{version}", head), ("python/lib/x", b"")):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{version}"
        archive.addfile(link)
    return path
