"""`python -m trainer --out DIR [KEY=VALUE ...]`: one run, its records in DIR/metrics.jsonl.

Exit codes: 0 the run completed, whatever it learned; 2 a setting or DIR cannot be used; 1 the run broke; 130 it was
interrupted. Nothing goes to stdout; an error is one line on stderr.
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainer import device as devices
from trainer.config import BadSetting, Config, parse
from trainer.metrics.progress import Progress, peak_rss_mib
from trainer.metrics.records import SCHEMA, Records

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETED, BROKE, BAD_SETTING, INTERRUPTED = 0, 1, 2, 130


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadSetting(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs and gives back the exit code."""
    progress = Progress()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _interrupt)
    try:
        out, config = _arguments(argv)
        return _record(config, out, progress)
    except BadSetting as error:
        return _complain(str(error), BAD_SETTING)
    except OSError as error:
        # Where the records go: nothing can be written any more, so the line on stderr is all there is.
        return _complain(_one_line(error), BROKE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _arguments(argv: Sequence[str] | None) -> tuple[Path, Config]:
    parser = _Arguments(prog="python -m trainer", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    values = parser.parse_intermixed_args(argv)
    return values.out, parse(values.settings, devices=devices.ACCEPTED)


def _record(config: Config, out: Path, progress: Progress) -> int:
    """Runs with open records, the last of which says how it ended."""
    try:
        records = Records(out)
    except OSError as error:
        raise BadSetting(f"--out cannot be used: {_one_line(error)}") from error
    with records:
        end: dict[str, Any] = {"status": "completed", "reason": None}
        code = COMPLETED
        try:
            _run(config, out, records, progress)
        except KeyboardInterrupt as error:
            end, code = {"status": "interrupted", "reason": str(error) or "SIGINT"}, INTERRUPTED
        except devices.NoDevice as error:
            end, code = {"status": "failed", "reason": str(error)}, BAD_SETTING
        except Exception as error:  # whatever broke the run is what its last record is for
            end, code = {"status": "failed", "reason": _one_line(error), "where": _where(error)}, BROKE
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        records.write("end", **end, **_totals(progress))
    if end["status"] == "failed":
        _complain(str(end["reason"]), code)
    return code


def _run(config: Config, out: Path, records: Records, progress: Progress) -> None:
    with progress.part("import"):
        import torch

        from trainer.algorithms.advantages import CONVENTIONS
        from trainer.loop import assemble, train

        device = devices.choose(config.device)
    torch.set_num_threads(config.num_threads)
    parts = assemble(config, device, seed=config.seed)
    records.write(
        "header",
        schema=SCHEMA,
        settings=asdict(config),
        convention=asdict(CONVENTIONS[config.convention]),
        task={"train_prompts": len(parts.task.train), "heldout_prompts": len(parts.task.heldout)},
        device=str(device),
        dtype=config.dtype,
        torch=torch.__version__,
        python=platform.python_version(),
        num_threads=torch.get_num_threads(),
        num_parameters=parts.learner.num_parameters,
        seed=config.seed,
        startup_s=progress.elapsed_s(),
    )
    train(parts, config, out=out, records=records, progress=progress)


def _totals(progress: Progress) -> dict[str, Any]:
    return {
        "steps_done": progress.steps_done,
        "wall_s": progress.elapsed_s(),
        "peak_rss_mib": peak_rss_mib(),
        "seconds": progress.seconds,
    }


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _one_line(error: Exception) -> str:
    """What went wrong, without line breaks. Example: `OSError: No space left on device`."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _where(error: Exception) -> list[str]:
    """The calls that led to an error, outermost first. Example: `loop.py:130 train`."""
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"trainer: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
