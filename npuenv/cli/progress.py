"""What a command shows on stderr while it works (bars, steps of an installation, nodes that have not answered yet),
and what it shows and asks before it changes anything.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from npuenv.app.progress import Progress
from npuenv.cli.common import Stop, Ui, show_conflict
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, clean, say

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn
    from rich.status import Status
    from typing_extensions import Self

    from npuenv.app import ConflictError
    from npuenv.app.progress import InstallJob, PackageChange
    from npuenv.bundle.fetch import DownloadProgress
    from npuenv.bundle.make import BundlePlan
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import NodeAnswer
    from npuenv.core.plan import Plan
    from npuenv.install.executor import Event


def approve_plan(ui: Ui, job: InstallJob, changes: tuple[PackageChange, ...], *, yes: bool) -> None:
    """Shows what of the plan is not done yet and asks, where there is something to agree to.

    Of an update the changes say enough; -v shows its plan too. Raises BadInput where nobody can be asked, Stop on no.
    """
    if changes:
        show_changes(ui, job, changes)
    is_asking = not yes and job.needs_consent()
    if is_asking and (ui.is_verbose or not changes):
        list_plan(ui, job, job.part if changes else job.unfinished)
    else:
        tell_notes(ui, job)
    if is_asking:
        confirm(ui)


def show_changes(ui: Ui, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
    """The packages that an update changes."""
    args = {"stack": job.request.stack.name, "count": len(changes), "path": job.target.root}
    ui.say(Message("install.changes-head", args), err=ui.is_json)
    for each in changes if not ui.is_quiet else ():
        click.echo(clean(f"  {each.name}: {each.before or '-'} -> {each.after or '-'}"), err=ui.is_json)


def confirm(ui: Ui, *, is_yes_usual: bool = True) -> None:
    """Asks whether to go on; Enter alone means what is usual. Raises BadInput where nobody can be asked, Stop on no."""
    if ui.is_json or not sys.stdin.isatty():
        raise BadInput(Message("cli.cannot-ask"), Message("cli.cannot-ask-hint"))
    if not click.confirm(say(Message("cli.go-on"), ui.lang), default=is_yes_usual):
        ui.say(Message("cli.declined"), err=True)
        raise Stop(ExitCode.INTERRUPTED)


def list_plan(ui: Ui, job: InstallJob, part: Plan) -> None:
    """A part of the plan as text, with pip's settings in force, and what it leaves to the user."""
    from npuenv.report.plan import list_plan as as_text

    stack, settings = job.request.stack, job.request.resolver.settings
    args = {"stack": stack.name, "platform": stack.platform.tag, "path": job.target.root}
    ui.say(Message("cli.plan-head", args), err=ui.is_json)
    if not ui.is_verbose:  # with -v they were said when the settings were read
        for warning in settings.warnings:
            ui.say(warning, err=True)
    click.echo(as_text(part, settings, lang=ui.lang), nl=False, err=ui.is_json)
    tell_notes(ui, job)


def tell_notes(ui: Ui, job: InstallJob) -> None:
    """Says what the plan cannot do itself: system packages without consent, parts of CANN that nobody supplied."""
    for note in job.notes:
        ui.say(note, err=True)


# Where there is no live line: the seconds of a step before it says that it is still at work, and between two of these.
_FIRST_S, _EVERY_S = 10.0, 30.0
# What takes longer than this names those that have not answered, and how often after that.
_PENDING_FIRST_S, _PENDING_EVERY_S = 2.0, 15.0


