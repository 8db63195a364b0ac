"""Whether training works in an environment: `smoke_train`."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.app import resolution
from npuenv.app.progress import SILENT, Progress
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.facts.npu import driver
from npuenv.host.local import LocalHost
from npuenv.install.active import Environment, active_environment, environment_at
from npuenv.install.environments import default_environment
from npuenv.report.smoke import verdict
from npuenv.smoke import backends, run
from npuenv.smoke.judge import cause, judge
from npuenv.smoke.run import METRICS as METRICS  # the file of a run's records
from npuenv.smoke.run import head_elsewhere as head_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npuenv.checks import Finding
    from npuenv.smoke.run import Record, TrainerTarget

# Of a long log the end tells what happened; the diagnosis reads no more anyway.
_LOG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What trains, and where its records go."""

    backend: str = "builtin"  # the packaged trainer, or verl or roll as installed in the environment
    model: str | None = None  # of a framework's run
    out: Path | None = None  # None: the user's state folder
    settings: Mapping[str, str] = field(default_factory=dict)  # for the trainer
    lang: str = "en"  # of the notes in the files that a framework is started with


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """The records of a run and what follows from them."""

    environment: str
    records: Sequence[Record]
    findings: Sequence[Finding]
    cause: Finding | None  # the finding that explains the others
    out: Path
    has_cards: bool  # on this machine

    @property
    def exit_code(self) -> ExitCode:
        """That of `npuenv smoke-train`."""
        codes = {"pass": ExitCode.FINE, "fail": ExitCode.PROBLEMS, "unknown": ExitCode.UNKNOWN}
        return codes[verdict(self.findings)]


def smoke_train(
    environment: Environment,
    options: SmokeOptions | None = None,
    *,
    watch: Callable[[Iterable[Record]], Iterable[Record]] = iter,
    progress: Progress = SILENT,
) -> SmokeResult:
    """Trains a tiny model with GRPO in an environment and judges the records.

    `watch` gets the records as they come and hands them on. Raises BadInput for settings that the trainer refuses.
    """
    options = options or SmokeOptions()
    place = run.TrainerTarget(Path(environment.python), options.out or run.default_out())
    if options.backend != "builtin":
        return _run_framework(environment, place, options, watch, progress)
    with run.sole_use(place.out):
        with run.start(place, options.settings) as running:
            _, code = _follow(running, watch(run.follow(running, place.out)))
        records, log_tail = run.records_of(place.out), run.tail_of_log(place.out)
    if code == ExitCode.INPUT:  # said before the first record or found when a file was opened
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    findings = judge(records, exit_code=code, log_tail=log_tail)
    return SmokeResult(environment.name, records, findings, cause(findings), place.out, has_cards())


def publishable_record(environment: Environment, result: SmokeResult) -> dict[str, Any]:
    """The record of a run that its owner may publish. Raises CannotTell for a run without a card."""
    wanted = frozenset({"npu", "cann", "python"})
    facts = collect(LocalHost(), python=str(environment.python), level=1, imports=False, only=wanted)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return run.run_record(facts, result.records, result.findings, result.cause, day)


def _run_framework(
    environment: Environment,
    place: TrainerTarget,
    options: SmokeOptions,
    watch: Callable[[Iterable[Record]], Iterable[Record]],
    progress: Progress,
) -> SmokeResult:
    """Runs the smallest GRPO of a framework."""
    host, asked = LocalHost(), backends.asked(options.settings, options.model)
    found = backends.look(host, place.python, options.backend)
    cards = backends.used_cards(found, asked)
    with run.sole_use(place.out):
        script = backends.prepare(host, place, found, asked, lang=options.lang)
        with (
            tempfile.TemporaryDirectory(prefix="npuenv-", ignore_cleanup_errors=True) as folder,
            backends.start(place, found, script, ray_folder=Path(folder)) as running,
        ):
            args = {"backend": found.framework, "release": found.release, "cards": cards, "python": str(place.python)}
            progress.activity(Message("smoke.backend-starting", args))
            header = backends.header(found, asked, cards=cards)
            records, code = _follow(running, watch(backends.follow(running, place.out, header, asked)))
    with (place.out / run.LOG).open("rb") as source:
        source.seek(max((place.out / run.LOG).stat().st_size - _LOG_BYTES, 0))
        log = source.read().decode("utf-8", "replace")
    findings = backends.judge(records, exit_code=code, log=log)
    return SmokeResult(environment.name, records, findings, cause(findings, backends.CAUSES), place.out, has_cards=True)


