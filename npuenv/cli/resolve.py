"""`npuenv resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npuenv import app, report
from npuenv.cli.common import HelpfulCommand, Ui, common_options, request_options

if TYPE_CHECKING:
    from npuenv.resolve.types import Request

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
        ui.print_json({**report.resolution.as_json(stack, ui.lang), "exit": 0})
    elif why is not None:
        report.resolution.show_reasons(stack, ui.console(), ui.lang, package=None if why == _EVERY else why)
    elif ui.is_verbose:
        report.resolution.show(stack, ui.console(), ui.lang)
    elif not ui.is_quiet:
        following = tuple(app.resolution.next_steps(stack, request))
        report.resolution.show_table(stack, ui.console(), ui.lang, following=following, said=app.resolution.ASSUMPTIONS)
    return 0