class ProgressBar:
    """A bar to `total`. Silent with --quiet."""

    def __init__(self, ui: Ui, total: int) -> None:
        self._lang, self._is_quiet = ui.lang, ui.is_quiet
        self._console = ui.console(stderr=True)
        self._total = total
        self._bar: RichProgress | None = None

    def _columns(self) -> tuple[ProgressColumn, ...]:
        """What the bar shows beside itself."""
        raise NotImplementedError

    def _show(self, line: str, **values: Any) -> None:
        """Moves the bar, or prints the line where there is none; an empty line only moves it."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], **values)
        elif line and not self._is_quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._is_quiet:
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(*self._columns(), console=self._console, transient=True)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


class CountBar(ProgressBar):
    """Counts to `total`; called with each that is done."""

    _done = 0

    def __call__(self, done: str | Message) -> None:
        name = done if isinstance(done, str) else say(done, self._lang)
        self._done += 1
        self._show(f"[{self._done}/{self._total}] {name}", advance=1, description=name)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        return BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")


class PingBar(ProgressBar):
    """Counts pings, called with how many are done: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, ui: Ui, total: int) -> None:
        super().__init__(ui, total)
        self._shown_s = time.monotonic()

    def __call__(self, done: int) -> None:
        every_s = 0.2 if self._bar else 10.0
        if time.monotonic() - self._shown_s >= every_s:
            self._shown_s = time.monotonic()
            line = say(Message("mesh.progress", {"done": done, "total": self._total}), self._lang)
            self._show(line, completed=done, description=line)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        return BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}")


class DownloadBar(ProgressBar):
    """The bytes of a download, `total` in all, and its files; called with how far it is."""

    def __init__(self, ui: Ui, total: int, num_files: int) -> None:
        super().__init__(ui, total)
        self._num_files, self._num_done, self._name = num_files, 0, ""

    def __call__(self, told: DownloadProgress) -> None:
        self._num_done += bool(told.file)
        self._name = told.file or self._name
        percent = 100 * told.done // max(1, told.total)
        line = f"[{self._num_done}/{self._num_files}] {percent:3d} %  {told.file}" if told.file else ""
        self._show(line, completed=told.done, description=self._name)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        size = DownloadColumn(binary_units=True)
        return BarColumn(), size, TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.description}")


