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

    The run makes its own small decoder and task, needs no download, and takes seconds on a CPU. The verdict asks: did
    it complete with finite losses, did held-out accuracy rise by more than chance, do sampler and learner agree, is
    the mask exact, are the published weights the learner's, does a checkpoint come back bit for bit.

    KEY=VALUE settings go to the trainer, for instance steps=400, seed=1, task=addition, device=cpu. With
    fault=shuffled-reward (or mask-off-by-one, stale-sampler, zero-advantage, corrupt-checkpoint) the run is broken on
    purpose, to see that the verdict notices.
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
    from npuenv.plan import default_environment

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
    if code == ExitCode.INPUT and not records:
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    findings = smoke.judge(records, exit_code=code, log_tail=log_tail)
    result = {"pass": ExitCode.FINE, "fail": ExitCode.PROBLEMS, "unknown": ExitCode.UNKNOWN}[report.verdict(findings)]
    files = _files(ui, records, place.out)
    document = report.summary_json(records, findings, lang=ui.lang, files=files, exit_code=int(result))
    if ui.is_json:
        ui.print_json(document)
    elif not ui.is_quiet or result is not ExitCode.FINE:
        report.print_summary(console, records, findings, lang=ui.lang, files=files)
    return result


def _files(ui: Ui, records: list[Mapping[str, Any]], out: Path) -> dict[str, Path]:
    from npuenv import smoke
    from npuenv.report.smoke import draw_plot

    files = {"records": out / smoke.METRICS}
    plot = out / "plot.svg"
    if any(record.get("kind") == "step" for record in records):
        try:
            plot.unlink(missing_ok=True)
            if draw_plot(records, plot, ui.lang):
                files["plot"] = plot
            else:
                ui.say(Message("smoke.no-plot"))
        except Exception as error:  # matplotlib and what it imports may be broken; a verdict does not hang on a picture
            ui.say(Message("smoke.plot-failed", {"path": str(plot), "reason": str(error)}), err=True)
    return files
