"""The environments that the tests of this folder break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doctor.broken.bases import Bases
from tests.doctor.broken.bench import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.doctor.broken.bench import Seen


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
