"""`npuenv env`: the environments on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import HelpfulGroup, Ui, common_options
from npuenv.cli.progress import confirm
from npuenv.core import messages
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say
from npuenv.facts.manifest import DAMAGED, describe
from npuenv.host.local import LocalHost
from npuenv.install.environments import (
    EnvironmentEntry,
    clear,
    data_folder,
    environments,
    find,
    left_over,
    remains,
    remove,
    size_mib,
)
from npuenv.lock.uv import find_uv

if TYPE_CHECKING:
    from npuenv.host import Host

_WIDE = 10_000  # columns: more than any table here takes


@click.group("env", cls=HelpfulGroup)
def command() -> None:
    """Manage the environments made by npuenv."""


@command.command("list")
@common_options
def list_all(ui: Ui) -> int:
    """List the environments with stack, lock, status and folder."""
    host, data = _here()
    found = environments(host, data)
    if ui.is_json:
        ui.print_json({"schema": "npuenv.environments/1", "exit": 0, "environments": [_row(kept) for kept in found]})
    elif not found:
        ui.say(Message("install.no-environment"))
    else:
        _table(ui, found)
    if left := remains(data):
        ui.say(Message("install.remains", {"count": len(left)}), err=True)
    return int(ExitCode.FINE)


@command.command("show")
@click.argument("name")
@common_options
def show(ui: Ui, *, name: str) -> int:
    """Show what an environment (STACK, STACK/LOCK or a folder) was made from, and when it was verified."""
    kept = _shown(name)
    own = kept.described
    document = {**_row(kept), "size_mib": size_mib(Path(own.root))}
    if ui.is_json:
        ui.print_json({"schema": "npuenv.environment/1", "exit": 0, **document})
        return int(ExitCode.FINE)
    said = dict(zip(("role", "status"), _states(ui, kept)))
    for key in ("root", "stack", "platform", "lock", "role", "status", "npuenv", "kind", "origin", "size_mib"):
        value = said.get(key, document[key])
        _show(f"{_title(ui, key)}: {value if value not in ('', None) else '-'}")
    for source in own.sources:
        _show(f"{_title(ui, 'source')}: {source.get('name', '')} {source.get('from') or source.get('ref', '')}")
    _show(f"{_title(ui, 'request')}: {_flat(own.request)}")
    _show(f"{_title(ui, 'steps')}: {' '.join(own.steps) or '-'}")
    _show(f"{_title(ui, 'verified')}: {_verified(ui, kept)}")
    if own.verified is not None and own.verified.strangers:
        ui.say(Message("install.strangers", {"names": own.verified.strangers}), err=True)
    return int(ExitCode.FINE)


def _shown(name: str) -> EnvironmentEntry:
    """The environment. Raises BadInput where there is none; of a published stack the next step is to install it."""
    try:
        return find(*_here(), name)
    except BadInput as error:
        from npuenv.matrix import load_matrix
        from npuenv.matrix.release_stacks import recipe_named

        if recipe_named(name, load_matrix()) is None:
            raise
        raise BadInput(error.message, Message("store.install-hint", {"name": name})) from error


@command.command("remove")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt.")
@common_options
def remove_one(ui: Ui, *, name: str, yes: bool) -> int:
    """Delete an environment (STACK, STACK/LOCK or a folder)."""
    host, data = _here()
    kept = find(host, data, name)
    said = {"path": kept.described.root, "stack": kept.described.stack, "mib": size_mib(Path(kept.described.root))}
    if not yes:
        ui.say(Message("install.removing", said), err=ui.is_json)
        confirm(ui, is_yes_usual=False)
    remove(kept, data)
    if ui.is_json:
        ui.print_json({"schema": "npuenv.removed/1", "exit": 0, "paths": [said["path"]]})
    ui.say(Message("install.removed", said))
    return int(ExitCode.FINE)


@command.command("clean")
@click.option("--cache", is_flag=True, help="Also prune uv's cache.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt.")
@common_options
def clean(ui: Ui, *, cache: bool, yes: bool) -> int:
    """Delete environments that are neither active nor kept for rollback, and leftovers of deletions."""
    host, data = _here()
    paths = left_over(host, data)
    for path in paths:
        ui.say(Message("install.removing", _about(host, path)))
    if paths and not yes:
        confirm(ui, is_yes_usual=False)
    known = {kept.described.root: kept for kept in environments(host, data)}
    gone = []
    for path in paths:
        if str(path) in known:
            remove(known[str(path)], data)
        elif not clear(path, data):  # another process is deleting it
            continue
        gone.append(str(path))
    if cache:
        _prune_cache(ui, host)
    if ui.is_json:
        ui.print_json({"schema": "npuenv.removed/1", "exit": 0, "paths": gone})
    ui.say(Message("install.cleaned", {"count": len(gone)}))
    return int(ExitCode.FINE)


def _about(host: Host, path: Path) -> dict[str, object]:
    """What is said of a folder or link before it is deleted."""
    own = describe(host, str(path))
    mib = 0 if path.is_symlink() else size_mib(path)  # of a link only the link goes
    return {"path": str(path), "stack": own.stack if own else path.parent.name, "mib": mib}


def _here() -> tuple[Host, Path]:
    host = LocalHost()
    return host, Path(data_folder(host.environ()))


def _prune_cache(ui: Ui, host: Host) -> None:
    ran = host.run((find_uv(), "cache", "prune"), timeout_s=600.0)
    last = (ran.err or ran.out).strip().splitlines()[-1:] or [""]
    if ran.code != 0:
        raise BadInput(Message("install.cache-not-pruned", {"why": last[0]}))
    ui.say(Message("install.cache-pruned", {"said": last[0]}))


def _row(kept: EnvironmentEntry) -> dict[str, object]:
    return {**kept.described.as_json(), "role": kept.role, "is_proven": kept.described.is_proven}


def _show(text: str) -> None:
    """A line of what files say that anybody may have written."""
    click.echo(messages.clean(text))


def _table(ui: Ui, found: tuple[EnvironmentEntry, ...]) -> None:
    """A table where it fits, else a few lines for each environment: no word is ever broken."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for key in ("stack", "lock", "role", "status", "verified", "root"):
        table.add_column(_title(ui, key), no_wrap=True)
    for kept in found:
        own = kept.described
        cells = (own.stack, own.lock, *_states(ui, kept), _verified(ui, kept), own.root)
        table.add_row(*map(messages.clean, cells))
    console = ui.console()
    if console.measure(table, options=console.options.update(width=_WIDE)).maximum <= console.width:
        console.print(table)
        return
    for kept in found:
        own = kept.described
        states = ", ".join(word for word in _states(ui, kept) if word != "-")
        below = (("verified", _verified(ui, kept)), ("root", own.root))
        for line in (f"{own.stack} {own.lock}: {states}", *(f"  {_title(ui, key)}: {text}" for key, text in below)):
            console.print(messages.clean(line), overflow="ignore", crop=False)


def _states(ui: Ui, kept: EnvironmentEntry) -> tuple[str, str]:
    """Its place among those of its stack, and how far it is, in words."""
    keys = (f"install.role-{kept.role or 'none'}", f"install.status-{kept.described.status}")
    role, status = (Message(key) for key in keys)
    is_known = kept.described.status in ("building", "complete", DAMAGED)
    return say(role, ui.lang), say(status, ui.lang) if is_known else kept.described.status


def _verified(ui: Ui, kept: EnvironmentEntry) -> str:
    seen = kept.described.verified
    if not kept.described.is_proven or seen is None:
        return say(Message("install.never-verified"), ui.lang)
    return say(Message("install.verified-at", {"at": seen.at, "files": seen.files, "packages": seen.packages}), ui.lang)


def _flat(values: object) -> str:
    if not isinstance(values, dict) or not values:
        return "-"
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _title(ui: Ui, key: str) -> str:
    return say(Message(f"install.column-{key.replace('_', '-')}"), ui.lang)
