"""What a shell script starts: bash runs it where Python, Ray and downloads are stand-ins that note their words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_STAND_IN = """#!/bin/sh
case ${0##*/} in
  ray)
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
    [ $# -lt 2 ] || { shift; exec "$@"; } ;;
  uv)
    while [ $# -gt 0 ]; do case $1 in python*) exec "$@" ;; esac; shift; done ;;
  python* | torchrun)
    code=
    [ "$1" != -c ] || code=$2
    [ "$1" != - ] || code=$(cat)
    case $code in
      *get_device_name*) echo npu; exit ;;
      ?*) exec "$STARTED_PYTHON" -c "$code" ;;
    esac
    printf '%s\\0' "$@" >"$STARTED_IN/$$" ;;
  tee) exec cat ;;
  mkdir) for each in "$@"; do case $each in -* | /*) ;; *) "$STARTED_MKDIR" -p "$each" ;; esac; done ;;
esac
"""
_STOOD_FOR = ("python", "python3", "ray", "mkdir", "tee", "torchrun", "uv", "hf", "huggingface-cli", "pip", "pip3",
              "sleep", "git", "wget", "curl", "rm", "pkill", "npu-smi", "nvidia-smi")  # fmt: skip
_REAL = ("awk", "basename", "bash", "cat", "cut", "date", "dirname", "env", "grep", "head", "hostname", "id", "nproc",
         "readlink", "realpath", "sed", "seq", "sh", "sort", "tail", "tr", "true", "uname", "wc", "xargs")  # fmt: skip


@dataclass(frozen=True)
class Started:
    """`launches`: module and arguments of each Python program. `refused`: what the shell said where it failed."""

    launches: tuple[tuple[str, tuple[str, ...]], ...]
    refused: str


def started(script: Path, tree: Path) -> Started:
    """What a script starts from the top of a tree; a variable that it needs and nothing sets is given a value."""
    needed: dict[str, str] = {}
    while True:
        done = _run(script, tree, needed)
        found = re.search(r"(\w+): unbound variable", done.refused)
        if found is None or found[1] in needed:
            return done
        needed[found[1]] = "needed"


def _run(script: Path, tree: Path, needed: Mapping[str, str]) -> Started:
    """Nothing else of this machine is on the script's PATH."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, calls, home = (Path(scratch, name) for name in ("bin", "calls", "home"))
        for each in (folder, calls, home):
            each.mkdir()
        for name in _STOOD_FOR:
            (folder / name).write_text(_STAND_IN)
            (folder / name).chmod(0o755)
        for name in _REAL:
            if found := shutil.which(name):
                (folder / name).symlink_to(found)
        environ = {"PATH": str(folder), "HOME": str(home), "USER": "user", "LANG": "C.UTF-8"}
        environ |= {"STARTED_IN": str(calls), "STARTED_PYTHON": sys.executable, "STARTED_MKDIR": "/bin/mkdir", **needed}
        done = subprocess.run(
            ["bash", str(script)], cwd=tree, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False, errors="replace",
        )  # fmt: skip
        files = sorted(calls.iterdir(), key=os.path.getmtime)
        texts = [each.read_text(encoding="utf-8").replace(str(home), "/home/user") for each in files]
    words = [tuple(text.split("\0")[:-1]) for text in texts]
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    launches = tuple(filter(None, map(_launch, words)))
    return Started(launches, "".join(last)[-300:] or (f"exit {done.returncode}" if done.returncode else ""))


def _launch(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
    """(module, arguments) of a Python's words; None where they start no trainer: they prepare data, say."""
    at = next((at for at, word in enumerate(words) if word == "-m" or word.endswith(".py")), None)
    if at is None or at + 1 >= len(words):
        return None
    is_module = words[at] == "-m"
    module = words[at + 1] if is_module else words[at].removeprefix("./").removesuffix(".py").replace("/", ".")
    rest = words[at + 2 :] if is_module else words[at + 1 :]
    return (module, rest) if any("=" in word for word in rest) else None
