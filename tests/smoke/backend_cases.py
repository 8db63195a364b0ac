"""A stand-in target: `bin/python` that finds packages `verl` or `roll`, which print what the real ones print.

The lines of verl are in the form of its aggregate_logger (0.5.0 to 0.9.1) below Ray's prefix, those of ROLL in that of
rlvr_pipeline.py and agentic_pipeline.py: one JSON object with the metrics, then the step's end.
"""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "\x1b[36m(TaskRunner pid=87031)\x1b[0m "
BEFORE = f"{PREFIX}step:0 - val-core/openai/gsm8k/acc/mean@1:0.125 - val-aux/num_turns/mean:2.0"
PENDING = (
    "\x1b[33m(autoscaler +6s)\x1b[0m Error: No available node types can fulfill resource request {'NPU': 1.0}. "
    "Add suitable node types to this cluster to resolve this issue."
)


def verl_step(step: int, *, loss: str = "0.0424", norm: str = "0.13", low: str = "0.0", high: str = "1.0") -> str:
    """A line of verl's console for a step, with numpy 2's form of a number in it."""
    parts = {
        "global_seqlen/min": "419336",
        "actor/entropy": "0.2227",
        "actor/pg_clipfrac": "np.float64(0.00079)",
        "actor/pg_loss": loss,
        "actor/kl_loss": "0.0013",
        "actor/grad_norm": f"np.float64({norm})",
        "actor/lr": "5e-07",
        "training/global_step": str(step),
        "critic/score/mean": low if low == high else "0.25",
        "critic/score/max": high,
        "critic/score/min": low,
        "timing_s/step": "12.5",
    }
    return f"{PREFIX}step:{step} - " + " - ".join(f"{name}:{value}" for name, value in parts.items())


AFTER = f"{verl_step(2)} - val-core/openai/gsm8k/acc/mean@1:0.25"
GOOD = (BEFORE, verl_step(1), AFTER)


def roll_step(step: int, *, low: float = 0.0, high: float = 1.0, loss: float = 0.02) -> tuple[str, ...]:
    """The lines of ROLL's log for a step; `step` counts from 0, as ROLL does."""
    metrics = {
        "time/step_total": 3.5,
        "val/score/mean": 0.2,
        "critic/score/mean": (low + high) / 2,
        "critic/score/max": high,
        "critic/score/min": low,
        "actor/pg_loss": loss,
        "actor/total_loss": loss,
        "actor/grad_norm": 0.4,
    }
    where = "[2026-05-01 10:00:00,000] [agentic_pipeline.py (300)] [INFO] "
    return (
        where + json.dumps([{"prompt": "p", "response": "r"}]),
        where + json.dumps(metrics),
        where + f"pipeline step {step} finished",
    )


def make_target(folder: Path, framework: str, lines: tuple[str, ...], *, cards: int = 2, after: str = "") -> Path:
    """A target whose framework prints `lines` and then runs the Python of `after`; its argv lies in `argv.json`."""
    site, programs = folder / "site", folder / "bin"
    programs.mkdir(parents=True)
    site.mkdir()
    for name in ("python", "python3"):
        program = programs / name
        # No -I: what is looked for lies on this path, as in an environment of its own it would.
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n')
        program.chmod(0o755)
    said = textwrap.dedent(
        f"""
        import json, os, pathlib, sys, time, signal
        here = pathlib.Path({str(folder)!r})
        ray = [os.environ.get(name) for name in ("RAY_ADDRESS", "RAY_TMPDIR")]
        (here / "argv.json").write_text(json.dumps({{"argv": sys.argv[1:], "ray": ray}}))
        for line in {list(lines)!r}:
            print(line, flush=True)
        """
    ) + textwrap.dedent(after)
    _modules(site, cards)
    if framework == "verl":
        package = site / "verl" / "trainer"
        package.mkdir(parents=True)
        (site / "verl" / "__init__.py").write_text("")
        (package / "__init__.py").write_text("")
        (package / "main_ppo.py").write_text(said)
        info = site / "verl-0.7.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.7.1\n")
    elif framework == "roll":
        (site / "roll").mkdir()
        (site / "roll" / "__init__.py").write_text("")
        (site / "examples").mkdir()
        (site / "examples" / "start_agentic_pipeline.py").write_text(said)
    return folder


def _modules(site: Path, cards: int) -> None:
    """acl as Ray asks it for the number of cards, and a pyarrow that writes rows as JSON."""
    (site / "acl.py").write_text(
        f"class rt:\n    @staticmethod\n    def get_device_count():\n        return ({cards}, 0)\n"
    )
    package = site / "pyarrow"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class Table:\n    @staticmethod\n    def from_pylist(rows):\n        return rows\n"
    )
    (package / "parquet.py").write_text(
        "import json\n\n\ndef write_table(rows, place):\n    open(place, 'w').write(json.dumps(rows))\n"
    )
