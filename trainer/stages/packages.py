"""Checks Ray, tensordict and vllm, if they are installed, each in its own process.

Such a package may hang or crash the process, and its child processes must not survive: the probe has a time limit and a
process group.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from trainer import device as devices
from trainer.stages.stage import Stage

if TYPE_CHECKING:
    import torch

# Ray starts in 3 to 8 s on two cores; vllm's import takes up to a minute, its first token on a card several.
LIMIT_S = 600.0


def installed() -> list[str]:
    """The packages that there is a question for."""
    names = ("ray", "vllm")
    return [name for name in names if importlib.util.find_spec(name) is not None]


def probe(device: torch.device, *, is_wanted: bool = True, limit_s: float = LIMIT_S) -> Stage:
    """Passes a TensorDict through a Ray actor; imports vllm and, if there is a card, generates a token.

    If not requested, nothing is started; `skipped` lists what was left out.
    """
    names = installed()
    if not names:
        return Stage(None, "neither ray nor vllm is installed, and this run needs neither")
    if not is_wanted:
        return Stage(None, f"probe_packages=false: {' and '.join(names)} skipped", {"skipped": names})
    measured: dict[str, Any] = {}
    problems = []
    for name in names:
        answer = ask(name, [device.type, str(devices.count(device))], limit_s=limit_s)
        measured[name] = answer
        if answer.get("problem"):
            problems.append(f"{name}: {answer['problem']}")
    return Stage(not problems, "; ".join(problems) or None, measured)


def ask(package: str, words: list[str], *, limit_s: float) -> dict[str, Any]:
    """The child's result: one JSON object, the last line of its output; with a `problem` if there is none."""
    # `-P` and the empty working folder are inherited through PYTHONSAFEPATH where npuenv set it.
    argv = [sys.executable, "-m", f"trainer.stages.try_{package}", *words]
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    ) as child:
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return {"problem": f"no answer within {limit_s:g} s"}
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return _answer(out, err, child.returncode)


def _answer(out: str, err: str, code: int) -> dict[str, Any]:
    lines = out.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    said = err.strip().splitlines()
    return {"problem": f"ended with {code}: {said[-1] if said else 'it said nothing'}"}
