"""A whole installation from a bundle in a namespace without a network: by the command, by the bundle's own script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv import __version__
from npuenv.facts.manifest import describe
from npuenv.host.local import LocalHost
from tests.support.sentences import says

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.registry, pytest.mark.slow, pytest.mark.long]

OFFLINE = ("unshare", "-rn")
ROOM = 5 * 1024**3  # bytes: the bundle, what is unpacked of it, two environments
ROOT = Path(__file__).parents[2]


def run(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with a home of its own: nothing of this machine's environments or caches helps it.

    Without a network it does not see pip's settings either, with their folders of wheels.
    """
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C", "PYTHONPATH": str(ROOT)}
    if argv[: len(OFFLINE)] == OFFLINE:
        own["PIP_CONFIG_FILE"] = os.devnull
    else:
        own |= {key: text for key, text in os.environ.items() if key.startswith("PIP_") or key.endswith("_proxy")}
    return subprocess.run(argv, env=own, capture_output=True, text=True, timeout=800, cwd=home)


def npuenv(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "npuenv", *words)


def is_proven(root: Path) -> bool:
    found = describe(LocalHost(), str(root.resolve()))
    return found is not None and found.is_proven and found.origin == "bundle"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("unshare") is None or subprocess.run([*OFFLINE, "true"], check=False).returncode != 0:
        pytest.skip("no network namespace can be made here")
    home = tmp_path_factory.mktemp("connected")
    if shutil.disk_usage(home).free < ROOM:
        pytest.skip("not enough room for a whole stack")
    ran = run(home, *npuenv("bundle", "cpu", "--yes", "-o", str(home / "cpu.tar")))
    assert ran.returncode == 0, ran.stderr
    yield home / "cpu.tar"
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
def _room(tmp_path: Path) -> Iterator[None]:
    """Nothing of the gigabytes is kept as pytest keeps other folders of tests."""
    yield
    shutil.rmtree(tmp_path)


def test_the_command_installs_from_a_bundle_where_there_is_no_network(bundle: Path, tmp_path: Path) -> None:
    ran = run(tmp_path, *OFFLINE, *npuenv("install", "--offline", str(bundle), "--yes"))
    assert ran.returncode == 0, ran.stderr
    root = tmp_path / ".local/share/npuenv/envs/cpu/current"
    assert is_proven(root) and says(ran.stdout + ran.stderr, "cli.installed")
    torch = run(tmp_path, *OFFLINE, str(root / "bin/python"), "-I", "-c", "import torch; print(torch.ones(2).sum())")
    assert torch.stdout == "tensor(2.)\n", torch.stderr


def test_the_script_of_a_bundle_installs_where_there_is_no_network(bundle: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(bundle, tmp_path / "bundle", filter="data")
    (script,) = (tmp_path / "bundle").glob("*/install.sh")
    ran = run(
        tmp_path, *OFFLINE, "env", "-u", "PYTHONPATH", f"NPUENV_PYTHON={sys.executable}", "sh", str(script), "--yes"
    )
    assert ran.returncode == 0, ran.stderr
    data = tmp_path / ".local/share/npuenv"
    assert is_proven(data / "envs/cpu/current")
    assert (data / f"program/{__version__}/bin/npuenv").exists()


def test_a_bundle_with_one_altered_byte_installs_nothing(bundle: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered.tar"
    shutil.copy(bundle, altered)
    with altered.open("r+b") as file:
        file.seek(bundle.stat().st_size // 2)  # within the largest wheel
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    ran = run(tmp_path, *OFFLINE, *npuenv("install", "--offline", str(altered), "--yes"))
    assert ran.returncode == 2 and "altered.tar" in ran.stderr, ran.stderr
    assert not list((tmp_path / ".local/share/npuenv").glob("envs/cpu/*"))
