"""The doctor's report in the form that was asked for, and where it goes. Start from `formed` and `deliver`."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.app.options import says_form
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.app.examine import Judged
    from npuenv.app.options import Wish
    from npuenv.app.ui import Ui
    from npuenv.host.base import Host
    from npuenv.report.terminal import Manner, Page

_DEEPEST = 2  # the level worth proposing to somebody who has cards; 3 is a burn-in


def formed(ui: Ui, wish: Wish, judged: Judged) -> str:
    """The report in the form that was asked for."""
    if wish.format == "text":
        return _text(ui, wish, judged)
    findings, facts, lang = judged.findings, judged.facts, ui.lang
    if wish.format == "html":
        from npuenv.report.html import render_html

        return render_html(findings, facts, lang=lang, asked=judged.redact(f"{wish.again} --format html"))
    if wish.format == "junit":
        from npuenv.report.junit import render_junit

        return render_junit(findings, lang=lang)
    from npuenv.report.doctor import document
    from npuenv.report.sarif import sarif_document

    if wish.format == "sarif":
        content = sarif_document(findings, lang=lang, framework=judged.framework, host=judged.host.name)
    else:
        content = document(findings, facts, lang=lang, framework=judged.framework, stack=wish.stack, level=wish.level)
    is_ascii = wish.out is None and (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json.dumps(content, ensure_ascii=is_ascii, indent=2) + "\n"


def _text(ui: Ui, wish: Wish, judged: Judged) -> str:
    """The report for people; plain where it is written into a file."""
    from npuenv.report.terminal import render_report

    page = page_of(ui, is_terminal=wish.out is None and sys.stdout.isatty())
    return render_report(judged.findings, judged.facts, page, _manner(ui, wish, judged))


def _is_for_a_file(wish: Wish) -> bool:
    """Whether the report goes into a file, which may be sent to somebody, instead of to this machine's user."""
    if wish.out not in (None, "-"):
        return True
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # a stream without a descriptor, in memory
        return False


def _manner(ui: Ui, wish: Wish, judged: Judged) -> Manner:
    from npuenv.report.terminal import Manner

    has_cards = bool(judged.facts.npu.smi.value and judged.facts.npu.smi.value.cards)
    deeper = replace(wish, level=_DEEPEST).again if has_cards and wish.level < _DEEPEST and not wish.capture else ""
    return Manner(
        lang=ui.lang,
        is_verbose=ui.is_verbose,
        is_quiet=ui.is_quiet,
        restore=str if _is_for_a_file(wish) else judged.restore,
        again=wish.again,
        is_replay=wish.capture is not None,
        python=judged.facts.python.interpreter.value.executable if judged.facts.python.interpreter.value else "",
        nothing_of="" if wish.is_installing else _nothing_of(judged),
        can_fix=wish.capture is None and not wish.is_fixing and wish.can_fix,
        deeper=deeper,
    )


def _nothing_of(judged: Judged) -> str:
    """The use that was named with --for, where the interpreter runs and has nothing of it installed; else ""."""
    python = judged.facts.python.interpreter.value
    if python is None or judged.framework is None:
        return ""
    return "" if {"torch", "torch-npu", judged.framework} & set(python.distributions) else judged.framework


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


def deliver(ui: Ui, wish: Wish, text: str) -> None:
    """Prints the report, or writes it where it was asked to go and says so. Raises BadInput."""
    if wish.out is None or wish.out == "-":
        print(text, end="", flush=True)
        return
    write(Path(wish.out), text)
    name = "written" if says_form(wish.out, wish.format) else "written-as"
    ui.say(Message(f"doctor.{name}", {"path": wish.out, "format": wish.format}), err=True)


def write(path: Path, text: str) -> None:
    """Writes a file whole. Raises BadInput."""
    from npuenv.host.writing import write_whole

    try:
        if path.exists() and not path.is_file():  # /dev/stdout: written through, never replaced
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(str(path), text)
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error


def save(ui: Ui, host: Host, path: Path) -> None:
    """Writes what a live host has answered as a capture, and says so. Raises BadInput."""
    from npuenv.host.recorded import RecordingHost

    assert isinstance(host, RecordingHost)
    write(path, host.capture_text())
    ui.say(Message("cli.saved", {"path": str(path)}), err=True)
