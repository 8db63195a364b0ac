"""The doctor's run on a command line: what shows that it works, the report in its format, and where it goes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, clean, say
from npuenv.terminal.options import matches_format
from npuenv.terminal.run import as_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.live import Live
    from rich.text import Text

    from npuenv.app.examine import DoctorResult
    from npuenv.host import Host
    from npuenv.report.terminal import Manner, Page
    from npuenv.terminal.options import DoctorCommand
    from npuenv.terminal.run import Ui


_QUIET_S = 2.0
_PER_SECOND = 2


class Spinner:
    """A line on stderr that names the running command and the seconds so far; gone when the block ends.

    Silent where stderr is no terminal, and with --quiet.
    """

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._can_draw = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not ui.is_quiet
        self._timer = threading.Timer(_QUIET_S, self._draw)
        self._timer.daemon = True
        self._lock = threading.Lock()  # between the timer's thread and the block's end
        self._is_over = False
        self._live: Live | None = None
        self._began = time.monotonic()
        self._now = ""

    @property
    def on_command(self) -> Callable[[str], None] | None:
        """Takes the name of each command that runs; None where nothing is drawn."""
        return self._name if self._can_draw else None

    def _name(self, text: str) -> None:
        self._now = clean(text)

    def __enter__(self) -> Spinner:
        if self._can_draw:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._live:
                self._live.stop()

    def _draw(self) -> None:
        from rich.live import Live  # most looks are over before this, and never pay for it

        console = self._ui.console(stderr=True)
        with self._lock:
            if self._is_over:
                return
            self._live = Live(
                console=console,
                get_renderable=self._line,
                refresh_per_second=_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _line(self) -> Text:
        from rich.text import Text

        seconds = time.monotonic() - self._began
        return Text(f"… {self._now} ({seconds:.0f} s)", no_wrap=True, overflow="ellipsis")


_DEEPEST = 2  # the level worth proposing to somebody who has cards; 3 is a burn-in
_MAX_BYTES = 256 * 1024 * 1024  # of a pasted report
_CAPTURE = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"schema":\s*"npuenv\.capture/')  # how `--save` begins


def run_doctor(ui: Ui, command: DoctorCommand, examine: Callable[..., DoctorResult]) -> ExitCode:
    """Examines with `examine(command, on_command=...)`, reports, and gives the exit code. Raises BadInput."""
    command.validate()
    if command.out is not None:
        require_writable(command.out)
    if command.save is not None:
        require_writable(str(command.save))
    if command.report is not None:
        return _diagnose(ui, command, command.report)
    from npuenv.checks import Status

    with Spinner(ui) as spinner:
        result = examine(command, on_command=spinner.on_command)
    if command.format != "text" or command.out or not ui.is_quiet or result.exit_code is not ExitCode.FINE:
        write_output(ui, command, render(ui, command, result))
    elif any(finding.status is Status.WARN for finding in result.findings):
        from npuenv.report.terminal import summary

        print(say(summary(result.findings), ui.lang), flush=True)
    if command.save:
        save(ui, result.host, command.save)
    return result.exit_code


def _diagnose(ui: Ui, command: DoctorCommand, path: str) -> ExitCode:
    """Reports the cause in a pasted report. Raises BadInput."""
    from npuenv.diagnose import diagnose
    from npuenv.host.redact import Redactor
    from npuenv.host.report import read_paste
    from npuenv.report.diagnosis import document, lines, print_diagnosis

    data = _read_report(path)
    if not data.strip():
        raise BadInput(Message("doctor.empty-report", {"path": path}), Message("doctor.empty-report-hint"))
    if _CAPTURE.match(data):
        hint = Message("doctor.report-capture-hint", {"path": "FILE" if path == "-" else path})
        raise BadInput(Message("doctor.report-capture", {"path": path}), hint)
    paste = read_paste(data, Redactor().text)
    diagnosis = diagnose(paste)
    is_to_stdout = command.out in (None, "-")
    if command.format == "json":
        content = document(diagnosis, lang=ui.lang)
        write_output(ui, command, as_json(content, is_to_stdout=is_to_stdout))
    elif not is_to_stdout:
        said = lines(diagnosis, paste, lang=ui.lang, is_verbose=ui.is_verbose)
        write_output(ui, command, "".join(f"{'  ' * line.depth}{line.text}\n" for line in said))
    elif not ui.is_quiet or diagnosis.exit_code is not ExitCode.FINE:
        print_diagnosis(ui.console(), diagnosis, paste, lang=ui.lang, is_verbose=ui.is_verbose)
    return diagnosis.exit_code


def _read_report(path: str) -> bytes:
    """The bytes of a file, or of standard input for `-`. Raises BadInput."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        args: dict[str, object] = {"path": path, "reason": reason}
        raise BadInput(Message("diagnose.unreadable", args), Message("diagnose.unreadable-hint")) from error
    if len(data) > _MAX_BYTES:
        args = {"path": path, "limit": _MAX_BYTES // 1024**2}
        raise BadInput(Message("diagnose.too-big", args), Message("diagnose.too-big-hint"))
    return data


def render(ui: Ui, command: DoctorCommand, result: DoctorResult) -> str:
    """The report in its format."""
    if command.format == "text":
        return _text(ui, command, result)
    findings, facts, lang = result.findings, result.facts, ui.lang
    if command.format == "html":
        from npuenv.report.doctor_forms import render_html

        return render_html(findings, facts, lang=lang, asked=result.redact(f"{command.again} --format html"))
    if command.format == "junit":
        from npuenv.report.doctor_forms import render_junit

        return render_junit(findings, lang=lang)
    from npuenv.report.doctor import document
    from npuenv.report.doctor_forms import sarif_document

    if command.format == "sarif":
        content = sarif_document(findings, lang=lang, framework=result.framework, host=result.host.name)
    else:
        content = document(
            findings, facts, lang=lang, framework=result.framework, stack=command.stack, level=command.level
        )
    return as_json(content, is_to_stdout=command.out in (None, "-"))


def _text(ui: Ui, command: DoctorCommand, result: DoctorResult) -> str:
    """The report for people; plain where it is written into a file."""
    from npuenv.report.terminal import render_report

    page = page_of(ui, is_terminal=command.out is None and sys.stdout.isatty())
    return render_report(result.findings, result.facts, page, _manner(ui, command, result))


def _is_for_a_file(command: DoctorCommand) -> bool:
    """Whether the report goes into a file, which may be sent to somebody, instead of to this machine's user."""
    if command.out not in (None, "-"):
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # a stream without a descriptor, in memory
        return False


def _manner(ui: Ui, command: DoctorCommand, result: DoctorResult) -> Manner:
    from npuenv.report.terminal import Manner

    has_cards = bool(result.facts.npu.smi.value and result.facts.npu.smi.value.cards)
    deeper = (
        replace(command, level=_DEEPEST).again if has_cards and command.level < _DEEPEST and not command.capture else ""
    )
    return Manner(
        lang=ui.lang,
        is_verbose=ui.is_verbose,
        is_quiet=ui.is_quiet,
        restore=str if _is_for_a_file(command) else result.restore,
        again=command.again,
        capture=str(command.capture or ""),
        python=result.facts.python.interpreter.value.executable if result.facts.python.interpreter.value else "",
        nothing_of="" if command.is_installing else _nothing_of(result),
        can_fix=command.capture is None and not command.is_fixing and command.can_fix,
        deeper=deeper,
    )


def _nothing_of(result: DoctorResult) -> str:
    """The use that was named with --for, where the interpreter runs and has nothing of it installed; else ""."""
    python = result.facts.python.interpreter.value
    if python is None or result.framework is None:
        return ""
    return "" if {"torch", "torch-npu", result.framework} & set(python.distributions) else result.framework


def page_of(ui: Ui, *, is_terminal: bool) -> Page:
    from npuenv.report.terminal import Page

    encoding = sys.stdout.encoding or "ascii"
    try:
        "✘✔├└│→…".encode(encoding)
        is_unicode = True
    except UnicodeEncodeError:
        is_unicode = False
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 40), 200)
    has_color = ui.has_color and is_terminal and os.environ.get("TERM") != "dumb"
    return Page(width, is_terminal, has_color, is_unicode)


