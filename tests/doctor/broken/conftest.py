"""The environments that the tests of this folder break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doctor.broken.bases import Bases
from tests.doctor.broken.bench import diagnose, waiting_doctor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.doctor.broken.bench import Seen
    from tests.support.forked import Program


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="session")
def doctor() -> Iterator[Program]:
    with waiting_doctor() as program:
        yield program


@pytest.fixture(scope="session")
def healthy(bases: Bases, doctor: Program, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Seen]:
    """What the doctor says of an unbroken copy of a base: `healthy(base, *options)`."""
    known: dict[tuple[str, ...], Seen] = {}

    def look(base: str, *options: str) -> Seen:
        asked = (base, *options)
        if asked not in known:
            bench = bases.copy(base, tmp_path_factory.mktemp("healthy"))
            bench.options += options
            known[asked] = diagnose(bench, "--json", doctor=doctor)
        return known[asked]

    return look
