"""Runs of the trainer in a Ray of the tests' own, with a home of its own; and what their records say."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.trainer_cases import of_a_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer.config import Config
    from trainer.placement.rank import Place

NO_RAY = "Ray is not installed in this interpreter: these tests run beside the stack cpu-full, which has it"
HAS_RAY = importlib.util.find_spec("ray") is not None
NEEDS_RAY = [pytest.mark.slow, pytest.mark.full, pytest.mark.skipif(not HAS_RAY, reason=NO_RAY)]
LIMIT_S = 240.0

Record = dict[str, Any]


@dataclass(frozen=True)
class Home:
    """A folder with a short name, and the variables of programs that live there."""

    folder: Path
    environ: Mapping[str, str]


@contextlib.contextmanager
def home() -> Iterator[Home]:
    """Sockets of Ray lie there: a path of pytest's would be too long for them."""
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    environ = {name: value for name, value in of_a_child().items() if not name.startswith("RAY_")}
    environ |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    environ |= {"RAY_agent_register_timeout_ms": "120000", "RAY_AUTH_MODE": "disabled"}
    try:
        yield Home(folder, environ)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def head(at: Home, *words: str) -> Iterator[str]:
    """A Ray that others have started, with 8 CPUs; its address."""
    port = free_port()
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=8"]
    argv += ["--min-worker-port=0", "--max-worker-port=0", "--include-dashboard=false", "--disable-usage-stats"]
    argv += ["--node-ip-address=127.0.0.1", f"--temp-dir={at.folder / 'ray'}", "--block", *words]
    log = (at.folder / "head.log").open("wb")
    with log, subprocess.Popen(argv, env=at.environ, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            wait_for(
                lambda: "Ray runtime started" in (at.folder / "head.log").read_text(errors="replace"), process=process
            )
            yield f"127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(
    is_true: Callable[[], bool], *, process: subprocess.Popen[Any] | None = None, limit_s: float = LIMIT_S
) -> None:
    """Waits for something, at most so long; not longer than a process lives."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert process is None or process.poll() is None, f"ended with {process.returncode}"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def is_gone(pid: int, limit_s: float = 120.0) -> bool:
    """Whether a process is no more, or a zombie, within a time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@contextlib.contextmanager
def places_of(config: Config, folder: Path) -> Iterator[list[Place]]:
    """Where a run of this configuration starts its generators, in a Ray of this process's own; logs go to `folder`."""
    from trainer.placement import CPU, read, workers
    from trainer.placement import cluster as clusters
    from trainer.placement.rank import Place

    layout = read(config)
    assert layout is not None
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(clusters.opened(config, layout, print))
        placement = cluster.placement(layout, CPU, limit_s=LIMIT_S, is_first=True)
        deadline = time.monotonic() + LIMIT_S
        group = workers._reserve(placement, cluster, stack, print, deadline, lambda: None)
        yield [
            Place(each, placement, group, each.name, folder / f"generator-{number}.log")
            for number, each in enumerate(placement.generators)
        ]


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@dataclass
class Trial:
    """A run of the trainer, and its folder."""

    process: subprocess.Popen[str]
    out: Path

    def records(self, kind: str | None = None) -> list[Record]:
        """What it has written so far."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if kind is None or each["kind"] == kind]

    def steps(self) -> list[int]:
        return [each["step"] for each in self.records("step")]

    def until_step(self, number: int) -> Trial:
        wait_for(lambda: number in self.steps(), process=self.process)
        return self

    def pid(self, rank: int) -> int:
        """Of a rank's process, as the last header says."""
        return int(self.records("header")[-1]["placement"]["pids"][rank])

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said, when it has ended."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@contextlib.contextmanager
def trial(at: Home, out: Path, *words: str, **more: str) -> Iterator[Trial]:
    """Starts `python -m trainer`; it is gone when the block ends."""
    argv = [sys.executable, "-m", "trainer", "--out", str(out), "probe_packages=false", *words]
    environ = {**at.environ, **more}
    process = subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield Trial(process, out)
    finally:
        process.kill()
        process.communicate()


def ran(at: Home, out: Path, *words: str, **more: str) -> tuple[int, str, Trial]:
    """A whole run: exit code, what it said, and its records."""
    with trial(at, out, *words, **more) as run:
        code, said = run.end()
        return code, said, run


def rewards(run: Trial) -> list[float]:
    """The mean reward of every step, in order."""
    return [each["critic/score/mean"] for each in run.records("step")]


def computed(records: Sequence[Record]) -> list[Record]:
    """What a run's steps came to, without times and memory."""
    left_out = ("timing", "perf/", "wall_s", "generators/", "learner/idle_s")
    return [
        {name: value for name, value in each.items() if not name.startswith(left_out)}
        for each in records
        if each["kind"] == "step"
    ]


def processes_of(at: Home) -> dict[int, str]:
    """The processes that live in a home, zombies aside: their numbers and command lines."""
    found = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            environ = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
            line = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if line and f"HOME={at.folder}".encode() in environ:
                found[int(number)] = line
    return found


def worker_actors(at: Home) -> list[int]:
    """The ranks and generators of the runs in a home."""
    return sorted(pid for pid, line in processes_of(at).items() if "ray::WorkerActo" in line)
