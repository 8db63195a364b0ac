"""`npuenv lock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.machine import for_this_machine, lock_of, resolve_or_stop, this_machine
from npuenv.errors import ExitCode
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Request


@click.command("lock")
@request_options
@click.option("--fill", is_flag=True, help="Complete a partial lock from its indexes.")
@click.option("--renew", is_flag=True, help="Resolve anew even where a lock exists.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write it there (default: print it).")
@common_options
def command(ui: Ui, *, request: Request, fill: bool, renew: bool, out: Path | None) -> int:
    """Give the full hashed lock of a stack: every package with version, hashes and who needs it.

    A lock is partial where an index is out of reach, and says for which pins (exit 3).
    """
    from npuenv.lock import write_lock
    from npuenv.lock.make import make_lock
    from npuenv.lock.refuse import why_missing
    from npuenv.lock.shelf import put_lock

    stack = resolve_or_stop(ui, for_this_machine(request))
    machine = this_machine(ui)
    lock = make_lock(stack, machine.resolver) if renew else lock_of(ui, stack, machine, fill=fill)
    code = ExitCode.FINE if lock.is_complete else ExitCode.UNKNOWN
    if out:
        path = put_lock(lock, out)
        ui.say(Message("cli.locked", {"path": str(path), "packages": len(lock.packages)}))
    elif not ui.is_json:
        click.echo(write_lock(lock), nl=False)
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.lock/1",
                "exit": int(code),
                "stack": lock.stack,
                "platform": lock.platform,
                "status": "complete" if lock.is_complete else "partial",
                "packages": [{"name": p.name, "version": p.version, "index": p.index} for p in lock.packages],
                "missing": [{"name": m.name, "version": m.version, "reason": m.reason} for m in lock.missing],
            }
        )
    for missing in lock.missing:
        ui.say(Message("cli.lock-gap", {"why": why_missing(missing, machine.resolver)}), err=True)
    return int(code)
