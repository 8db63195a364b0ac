"""`python -m trainer [train | sft] --out DIR [KEY=VALUE ...]`: one run, its records in DIR/metrics.jsonl.

`train`, which may be left out, learns from rewards; `sft` imitates transcripts; both leave the model in DIR/model.
`export CHECKPOINT -o OUT` makes such a model of a checkpoint; `compare A B` holds two runs against each other. `--help`
lists the settings.

Exit codes of a run: 0 it completed, whatever it learned; 2 a setting or DIR cannot be used; 1 the run broke; 130 it
was interrupted. A run prints nothing to stdout; an error is one line on stderr, and so is each warning
about its settings.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import sys
import traceback
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import device as devices
from trainer import launch, saving
from trainer.config import Arguments, BadSetting, Config, ParsedSettings, describe, doubts, instead, read
from trainer.device import peak_rss_mib
from trainer.launch import BAD_SETTING, BROKE, COMPLETED, INTERRUPTED, Interrupt, complain
from trainer.metrics.advice import Advisor
from trainer.metrics.records import SCHEMA, Loggers, NoRecords, Progress, Records, one_line, stage_of_error
from trainer.saving import CorruptCheckpoint
from trainer.tasks.base import RewardBroken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from trainer.distributed import World
    from trainer.saving import State

_TRAIN, _SFT, _COMPARE, _EXPORT = "train", "sft", "compare", "export"


@dataclass(frozen=True, slots=True)
class Command:
    """The parsed command line."""

    command: str
    out: Path
    given: ParsedSettings
    settings: Sequence[str]  # as given, with the settings that follow from the cards
    point: saving.ResumePoint | None  # the point to resume from; None: a new run
    start_of_paths: Path | None  # of relative paths among the settings; None: the working folder

    @property
    def config(self) -> Config:
        return self.given.config

    @property
    def starts_ray(self) -> bool:
        """Whether the processes of the run are started by Ray. Fine-tuning generates nothing."""
        return bool(self.config.placement.train_cards or (self.config.rollout.generators and self.command != _SFT))


@dataclass(frozen=True, slots=True)
class RunContext:
    """The outputs and signal sources of a run."""

    order: Command
    records: Records
    progress: Progress
    interrupt: Interrupt
    continued: saving.ContinuedRecords | None  # what became of earlier records; None: there are none, or another rank's


def main(
    argv: Sequence[str] | None = None, *, progress: Progress | None = None, interrupt: Interrupt | None = None
) -> int:
    """Runs and returns the exit code. Installs signal handlers unless an `interrupt` is given that receives the
    signals.

    A caller that gives `argv` gets its own signal handlers back afterwards; without it the process is about to end.
    """
    if argv is None:
        return _main(sys.argv[1:], progress or Progress(), interrupt)
    with launch.given_back():
        return _main(list(argv), progress or Progress(), interrupt)


def _main(words: list[str], progress: Progress, interrupt: Interrupt | None) -> int:
    if words[:1] == [_COMPARE]:
        from trainer.metrics import compare

        return compare.main(words[1:])
    if words[:1] == [_EXPORT]:
        from trainer.saving import publish

        return publish.main(words[1:])
    if interrupt is None:
        interrupt = Interrupt()
        interrupt.install()
    try:
        order = _order(words)
        if order.starts_ray and not launch.is_placed():
            return _place(order)
        if order.config.run.ranks > 1 and not launch.is_rank():
            return _lead(words, order.config.run.ranks, order.out)
        if order.config.run.ranks != launch.size() and not launch.is_placed():
            raise BadSetting(_not_as_launched(order.config.run.ranks))
        launch.end_with_launcher()
        if order.start_of_paths is not None:
            _start_in(order.start_of_paths, order.config)
        return _record(order, progress, interrupt)
    except BadSetting as error:
        return complain(str(error), BAD_SETTING)
    except OSError as error:
        # The records' own disk failed: nothing can be written, so the line on stderr is all there is.
        return complain(f"the records cannot be written: {' '.join(str(error).split())}", BROKE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:  # argparse's way to end after --help
        return COMPLETED


def _order(words: Sequence[str]) -> Command:
    command, rest = (words[0], words[1:]) if words[:1] in ([_TRAIN], [_SFT]) else (_TRAIN, words)
    parser = Arguments(
        prog="python -m trainer",
        usage="python -m trainer [train | sft] --out DIR [KEY=VALUE ...]\n       python -m trainer compare A B"
        "\n       python -m trainer export CHECKPOINT -o OUT",
        epilog=_settings_help() if {"-h", "--help"} & set(rest) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where records and checkpoints go")
    parser.add_argument("--cwd", type=Path, metavar="DIR", help="where relative paths among the settings start")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="see below; verl's names are understood too")
    values = parser.parse_intermixed_args(rest)
    settings = list(values.settings)
    given = read(settings, devices=devices.ACCEPTED, launched=1 if launch.is_placed() else launch.size())
    if given.config.placement.train_cards or given.config.placement.infer_cards:
        settings += _ranks_of_cards(given.config)
        given = read(settings, devices=devices.ACCEPTED)
    if command == _SFT and not given.config.task.train_files:
        raise BadSetting("sft needs train_files=FILE.jsonl: transcripts, {'messages': [...]} a line")
    out = values.out.absolute()  # the working folder may change
    point = None if _joined_node(given.config) else saving.find_resume_point(out, given.config, command)
    return Command(command, out, given, settings, point, values.cwd)


def _joined_node(config: Config) -> bool:
    """Whether this process only lends its node to a run that another one leads: the folder is not its to read."""
    if not config.placement.train_cards or launch.is_placed():
        return False
    from trainer.placement import ray_nodes

    return ray_nodes.joined_node()


def _ranks_of_cards(config: Config) -> list[str]:
    """A rank for each card that learns. Raises BadSetting for cards that cannot be."""
    from trainer import placement

    layout = placement.read(config)
    return [] if layout is None else [f"ranks={len(layout.learners)}"]


def _place(order: Command) -> int:
    """Runs in processes that Ray starts, if the settings request that."""
    from trainer import placement
    from trainer.placement import supervise

    layout = placement.read(order.config)
    assert layout is not None
    if launch.is_rank() and not layout.has_cards:
        raise BadSetting(
            f"generators={order.config.rollout.generators} starts all processes of the run itself: leave out the "
            f"launcher that set WORLD_SIZE={launch.size()} and give ranks, or give train_cards and infer_cards"
        )
    settings = list(order.settings)
    if not order.config.run.save_every:
        settings = instead(settings, "save_every", str(supervise.SAVE_EVERY))
    command = [order.command, "--out", str(order.out), "--cwd", str((order.start_of_paths or Path()).absolute())]
    is_leader = not _joined_node(order.config)
    try:
        if is_leader:
            order.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _bad_folder("--out", order.out, error) from error
    if is_leader and find_spec("ray"):  # what rank 0 writes does not reach this terminal
        # Cards may be on several nodes, whose cores are not known here.
        _warn(_warnings(order, order.config, cores=math.inf if layout.has_cards else devices.cores()))
    say = partial(complain, code=BROKE)
    return supervise.lead(supervise.Run(command, settings, order.config, layout, order.out, say))


def _settings_help() -> str:
    lines = ["settings, by section: NAME=DEFAULT  (what is accepted)"]
    for section, about, rows in describe(devices.ACCEPTED):
        lines += ["", f"{section}: {about}"]
        for shown, line in rows:
            lines += [f"  {shown}", *([f"      {line}"] if line else [])]
    return "\n".join(lines)


def _start_in(folder: Path, config: Config) -> None:
    """Makes it the working folder. On a node of a placed run it may be missing if no path starts there."""
    try:
        os.chdir(folder)
    except OSError as error:
        if not launch.is_placed():
            raise _bad_folder("--cwd", folder, error) from error
        relative = [f"{name}={value}" for name, value in _paths(config) if not os.path.isabs(os.path.expanduser(value))]
        if relative:
            node = json.loads(os.environ[launch.PLACED])["ranks"][launch.rank()]
            raise BadSetting(
                f"{relative[0]} starts in {folder}, which {node} does not have: give the whole path"
            ) from error


def _paths(config: Config) -> Iterator[tuple[str, str]]:
    """Settings that name files or folders, each with one of its paths."""
    task = config.task
    for name, files in ("train_files", task.train_files), ("val_files", task.val_files):
        yield from ((name, each.strip()) for each in files.split(",") if each.strip())
    others = ("path", config.model.path), ("script", config.rollout.script), ("reward_function", task.reward_function)
    yield from ((name, value) for name, value in others if value)


def _not_as_launched(ranks: int) -> str:
    return (
        f"ranks={ranks}, but WORLD_SIZE={launch.size()} says that a launcher started {launch.size()} processes, "
        "each of which is one rank: leave ranks out, unset WORLD_SIZE, or, where it counts nodes, give train_cards"
    )


def _bad_folder(option: str, folder: Path, error: OSError) -> BadSetting:
    """Why a folder cannot be used. Example: `--out /tmp/a/b cannot be used: /tmp/a is a file, not a folder`."""
    stands = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), None)
    if stands is not None and not stands.is_dir():
        what = "a link to nothing" if not stands.exists() else "a file" if stands.is_file() else "something else"
        return BadSetting(f"{option} {folder} cannot be used: {stands} is {what}, not a folder")
    place = f" ({error.filename})" if error.filename and str(error.filename) != str(folder) else ""
    return BadSetting(f"{option} {folder} cannot be used: {error.strerror or error}{place}")


def _lead(argv: Sequence[str], ranks: int, out: Path) -> int:
    """Runs all ranks; if one of them failed, a last record names it."""
    try:
        ended = launch.run_ranks(argv, ranks, out)
    except OSError as error:
        raise _bad_folder("--out", out, error) from error
    if ended.code not in (COMPLETED, INTERRUPTED):
        with Records(out, append=True) as records:
            records.write("ranks", passed=False, reason=str(ended), rank=ended.rank, code=ended.code)
        if ended.rank != 0 or ended.code < 0:
            complain(str(ended), BROKE)
    return ended.code if ended.code >= 0 else BROKE


def _record(order: Command, progress: Progress, interrupt: Interrupt) -> int:
    """Runs with open records; the last one says how the run ended."""
    continued = None
    interrupt.hold()  # until `_run` has begun: once they are open they say of a signal that it came
    try:
        if launch.rank() != 0:
            records: Records = NoRecords()
        elif order.point is None:
            records = Records(order.out, followers=[Loggers(order.out), Advisor()])
            saving.set_manifest_aside(order.out)
        else:
            continued = saving.continue_records(order.out, order.point.step)
            records = Records(order.out, append=True, followers=[Loggers(order.out), Advisor()])
    except OSError as error:
        raise _bad_folder("--out", order.out, error) from error
    with records:
        end: dict[str, Any] = {"status": "completed", "reason": None}
        code = COMPLETED
        try:
            _run(RunContext(order, records, progress, interrupt, continued))
        except KeyboardInterrupt as error:
            end = {"status": "interrupted", "reason": str(error) or "SIGINT", "resume": _way_on(order.out)}
            code = INTERRUPTED
        except (devices.NoDevice, BadSetting) as error:
            end, code = {"status": "failed", "reason": str(error)}, BAD_SETTING
        except Exception as error:  # any error that ends the run belongs in its last record
            end, code = {"status": "failed", "reason": one_line(error), "where": _where(error)}, BROKE
            if isinstance(error, RewardBroken):
                end["resume"] = _way_on(order.out)
            if (stage := stage_of_error(error)) is not None:
                records.write("stage", **stage)
        launch.ignore_signals()
        records.write("end", **end, **_totals(progress))
    if end["status"] == "failed":
        complain("; ".join(filter(None, (str(end["reason"]), end.get("resume")))), code)
    return code


def _run(run: RunContext) -> None:
    config, progress = run.order.config, run.progress
    with run.interrupt.put_off(), progress.phase("import"):
        import torch

        from trainer import distributed

        shares = config.rollout.engine == "vllm" and config.rollout.sleep and not config.has_generators
        device = devices.choose(config.run.device, role="rollout" if shares else "train")
    if device.type != "cpu":
        progress.settle = partial(devices.synchronize, device)
    torch.set_num_threads(config.run.num_threads)
    torch.set_float32_matmul_precision(config.run.matmul_precision)
    world = distributed.join(devices.backend(device), limit_s=config.placement.hang_limit_s)
    follow = _tune if run.order.command == _SFT else _train
    follow(run, device, world)
    distributed.leave(world)


def _train(run: RunContext, device: torch.device, world: World) -> None:
    """Learning from rewards."""
    with run.interrupt.put_off(), run.progress.phase("import"):
        from trainer.algorithms.conventions import CONVENTIONS
        from trainer.faults import arithmetic
        from trainer.loop import train, train_step
        from trainer.metrics import meter
        from trainer.metrics.step import StepRecords
        from trainer.run_state import restore
        from trainer.saving.publish import publish_run
        from trainer.stages import probes
        from trainer.stages.second_look import SecondLook
        from trainer.stages.watch import Watch
        from trainer.supervised import warm_start
        from trainer.trainer import build_trainer
    point, records, progress = run.order.point, run.records, run.progress
    config = _in_steps(run.order.config)
    trainer = build_trainer(config, device, seed=config.run.seed, world=world, progress=progress)
    # Imported objects live to the end: scanning them again and again would cost a small run 5 % of its time.
    gc.freeze()
    progress.meter = measures = meter.start(trainer.learner.model, config, device)
    more = {
        "convention": asdict(CONVENTIONS[config.algorithm.convention]),
        "task": {"train_prompts": len(trainer.task.train), "heldout_prompts": len(trainer.task.heldout)},
        "num_parameters": trainer.learner.num_parameters,
        "reference": config.reference_at,
        **measures.header(),
    }
    _head(run, config, device, world, more)
    num_validated = None
    with closing(trainer), arithmetic(config.run.fault):
        probes.run_probes(trainer, config, records, progress)
        if point is not None:
            restore(trainer, _goes_on(run, point, config))
            num_validated = run.continued.num_validated if run.continued is not None else None
            num_validated = world.gather(num_validated)[0]
        elif config.optim.warm_start_steps:
            warm_start.run(trainer, config, records, progress)
        look = SecondLook(trainer, config, records)
        watch = Watch(trainer, config, run.order.out, records, look, train_step=train_step, num_validated=num_validated)
        with watch.saves_before_leaving():
            steps = StepRecords(config, records, progress, world)
            train(trainer, [look, steps, watch], interrupt=run.interrupt)
        model: Any = trainer.learner.model
        publish_run(model, run.order.out, config, records, progress, world=world)


def _tune(run: RunContext, device: torch.device, world: World) -> None:
    """Supervised fine-tuning."""
    with run.interrupt.put_off(), run.progress.phase("import"):
        from trainer import supervised
    tuning = supervised.assemble(run.order.config, device, world)
    parameters = [each for _, each in tuning.learner.model.named_parameters()]
    more = {
        "task": {"train_prompts": len(tuning.train), "heldout_prompts": len(tuning.val)},
        "num_parameters": sum(each.numel() for each in parameters),
        "num_trained_parameters": sum(each.numel() for each in parameters if each.requires_grad),
    }
    _head(run, tuning.config, device, world, more)
    point = run.order.point
    state = _goes_on(run, point, tuning.config) if point is not None else None
    supervised.run(tuning, run.order.out, run.records, run.progress, interrupt=run.interrupt, state=state)


def _in_steps(config: Config) -> Config:
    """The configuration with the number of steps of its epochs: as many complete batches as the prompts make, as in
    verl.

    If steps are given in addition to epochs, the smaller number applies.
    """
    if not config.run.epochs:
        return config
    from trainer import tasks

    count = len(tasks.choose(config).train)
    steps = min(config.run.steps, config.run.epochs * max(1, count // config.rollout.prompts_per_step))
    return replace(config, run=replace(config.run, steps=steps))


def _goes_on(run: RunContext, point: saving.ResumePoint, config: Config) -> State:
    """The state to resume from. Raises BadSetting for a damaged one; no other state is used instead.

    Also for one past the end of the run, which with epochs is known only here. Its tensors are on the CPU: next to the
    run's own tensors there may be no room for them on the device.
    """
    import torch

    from trainer.saving.checkpoint import load

    if config.run.steps < point.step:
        raise BadSetting(f"resume={config.run.resume}: {point.step} steps are done, the run has {config.run.steps}")
    folder = run.order.out / saving.CHECKPOINT
    try:
        state = load(folder, torch.device("cpu"))
    except CorruptCheckpoint as error:
        raise BadSetting(f"resume: the checkpoint in {folder} cannot be used: {error}") from error
    run.progress.steps_done = point.step
    run.records.write(
        "resumed",
        step=point.step,
        changed={name: list(pair) for name, pair in point.changed.items()},
        dropped_records=run.continued.num_dropped if run.continued else 0,
        ended=run.continued.ended if run.continued else None,
    )
    return state


def _warnings(order: Command, config: Config, cores: float) -> list[str]:
    """`config` has the final number of steps, if that is known."""
    optimizer_steps = config.run.steps * (1 if order.command == _SFT else config.optim.optimizer_steps_per_batch)
    found = doubts(config, optimizer_steps=optimizer_steps, cores=cores, load=os.getloadavg()[0])
    return [*order.given.warnings, *found]


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        sys.stderr.write(f"trainer: warning: {warning}\n")


def _head(run: RunContext, config: Config, device: torch.device, world: World, more: Mapping[str, Any]) -> None:
    import torch

    warnings = _warnings(run.order, config, devices.cores())
    if launch.rank() == 0:
        _warn(warnings)
    run.records.write(
        "header",
        schema=SCHEMA,
        command=run.order.command,
        settings=config.flat(),
        translated=dict(run.order.given.translated),
        ignored=dict(run.order.given.ignored),
        assumed=dict(run.order.given.assumed),
        warnings=warnings,
        **({"placement": json.loads(os.environ[launch.PLACED])} if launch.is_placed() else {}),
        **more,
        device=str(device),
        dtype=config.run.dtype,
        torch=torch.__version__,
        python=platform.python_version(),
        num_threads=torch.get_num_threads(),
        ranks=world.size,
        sharding=config.run.sharding if world.size > 1 else "none",
        seed=config.run.seed,
        startup_s=run.progress.elapsed_s(),
    )


def _way_on(out: Path) -> str | None:
    """How to resume an interrupted run; None if nothing was saved."""
    point = saving.saved_step(out)
    return None if point is None else f"the same command with resume=true goes on after step {point}"


def _totals(progress: Progress) -> dict[str, Any]:
    return {
        "steps_done": progress.steps_done,
        "wall_s": progress.elapsed_s(),
        "peak_rss_mib": peak_rss_mib(),
        "seconds": progress.seconds,
    }


def _where(error: Exception) -> list[str]:
    """The calls that led to an error, outermost first. Example: `loop.py:130 train`."""
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]


if __name__ == "__main__":
    launch.leave(main())
