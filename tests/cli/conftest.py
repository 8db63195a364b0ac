"""What several commands are tried on: a Python with nothing installed, and the doctor in one file, packed once."""

from __future__ import annotations

import venv
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version in an empty environment: the doctor looks through it at once."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def packed_doctor(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor in one file is taken from a cache that all tests share: to pack it takes a second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