def write_output(ui: Ui, command: DoctorCommand, text: str) -> None:
    """Prints the report, or writes it into its file and says so. Raises BadInput."""
    if command.out is None or command.out == "-":
        print(text, end="", flush=True)
        return
    write(Path(command.out), text)
    name = "written" if matches_format(command.out, command.format) else "written-as"
    ui.say(Message(f"doctor.{name}", {"path": command.out, "format": command.format}), err=True)


def write(path: Path, text: str) -> None:
    """Writes a file whole. Raises BadInput."""
    from npuenv.host.writing import cannot_save, write_whole

    try:
        if path.exists() and not path.is_file():  # /dev/stdout: written through, never replaced
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(str(path), text)
    except OSError as error:
        raise cannot_save(path, error) from error


def save(ui: Ui, host: Host, path: Path) -> None:
    """Writes what a live host has answered as a capture, and says so. Raises BadInput."""
    from npuenv.host.recorded import RecordingHost

    assert isinstance(host, RecordingHost)
    write(path, host.capture_text())
    ui.say(Message("cli.saved", {"path": str(path)}), err=True)


def require_writable(out: str) -> None:
    """Raises BadInput where the report cannot be written, before the machine is examined for minutes."""
    path = Path(out)
    if out == "-" or (path.exists() and not path.is_dir() and os.access(path, os.W_OK)):
        return
    if path.is_dir():
        reason = errno.EISDIR
    elif not path.parent.is_dir():
        reason = errno.ENOENT
    elif path.exists() or not os.access(path.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    args = {"path": out, "reason": os.strerror(reason)}
    raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint"))
