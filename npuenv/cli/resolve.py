"""`npuenv resolve`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.help import HelpfulCommand
from npuenv.core.messages import Message
from npuenv.core.versions import normalised
from npuenv.lock.store import find_lock
from npuenv.matrix import load_matrix
from npuenv.report.resolution import as_json, show, show_reasons, show_table
from npuenv.resolve.newer import newer_release
from npuenv.resolve.suggestions import command as words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.resolve.types import Request, Stack

_EVERY = "*"


@click.command("resolve", cls=HelpfulCommand)
@request_options
@click.option(
    "--why",
    is_flag=False,
    flag_value=_EVERY,
    metavar="[PACKAGE]",
    help="Explain each version, and why not a newer one; with PACKAGE, only that package.",
)
@common_options
def command(ui: Ui, *, request: Request, why: str | None) -> int:
    """Show which versions work together, on one screen; --why explains them, -v shows everything.

    STACK is the name of a published stack; or describe one with options. If nothing fits, the smallest set of
    conflicting requirements is printed with sources and verified solutions (exit 4).
    """
    request = app.resolution.for_this_host(request)
    stack = app.resolve(request)
    if not ui.is_json:
        for note in app.resolution.basis_of(request, stack):
            ui.say(note, err=True)
    if ui.is_json:
        ui.print_json({**as_json(stack, ui.lang), "exit": 0})
    elif why is not None:
        show_reasons(stack, ui.console(), ui.lang, package=None if why == _EVERY else normalised(why))
    elif ui.is_verbose:
        show(stack, ui.console(), ui.lang)
    elif not ui.is_quiet:
        show_table(
            stack, ui.console(), ui.lang, following=tuple(_following(stack, request)), said=app.resolution.ASSUMPTIONS
        )
    return 0


def _following(stack: Stack, request: Request) -> Iterator[Message]:
    """Why no newer release, how far the stack's lock is, and the commands that go on from here."""
    newer = newer_release(stack, request, load_matrix())
    if newer is not None:
        yield newer
    lock = find_lock(stack, app.resolution.own_locks())
    if lock is None:
        yield Message("stack.lock-none")
    else:
        lacks = tuple(dict.fromkeys(missing.name for missing in lock.missing))
        yield Message(f"stack.lock-{lock.status}", {"packages": len(lock.packages), "lacks": lacks})
    # What a host told, it tells the next command too.
    of_host: dict[str, Any] = dict.fromkeys(app.resolution.DECIDED & set(request.origins))
    typed = replace(request, **of_host)
    named = words_of(replace(typed, stack=stack.name, framework=None, release=None, is_newest=False))[2:]
    yield Message("stack.next-install", {"command": shlex.join(("npuenv", "install", *named))})
    yield Message("stack.next-why", {"command": shlex.join(("npuenv", "resolve", *named))})
