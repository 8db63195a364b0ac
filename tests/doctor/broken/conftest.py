"""Lets this folder be imported as `broken`, and makes the environments that its tests break."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

PARENT = str(Path(__file__).resolve().parent.parent)
if PARENT not in sys.path:
    sys.path.insert(0, PARENT)

from broken.bases import Bases  # noqa: E402 - found through the line above
from broken.bench import diagnose  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from broken.bench import Seen


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="session")
def healthy(bases: Bases, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Seen]:
    """What the doctor says of an unbroken copy of a base: `healthy(base, *options)`."""
    known: dict[tuple[str, ...], Seen] = {}

    def look(base: str, *options: str) -> Seen:
        asked = (base, *options)
        if asked not in known:
            bench = bases.copy(base, tmp_path_factory.mktemp("healthy"))
            bench.options += options
            known[asked] = diagnose(bench, "--json")
        return known[asked]

    return look
