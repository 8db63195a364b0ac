"""Plants one fault in a copy of the trainer, runs it for a few steps, and judges its records.

`python -m tests.smoke.planted.cases [--healthy] [ID ...]` prints the table of all faults, or of some; or of the runs
without a fault.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.finding import Status
from npuenv.smoke.judge import cause, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
# Those of the author of the judge, and three sets by people who had not seen it.
FAULTS: list[dict[str, Any]] = [
    fault
    for name in ("faults.toml", "blind.toml", "blind3.toml", "blind4.toml")
    for fault in tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))["fault"]
]
HAS_RAY = importlib.util.find_spec("ray") is not None
# Generators are started by Ray.
RUNNABLE = [fault for fault in FAULTS if HAS_RAY or "generators=" not in fault.get("run", "")]
HEALTHY: list[str] = Path(__file__).with_name("healthy.txt").read_text("utf-8").splitlines()
# What the verdict says when it knows that something is wrong, and not what.
NOTICED = {"accuracy-does-not-rise", "accuracy-falls", "too-little", "next-step-differs", "not-measured"}
_SETTINGS = ("steps=6", "device=cpu", "probe_packages=false")


def plant(fault: dict[str, Any], folder: Path) -> Path:
    """A folder with the trainer's source, the fault in it."""
    shutil.copytree(ROOT / "trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "trainer" / fault["file"]
    text = path.read_text("utf-8")
    if text.count(fault["old"]) != 1:
        raise ValueError(f"{fault['id']}: {text.count(fault['old'])} places in {fault['file']}, not 1")
    path.write_text(text.replace(fault["old"], fault["new"]), "utf-8")
    return folder


def found_in(source: Path, out: Path, settings: Iterable[str]) -> list[str]:
    """The key of each finding of a run that is neither fine nor left out, the cause first.

    Runs in a fork of this process, which has imported torch and nothing of the trainer.
    """
    out.mkdir()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _train(source, out, settings)
        finally:
            os._exit(code)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    log = (out / "log").read_text("utf-8", errors="replace")
    found = judge([json.loads(line) for line in lines], exit_code=exit_code, log_tail=log)
    first = cause(found)
    bad = [first] if first is not None else []
    bad += [each for each in found if each.status in (Status.FAIL, Status.UNKNOWN, Status.WARN) and each is not first]
    return [each.says.key.partition(".")[2] for each in bad]


def _train(source: Path, out: Path, settings: Iterable[str]) -> int:
    with (out / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(source)
    sys.path.insert(0, str(source))
    # Ranks are processes of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    from trainer.__main__ import main as train

    return train(["--out", str(out), *_SETTINGS, *settings])


def outcome(fault: dict[str, Any], found: Sequence[str]) -> str:
    """`named`, `noticed` without a cause, `blamed` on something else, or `missed`."""
    first = found[0] if found else ""
    if first in fault["right"]:
        return "named"
    if first in ("", "too-little", "too-little-task"):
        return "missed"
    return "noticed" if first in NOTICED else "blamed"


def run(fault: dict[str, Any]) -> list[str]:
    """The findings of one fault."""
    with tempfile.TemporaryDirectory() as folder:
        source = plant(fault, Path(folder) / "source")
        return found_in(source, Path(folder) / "out", fault.get("run", "").split())


def main(words: Sequence[str]) -> None:
    """Prints the outcome of each fault, or of each healthy run, and how many of each there are."""
    import torch  # noqa: F401  once, for all forks

    counts: Counter[str] = Counter()
    ids = [word for word in words if word != "--healthy"]
    if "--healthy" in words:
        for settings in HEALTHY:
            with tempfile.TemporaryDirectory() as folder:
                found = found_in(ROOT, Path(folder) / "out", settings.split())
            result = "alarm" if {*found} - {"too-little", "too-little-task"} else "fine"
            _tell(counts, result, settings, found)
    else:
        for fault in RUNNABLE:
            if not ids or fault["id"] in ids:
                found = run(fault)
                _tell(counts, outcome(fault, found), fault["id"], found)
    sys.stdout.write(f"{dict(counts)}\n")


def _tell(counts: Counter[str], result: str, name: str, found: Sequence[str]) -> None:
    counts[result] += 1
    sys.stdout.write(f"{result:8} {name:40} {' '.join(found)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
