"""`npuenv doctor --from-report FILE|-`: a pasted report instead of this machine. Start from `run_from_report`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.app.ui import Ui

_MAX_BYTES = 256 * 1024 * 1024


def run_from_report(ui: Ui, path_or_dash: str, *, out: Path | None = None) -> ExitCode:
    """Diagnoses a file, or standard input for `-`; the exit code of the verdict.

    With `out` the report goes into that file, as JSON where its name ends in `.json`. Raises: BadInput.
    """
    from npuenv.diagnose import diagnose
    from npuenv.host.redact import Redactor
    from npuenv.host.report import read_paste
    from npuenv.report.diagnosis import document, lines, print_diagnosis

    paste = read_paste(_read(path_or_dash), Redactor().text)
    diagnosis = diagnose(paste)
    if out is not None:
        if ui.is_json or out.suffix == ".json":
            text = json.dumps(document(diagnosis, lang=ui.lang), ensure_ascii=False, indent=2)
        else:
            said = lines(diagnosis, paste, lang=ui.lang, is_verbose=ui.is_verbose)
            text = "\n".join("  " * line.depth + line.text for line in said)
        _write(out, text + "\n")
    elif ui.is_json:
        ui.print_json(document(diagnosis, lang=ui.lang))
    elif not ui.is_quiet or diagnosis.exit_code is not ExitCode.FINE:
        print_diagnosis(ui.console(), diagnosis, paste, lang=ui.lang, is_verbose=ui.is_verbose)
    return diagnosis.exit_code


def _write(out: Path, text: str) -> None:
    from npuenv.host.writing import write_whole

    try:
        write_whole(str(out), text)
    except OSError as error:
        args = {"path": str(out), "reason": error.strerror or str(error)}
        raise BadInput(Message("diagnose.unwritable", args), Message("diagnose.unwritable-hint")) from error


def _read(path_or_dash: str) -> bytes:
    """The bytes of a file or of standard input, bounded. Raises: BadInput."""
    if path_or_dash == "-":
        return _bounded(sys.stdin.buffer.read(_MAX_BYTES + 1), path_or_dash)
    try:
        with Path(path_or_dash).open("rb") as stream:
            return _bounded(stream.read(_MAX_BYTES + 1), path_or_dash)
    except OSError as error:
        args = {"path": path_or_dash, "reason": error.strerror or str(error)}
        raise BadInput(Message("diagnose.unreadable", args), Message("diagnose.unreadable-hint")) from error


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > _MAX_BYTES:
        args = {"path": name, "limit": _MAX_BYTES // 1024**2}
        raise BadInput(Message("diagnose.too-big", args), Message("diagnose.too-big-hint"))
    return data
