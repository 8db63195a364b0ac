"""`npuenv render-docker`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.machine import lock_of, resolve_or_stop, this_machine
from npuenv.errors import ExitCode
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Request

_ARCHITECTURES = ("x86_64", "aarch64")


@click.command("render-docker")
@request_options
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The parent folder.")
@common_options
def command(ui: Ui, *, request: Request, out: Path) -> int:
    """Render the same environment as a Dockerfile with its hashed requirements.

    One folder STACK.HARDWARE.OS for both architectures; --arch limits it to one.
    """
    from npuenv.matrix import load_matrix
    from npuenv.render.docker import render_docker
    from npuenv.render.folder import write_folders

    wanted = (request.arch,) if request.arch else _ARCHITECTURES
    stacks = {arch: resolve_or_stop(ui, replace(request, arch=arch)) for arch in wanted}
    stacks = {stack.platform.arch: stack for stack in stacks.values()}
    machine = this_machine(ui)
    locks = {arch: lock_of(ui, stack, machine, fill=False) for arch, stack in stacks.items()}
    indexes = {row.label: row for row in load_matrix().indexes}
    files = render_docker(stacks, locks, indexes=indexes, lang=ui.lang)
    written = write_folders(files, out)
    folders = sorted({name.partition("/")[0] for name in files})
    if ui.is_json:
        document = {
            "schema": "npuenv.render/1",
            "exit": 0,
            "files": sorted(files),
            "written": [str(p) for p in written],
        }
        ui.print_json(document)
    for folder in folders:
        key = "cli.rendered" if written else "cli.was-rendered"
        ui.say(Message(key, {"path": str(out / folder)}))
    return int(ExitCode.FINE)
