"""`npuenv lock`: one lock, all locks, or whether what they name can still be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from npuenv import app
from npuenv.cli.common import (
    Ui,
    common_options,
    options_of,
    refuse_with,
    request_options,
    tell_basis,
)
from npuenv.cli.help import Command
from npuenv.cli.progress import CountBar, StepProgress
from npuenv.core.errors import BadInput, CannotTell, ExitCode
from npuenv.core.messages import Message, say
from npuenv.lock import Lock, store, write_lock
from npuenv.lock.consistent import find_inconsistencies
from npuenv.lock.export import PYLOCK, files_by_hash, pylock_toml, requirements_txt
from npuenv.lock.file import PARTIAL, LockedPackage
from npuenv.lock.make import Resolver, make_lock, ways_out
from npuenv.lock.preconditions import why_impossible, why_missing
from npuenv.lock.store import locks_named, put_lock, put_text, shelf_locks
from npuenv.lock.verify import verify_lock
from npuenv.maintain.lock_all import GridRow, lock_all
from npuenv.matrix import load_matrix
from npuenv.report.shelf import (
    is_lost,
    is_unasked,
    shelf_json,
    shelf_page,
    shelf_rows,
    show_shelf,
    show_verified,
    verified_json,
    witnessed,
)
from npuenv.resolve import published_requests, resolve
from npuenv.resolve.names import in_normal_form
from npuenv.resolve.types import Conflict, Request, Stack

_MOST_WAYS_OUT = 3
FORMS = ("toml", "requirements", "pylock")


@click.command("lock", cls=Command)
@request_options
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--fill", is_flag=True, help="Ask the indexes for hashes that the lock lacks or took from public lock files."
)
@click.option("--renew", is_flag=True, help="Resolve again even if a lock exists.")
@click.option("--offline", is_flag=True, help="Resolve from uv's cache only.")
@click.option("--all", "is_all", is_flag=True, help="Lock every published stack that matches the options.")
@click.option("--verify", is_flag=True, help="Check that everything in the locks is still available: [FILE|STACK]...")
@click.option(
    "--installed",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Compare an environment or a folder of packages with the lock and check its requirements.",
)
@click.option("--format", "form", type=click.Choice(FORMS), default="toml", help="Lock format (default: toml).")
@click.option("--bundle", type=click.Path(path_type=Path), metavar="DIR", help="For pylock: folder of the files.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write the lock to DIR (default: print it)."
)
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    more: tuple[str, ...],
    fill: bool,
    renew: bool,
    offline: bool,
    is_all: bool,
    verify: bool,
    installed: Path | None,
    form: str,
    bundle: Path | None,
    out: Path | None,
) -> int:
    """Create the full hashed lock of a stack: every package with its version, hashes and dependents.

    A lock is partial if an index cannot be reached, and lists the pins concerned (exit 3); it is impossible if the
    published set does not resolve, and lists the conflicting requirements (exit 4).
    """
    if more and not verify:
        raise BadInput(Message("lock.one-stack", {"words": more}))
    _check_form(form, bundle)
    whole = "--verify" if verify else "--all" if is_all else ""
    if whole and form != "toml":
        raise BadInput(Message("lock.not-with", {"option": "--format", "other": whole}))
    if whole and installed is not None:
        raise BadInput(Message("lock.not-with", {"option": "--installed", "other": whole}))
    if verify:
        given = {"--all": is_all, "--fill": fill, "--renew": renew, "--out": out, "--offline": offline}
        refuse_with("--verify", {**given, **options_of(replace(request, stack=None))})
    resolver = replace(app.locks.this_resolver(StepProgress(ui)), is_offline=offline)
    if verify:
        return _verify(ui, resolver, tuple(filter(None, (request.stack, *more))))
    if is_all:
        return _lock_all(ui, resolver, request, out or app.resolution.own_locks(), renew=renew, fill=fill)
    request = app.resolution.for_this_machine(request)
    stack = app.resolve(request)
    tell_basis(ui, request, stack)
    if renew:
        lock = make_lock(stack, resolver)
        if lock.is_complete and out is None:
            path = put_lock(lock, app.resolution.own_locks())
            ui.say(Message("cli.locked", {"path": str(path), "packages": len(lock.packages)}), err=True)
    else:
        progress = StepProgress(replace(ui, is_json=True))  # on stderr: stdout may be the lock
        lock = app.lock(stack, resolver, fill=fill, progress=progress)
    if installed is not None:
        return _hold_against(ui, stack, lock, installed)
    code = _give(ui, resolver, lock, form, bundle, out)
    if lock.proof and not ui.is_json:
        _show_ways_out(ui, stack, lock, resolver)
    return code


def _check_form(form: str, bundle: Path | None) -> None:
    """Raises BadInput where the form of a lock and the folder of its files do not come together."""
    if form == "pylock" and bundle is None:
        raise BadInput(Message("lock.only-with", {"option": "--format pylock", "other": "--bundle DIR"}))
    if form != "pylock" and bundle is not None:
        raise BadInput(Message("lock.only-with", {"option": "--bundle", "other": "--format pylock"}))


def _hold_against(ui: Ui, stack: Stack, lock: Lock, folder: Path) -> int:
    """Says what in a folder departs from the lock, or from what its packages require; 1 where nothing explains it."""
    if not folder.is_dir():
        raise BadInput(Message("consistent.no-folder", {"path": str(folder)}))
    places = sorted(folder.glob("lib/python3.*/site-packages"))
    found = find_inconsistencies(places[0] if places else folder, stack, lock)
    unexplained = [each for each in found if each.because is None]
    code = ExitCode.PROBLEMS if unexplained else ExitCode.FINE
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
    args = {"count": len(found), "unexplained": len(unexplained), "packages": len(lock.packages)}
    ui.say(Message("consistent.summary", args))
    return int(code)


def _show_ways_out(ui: Ui, stack: Stack, lock: Lock, resolver: Resolver) -> None:
    for requirement, overruled in ways_out(stack, lock, resolver)[:_MOST_WAYS_OUT]:
        args = {"requirement": requirement, "overruled": overruled or Message("locking.dependents")}
        ui.say(Message("locking.way-out", args), err=True)


def _give(ui: Ui, resolver: Resolver, lock: Lock, form: str, bundle: Path | None, out: Path | None) -> int:
    """Prints or writes one lock, and says what it lacks."""
    code = _code_of(lock)
    if out or not ui.is_json:
        name, text = _text(resolver, lock, form, bundle, out)
        if out:
            path = put_text(text, out / name)
            ui.say(Message("cli.locked", {"path": str(path), "packages": len(lock.packages)}))
        else:
            click.echo(text, nl=False)
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.lock/1",
                "exit": int(code),
                "stack": lock.stack,
                "platform": lock.platform,
                "status": lock.status,
                "packages": [_package_json(package) for package in lock.packages],
                "missing": [{"name": m.name, "version": m.version, "reason": m.reason} for m in lock.missing],
                "proof": [{"requirement": p.requirement, "source": p.source} for p in lock.proof],
            }
        )
    for says in witnessed(lock):
        ui.say(says, err=True)
    for missing in lock.missing:
        ui.say(Message("cli.lock-gap", {"why": why_missing(missing, resolver)}), err=True)
    for why in why_impossible(lock.proof, "") if lock.proof else ():
        ui.say(Message("cli.lock-gap", {"why": why}), err=True)
    return int(code)


def _package_json(package: LockedPackage) -> dict[str, object]:
    """A package of the document; `witnesses` only where its hashes were not given by an index."""
    row: dict[str, object] = {"name": package.name, "version": package.version, "index": package.index}
    return {**row, "witnesses": package.witnesses} if package.witnesses else row


def _text(resolver: Resolver, lock: Lock, form: str, bundle: Path | None, out: Path | None) -> tuple[str, str]:
    """File name and text of a lock in one of the forms."""
    if form == "requirements":
        return f"{lock.stack}.{lock.platform}.txt", requirements_txt(lock, resolver.indexes)
    if bundle is not None:
        return PYLOCK, pylock_toml(lock, files_by_hash(bundle, out))
    return lock.file_name, write_lock(lock)


def _code_of(lock: Lock) -> ExitCode:
    codes = {"complete": ExitCode.FINE, "partial": ExitCode.UNKNOWN, "impossible": ExitCode.NOTHING_FITS}
    return codes[lock.status]


def _verify(ui: Ui, resolver: Resolver, words: tuple[str, ...]) -> int:
    """Asks the indexes for everything that the chosen locks name; all shipped ones where none is chosen."""
    locks = locks_named(words, (app.resolution.own_locks(), store.shipped_folder()))
    found = []
    with CountBar(ui, len(locks)) as meter:
        for lock in locks:
            found.append((lock, verify_lock(lock, resolver)))
            meter.tick(lock.file_name)
    rows = [row for _, rows in found for row in rows]
    code = ExitCode.PROBLEMS if is_lost(rows) else ExitCode.UNKNOWN if is_unasked(rows) else ExitCode.FINE
    if ui.is_json:
        ui.print_json({"schema": "npuenv.verify/1", "exit": int(code), "locks": verified_json(found)})
    elif not ui.is_quiet or code is not ExitCode.FINE:
        show_verified(found, ui.console(), ui.lang)
    return int(code)


def _lock_all(ui: Ui, resolver: Resolver, request: Request, folder: Path, *, renew: bool, fill: bool) -> int:
    """Locks the published stacks that a request leaves; what is there and still answers the same inputs stays.

    The page beside the locks is about all published stacks: it is written when all were asked.
    """
    request = _narrowed(request)
    matrix = load_matrix()
    every = tuple(published_requests(matrix))
    possible = [(asked, resolve(asked, matrix)) for asked in every if _is_asked_for(asked, request)]
    meant = [(asked, result) for asked, result in possible if _is_left(result, request)]
    if not meant:
        raise BadInput(Message("lock.nothing-asked"))
    stacks = [result for _, result in meant if isinstance(result, Stack)]
    done: list[GridRow] = []
    failed = None
    with CountBar(ui, len(stacks)) as meter:

        def tell(row: GridRow) -> None:
            done.append(row)
            meter.tick(f"{row.stack} {row.platform}")

        try:
            lock_all(stacks, resolver, folder, on_done=tell, renew=renew, fill=fill)
        except CannotTell as error:
            failed = error  # said after what is known
    locks = shelf_locks(folder)
    if failed is None and len(meant) == len(every):
        put_text(shelf_page(shelf_rows(meant, locks, done)), folder / "README.md")
    places = {(row.stack, row.platform) for row in done}
    rows = shelf_rows(meant, [lock for lock in locks if (lock.stack, lock.platform) in places], done)
    is_open = failed is not None or any(row.status == PARTIAL for row in rows)
    code = ExitCode.UNKNOWN if is_open else ExitCode.FINE
    if ui.is_json:
        ui.print_json({"schema": "npuenv.locks/1", "exit": int(code), "rows": shelf_json(rows, ui.lang)})
    elif not ui.is_quiet:
        show_shelf(rows, ui.console(), ui.lang)
    if failed is not None and not ui.is_json:
        raise failed
    return int(code)


def _narrowed(request: Request) -> Request:
    """The options that choose among published stacks, in normal form. Raises BadInput for those that change a stack."""
    request = in_normal_form(request, load_matrix())
    choosing = replace(request, framework=None, hardware=None, arch=None, python=None, cann=None)
    refuse_with("--all", {**options_of(choosing), "--for NAME==RELEASE": request.release})
    return request


def _is_asked_for(asked: Request, request: Request) -> bool:
    """False for a published stack that the options leave out whatever it resolves to: to resolve all takes seconds."""
    pairs = [(request.stack, asked.stack), (request.hardware, asked.hardware), (request.arch, asked.arch)]
    pairs += [(request.python, asked.python)] if asked.python else []
    return all(wanted in (None, there) for wanted, there in pairs)


def _is_left(result: Stack | Conflict, request: Request) -> bool:
    """Whether the options leave what a published stack resolved to; of a conflict only what was asked is known."""
    if not isinstance(result, Stack):
        return not (request.framework or request.python or request.cann)
    cann = result.pin("cann")
    pairs = (
        (request.framework, result.framework),
        (request.python, result.platform.python),
        (request.cann, cann.version if cann else None),
    )
    return all(wanted in (None, there) for wanted, there in pairs)
