"""The trainer as npuenv starts it: a process in an empty folder with nothing but the package on its path.

One such run is judged by several tests: its records, what it says, and what it has imported by its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.trainer.shared import LIMIT_S, once
from tests.trainer.trainer_cases import ROOT, read

# -P is new in 3.11; before that the empty folder does its work.
_ISOLATED = ["-P"] if sys.version_info >= (3, 11) else []
# Python reads a module of this name when it starts.
_TELLS = """
import atexit, os, sys
def tell():
    with open(os.environ["TELL_IMPORTED"], "w") as file:
        file.write("\\n".join(sys.modules))
if "TELL_IMPORTED" in os.environ:
    atexit.register(tell)
"""


@dataclass(frozen=True)
class PlainRun:
    """How it ended: `files` are in its folder, `work` in the one it was started in."""

    code: int
    stdout: str
    stderr: str
    imported: list[str]
    records: list[dict[str, Any]]
    files: list[str]
    work: list[str]


def scene_in(folder: Path) -> Path:
    """The folder, with `path` that has the trainer alone, and `work` that has nothing."""
    (folder / "path").mkdir()
    (folder / "work").mkdir()
    (folder / "path" / "trainer").symlink_to(ROOT / "trainer", target_is_directory=True)
    return folder


def environment(scene: Path) -> dict[str, str]:
    """Torch's own folder is on the path too: it may have been lent to this interpreter by the path alone."""
    path = os.pathsep.join([str(scene / "path"), str(Path(torch.__file__).parent.parent)])
    return {**os.environ, "PYTHONPATH": path}


def start(scene: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *_ISOLATED, "-m", "trainer", *words],
        cwd=scene / "work",
        env={**environment(scene), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    return process.returncode, out, err


def plain_run() -> PlainRun:
    """Five steps at the default settings but for the seed."""
    return PlainRun(**once("plain-run", _run))


def _run(folder: Path) -> dict[str, Any]:
    scene, out = scene_in(folder), folder / "out"
    (scene / "path" / "sitecustomize.py").write_text(_TELLS)
    words = ["--out", str(out), "steps=5", "seed=3", "device=cpu"]
    code, stdout, stderr = finish(start(scene, *words, TELL_IMPORTED=str(folder / "imported")))
    return {
        "code": code,
        "stdout": stdout,
        "stderr": stderr,
        "imported": (folder / "imported").read_text().split() if (folder / "imported").exists() else [],
        "records": read(out) if out.exists() else [],
        "files": [str(path.relative_to(out)) for path in out.rglob("*")],
        "work": [path.name for path in (scene / "work").iterdir()],
    }
