"""Times and memory of the doctor, beside tools that people use today, run in the same minute.

    python -m tests.benchmarks.doctor_times [--repeat 7] [--python TORCH_PYTHON]

Three machines: this one with an empty target interpreter, and a recorded one with 16 chips. Times are medians of wall
seconds of a whole process; the interpreter's own start stands in the first row and is taken off in the last column.
Memory is the largest resident set of the process itself. Nothing is asserted: machines differ.
`--python` names an interpreter with torch, for `python -m torch.utils.collect_env` (default: the CPU stack's).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NPUENV = (sys.executable, "-m", "npuenv")
# An installed npuenv has its byte code; a checkout whose shell forbids writing it compiles everything anew each time.
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
LOG_BYTES = 10 << 20
SIXTEEN_CHIPS = "a3-docker-verl080"


def measured(argv: tuple[str, ...]) -> tuple[float, float]:
    """(wall seconds, MiB of the largest resident set) of one run, its output thrown away; any exit code will do."""
    started = time.perf_counter()
    process = subprocess.Popen(argv, cwd=ROOT, env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def capture_of(machine_name: str, path: Path) -> None:
    """Writes the capture of a described machine, as `--save` would."""
    from npuenv.facts.collect import collect
    from npuenv.host.recorded import RecordingHost
    from tests.support.machines.composed import machine
    from tests.support.machines.simulated import SimulatedHost

    recording = RecordingHost(SimulatedHost(machine(machine_name)))
    collect(recording, level=1)
    path.write_text(recording.capture_text(), encoding="utf-8")


def long_log(path: Path) -> None:
    """A training log of 10 MB whose cause stands in its last lines."""
    line = "(WorkerDict pid=41) INFO 11-21 10:00:00 [loggers.py:127] Avg prompt throughput: 812.4 tokens/s, step {}\n"
    cause = "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n"
    with path.open("w", encoding="utf-8") as file:
        number = 0
        while file.tell() < LOG_BYTES:
            file.write(line.format(number))
            number += 1
        file.write(cause)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--python", help="an interpreter with torch")
    asked = parser.parse_args()
    from npuenv.install.environments import default_environment

    torch = asked.python or str(default_environment("cpu") / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        ENVIRON["PYTHONPYCACHEPREFIX"] = str(here / "bytecode")
        venv.create(here / "empty", with_pip=False)
        empty = str(here / "empty" / "bin" / "python")
        capture_of(SIXTEEN_CHIPS, here / "sixteen.json")
        long_log(here / "log")
        rows = {
            "python -c pass": (sys.executable, "-c", "pass"),
            "doctor --level 0, no card": (*NPUENV, "doctor", "--level", "0", "--python", empty),
            "doctor, no card, empty target": (*NPUENV, "doctor", "--python", empty),
            "doctor --json, no card, empty target": (*NPUENV, "doctor", "--json", "--python", empty),
            "doctor, recorded host with 16 chips": (*NPUENV, "doctor", "--from", str(here / "sixteen.json")),
            "doctor --from-report, log of 10 MB": (*NPUENV, "doctor", "--from-report", str(here / "log")),
            "python -m torch.utils.collect_env": (torch, "-m", "torch.utils.collect_env"),
            "pip check": (sys.executable, "-m", "pip", "check"),
        }
        for argv in rows.values():  # makes the byte code
            measured(argv)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(asked.repeat):  # in turn, so that a slow moment of the machine falls on all of them
            for name, argv in rows.items():
                found[name].append(measured(argv))
    start = statistics.median(seconds for seconds, _ in found["python -c pass"])
    print(f"{'command':40} {'median s':>9} {'minimum':>9} {'MiB':>6} {'beyond python s':>16}")
    for name, runs in found.items():
        times = [seconds for seconds, _ in runs]
        median, memory = statistics.median(times), max(mib for _, mib in runs)
        print(f"{name:40} {median:9.2f} {min(times):9.2f} {memory:6.0f} {median - start:16.2f}")


if __name__ == "__main__":
    main()
