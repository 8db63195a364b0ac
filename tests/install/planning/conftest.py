"""What the plans that are carried out share: what uv keeps, and an inspector that is asked without a process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from npuenv.facts import conditions
from tests.support.inspecting import inspect_here

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests of this process: uv asks an interpreter once what it is. Its wheels it knows by their paths."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def own_uv(uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv without the settings of the shell; conditions of steps are asked without a process each."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setattr(conditions, "_inspect", inspect_here)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each test's own again: uv caches wheels by path, and these tests exchange them."""
    return tmp_path_factory.mktemp(request.node.name.partition("[")[0][:30])
