"""The doctor on environments that are really broken: it always reports in full, and the right check names the fault.

An environment is a copy of a healthy one (`bases`), changed by one function (`damage`, `starting`, `sets`, `real`).
`breaks.toml` says what has to be found, and by which check.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.checks.base import title
from npuenv.cli import main
from npuenv.core.messages import say
from tests.doctor.broken import sets
from tests.doctor.broken.bench import diagnose
from tests.doctor.broken.expect import LONGEST_S, SLOW_S, alarms, breaks, expected, incomplete, unnamed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.doctor.broken.bases import Bases
    from tests.doctor.broken.bench import Seen
    from tests.doctor.broken.expect import Expected
    from tests.support.forked import Program

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
ROWS = expected()
OFFLINE = [row for row in ROWS if not row.is_real]
REAL = [row for row in ROWS if row.is_real]
BREAKS = breaks()


FIRST = {row.must[0].check if row.must else "": row.name for row in reversed(OFFLINE) if not (row.is_slow or row.like)}


def marks(row: Expected) -> list[pytest.MarkDecorator]:
    """README's tests try the first row of each check, `.ci/run` one row of each kind, `.ci/run --all` all.

    Packages that do not fit together are named from an inventory: test_seeded_faults.py and test_machines.py show it.
    """
    if row.name in FIRST.values() and BREAKS[row.name].__module__ != sets.__name__:
        return []
    return [pytest.mark.slow, pytest.mark.long] if row.like else [pytest.mark.slow]


def _look(
    row: Expected, bases: Bases, healthy: Callable[..., Seen], folder: Path, doctor: Program
) -> tuple[Seen, Path]:
    """Breaks a copy, runs the doctor on it, and fails with all that is wrong with its report."""
    bench = bases.copy(row.base, folder)
    bench.options += row.options
    BREAKS[row.name](bench)
    capture = folder / "seen.json"
    seen = diagnose(bench, "--json", "--save", str(capture), doctor=doctor)
    complaints = list(incomplete(seen, SLOW_S if row.is_slow or row.is_real else LONGEST_S))
    if not complaints:
        complaints = [*unnamed(row, seen), *alarms(row, seen, healthy(row.base, *row.options))]
    assert complaints == [], "\n".join(complaints)
    return seen, capture


def _requires_text(row: Expected, seen: Seen, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as text, from the capture: the exit code is the same, and each check that names the fault is told."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as the program itself does
    code = main(["doctor", "--from", str(capture), *row.options])
    out = capsys.readouterr().out
    assert code == seen.code
    assert [each.check for each in row.must if say(title(each.check)) not in out] == []


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=marks(row)) for row in OFFLINE],
)
def test_the_report_is_complete_and_the_right_check_names_the_fault(
    row: Expected,
    bases: Bases,
    healthy: Callable[..., Seen],
    doctor: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, capture = _look(row, bases, healthy, tmp_path, doctor)
    _requires_text(row, seen, capture, capsys)


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the wheels chosen are those for x86_64")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=pytest.mark.long if row.like else ()) for row in REAL]
)
def test_the_report_on_real_wheels_is_complete_and_the_right_check_names_the_fault(
    row: Expected,
    bases: Bases,
    healthy: Callable[..., Seen],
    doctor: Program,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, capture = _look(row, bases, healthy, tmp_path, doctor)
    _requires_text(row, seen, capture, capsys)


@pytest.mark.parametrize("base", sorted({row.base for row in OFFLINE}))
def test_a_healthy_environment_raises_no_alarm(base: str, healthy: Callable[..., Seen]) -> None:
    seen = healthy(base)
    assert list(incomplete(seen)) == []
    assert seen.troubles == {}


@pytest.mark.registry
@pytest.mark.slow
def test_real_numpy_alone_raises_no_alarm(healthy: Callable[..., Seen]) -> None:
    seen = healthy("real-numpy", "--hash")
    assert list(incomplete(seen)) == []
    assert seen.troubles == {}


@pytest.mark.slow
def test_a_broken_environment_is_told_as_text_by_a_process_of_its_own(bases: Bases, tmp_path: Path) -> None:
    bench = bases.copy("small", tmp_path)
    BREAKS["torch_libraries_deleted"](bench)
    seen = diagnose(bench)
    assert (seen.code, seen.err) == (1, "")
    assert "missing: torch/lib/lib" in seen.out and say(title("python.files")) in seen.out


def test_every_row_has_its_function_and_every_function_its_row() -> None:
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(BREAKS)
    assert (len(OFFLINE) >= 80, len(REAL) >= 20) == (True, True)
    assert {row.like for row in ROWS} <= {"", *(row.name for row in OFFLINE if not row.is_slow and not row.like)}
