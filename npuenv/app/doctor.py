"""One run of the doctor: a look at a machine, or at a pasted report, told as asked. Start from `run_doctor`."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.app.options import require_place, require_python, require_sense
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.app.examine import Judged
    from npuenv.app.options import Wish
    from npuenv.app.ui import Ui
    from npuenv.host.base import Host


def run_doctor(ui: Ui, wish: Wish, judge: Callable[[Host], Judged]) -> ExitCode:
    """Looks, tells, and gives the exit code of what was found. Raises BadInput."""
    require_sense(wish)
    if wish.out is not None:
        require_place(wish.out)
    if wish.save is not None:
        require_place(str(wish.save))
    if wish.report is not None:
        return _diagnose(ui, wish, wish.report)
    require_python(wish)
    from npuenv.app.examine import live
    from npuenv.app.output import deliver, formed, save
    from npuenv.app.progress import Watch
    from npuenv.checks import Status
    from npuenv.host.local import LocalHost
    from npuenv.host.recorded import load_capture

    with Watch(ui) as watch:
        host = load_capture(wish.capture) if wish.capture else live(watch.host(LocalHost()))
        judged = judge(host)
    if wish.format != "text" or wish.out or not ui.is_quiet or judged.code is not ExitCode.FINE:
        deliver(ui, wish, formed(ui, wish, judged))
    elif any(finding.status is Status.WARN for finding in judged.findings):
        from npuenv.report.terminal import summary

        print(say(summary(judged.findings), ui.lang), flush=True)
    if wish.save:
        save(ui, host, wish.save)
    return judged.code


def _is_empty(report: str) -> bool:
    """Whether a pasted report holds nothing but space; what cannot be opened is for its reader to tell."""
    if report == "-":
        return isinstance(sys.stdin.buffer, io.BufferedReader) and not sys.stdin.buffer.peek(1).strip()
    path = Path(report)
    try:
        if not path.is_file():  # what is read from a pipe is gone for its reader
            return False
        with path.open("rb") as stream:
            return not stream.read(1 << 16).strip()
    except OSError:
        return False


def _diagnose(ui: Ui, wish: Wish, report: str) -> ExitCode:
    """The cause in a pasted report instead of a look at this machine."""
    from npuenv.app.diagnose import run_from_report
    from npuenv.app.output import deliver

    if _is_empty(report):
        raise BadInput(Message("doctor.empty-report", {"path": report}), Message("doctor.empty-report-hint"))

    ui = replace(ui, is_json=wish.format == "json")
    if wish.out is None or wish.out == "-":
        return run_from_report(ui, report)
    with contextlib.redirect_stdout(io.StringIO()) as written:
        code = run_from_report(ui, report)
    deliver(replace(ui, is_json=False), wish, written.getvalue())
    return code
