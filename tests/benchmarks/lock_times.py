"""What a lock costs over uv alone, on this machine and from a warm cache, both timed in the same minute.

    python -m tests.benchmarks.lock_times [--stack verl-0.7.1-cann8.5.0] [--repeat 5]

uv alone resolves the very files that the lock asks it about, once. The lock asks twice (the set, then who needs what),
reads the answer and picks the hashes. Prints medians in seconds, the difference and the ratio; nothing is asserted.
Needs the package registry once to warm the cache; the timed runs stay offline, so that the network is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent


def seconds(work: Callable[[], object]) -> float:
    """The wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Times both in turn, so that whatever else runs on the machine hits both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", default="verl-0.7.1-cann8.5.0")
    parser.add_argument("--arch", default="aarch64")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    from npuenv.facts.pip import pip_settings
    from npuenv.host.local import LocalHost
    from npuenv.lock.inputs import inputs_of
    from npuenv.lock.make import make_lock
    from npuenv.lock.uv import Resolver, Supply, find_uv, pip_compile
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Request, Stack

    host, matrix = LocalHost(), load_matrix()
    stack = resolve(Request(stack=asked.stack, arch=asked.arch), matrix)
    assert isinstance(stack, Stack)
    indexes = {row.label: row.url for row in matrix.indexes if row.url}
    make_lock(stack, Resolver(host, find_uv(), pip_settings(host), indexes))
    resolver = Resolver(host, find_uv(), pip_settings(host), indexes, is_offline=True)

    def uv_alone() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ran = pip_compile(inputs_of(stack), Supply(), resolver, Path(folder), "--format", "pylock.toml", "--quiet")
            assert ran.code == 0, ran.err

    pairs = [(seconds(uv_alone), seconds(lambda: make_lock(stack, resolver))) for _ in range(asked.repeat)]
    uv, lock = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{asked.stack} on {asked.arch}, median of {asked.repeat}: uv alone {uv:.2f} s, lock {lock:.2f} s")
    print(f"over uv's own time {lock - uv:+.2f} s; ratio {lock / uv:.1f}")


if __name__ == "__main__":
    main()
