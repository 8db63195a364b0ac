"""What an installation costs over uv alone, and its verification over reading and hashing the same files.

    python -m tests.benchmarks.install_times [--stack cpu-full] [--repeat 3] [--wheels DIR]

Both put the lock's packages into a new environment from one folder of wheels (fetched into DIR first), with files
copied: a hard link would share them with uv's cache. Cold is with an empty cache, warm with a filled one; the two take
turns, so that whatever else the machine does hits both. uv alone is `uv venv` and one `uv pip sync`. Verification is
the inspector's, every file hashed, without the imports that are tried afterwards. Printed are medians in seconds,
ratios, peak memory, and uv with its default link mode for comparison; nothing is asserted.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import pickle
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npuenv.core.plan import Plan
    from npuenv.install.executor import Event
    from npuenv.lock.file import Lock
    from npuenv.resolve.types import Stack

ROOT = Path(__file__).resolve().parent.parent.parent
CHUNK = 1 << 20


def seconds_of(argv: list[str], environ: dict[str, str]) -> float:
    """The wall time of a program that must succeed."""
    began = time.perf_counter()
    ran = subprocess.run(argv, env=environ, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: {ran.stderr}")
    return time.perf_counter() - began


def install_here(job: str) -> None:
    """The work of a child: executes the pickled plan, prints times by step and this process's own peak memory."""
    from npuenv.host.local import LocalHost
    from npuenv.install.executor import ExecutionContext, StepEvent, execute

    root, plan, settings = pickle.loads(Path(job).read_bytes())
    steps: dict[str, float] = {}
    last = began = time.perf_counter()

    def tell(event: Event) -> None:
        nonlocal last
        if event.state in (StepEvent.DONE, StepEvent.SKIPPED):
            now = time.perf_counter()  # with the conditions that were asked before
            steps[event.step.id], last = now - last, now

    outcome = execute(plan, ExecutionContext(LocalHost(), root, settings, tell))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total_s = time.perf_counter() - began
    print(json.dumps({"total": total_s, "steps": steps, "peak_mib": peak_mib, "done": outcome.done}))


def hash_here(root: str) -> None:
    """The work of a child: reads and hashes every file that the RECORDs name, one after the other."""
    site = next(Path(root).glob("lib/python*/site-packages"))
    began = time.perf_counter()
    num_files = num_bytes = 0
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8") as rows:
            paths = [site / row[0] for row in csv.reader(rows) if not row[0].endswith(".pyc")]
        for path in paths:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    num_bytes += len(chunk)
            num_files += 1
    print(json.dumps({"total": time.perf_counter() - began, "files": num_files, "mib": num_bytes / 2**20}))