class StepProgress(Progress):
    """Draws the events of one execution. Silent with --quiet; on stderr with --json."""

    def __init__(self, ui: Ui, *, yes: bool = False) -> None:
        self._yes = yes  # to every question
        self._ui = ui
        self._status: Status | None = None
        self._next_s = _FIRST_S
        self._last = ""  # the last line of the step at work
        self._skipped: list[Event] = []  # that were done already, since the last line
        self._has_printed = False

    @functools.cached_property
    def _console(self) -> Console:
        """Made when there is something to draw: rich takes long to import."""
        return self._ui.console(stderr=self._ui.is_json)

    def note(self, message: Message) -> None:
        self._ui.say(message, err=True)

    def warning(self, message: Message) -> None:
        if self._ui.is_verbose:
            self.note(message)

    def approve(self, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
        approve_plan(self._ui, job, changes, yes=self._yes)

    def confirm(self, *warnings: Message) -> None:
        if not self._yes:
            for warning in warnings:
                self.note(warning)
            confirm(self._ui)

    def conflict(self, error: ConflictError) -> None:
        show_conflict(replace(self._ui, is_json=False), error)  # on stderr, never as a second document

    @contextlib.contextmanager
    def examining(self) -> Iterator[Callable[[str], object] | None]:
        from npuenv.terminal.output import Spinner

        with Spinner(self._ui) as spinner:
            yield spinner.on_command

    def counting(self, total: int) -> CountBar:
        return CountBar(self._ui, total)

    def pings(self, total: int) -> PingBar:
        return PingBar(self._ui, total)

    def fetching(self, plan: BundlePlan) -> DownloadBar:
        return DownloadBar(self._ui, plan.contents.fetched, len(plan.contents.items))

    def activity(self, message: Message) -> None:
        self._ui.say(message, err=self._ui.is_json)

    def step(self, event: Event) -> None:
        from npuenv.install.executor import StepEvent

        if self._ui.is_quiet:
            return
        self._start()
        head = f"[{event.number}/{event.total}] {event.step.id}"
        if event.state is StepEvent.START:
            self._next_s, self._last = _FIRST_S, ""
            self._show(f"{head}: {say(event.step.why, self._ui.lang)}")
        elif event.state is StepEvent.LINE:
            self._line(head, event.text)
        elif event.state is StepEvent.WAITING:
            self._wait(head, event.seconds)
        elif event.state is StepEvent.SKIPPED:
            self._skipped.append(event)
            if self._ui.is_verbose:
                self._print_skipped()
        elif event.state in (StepEvent.DONE, StepEvent.FAILED, StepEvent.INTERRUPTED):
            self._print_skipped()
            self._print(f"cli.step-{event.state.value}", head=head, seconds=f"{event.seconds:.1f}")

    def _print_skipped(self) -> None:
        """The steps before this one that had nothing to do, in one line: the numbers have no gaps."""
        if self._skipped:
            first, last = self._skipped[0], self._skipped[-1]
            numbers = str(first.number) if first is last else f"{first.number}-{last.number}"
            steps = ", ".join(event.step.id for event in self._skipped)
            self._print("cli.step-skipped", head=f"[{numbers}/{last.total}] {steps}")
        self._skipped = []

    def _print(self, key: str, **args: object) -> None:
        self._has_printed = True
        self._say(key, args)

    def _say(self, key: str, args: dict[str, object]) -> None:
        self._console.print(say(Message(key, args), self._ui.lang), markup=False, soft_wrap=True)

    def waiting(self, path: str, pids: tuple[int, ...]) -> None:
        if not self._ui.is_quiet:
            self._say("execute.waiting-for" if pids else "execute.waiting", {"path": path, "pids": pids})

    def _wait(self, head: str, seconds: float) -> None:
        """A plain line now and then, so that a log shows that a long step is alive."""
        if self._status or seconds < self._next_s:
            return
        self._next_s = seconds + _EVERY_S
        key = "install.still-at-work" if self._last else "install.still-at-work-silent"
        self._say(key, {"head": head, "seconds": f"{seconds:.0f}", "line": self._last})

    def _line(self, head: str, text: str) -> None:
        text = clean(text.rstrip())
        self._last = text.strip()[:100] or self._last
        self._show(f"{head}: {text.strip()[:100]}")
        if not self._status and self._ui.is_verbose:
            self._console.print(f"    {text}", markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        """On the live line, in which no bracket is rich's markup."""
        from rich.text import Text

        if self._status:
            self._status.update(Text(text))

    def _start(self) -> None:
        """Begins the live line: not before the first step, since there may be a question before."""
        if self._status is None and self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()

    @contextlib.contextmanager
    def executing(self) -> Iterator[None]:
        try:
            yield
            if self._has_printed:
                self._print_skipped()
        finally:
            if self._status:
                self._status.stop()


def report_pending(ui: Ui, *, first_s: float = _PENDING_FIRST_S) -> Callable[..., Generator[NodeAnswer, None, None]]:
    """`npuenv.cluster.parallel_ssh.ask` that names on stderr, after a while and now and again, who has not answered."""
    from npuenv.cluster import parallel_ssh

    def ask(nodes: Sequence[Node], *args: Any, **options: Any) -> Generator[NodeAnswer, None, None]:
        answers = parallel_ssh.ask(nodes, *args, **options)
        with contextlib.closing(answers), _pending(ui, [node.name for node in nodes], first_s) as heard:
            for answer in answers:
                heard(answer.node.name)
                yield answer

    return ask


@contextlib.contextmanager
def _pending(ui: Ui, names: Sequence[str], first_s: float) -> Iterator[Callable[[str], object]]:
    """Takes the names of those that have answered, and names the others from time to time until the block ends."""
    from npuenv.cluster.inventory import fold

    left, is_over = dict.fromkeys(names), threading.Event()

    def tell() -> None:
        pause_s = first_s
        while not is_over.wait(pause_s):
            pause_s = _PENDING_EVERY_S
            waited = list(left)
            if waited:
                ui.say(Message("cluster.waiting", {"count": len(waited), "names": fold(waited)}), err=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield lambda name: left.pop(name, None)
    finally:
        is_over.set()
        thread.join()
