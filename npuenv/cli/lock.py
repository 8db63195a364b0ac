"""`npuenv lock`: one lock, all locks, or whether what they name can still be had."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from npuenv import app, report
from npuenv.cli.common import FILE, HelpfulCommand, Ui, common_options, options_of, refuse_with, request_options
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.app import LockedRequest
    from npuenv.app.locking import InstalledComparison
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.resolve.types import Request

FORMS = ("toml", "requirements", "pylock", "cyclonedx", "uv")


@click.command("lock", cls=HelpfulCommand)
@request_options
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--fill", is_flag=True, help="Ask the indexes for hashes that the lock lacks or took from public lock files."
)
@click.option("--renew", is_flag=True, help="Resolve again even if a lock exists.")
@click.option("--offline", "is_offline", is_flag=True, help="Resolve from uv's cache only.")
@click.option("--all", "is_all", is_flag=True, help="Lock every published stack that matches the options.")
@click.option("--verify", is_flag=True, help="Check that everything in the locks is still available: [FILE|STACK]...")
@click.option(
    "--installed",
    type=FILE,
    metavar="DIR",
    help="Compare an environment or a folder of packages with the lock and check its requirements; "
    "with --format cyclonedx: take licences from it.",
)
@click.option("--format", "form", type=click.Choice(FORMS), default="toml", help="Lock format (default: toml).")
@click.option("--bundle", type=FILE, metavar="DIR", help="For pylock: folder of the files.")
@click.option("-o", "--out", type=FILE, metavar="DIR", help="Write the lock to DIR (default: print it).")
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    more: tuple[str, ...],
    is_all: bool,
    verify: bool,
    installed: Path | None,
    form: str,
    bundle: Path | None,
    **values: Any,
) -> int:
    """Create the full hashed lock of a stack: every package with its version, hashes and dependents.

    A lock is partial if an index cannot be reached, and lists the pins concerned (exit 3); it is impossible if the
    published set does not resolve, and lists the conflicting requirements (exit 4).
    """
    options = app.LockOptions(**values)
    if more and not verify:
        raise BadInput(Message("lock.one-stack", {"words": more}))
    _check_form(form, bundle, options.out)
    whole = "--verify" if verify else "--all" if is_all else ""
    if whole:
        refuse_with(whole, {"--format": form != "toml", "--installed": installed is not None})
    if verify:
        given = {"--all": is_all, "--fill": options.fill, "--renew": options.renew}
        given |= {"--out": options.out is not None, "--offline": options.is_offline}
        refuse_with("--verify", {**given, **options_of(replace(request, stack=None))})
        return _verify(ui, tuple(filter(None, (request.stack, *more))))
    if is_all:
        return _lock_all(ui, request, options)
    # Progress on stderr: stdout may be the lock.
    found = app.lock_request(request, options, StepProgress(replace(ui, is_json=True)))
    if installed is not None and form != "cyclonedx":
        return _report_installed(ui, app.locking.compare_installed(installed, found.stack, found.lock), found.lock)
    _give(ui, found, form, bundle or installed, options.out)
    return int(found.exit_code)


def _check_form(form: str, bundle: Path | None, out: Path | None) -> None:
    """Raises BadInput where the form of a lock and the folders that it needs do not come together."""
    if form == "uv" and out is None:
        raise BadInput(Message("lock.only-with", {"option": "--format uv", "other": "--out DIR"}))
    if form == "pylock" and bundle is None:
        raise BadInput(Message("lock.only-with", {"option": "--format pylock", "other": "--bundle DIR"}))
    if form != "pylock" and bundle is not None:
        raise BadInput(Message("lock.only-with", {"option": "--bundle", "other": "--format pylock"}))


def _report_installed(ui: Ui, compared: InstalledComparison, lock: Lock) -> int:
    code, found = compared.exit_code, compared.found
    if ui.is_json:
        rows = [
            {"who": c.who, "says": say(c.says, ui.lang), "because": say(c.because, ui.lang) if c.because else None}
            for c in found
        ]
        ui.print_json({"schema": "npuenv.installed/1", "exit": int(code), "complaints": rows})
        return int(code)
    for each in found:
        because = each.because or Message("consistent.unexplained")
        ui.say(Message("consistent.complaint", {"says": each.says, "because": because}))
    args = {"count": len(found), "unexplained": compared.num_unexplained, "packages": len(lock.packages)}
    ui.say(Message("consistent.summary", args))
    return int(code)


def _give(ui: Ui, found: LockedRequest, form: str, folder: Path | None, out: Path | None) -> None:
    """Prints or writes one lock, and says what it lacks. `folder`: what the form reads besides the lock."""
    lock = found.lock
    if out:
        path = app.locking.put_lock_form(found, form, folder, out)
        key = "cli.locked-for-uv" if form == "uv" else "cli.locked"
        ui.say(Message(key, {"path": str(path), "packages": len(lock.packages), "folder": str(out)}))
    elif not ui.is_json:
        click.echo(app.locking.lock_text(found, form, folder)[1], nl=False)
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.lock/1",
                "exit": int(found.exit_code),
                "stack": lock.stack,
                "platform": lock.platform,
                "status": lock.status,
                "packages": [_package_json(package) for package in lock.packages],
                "missing": [{"name": m.name, "version": m.version, "reason": m.reason} for m in lock.missing],
                "proof": [{"requirement": p.requirement, "source": p.source} for p in lock.proof],
            }
        )
    if found.stack.sources_read is not None:
        ui.say(report.lines.sources_line(*found.stack.sources_read), err=True)
    for says in (*report.shelf.witnessed(lock), *report.shelf.gaps(lock, found.resolver)):
        ui.say(says, err=True)


def _package_json(package: LockedPackage) -> dict[str, object]:
    """A package of the document; `witnesses` only where its hashes were not given by an index."""
    row: dict[str, object] = {"name": package.name, "version": package.version, "index": package.index}
    return {**row, "witnesses": package.witnesses} if package.witnesses else row


def _verify(ui: Ui, words: tuple[str, ...]) -> int:
    verified = app.verify_locks(words, StepProgress(ui))
    if ui.is_json:
        document = {"schema": "npuenv.verify/1", "exit": int(verified.exit_code)}
        ui.print_json({**document, "locks": report.shelf.verified_json(verified.locks)})
    elif not ui.is_quiet or verified.exit_code is not ExitCode.FINE:
        report.shelf.show_verified(verified.locks, ui.console(), ui.lang)
    return int(verified.exit_code)


def _lock_all(ui: Ui, request: Request, options: app.LockOptions) -> int:
    # What would change a stack, instead of choosing among the published ones.
    changing = replace(request, framework=None, hardware=None, arch=None, python=None, cann=None)
    refuse_with("--all", {**options_of(changing), "--for NAME==RELEASE": "==" in (request.framework or "")})
    found = app.lock_published(request, options, StepProgress(ui))
    if ui.is_json:
        rows = report.shelf.shelf_json(found.rows, ui.lang)
        ui.print_json({"schema": "npuenv.locks/1", "exit": int(found.exit_code), "rows": rows})
    elif not ui.is_quiet:
        report.shelf.show_shelf(found.rows, ui.console(), ui.lang)
    if found.error is not None and not ui.is_json:
        raise found.error
    return int(found.exit_code)
