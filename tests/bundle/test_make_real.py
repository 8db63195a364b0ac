"""A published stack's bundle made from the real index, for the other architecture, and installed without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.bundle.make import BundleOptions, BundleRequest, gather, make_bundle
from npuenv.bundle.reader import open_bundle
from npuenv.bundle.sources import find_source
from npuenv.core.errors import CannotTell
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.store import find_lock
from npuenv.lock.uv import Resolver, find_uv, uv_platform
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import GitSource, Request, Stack

if TYPE_CHECKING:
    from npuenv.lock.file import LockedPackage

OFFLINE = ("unshare", "-rn")
NATIVE = {"arctic-inference"}  # a source that is compiled, which only the target itself can do
WITHOUT_AN_SDIST = {"mindspeed", "megatron-lm"}  # only their repositories have the versions that the stack takes
ROOM = 5 * 1024**3  # bytes: the archive, its parts while they are put together, and the installed packages


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long
def test_the_stack_of_cann_8_5_0_installs_offline_for_aarch64_with_every_hash_checked(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip("not enough room for a whole stack")
    request = Request(framework="verl", cann="8.5.0", arch="aarch64")
    stack = resolve(request, load_matrix())
    assert isinstance(stack, Stack)
    lock = find_lock(stack, tmp_path)
    assert lock is not None and lock.is_complete
    resolver = Resolver(LocalHost(), find_uv(), pip_settings(LocalHost()), {})
    left_out = frozenset(source.name for source in stack.git_sources if not _can_be_had(source, stack, resolver))
    assert left_out <= WITHOUT_AN_SDIST
    wanted = BundleRequest(stack, lock, resolver, request, BundleOptions(left_out=left_out))
    out = tmp_path / "whole.tar"
    try:
        make_bundle(gather(wanted, load_matrix()), out, tell=lambda told: None)
        with open_bundle(out, tmp_path) as bundle:
            assert bundle.lock == lock
            names = {source.name for source in stack.git_sources} - left_out
            assert {"vllm", "vllm-ascend", "verl"} <= names == set(bundle.sources)
            assert all(Path(path).stat().st_size > 100_000 for path in bundle.sources.values())
            target = _install(Path(bundle.wheels), [p for p in lock.packages if p.name not in NATIVE], stack, tmp_path)
        found = list(target.glob("*.dist-info"))
        assert len(found) == len([package for package in lock.packages if package.name not in NATIVE])
        tags = "".join((info / "WHEEL").read_text(encoding="utf-8") for info in found)
        assert "aarch64" in tags and "x86_64" not in tags
    finally:
        for place in (tmp_path / "target", tmp_path / "cache"):
            shutil.rmtree(place, ignore_errors=True)
        out.unlink(missing_ok=True)


def _can_be_had(source: GitSource, stack: Stack, resolver: Resolver) -> bool:
    """Whether a source's repository is in reach, or the index has the version as an sdist."""
    try:
        find_source(source, stack.platform, resolver, given={}, left_out=frozenset())
    except CannotTell:
        return False
    return True


def _install(wheels: Path, packages: list[LockedPackage], stack: Stack, folder: Path) -> Path:
    """The folder into which uv has put the packages of another platform, in a namespace without a network."""
    lines = [f"{p.name}=={p.version} {' '.join(f'--hash=sha256:{h}' for h in p.sha256)}\n" for p in packages]
    (folder / "list.txt").write_text("".join(lines), encoding="utf-8")
    place = ("--target", str(folder / "target"), "--link-mode", "hardlink")
    form = ("--python-platform", uv_platform(stack.platform), "--python-version", stack.platform.python)
    options = ("--offline", "--no-index", "--find-links", str(wheels), "--no-deps", "--require-hashes")
    argv = (*OFFLINE, find_uv(), "pip", "install", *options, *form, *place, "-r", str(folder / "list.txt"))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=700)
    assert ran.returncode == 0, ran.stderr
    return folder / "target"
