"""One run of the doctor: a look at a machine, or at a pasted report, told as asked. Start from `run_doctor`."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.errors import ExitCode
from npuenv.front.wish import require_place, require_sense

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.front.judging import Judged
    from npuenv.front.ui import Ui
    from npuenv.front.wish import Wish
    from npuenv.host.base import Host


def run_doctor(ui: Ui, wish: Wish, judge: Callable[[Host], Judged]) -> ExitCode:
    """Looks, tells, and gives the exit code of what was found. Raises BadInput."""
    require_sense(wish)
    if wish.out is not None:
        require_place(wish.out)
    if wish.report is not None:
        return _diagnose(ui, wish, wish.report)
    from npuenv.front.forms import deliver, formed, save
    from npuenv.front.judging import live
    from npuenv.front.watching import Watch
    from npuenv.host.local import LocalHost
    from npuenv.host.recorded import load_capture

    with Watch(ui) as watch:
        host = load_capture(wish.capture) if wish.capture else live(watch.host(LocalHost()))
        judged = judge(host)
    if wish.format != "text" or wish.out or not ui.is_quiet or judged.code is not ExitCode.FINE:
        deliver(ui, wish, formed(ui, wish, judged))
    if wish.save:
        save(ui, host, wish.save)
    return judged.code


def _diagnose(ui: Ui, wish: Wish, report: str) -> ExitCode:
    """The cause in a pasted report instead of a look at this machine."""
    from npuenv.front.forms import deliver
    from npuenv.front.paste import run_from_report

    ui = replace(ui, is_json=wish.format == "json")
    if wish.out is None or wish.out == "-":
        return run_from_report(ui, report)
    with contextlib.redirect_stdout(io.StringIO()) as written:
        code = run_from_report(ui, report)
    deliver(replace(ui, is_json=False), wish, written.getvalue())
    return code
