"""`npuenv doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import FRAMEWORKS, Ui, common_options
from npuenv.errors import BadInput, ExitCode
from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.host.base import Host


@click.command("doctor")
@click.option("--for", "framework", type=click.Choice(FRAMEWORKS), help="Judge for this use; cpu skips the cards.")
@click.option(
    "--level", type=click.IntRange(0, 2), default=1, show_default=True, help="0 reads files only; 2 computes."
)
@click.option("--python", metavar="EXE", help="The interpreter whose packages are judged (default: the session's).")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also write what was seen, redacted.")
@click.option("--from", "capture", type=click.Path(path_type=Path), metavar="FILE", help="Judge a saved capture.")
@common_options
def command(
    ui: Ui, *, framework: str | None, level: int, python: str | None, save: Path | None, capture: Path | None
) -> int:
    """Say what is wrong on this machine for training on Ascend NPUs, why, and which command mends it.

    Nothing on the machine is changed. The report is complete even where torch cannot be imported. What could not be
    looked at is "unknown", never "fine".
    """
    return int(run_doctor(ui, framework=framework, level=level, python=python, save=save, capture=capture))


def run_doctor(
    ui: Ui,
    *,
    framework: str | None,
    level: int = 1,
    python: str | None = None,
    save: Path | None = None,
    capture: Path | None = None,
) -> ExitCode:
    """Collects, checks and reports; the exit code of the findings."""
    from npuenv.checks import check_all, exit_code
    from npuenv.facts.collect import collect
    from npuenv.report.doctor import document, print_report

    if save and capture:
        raise BadInput(Message("cli.save-and-from"), Message("cli.save-and-from-hint"))
    host = _host(capture)
    facts = collect(host, python=python, level=level)
    findings = check_all(facts, framework=framework, level=level)
    code = exit_code(findings, framework=framework)
    if ui.is_json:
        ui.print_json(document(findings, facts, lang=ui.lang, framework=framework))
    elif not ui.is_quiet or code is not ExitCode.FINE:
        print_report(ui.console(), findings, facts, lang=ui.lang, is_verbose=ui.is_verbose, restore=_restore(host))
    if save:
        _save(host, save)
        ui.say(Message("cli.saved", {"path": str(save)}), err=True)
    return code


def _host(capture: Path | None) -> Host:
    """This machine, redacted before anything else sees its answers; or the one in a capture."""
    from npuenv.host.local import LocalHost
    from npuenv.host.recorded import RecordingHost, load_capture

    return load_capture(capture) if capture else RecordingHost(LocalHost())


def _restore(host: Host) -> Callable[[str], str]:
    """Puts the user's own names back into what is shown on this machine; a replayed capture has none to put back."""
    from npuenv.host.recorded import RecordingHost

    return host.restore if isinstance(host, RecordingHost) else str


def _save(host: Host, path: Path) -> None:
    from npuenv.host.recorded import RecordingHost

    assert isinstance(host, RecordingHost)
    from npuenv.host.writing import write_whole

    try:
        if path.exists() and not path.is_file():  # /dev/stdout: written through, never replaced
            path.write_text(host.capture_text(), encoding="utf-8")
        else:
            write_whole(str(path), host.capture_text())
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error
