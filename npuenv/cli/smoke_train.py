"""`npuenv smoke-train`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app, report
from npuenv.cli.common import FILE, HelpfulCommand, Ui, absolute, common_options, require_one
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput, CannotTell, ExitCode
from npuenv.core.messages import Message, say
from npuenv.host.writing import write_whole
from npuenv.terminal.run import Interrupted, report_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.app import SmokeResult
    from npuenv.install.active import Environment
    from npuenv.smoke.run import Record


@click.command("smoke-train", cls=HelpfulCommand)
@click.option("--target", type=FILE, help="Environment to test (default: the activated one, else the newest).")
@click.option(
    "--backend",
    type=click.Choice(("builtin", "verl", "roll")),
    default="builtin",
    show_default=True,
    help="Trainer to run: the built-in one, or a framework installed in the environment.",
)
@click.option("--model", metavar="PATH|NAME", help="Model for a framework's run (default: Qwen2.5-0.5B-Instruct).")
@click.option(
    "--train-cards", metavar="LIST", help="Training cards, one rank each, e.g. 0-3. Ray starts the processes."
)
@click.option(
    "--infer-cards", metavar="LIST", help="Generating cards, e.g. 4-7 (default: the training cards, in turn)."
)
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes; cards are numbered across all of them.")
@click.option("--ray", metavar="auto|local|HOST:PORT", help="Ray cluster to join; local: start its own.")
@click.option(
    "--off-policy", type=click.IntRange(0, 1), help="1: generate the next batch while training on the current one."
)
@click.option("--stack", metavar="NAME", help="Test the environment of this stack.")
@click.option("-o", "--out", type=FILE, help="Folder for metrics and plot (default: the user's state folder).")
@click.option(
    "--attest", type=FILE, metavar="FILE", help="Write a redacted record of a run on cards that can be published."
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@common_options
def command(
    ui: Ui,
    *,
    target: Path | None,
    backend: str,
    model: str | None,
    stack: str | None,
    out: Path | None,
    attest: Path | None,
    settings: tuple[str, ...],
    **options: str | int | None,
) -> int:
    """Train a tiny model with GRPO in an environment to test whether training works there.

    Tests the activated environment by default, else the newest one made by npuenv, else the session's Python if it has
    torch. The first line and the verdict name it.

    The run creates its own small decoder and task, downloads nothing, and takes seconds on a CPU. It checks in stages:
    the stack's own packages (Ray, vllm, if installed), the device and its results against the CPU, memory, and
    collectives; then, while training: that responses end, rewards are finite, varied and match their responses, weights
    change, the mask is exact, the sampler has the learner's weights and agrees on log-probabilities, held-out accuracy
    rises by more than chance, and a checkpoint restores bit for bit. The first sentence of the verdict names the cause.

    KEY=VALUE settings go to the trainer, e.g. steps=400, seed=1, task=addition, device=cpu; `python -m trainer --help`
    lists them all. Testing Ray and vllm takes 5 to 25 s if they are installed; probe_packages=false skips them, and
    the verdict says so. On first use a card compiles operators for minutes: this is announced, timed separately, and
    not a hang.

    With --train-cards, Ray starts several processes on this node or on those of a cluster; cards are numbered across
    the nodes. Without cards the numbers stand for CPU processes, and the metrics say so. A lost process or node is
    replaced, and the run continues from its last checkpoint. When started on several nodes with RANK, WORLD_SIZE
    (nodes) and MASTER_ADDR set, the first leads and gives the verdict, and the others exit with its code.

    fault=NAME breaks the run on purpose, to show that the verdict names it: lr-zero, shuffled-reward,
    constant-reward, reward-raises, reward-hangs, zero-advantage, mask-off-by-one, stale-sampler, nan-gradient,
    wrong-arithmetic, no-end-token, no-signal, skipped-validation, corrupt-checkpoint, full-disk, and with
    ranks=2 rank-dies, rank-differs, with generators=1 generator-dies, generator-garbage, stale-weights.

    With --backend verl or roll, the framework runs its own smallest GRPO, as rendered by render-launch for the
    installed release: on at most two cards, in its own Ray, with a few made-up questions. The verdict has the same
    form; what the framework does not print is reported as not checked. Settings are then steps=N (3), cards=N,
    silence_limit_s=N (900), pending_limit_s=N (60) and keys of the framework. Exit 2 if it is not installed, 3 without
    a card.
    """
    settings_given = with_options(parse_settings(settings), options)
    require_one(**{"--target": target, "--stack": stack})
    if backend == "builtin" and model is not None:
        raise BadInput(Message("smoke.backend-model-alone"))
    if attest is not None and not app.training.has_cards():  # before the minutes of a run
        raise CannotTell(Message("smoke.record-without-card"))
    # Absolute, not resolved: a virtual environment's python is a link whose own place decides what is imported.
    root, framework = absolute(target) if target else None, None if backend == "builtin" else backend
    environment = app.training.find_environment(root, stack, framework=framework)
    return int(run(ui, environment, backend=backend, model=model, out=out, settings=settings_given, attest=attest))


def run(
    ui: Ui,
    environment: Environment,
    *,
    backend: str = "builtin",
    model: str | None = None,
    out: Path | None = None,
    settings: Mapping[str, str] | None = None,
    attest: Path | None = None,
) -> ExitCode:
    """Trains, draws the run and says the verdict; the exit code of the whole."""
    settings, progress = settings or {}, StepProgress(ui)
    if Path(environment.python).is_file():  # else there is nothing to say but that
        ui.say(environment.says)
    if backend == "builtin":
        if app.training.leaves_cards_untested(environment, settings):
            ui.say(Message("smoke.cards-untested"), err=True)
        if (head := app.training.head_elsewhere(settings)) is not None:
            return _lend(ui, head, environment, settings)

    def watch(stream: Iterable[Record]) -> Iterable[Record]:
        if ui.is_quiet or ui.is_json:
            return stream
        return report.smoke.watch(ui.console(), stream, ui.lang)

    place = absolute(out) if out else None
    options = app.SmokeOptions(backend, model, place, settings, ui.lang)
    try:
        result = app.smoke_train(environment, options, watch=watch, progress=progress)
        code = _report(ui, result, backend)
        if attest is not None:
            record = app.training.publishable_record(environment, result)
            _write(record, absolute(attest))
            ui.say(Message("smoke.record-written", {"path": str(attest)}))
        return code
    except KeyboardInterrupt:
        if backend != "builtin":
            raise
        return _interrupted(ui)


def _write(record: Mapping[str, Any], path: Path) -> None:
    try:
        write_whole(str(path), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("diagnose.unwritable", args), Message("diagnose.unwritable-hint")) from error


def _lend(ui: Ui, head: str, environment: Environment, settings: Mapping[str, str]) -> ExitCode:
    if not app.training.lend_node(head, environment, settings, StepProgress(ui)):
        return ExitCode.INTERRUPTED
    over = Message("smoke.lent-over", {"head": head})
    if ui.is_json:
        ui.print_json({"schema": "npuenv.smoke-node/1", "exit": 0, "head": head, "says": say(over, ui.lang)})
    ui.say(over)
    return ExitCode.FINE


def _report(ui: Ui, result: SmokeResult, backend: str) -> ExitCode:
    records, code = result.records, result.exit_code
    files = {"records": result.out / app.training.METRICS}
    where = report.smoke.where_of(result.environment, records, has_cards=result.has_cards)
    shown: dict[str, Any] = {"cause": result.cause, "where": where, "lang": ui.lang}
    if ui.is_json:
        files |= _plot(ui, records, result.out) if backend == "builtin" else {}
        ui.print_json(report.smoke.summary_json(records, result.findings, files=files, exit_code=int(code), **shown))
        return code
    if not ui.is_quiet or code is not ExitCode.FINE:
        report.smoke.print_summary(ui.console(), records, result.findings, files=files, is_quiet=ui.is_quiet, **shown)
    # After the verdict: importing what draws takes a while.
    for path in _plot(ui, records, result.out).values() if backend == "builtin" else ():
        ui.say(Message("smoke.plot", {"path": str(path)}))
    return code


def _interrupted(ui: Ui) -> ExitCode:
    """Says how the run goes on, which the same command alone would begin anew; where somebody can still hear it."""
    said = Message("smoke.interrupted")
    with contextlib.suppress(OSError):  # the terminal may be what went away
        if ui.is_json:
            report_error(Interrupted(said), lang=ui.lang, is_json=True)
        else:
            click.echo(say(said, ui.lang), err=True)
    return ExitCode.INTERRUPTED


def parse_settings(words: tuple[str, ...]) -> dict[str, str]:
    """`("steps=5",)` -> `{"steps": "5"}`. Raises BadInput for a word without `=` and for two values."""
    parsed: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise BadInput(Message("smoke.bad-setting", {"word": word}), Message("smoke.bad-setting-hint"))
        if parsed.setdefault(key, value) != value:
            args = {"option": f"{key}={parsed[key]}", "word": word}
            raise BadInput(Message("smoke.two-values", args), Message("smoke.refused-hint"))
    return parsed


def with_options(settings: dict[str, str], options: Mapping[str, str | int | None]) -> dict[str, str]:
    """The settings with those that options stand for. Raises BadInput where both name one and differ."""
    for name, value in options.items():
        if value is not None and settings.setdefault(name, str(value)) != str(value):
            args = {"option": f"--{name.replace('_', '-')} {value}", "word": f"{name}={settings[name]}"}
            raise BadInput(Message("smoke.two-values", args), Message("smoke.refused-hint"))
    return settings


def _plot(ui: Ui, records: Sequence[Record], out: Path) -> dict[str, Path]:
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
