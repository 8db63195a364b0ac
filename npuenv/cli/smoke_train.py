"""`npuenv smoke-train`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.app.ui import Interrupted, report_error
from npuenv.cli.common import Ui, absolute, common_options
from npuenv.cli.help import Command
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.install.active import Environment
    from npuenv.smoke import Target


@click.command("smoke-train", cls=Command)
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    help="Environment to test (default: the activated one, else the newest).",
)
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
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for metrics and plot (default: the user's state folder).",
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
    given = with_options(parse_settings(settings), options)
    environment = chosen_environment(target, stack, framework=None if backend == "builtin" else backend)
    if backend != "builtin":
        from npuenv.cli.smoke_backend import run_backend

        return int(run_backend(ui, backend, environment, out=out, model=model, settings=given))
    if model is not None:
        raise BadInput(Message("smoke.backend-model-alone"))
    return int(run_smoke(ui, environment, out=out, settings=given))


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


def chosen_environment(target: Path | None, stack: str | None, *, framework: str | None) -> Environment:
    """The environment that is named, else the one that the command is about.

    Raises BadInput for two names, and where nothing is there to test.
    """
    from npuenv.host.local import LocalHost
    from npuenv.install.active import active_environment, environment_at
    from npuenv.install.locations import default_environment

    if target and stack:
        said = {"one": "--target", "other": "--stack"}
        raise BadInput(Message("install.one-of", said), Message("install.one-of-hint", said))
    host = LocalHost()
    if target or stack:
        # Absolute, not resolved: a virtual environment's python is a link whose own place decides what is imported.
        return environment_at(host, str(absolute(target) if target else default_environment(stack or "")))
    found = active_environment(host, framework)
    if found.origin == "session" and "torch" not in _torch_of(found.python):
        raise BadInput(Message("smoke.no-environment", {"python": found.python}), Message("smoke.no-python-hint"))
    return found


def run_smoke(ui: Ui, environment: Environment, *, out: Path | None, settings: Mapping[str, str]) -> ExitCode:
    """Runs the trainer, draws it, judges it and says the verdict; the exit code of the whole."""
    from npuenv import smoke

    python, cards = Path(environment.python), has_cards()
    if Path(environment.python).is_file():  # else there is nothing to say but that
        ui.say(environment.says)
    if cards and (settings.get("device") == "cpu" or "torch_npu" not in _torch_of(environment.python)):
        ui.say(Message("smoke.cards-untested"), err=True)
    if (head := smoke.head_elsewhere(settings)) is not None:
        return _work_for(ui, head, python, settings)
    place = smoke.Target(python, absolute(out or smoke.default_out()))
    with smoke.sole_use(place.out):
        try:
            return _run_and_judge(ui, environment.name, place, settings, cards=cards)
        except KeyboardInterrupt:
            return _interrupted(ui)


def _work_for(ui: Ui, head: str, python: Path, settings: Mapping[str, str]) -> ExitCode:
    """Lends this node to the run that another one leads; the exit code of that run's trainer.

    Raises StepFailed where it broke, with what is known here of the cause.
    """
    from npuenv import smoke

    with smoke.lent(python, settings) as (running, folder):
        ui.say(Message("smoke.lent", {"head": head}))
        try:
            while (code := running.wait(1.0)) is None:
                pass
        except KeyboardInterrupt:
            running.interrupt()
            raise
        log_tail = smoke.tail_of_log(folder)
    if code == ExitCode.INPUT:
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    if code == ExitCode.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if code != ExitCode.FINE:
        raise StepFailed(Message("smoke.lent-broke", {"head": head, "reason": log_tail}), Message("smoke.lent-hint"))
    said = Message("smoke.lent-over", {"head": head})
    if ui.is_json:
        ui.print_json({"schema": "npuenv.smoke-node/1", "exit": 0, "head": head, "says": say(said, ui.lang)})
    ui.say(said)
    return ExitCode.FINE


def has_cards() -> bool:
    """Whether this machine has NPUs: their device nodes, or a card that npu-smi lists."""
    from npuenv.facts.npu import driver
    from npuenv.host.local import LocalHost

    host = LocalHost()
    nodes = driver.nodes(host).value
    table = driver.table_of(driver.smi(host)).value
    return bool((nodes and nodes.cards) or (table and table.cards))


def _torch_of(python: str) -> list[str]:
    """Which of torch and torch_npu a Python finds; empty where it does not run."""
    from npuenv.host.local import LocalHost

    program = "import importlib.util as u; print(*(n for n in ('torch', 'torch_npu') if u.find_spec(n)))"
    return LocalHost().run((python, "-c", program), timeout_s=20.0).out.split()


def _run_and_judge(ui: Ui, environment: str, place: Target, settings: Mapping[str, str], *, cards: bool) -> ExitCode:
    from npuenv import smoke
    from npuenv.report import smoke as report

    console = ui.console(stderr=ui.is_json)
    is_drawn = not (ui.is_quiet or ui.is_json)
    records: list[Mapping[str, Any]] = []
    with smoke.start(place, settings) as running:
        stream = smoke.follow(running, place.out)
        try:
            records.extend(report.watch(console, stream, ui.lang) if is_drawn else stream)
        except KeyboardInterrupt:
            running.interrupt()
            raise
        code = running.poll()
    records = smoke.records_of(place.out)
    log_tail = smoke.tail_of_log(place.out)
    if code == ExitCode.INPUT:  # said before the first record or found when a file was opened
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    findings = smoke.judge(records, exit_code=code, log_tail=log_tail)
    result = {"pass": ExitCode.FINE, "fail": ExitCode.PROBLEMS, "unknown": ExitCode.UNKNOWN}[report.verdict(findings)]
    cause = smoke.cause(findings)
    files = {"records": place.out / smoke.METRICS}
    where = report.where_of(environment, records, has_cards=cards)
    if ui.is_json:
        files |= _plot(ui, records, place.out)
        code = int(result)
        document = report.summary_json(
            records, findings, cause=cause, where=where, lang=ui.lang, files=files, exit_code=code
        )
        ui.print_json(document)
        return result
    if not ui.is_quiet or result is not ExitCode.FINE:
        report.print_summary(
            console, records, findings, cause=cause, where=where, lang=ui.lang, files=files, is_quiet=ui.is_quiet
        )
    # After the verdict: importing what draws takes a while.
    for path in _plot(ui, records, place.out).values():
        ui.say(Message("smoke.plot", {"path": str(path)}))
    return result


def _interrupted(ui: Ui) -> ExitCode:
    """Says how the run goes on, which the same command alone would begin anew; where somebody can still hear it."""
    said = Message("smoke.interrupted")
    with contextlib.suppress(OSError):  # the terminal may be what went away
        if ui.is_json:
            report_error(Interrupted(said), lang=ui.lang, is_json=True)
        else:
            click.echo(say(said, ui.lang), err=True)
    return ExitCode.INTERRUPTED


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
