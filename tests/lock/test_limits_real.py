"""The limits that no package declares, shown on the packages themselves: what breaks, and what the limit leaves."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.app import Progress
from npuenv.app.resolution import this_resolver
from npuenv.core.errors import NothingFits
from npuenv.host.local import LocalHost
from npuenv.install.target import find_python
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.registry, pytest.mark.slow]
# Limit: what to run, what breaks it, what the limit leaves.
SHOWN = {
    "limit.pyarrow-numpy1": (
        ("-c", "import pyarrow"),
        ("numpy==1.26.4", "pyarrow==26.0.1"),
        ("numpy==1.26.4", "pyarrow==25.0.0"),
    ),
    "limit.ray-click": (
        ("-m", "ray.scripts.scripts", "--version"),
        ("ray[default]==2.48.0", "click==8.3.1"),
        ("ray[default]==2.48.0", "click==8.2.1"),
    ),
    "limit.datasets-pyarrow21": (
        ("-c", "import datasets"),
        ("datasets==2.14.4", "pyarrow==21.0.0", "fsspec==2023.6.0"),
        ("datasets==2.16.1", "pyarrow==21.0.0", "fsspec==2023.6.0"),
    ),
}


def runs(folder: Path, interpreter: str, what: tuple[str, ...], *requirements: str) -> subprocess.CompletedProcess[str]:
    """The outcome of running something in a fresh environment with these packages and what they need."""
    resolver = this_resolver(Progress())
    python = str(folder / "bin" / "python")
    assert resolver.run(("venv", "-q", "--python", interpreter, str(folder))).code == 0
    installed = resolver.run(("pip", "install", "--python", python, *requirements))
    assert installed.code == 0, installed.err
    return subprocess.run([python, "-I", *what], capture_output=True, text=True, timeout=400, check=False)


def test_every_limit_is_shown() -> None:
    assert set(SHOWN) == {row.id for row in load_matrix().limits if not row.is_imported}


@pytest.mark.parametrize(
    "limit", [pytest.param(each, marks=pytest.mark.long) if n else each for n, each in enumerate(SHOWN)]
)
def test_the_limit_is_where_it_breaks(tmp_path: Path, limit: str) -> None:
    what, broken, whole = SHOWN[limit]
    row = next(row for row in load_matrix().limits if row.id == limit)
    interpreter = sys.executable
    if row.python:
        try:
            interpreter = find_python(LocalHost(), row.python[0], platform.machine())
        except NothingFits:
            pytest.skip(f"the limit is about Python {row.python[0]}, and there is none here")
    assert runs(tmp_path / "broken", interpreter, what, *broken).returncode != 0
    good = runs(tmp_path / "whole", interpreter, what, *whole)
    assert good.returncode == 0, good.stderr
