"""Ranks that are processes, for what threads cannot show: each runs a script and leaves what it found in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.shared import IMPORTS, LIMIT_S, forks
from tests.trainer.trainer_cases import ROOT, of_a_child, read

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN = """
import json, pathlib
import torch
torch.set_num_threads(1)
from trainer import launch
from trainer.distributed import join, leave
from trainer.device import backend
here = pathlib.Path({folder!r})
world = join(backend(torch.device("cpu")))
found = {{}}
"""
_END = """
(here / f"found-{world.rank}.json").write_text(json.dumps(found))
world.barrier()
leave(world)
launch.leave(0)
"""


# Imported once for the ranks of all tests; the last is what shards are made with, and takes longer than torch.
_IMPORTS = [*IMPORTS, "torch.distributed", "torch.distributed.fsdp"]


def on_processes(script: str, folder: Path, size: int = 2) -> list[dict[str, Any]]:
    """What each rank's script put into `found`; it has `world`, `here` (the folder) and imports from `tests`."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = as_ranks(_BEGIN.format(folder=str(folder)) + script + _END, folder=folder, size=size)
    assert [code for code, _ in ended] == [0] * size, "\n".join(said for _, said in ended)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]


def as_ranks(text: str, *words: str, folder: Path, size: int = 2) -> list[tuple[int, str]]:
    """Runs `python -c TEXT WORDS` once per rank: exit codes, and what was said to stderr."""
    imports = [name for name in _IMPORTS if find_spec(name) is not None]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        common = {"WORLD_SIZE": str(size), "TRAINER_RENDEZVOUS": f"{place}/rendezvous", "GLOO_SOCKET_IFNAME": "lo"}
        environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        ranks = [forks().start(text, *words, folder=folder, environ=environ, imports=imports) for environ in environs]
        ended = [each.end() for each in ranks]
    return [(code, said) for code, _, said in ended]


TRAINER = "import sys; from trainer import __main__, launch; launch.leave(__main__.main(sys.argv[1:]))"


def run_ranks(out: Path, *words: str, size: int = 2) -> list[dict[str, Any]]:
    """The records of a run whose ranks another launcher than the trainer's own has started."""
    out.mkdir(parents=True, exist_ok=True)
    settings = ["--out", str(out), "device=cpu", "probe_packages=false", f"ranks={size}", *words]
    ended = as_ranks(TRAINER, *settings, folder=out, size=size)
    assert [code for code, _ in ended] == [0] * size, ended
    return read(out)


def run_trainer(out: Path, *words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """`python -m trainer` on the CPU, without looking for Ray and vllm.

    One that does not end fails the test, with the place of every thread of every rank: nothing else would tell.
    """
    command = [sys.executable, "-m", "trainer", "--out", str(out), "device=cpu", "probe_packages=false", *words]
    environ = {**of_a_child(), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, complained = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            pytest.fail(f"no end within {limit_s} s\n{_last_words(process, out)}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the ranks of a launcher that has gone
    return subprocess.CompletedProcess(command, process.returncode, said, complained)


def _last_words(process: subprocess.Popen[str], out: Path) -> str:
    """What an aborted run, its ranks and its records say last."""
    said, complained = process.communicate(timeout=30)
    logs = {each.name: each.read_text(errors="replace") for each in sorted(out.glob("rank-*.log"))}
    records = (out / "metrics.jsonl").read_text().splitlines()[-3:] if (out / "metrics.jsonl").exists() else []
    parts = {"stdout": said, "stderr": complained, **logs, "records": "\n".join(records)}
    shown = {name: [line for line in text.splitlines() if "importlib" not in line] for name, text in parts.items()}
    return "\n".join("\n".join([f"--- {name}", *lines[-120:]]) for name, lines in shown.items())
