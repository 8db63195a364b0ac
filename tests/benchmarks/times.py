"""Times of the road's parts on this machine, each beside something familiar that is run in the same minute.

    python -m tests.benchmarks.times [--repeat 5]

Prints the median and the minimum in seconds, and the ratio to the yardstick. Nothing is asserted: machines differ.
Needs the CPU stack (`npuenv install cpu --yes`); `install` is timed on an environment that stands already.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NPUENV = (sys.executable, "-m", "npuenv")


def seconds(argv: tuple[str, ...], repeat: int) -> list[float]:
    """Wall times of a command, its output thrown away; any exit code will do."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    from npuenv.install.environments import default_environment

    python = str(default_environment("cpu") / "bin" / "python")
    empty = (sys.executable, "-c", "pass")
    torch = (python, "-c", "import torch")
    collect = (python, "-m", "torch.utils.collect_env")
    rows = [
        ("import npuenv.cli.app", (sys.executable, "-c", "import npuenv.cli.app"), empty, repeat),
        ("npuenv resolve verl-0.7.1-cann8.5.0", (*NPUENV, "resolve", "verl-0.7.1-cann8.5.0"), empty, repeat),
        ("npuenv doctor --for cpu", (*NPUENV, "doctor", "--for", "cpu"), collect, repeat),
        ("npuenv doctor (the CPU stack's Python)", (*NPUENV, "doctor", "--python", python), collect, repeat),
        ("npuenv install cpu (complete already)", (*NPUENV, "install", "cpu", "--yes"), torch, repeat),
        ("npuenv smoke-train", (*NPUENV, "smoke-train"), torch, max(repeat // 2, 1)),
    ]
    names = {empty: "python -c pass", torch: "python -c 'import torch'", collect: "torch.utils.collect_env"}
    print(f"{'command':42} {'median':>8} {'minimum':>8}   beside")
    for name, argv, yardstick, count in rows:
        ours, theirs = seconds(argv, count), seconds(yardstick, count)
        ratio = statistics.median(ours) / statistics.median(theirs)
        beside = f"{ratio:.1f} x {names[yardstick]} ({statistics.median(theirs):.2f})"
        print(f"{name:42} {statistics.median(ours):8.2f} {min(ours):8.2f}   {beside}")


if __name__ == "__main__":
    main()