def child(*argv: str, environ: dict[str, str]) -> dict[str, Any]:
    """What a child of this script printed."""
    ran = subprocess.run([sys.executable, __file__, *argv], env=environ, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def fetch(stack: Stack, lock: Lock, folder: Path) -> None:
    """Every wheel of the lock into the folder, as the machine's pip settings say."""
    folder.mkdir(parents=True, exist_ok=True)
    text = [
        " ".join([f"{each.name}=={each.version}", *(f"--hash=sha256:{h}" for h in each.sha256)])
        for each in lock.packages
    ]
    file = folder / "requirements.txt"
    is_there = file.exists() and file.read_text() == "\n".join(text) + "\n"
    if is_there and len(list(folder.glob("*.whl"))) == len(lock.packages):
        return
    file.write_text("\n".join(text) + "\n")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", str(folder)]
    seconds_of([*argv, "-r", str(file)], dict(os.environ))
    assert stack.platform.python == f"{sys.version_info.major}.{sys.version_info.minor}", stack.platform.python


class Bench:
    """One lock, one folder of wheels, and a new environment for each run."""

    def __init__(self, name: str, wheels: Path, scratch: Path) -> None:
        from npuenv.lock.file import read_lock
        from npuenv.lock.uv import find_uv
        from npuenv.matrix import load_matrix
        from npuenv.resolve import resolve
        from npuenv.resolve.types import Request, Stack

        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        found = resolve(Request(stack=name, arch=os.uname().machine, python=python), load_matrix())
        assert isinstance(found, Stack), found
        self.stack, self.scratch, self.wheels, self.uv = found, scratch, wheels, find_uv()
        self.lock = read_lock(ROOT / "lockfiles" / f"{name}.{found.platform.tag}.toml")
        fetch(found, self.lock, wheels)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        self.environ = {**clean, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        self.environ |= {"UV_CACHE_DIR": str(scratch / "cache"), "UV_NO_CONFIG": "1", "PYTHONPATH": str(ROOT)}
        self.number = 0

    def place(self, *, is_cold: bool) -> str:
        """A folder for the next environment; the cache is emptied first where the run is to be cold."""
        if is_cold:
            shutil.rmtree(self.environ["UV_CACHE_DIR"], ignore_errors=True)
        for old in self.scratch.glob("env*"):
            shutil.rmtree(old)
        os.sync()  # else the run pays for writing out what the one before it has left
        self.number += 1
        return str(self.scratch / f"env{self.number}")

    def uv_alone(self, *, is_cold: bool, link_mode: str = "copy") -> float:
        root = self.place(is_cold=is_cold)
        python = getattr(sys, "_base_executable", sys.executable)
        took = seconds_of([self.uv, "venv", "--quiet", "--no-project", "--python", python, root], self.environ)
        options = ["--quiet", "--no-index", "--find-links", str(self.wheels), "--require-hashes"]
        return took + seconds_of(
            [self.uv, "pip", "sync", "--python", f"{root}/bin/python", "--link-mode", link_mode, *options,
             str(self.wheels / "requirements.txt")],
            self.environ,
        )  # fmt: skip

    def installation(self, *, is_cold: bool) -> dict[str, Any]:
        root = self.place(is_cold=is_cold)
        job = self.scratch / "job"
        plan, settings = self.plan(root)
        job.write_bytes(pickle.dumps((root, plan, settings)))
        found = child("--install", str(job), environ=self.environ)
        found["copying"] = found["total"] - found["steps"]["verify"]
        found["hashing"] = child("--hash", root, environ=self.environ)
        python, inspector = f"{root}/bin/python", f"{root}/.npuenv/inspector.py"
        names = [f"{each.name}=={each.version}" for each in self.lock.packages]
        argv = [python, "-I", "-B", inspector, "verify", root, self.lock.hash, "--rehash", *names]
        found["proof"] = seconds_of(argv, self.environ)
        return found

    def plan(self, root: str) -> tuple[Plan, object]:
        from npuenv.facts.pip import PipSetting, PipSettings, for_uv
        from npuenv.install.components import Tools
        from npuenv.install.environments import EnvironmentPlace
        from npuenv.install.planning import plan_install

        links = (PipSetting(str(self.wheels), "$PIP_FIND_LINKS"),)
        settings = for_uv(PipSettings(find_links=links, is_no_index=True))
        python = getattr(sys, "_base_executable", sys.executable)
        tools = Tools(python, self.uv, settings, wheels=str(self.wheels))
        return plan_install(self.stack, self.lock, EnvironmentPlace(root), tools, activation="# none\n"), settings


def main() -> None:
    """Times everything and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", default="cpu-full")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wheels", type=Path, help="where the wheels lie or go (default: a folder that goes again)")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--install", help=argparse.SUPPRESS)
    parser.add_argument("--hash", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.install or asked.hash:
        return install_here(asked.install) if asked.install else hash_here(asked.hash)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        bench = Bench(asked.stack, asked.wheels or Path(scratch, "wheels"), Path(scratch))
        print(f"{asked.stack}: {len(bench.lock.packages)} packages, median of {asked.repeat}")
        for is_cold in (True, False):
            show(bench, asked.repeat, is_cold=is_cold)
        linked = statistics.median(bench.uv_alone(is_cold=False, link_mode="hardlink") for _ in range(asked.repeat))
        print(f"for comparison, warm with hard links into the cache: uv {linked:.2f} s")
    return None


def show(bench: Bench, repeat: int, *, is_cold: bool) -> None:
    """Both in turn, then the lines of the table."""
    pairs = [(bench.uv_alone(is_cold=is_cold), bench.installation(is_cold=is_cold)) for _ in range(repeat)]
    uv = statistics.median(alone for alone, _ in pairs)
    ours = statistics.median(each["copying"] for _, each in pairs)
    proof = statistics.median(each["proof"] for _, each in pairs)
    plain = statistics.median(each["hashing"]["total"] for _, each in pairs)
    peak_mib = max(each["peak_mib"] for _, each in pairs)
    last = pairs[-1][1]
    steps = ", ".join(f"{step} {took:.2f}" for step, took in last["steps"].items())
    size = f"{last['hashing']['files']} files, {last['hashing']['mib']:.0f} MiB"
    print(f"{'cold' if is_cold else 'warm'}: uv {uv:.2f} s, npuenv {ours:.2f} s, ratio {ours / uv:.2f}")
    print(f"      verification {proof:.2f} s, plain hashing {plain:.2f} s, ratio {proof / plain:.2f} ({size})")
    print(f"      peak memory of npuenv {peak_mib:.0f} MiB; last run by step: {steps}", flush=True)


if __name__ == "__main__":
    main()
