"""What several commands are tried on: a Python with nothing installed."""

from __future__ import annotations

import venv

import pytest


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version in an empty environment: the doctor looks through it at once."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")
