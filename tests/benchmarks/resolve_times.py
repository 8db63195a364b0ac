"""Times of the resolver: reading the tables, every published request, every recorded conflict; and its memory.

    python -m tests.benchmarks.resolve_times

Beside reading the tables stands what the same files cost to parse and no more, in the same minute. Nothing is asserted:
machines differ.
"""

from __future__ import annotations

import functools
import resource
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.documents import load_toml
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.release_stacks import all_recipes
from npuenv.matrix.tables import Table
from npuenv.resolve import published, resolve
from npuenv.resolve.types import Request

ROOT = Path(__file__).resolve().parent.parent.parent

if TYPE_CHECKING:
    from collections.abc import Callable

REPEAT = 5
CASES = ROOT / "tests" / "resolve" / "cases"


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of a call: other processes on the machine do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def spread(times: list[float]) -> str:
    """Median and maximum in milliseconds."""
    return f"median {statistics.median(times) * 1e3:7.1f}   most {max(times) * 1e3:7.1f}"


def parse(folder: Path) -> None:
    """Parses the tables and looks at nothing."""
    for path in folder.rglob("*.toml"):
        load_toml(path)


def read(folder: Path) -> None:
    """Reads every table into rows."""
    matrix = Matrix(folder)
    for name, each in vars(Matrix).items():
        if isinstance(each, functools.cached_property | Table):
            getattr(matrix, name)


def main() -> None:
    """Prints the table."""
    matrix = load_matrix()
    pages = [seconds(lambda: parse(matrix.folder)) for _ in range(REPEAT)]
    reads = [seconds(lambda: read(matrix.folder)) for _ in range(REPEAT)]
    derives = [seconds(lambda: all_recipes(Matrix(matrix.folder))) for _ in range(REPEAT)]
    print(f"{'parse the tables (tomli)':44} {spread(pages)} ms")
    print(f"{'read the tables':44} {spread(reads)} ms   {_ratio(reads, pages)}")
    print(f"{'recipes read, those of releases derived':44} {spread(derives)} ms   {_ratio(derives, pages)}")
    requests = [request for request, _ in published(matrix)]  # also fills the caches
    stacks = [_best(request, matrix) for request in requests]
    print(f"{f'resolve {len(stacks)} published requests':44} {spread(stacks)} ms")
    cases = {path.stem: Request(**load_toml(path)["request"]) for path in sorted(CASES.glob("conflict-*.toml"))}
    conflicts = {name: _best(request, matrix) for name, request in cases.items()}
    slowest = max(conflicts, key=lambda name: conflicts[name])
    print(f"{f'resolve {len(conflicts)} recorded conflicts':44} {spread([*conflicts.values()])} ms   ({slowest})")
    tracemalloc.start()
    fresh = Matrix(matrix.folder)
    for request in cases.values():
        resolve(request, fresh)
    print(f"{'memory of tables and all conflicts, peak':44} {tracemalloc.get_traced_memory()[1] / 2**20:7.1f} MiB")
    print(f"{'this process, peak':44} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:7.1f} MiB")


def _best(request: Request, matrix: Matrix) -> float:
    """The best of two: the first may pay for what later ones find cached."""
    return min(seconds(lambda: resolve(request, matrix)) for _ in range(2))


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(ours) / statistics.median(theirs):.1f} x parsing"


if __name__ == "__main__":
    main()
