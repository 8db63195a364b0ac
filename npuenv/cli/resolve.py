"""`npuenv resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.machine import resolve_or_stop

if TYPE_CHECKING:
    from npuenv.resolve.types import Request


@click.command("resolve")
@request_options
@common_options
def command(ui: Ui, *, request: Request) -> int:
    """Say which versions fit together, with the reason for each and why it is not newer.

    STACK is a published stack by name; or describe what is wanted with options. Where nothing fits, the smallest set
    of clashing demands is printed with its sources and with ways out that were checked (exit 4).
    """
    from npuenv.report.resolution import as_json, show

    stack = resolve_or_stop(ui, request)
    if ui.is_json:
        ui.print_json({**as_json(stack, ui.lang), "exit": 0})
    elif not ui.is_quiet:
        show(stack, ui.console(), ui.lang)
    return 0
