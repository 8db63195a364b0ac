"""Times of the doctor's look at an environment's files, beside `pip check` on the same environment in the same minute.

    python -m tests.benchmarks.doctor_files [--python EXE] [--repeat 5]

Prints how many files were looked at, and median and minimum in seconds of: the inventory as a whole (a process of the
target: versions, requirements, ownership, presence and size of every file), the part of it that is the interpreter's
own start, the hashes of all files, and the extension modules. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent.parent

if TYPE_CHECKING:
    from collections.abc import Callable


def seconds(do: Callable[[], object], repeat: int) -> list[float]:
    """Wall times of a call."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        do()
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeat", type=int, default=5)
    words = parser.parse_args()
    from npuenv.facts.python import ask, packages
    from npuenv.facts.python.packages import elf
    from npuenv.host.local import LocalHost

    host, python = LocalHost(), words.python
    answer = ask(host, python, "inventory", timeout_s=120.0)
    found, files = packages.packages(answer).value, packages.files(answer).value
    assert found is not None and files is not None, answer.evidence
    extensions = [path for paths in found.extensions.values() for path in paths]
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("python -c pass", lambda: host.run((python, "-I", "-c", "pass")), words.repeat),
        (
            f"inventory, {files.looked} files",
            lambda: ask(host, python, "inventory", timeout_s=120.0),
            words.repeat,
        ),
        (
            "hashes of all files",
            lambda: ask(host, python, "hashes", timeout_s=120.0),
            max(words.repeat // 2, 1),
        ),
        (
            f"{len(extensions)} extension modules",
            lambda: elf(host, extensions, near=[], timeout_s=60.0),
            words.repeat,
        ),
        ("pip check", lambda: subprocess.run((python, "-m", "pip", "check"), capture_output=True, check=False), 3),
    ]
    print(f"{'what':32} {'median':>8} {'minimum':>8}")
    for name, do, repeat in rows:
        times = seconds(do, repeat)
        print(f"{name:32} {statistics.median(times):8.3f} {min(times):8.3f}")


if __name__ == "__main__":
    main()