def _follow(running: Any, stream: Iterable[Record]) -> tuple[list[Record], int | None]:
    """The records of a run until it ends, and its exit code; an interruption ends the run too."""
    try:
        return list(stream), running.poll()
    except KeyboardInterrupt:
        running.interrupt()
        raise


def lend_node(head: str, environment: Environment, settings: Mapping[str, str], progress: Progress) -> bool:
    """Lends this node to the run that another one leads; False where that run was interrupted.

    Raises BadInput for settings that its trainer refuses, and StepFailed where it broke.
    """
    with run.worker_run(Path(environment.python), settings) as (running, folder):
        progress.activity(Message("smoke.lent", {"head": head}))
        try:
            while (code := running.wait(1.0)) is None:
                pass
        except KeyboardInterrupt:
            running.interrupt()
            raise
        log_tail = run.tail_of_log(folder)
    if code == ExitCode.INPUT:
        raise BadInput(Message("smoke.refused", {"reason": log_tail}), Message("smoke.refused-hint"))
    if code not in (ExitCode.FINE, ExitCode.INTERRUPTED):
        raise StepFailed(Message("smoke.lent-broke", {"head": head, "reason": log_tail}), Message("smoke.lent-hint"))
    return code == ExitCode.FINE


def installed_python(stack: str) -> str | None:
    """The Python of the environment of a stack; None where it is not installed."""
    python = default_environment(stack) / "bin" / "python"
    return str(python) if python.exists() else None


def installed_in(root: Path) -> Environment:
    """The environment that was just installed into a folder."""
    return environment_at(LocalHost(), str(root), "installed")


def find_environment(root: Path | None, stack: str | None, *, framework: str | None = None) -> Environment:
    """The environment in a folder or of a stack, else the active one, else the session's Python.

    Raises BadInput where nothing is there to test, and for an unknown stack.
    """
    host = LocalHost()
    if stack:
        root = default_environment(stack)
        if not (root / "bin/python").is_file():
            hint = Message("store.install-hint", {"name": resolution.published(stack).name})
            raise BadInput(Message("smoke.no-python", {"path": f"{root}/bin/python"}), hint)
    if root:
        return environment_at(host, str(root))
    found = active_environment(host, framework)
    if found.origin == "session" and "torch" not in _torch_of(found.python):
        raise BadInput(Message("smoke.no-environment", {"python": found.python}), Message("smoke.no-python-hint"))
    return found


def leaves_cards_untested(environment: Environment, settings: Mapping[str, str]) -> bool:
    """Whether this machine has NPUs that a run would not use."""
    return has_cards() and (settings.get("device") == "cpu" or "torch_npu" not in _torch_of(environment.python))


def has_cards() -> bool:
    """Whether this machine has NPUs: their device nodes, or a card that npu-smi lists."""
    host = LocalHost()
    nodes = driver.nodes(host).value
    table = driver.table_of(driver.smi(host)).value
    return bool((nodes and nodes.cards) or (table and table.cards))


def _torch_of(python: str) -> list[str]:
    """Which of torch and torch_npu a Python finds; empty where it does not run."""
    program = "import importlib.util as u; print(*(n for n in ('torch', 'torch_npu') if u.find_spec(n)))"
    return LocalHost().run((python, "-c", program), timeout_s=20.0).out.split()
