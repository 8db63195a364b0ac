"""What the command `npuenv install` costs over uv alone where uv's cache holds everything, by phase.

    python -m tests.benchmarks.install_warm [--stack cpu-full] [--repeat 3] [--wheels DIR]

Both put the lock's packages, copied, into an environment that `uv venv` has just made: npuenv with `--into`, uv with
one call, from the same wheels with the same hashes. They take turns. npuenv also imports what it has installed; the
same modules are then imported once in uv's environment, in one process, which compiles them as npuenv's look does.
Printed are medians of wall and processor seconds (user and system, children included) with their ratios, and npuenv's
wall seconds by phase; `start` is all before the first step, `end` all after the last one. Nothing is asserted, and
everything that is made is removed.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.matrix import load_matrix
from tests.benchmarks.install_times import Bench, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable


def cost(do: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of a call that waits for its children."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    do()
    wall, after = time.time() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def uv_alone(bench: Bench) -> tuple[tuple[float, float], tuple[float, float]]:
    """What uv costs, and the first import after it."""
    python = empty(bench)
    options = ["--quiet", "--no-deps", "--no-index", "--find-links", str(bench.wheels), "--require-hashes"]
    argv = [bench.uv, "pip", "install", "--python", python, "--link-mode", "copy", *options]
    alone = cost(lambda: seconds_of([*argv, "-r", str(bench.wheels / "requirements.txt")], bench.environ))
    modules = ["torch", *(row.module for row in load_matrix().probes if bench.lock.package(row.distribution))]
    return alone, cost(lambda: seconds_of([python, "-I", "-c", f"import {', '.join(modules)}"], bench.environ))


def npuenv(bench: Bench, stack: str) -> tuple[tuple[float, float], dict[str, float]]:
    """The same of the whole command, and its wall seconds by phase."""
    python, home = empty(bench), bench.scratch / "home"
    environ = {**bench.environ, "XDG_DATA_HOME": f"{home}/data", "XDG_STATE_HOME": f"{home}/state"}
    argv = [sys.executable, "-m", "npuenv", "install", stack, "--into", python, "--yes", "--quiet"]
    began = time.time()
    took = cost(lambda: seconds_of(argv, environ))
    phases: dict[str, float] = {}
    last, phase = began, "start"
    for line in Path(python).parents[1].joinpath(".npuenv/journal.jsonl").read_text().splitlines():
        row = json.loads(line)
        phases[phase] = phases.get(phase, 0.0) + row["at"] - last
        last, phase = row["at"], row["step"] if row["state"] == "start" else "end"
    phases["end"] = phases.get("end", 0.0) + began + took[0] - last
    shutil.rmtree(home)
    return took, phases


def empty(bench: Bench) -> str:
    """The Python of a new environment; those before are removed."""
    root = bench.place(is_cold=False)
    python = getattr(sys, "_base_executable", sys.executable)
    seconds_of([bench.uv, "venv", "--quiet", "--no-project", "--python", python, root], bench.environ)
    return f"{root}/bin/python"


def main() -> None:
    """Times both in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", default="cpu-full")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wheels", type=Path, help="where the wheels lie or go (default: a folder that goes again)")
    parser.add_argument("--scratch", type=Path, help="where the environments go for the time of the run")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.scratch) as scratch:
        bench = Bench(words.stack, words.wheels or Path(scratch, "wheels"), Path(scratch))
        uv_alone(bench)  # fills the cache
        rows = [(*uv_alone(bench), *npuenv(bench, words.stack)) for _ in range(words.repeat)]
    print(f"{words.stack}: {len(bench.lock.packages)} packages, median of {words.repeat}")
    for number, what in enumerate(("wall", "processor")):
        uv, first, ours = ([row[part][number] for row in rows] for part in range(3))
        both = [alone + then for alone, then in zip(uv, first)]
        for name, other in (("uv", uv), ("uv, then the imports", both)):
            ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, other))
            medians = f"{name} {statistics.median(other):.2f} s   npuenv {statistics.median(ours):.2f} s"
            print(f"{what:10} {medians}   ratio {ratio:.2f}")
    for phase in dict.fromkeys(name for row in rows for name in row[3]):
        print(f"  {phase:12} {statistics.median(row[3].get(phase, 0.0) for row in rows):7.2f} s")


if __name__ == "__main__":
    main()
