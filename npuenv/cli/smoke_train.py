"""`npuenv smoke-train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.cli.common import Ui, absolute, common_options
from npuenv.errors import BadInput, ExitCode
from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.smoke import Target


@click.command("smoke-train")
@click.option(
    "--target", type=click.Path(path_type=Path), help="The environment to test (default: the current one of --stack)."
)
@click.option("--stack", default="cpu", show_default=True, help="The installed stack to test.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for records and plot (default: the user's state folder).",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@common_options
def command(ui: Ui, *, target: Path | None, stack: str, out: Path | None, settings: tuple[str, ...]) -> int:
    """Train a tiny model with GRPO in the target environment and say whether training works there.

    The run makes its own small decoder and task, needs no download, and takes seconds on a CPU. Stage by stage it asks:
    do the stack's own packages work (Ray, vllm, where they are installed), is the device there and does it compute
    what the CPU computes, is there memory, do the ranks add up; then, while it trains: do answers end, are the rewards
    finite, different and those of their answers, do the weights move, is the mask exact, does the sampler hold the
    learner's weights and agree on log-probabilities, does held-out accuracy rise by more than chance, does a
    checkpoint come back bit for bit. The verdict's first sentence names what is wrong.

    KEY=VALUE settings go to the trainer, for instance steps=400, seed=1, task=addition, device=cpu; `python -m trainer
    --help` lists them all. Trying Ray and vllm takes 5 to 25 s where they are installed; with probe_packages=false they
    are left out, and the verdict says so. The first use of a card compiles operators for minutes: that is announced,
    counted apart, and no hang.

    With fault=NAME the run is broken on purpose, to see that the verdict names it: lr-zero, shuffled-reward,
    constant-reward, reward-raises, reward-hangs, zero-advantage, mask-off-by-one, stale-sampler, nan-gradient,
    wrong-arithmetic, no-end-token, no-signal, skipped-validation, corrupt-checkpoint, full-disk, and with
    ranks=2 rank-dies, rank-differs.
    """
    return int(run_smoke(ui, target=target or default_target(stack), out=out, settings=parse_settings(settings)))


def parse_settings(words: tuple[str, ...]) -> dict[str, str]:
    """`("steps=5",)` -> `{"steps": "5"}`. Raises BadInput for a word without `=`."""
    parsed = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise BadInput(Message("smoke.bad-setting", {"word": word}), Message("smoke.bad-setting-hint"))
        parsed[key] = value
    return parsed


def default_target(stack: str) -> Path:
    """The current environment of a stack in the user's data folder."""
    from npuenv.store.places import default_environment

    return default_environment(stack)


def run_smoke(ui: Ui, *, target: Path, out: Path | None, settings: Mapping[str, str]) -> ExitCode:
    """Runs the trainer, draws it, judges it and says the verdict; the exit code of the whole."""
    from npuenv import smoke

    # Absolute, not resolved: a virtual environment's python is a link whose own place decides what is imported.
    place = smoke.Target(absolute(target) / "bin" / "python", absolute(out or smoke.default_out()))
    with smoke.sole_use(place.out):
        return _run_and_judge(ui, place, settings)


def _run_and_judge(ui: Ui, place: Target, settings: Mapping[str, str]) -> ExitCode:
    from npuenv import smoke
    from npuenv.report import smoke as report

    console = ui.console(stderr=ui.is_json)
    is_drawn = not (ui.is_quiet or ui.is_json)
    records: list[Mapping[str, Any]] = []
    with smoke.start(place, settings) as running:
        ui.say(Message("smoke.starting", {"python": str(place.python)}))
        stream = smoke.follow(running, place.out)
        try:
            records.extend(report.watch(console, stream, ui.lang) if is_drawn else stream)
        except KeyboardInterrupt:
            running.interrupt()
            raise
        code = running.poll()
    log_tail = smoke.tail_of_log(place.out)
    if code == ExitCode.INPUT:  # said before the first record or found when a file was opened
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    findings = smoke.judge(records, exit_code=code, log_tail=log_tail)
    result = {"pass": ExitCode.FINE, "fail": ExitCode.PROBLEMS, "unknown": ExitCode.UNKNOWN}[report.verdict(findings)]
    cause = smoke.cause(findings)
    files = {"records": place.out / smoke.METRICS}
    if ui.is_json:
        files |= _plot(ui, records, place.out)
        code = int(result)
        ui.print_json(report.summary_json(records, findings, cause=cause, lang=ui.lang, files=files, exit_code=code))
        return result
    if not ui.is_quiet or result is not ExitCode.FINE:
        report.print_summary(console, records, findings, cause=cause, lang=ui.lang, files=files, is_quiet=ui.is_quiet)
    # After the verdict: importing what draws takes a while.
    for path in _plot(ui, records, place.out).values():
        ui.say(Message("smoke.plot", {"path": str(path)}))
    return result


def _plot(ui: Ui, records: list[Mapping[str, Any]], out: Path) -> dict[str, Path]:
    """The picture of the run under `plot`; nothing where none could be drawn, which is said."""
    from npuenv.report.plots import draw

    path = out / "plot.svg"
    if not any(record.get("kind") == "step" for record in records):
        return {}
    try:
        path.unlink(missing_ok=True)
        if draw(records, path):
            return {"plot": path}
        ui.say(Message("smoke.no-plot"))
    except Exception as error:  # matplotlib and what it imports may be broken; a verdict does not hang on a picture
        ui.say(Message("smoke.plot-failed", {"path": str(path), "reason": str(error)}), err=True)
    return {}
