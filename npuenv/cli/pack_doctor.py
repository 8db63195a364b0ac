"""`npuenv pack-doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npuenv.bundle.zipapp import build
from npuenv.cli.common import FILE, HelpfulCommand, Ui, common_options
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from pathlib import Path


@click.command("pack-doctor", cls=HelpfulCommand)
@click.option(
    "-o",
    "--output",
    "out",
    type=FILE,
    metavar="FILE",
    default="npuenv-doctor.pyz",
    show_default=True,
    help="File to write.",
)
@common_options
def command(ui: Ui, *, out: Path) -> int:
    """Pack the doctor into a single file for hosts where nothing can be installed.

    It runs on any Python from 3.9 on: python3 npuenv-doctor.pyz [OPTIONS OF npuenv doctor]
    """
    size = build(out)
    if ui.is_json:
        ui.print_json({"schema": "npuenv.pack/1", "path": str(out), "bytes": size})
    else:
        ui.say(Message("doctor.packed", {"path": str(out), "kib": round(size / 1024)}))
    return 0
