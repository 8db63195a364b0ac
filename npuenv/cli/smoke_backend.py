"""`npuenv smoke-train --backend verl|roll`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.cli.common import Ui, absolute
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.install.active import Environment
    from npuenv.smoke import Record, Target
    from npuenv.smoke.backends import Asked, Found

# Of a long log the end tells what happened; the diagnosis reads no more anyway.
_LOG_BYTES = 4 << 20


def run_backend(
    ui: Ui,
    backend: str,
    environment: Environment,
    *,
    out: Path | None,
    model: str | None,
    settings: Mapping[str, str],
) -> ExitCode:
    """Runs the framework's smallest GRPO, judges it and says the verdict; the exit code of the whole."""
    from npuenv import smoke
    from npuenv.host.local import LocalHost
    from npuenv.smoke import backends

    host, asked = LocalHost(), backends.asked(settings, model)
    place = smoke.Target(Path(environment.python), absolute(out or smoke.default_out()))
    if Path(environment.python).is_file():  # else there is nothing to say but that
        ui.say(environment.says)
    found = backends.look(host, place.python, backend)
    with smoke.sole_use(place.out):
        script = backends.prepare(host, place, found, asked, lang=ui.lang)
        return _run_and_judge(ui, environment.name, place, found, asked, script)


def _run_and_judge(ui: Ui, environment: str, place: Target, found: Found, asked: Asked, script: Path) -> ExitCode:
    import tempfile

    from npuenv.report import smoke as report
    from npuenv.smoke import backends

    console = ui.console(stderr=ui.is_json)
    cards = backends.used_cards(found, asked)
    records: list[Mapping[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="npuenv-", ignore_cleanup_errors=True) as folder,
        backends.start(place, found, script, ray_folder=Path(folder)) as running,
    ):
        args = {"backend": found.framework, "release": found.release, "cards": cards, "python": str(place.python)}
        ui.say(Message("smoke.backend-starting", args))
        stream = backends.follow(running, place.out, backends.header(found, asked, cards=cards), asked)
        try:
            records.extend(stream if ui.is_quiet or ui.is_json else report.watch(console, stream, ui.lang))
        except KeyboardInterrupt:
            running.interrupt()
            raise
        code = running.poll()
    return _say(ui, environment, place, records, code)


def _say(ui: Ui, environment: str, place: Target, records: Sequence[Record], code: int | None) -> ExitCode:
    from npuenv import smoke
    from npuenv.report import smoke as report
    from npuenv.smoke import backends

    findings = backends.judge(records, exit_code=code, log=_end_of(place.out / smoke.LOG))
    cause = backends.cause(findings)
    result = {"pass": ExitCode.FINE, "fail": ExitCode.PROBLEMS, "unknown": ExitCode.UNKNOWN}[report.verdict(findings)]
    files = {"records": place.out / smoke.METRICS}
    where = report.where_of(environment, records, has_cards=True)
    if ui.is_json:
        ui.print_json(
            report.summary_json(
                records, findings, cause=cause, where=where, lang=ui.lang, files=files, exit_code=int(result)
            )
        )
        return result
    console = ui.console()
    if not ui.is_quiet or result is not ExitCode.FINE:
        report.print_summary(
            console, records, findings, cause=cause, where=where, lang=ui.lang, files=files, is_quiet=ui.is_quiet
        )
    return result


def _end_of(log: Path) -> str:
    with log.open("rb") as source:
        source.seek(max(log.stat().st_size - _LOG_BYTES, 0))
        return source.read().decode("utf-8", "replace")
