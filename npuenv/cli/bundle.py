"""`npuenv bundle`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.bundle.offline.fetch import bytes_per_second, still_to_fetch
from npuenv.bundle.offline.make import BundleOptions, Contents, check_place, check_room, gather, make_bundle, staging
from npuenv.bundle.offline.manifest import Manifest, Needed, request_values
from npuenv.bundle.offline.reader import open_bundle
from npuenv.bundle.offline.sources import check_sources
from npuenv.bundle.offline.user_files import check_cann_files, check_python_archive
from npuenv.cli.common import Ui, absolute, common_options, request_options
from npuenv.cli.help import Command
from npuenv.cli.progress import DownloadBar, StepProgress
from npuenv.cli.prompt import confirm
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.lock.preconditions import require_complete
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from npuenv.lock.make import Resolver
    from npuenv.resolve.types import Request

_FILE = click.Path(path_type=Path)
_MIB = 1024**2


@click.command("bundle", cls=Command)
@request_options
@click.option(
    "--platform", type=click.Choice(("aarch64", "x86_64")), help="Architecture of the target; same as --arch."
)
@click.option("--python-archive", type=_FILE, metavar="FILE", help="Add a Python interpreter, unpacked on the target.")
@click.option(
    "--cann-file", "cann_files", type=_FILE, multiple=True, metavar="FILE", help="Add a CANN file; repeatable."
)
@click.option(
    "--source", "given", multiple=True, metavar="NAME=PATH", help="Take a source from an archive or folder; repeatable."
)
@click.option(
    "--without-source",
    "left_out",
    multiple=True,
    metavar="NAME",
    help="Leave a source out; the user adds it; repeatable.",
)
@click.option("-o", "--output", "out", type=_FILE, metavar="FILE|DIR", help="Output folder, or .tar archive.")
@click.option("--dry-run", is_flag=True, help="Show what the bundle would contain; download nothing.")
@click.option("--fill", is_flag=True, help="First complete a partial lock from its indexes.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt.")
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    platform: str | None,
    python_archive: Path | None,
    cann_files: tuple[Path, ...],
    given: tuple[str, ...],
    left_out: tuple[str, ...],
    out: Path | None,
    dry_run: bool,
    fill: bool,
    yes: bool,
) -> int:
    """Bundle everything an offline machine needs for a stack into one folder or archive.

    The bundle is for the platform of the target, which may differ from this machine's. On the target, run
    `sh install.sh` in the bundle. What a bundle cannot hold (CANN, drivers, system packages) is listed with names and
    sizes.
    """
    if out:
        check_place(absolute(out))
    resolver = app.locks.this_resolver(StepProgress(ui))
    options = _wish(ui, _for_platform(request, platform), resolver, fill=fill)
    options = _with_files(options, given, left_out, python_archive, cann_files)
    out = absolute(out) if out else absolute(Path(f"npuenv-{options.stack.name}.{options.stack.platform.tag}"))
    if out.exists() and not dry_run:
        return _was_made(ui, options, out)
    args = {"stack": options.stack.name, "platform": options.stack.platform.tag}
    ui.say(Message("bundle.gathering", args), err=ui.is_json)
    contents = gather(options, resolver, load_matrix())
    _list(ui, contents, out, resolver)
    check_room(contents, out)
    if dry_run:
        _print_plan(ui, contents, out)
        return int(ExitCode.FINE)
    if not yes:
        confirm(ui)
    _report(ui, _make(ui, contents, out, resolver), out)
    return int(ExitCode.FINE)


def _for_platform(request: Request, platform: str | None) -> Request:
    if platform and request.arch and platform != request.arch:
        raise BadInput(Message("bundle.two-platforms", {"platform": platform, "arch": request.arch}))
    return app.resolution.for_this_machine(replace(request, arch=platform or request.arch), frozenset({"hardware"}))


def _wish(ui: Ui, request: Request, resolver: Resolver, *, fill: bool) -> BundleOptions:
    stack = app.resolve(request)
    lock = app.lock(stack, resolver, fill=fill, progress=StepProgress(ui))
    require_complete(lock, resolver, request)
    return BundleOptions(stack, lock, request)


def _with_files(
    options: BundleOptions,
    given: tuple[str, ...],
    left_out: tuple[str, ...],
    archive: Path | None,
    cann_files: tuple[Path, ...],
) -> BundleOptions:
    """The options with what the user adds. Raises BadInput for what does not fit the stack."""
    pairs = dict(_pair(word) for word in given)
    archive, cann_files = absolute(archive) if archive else None, tuple(absolute(path) for path in cann_files)
    sources, absent = check_sources(options.stack, pairs, left_out)
    if archive:
        check_python_archive(archive, options.stack.platform)
    check_cann_files(cann_files, options.stack, load_matrix())
    return replace(options, given=sources, left_out=absent, python_archive=archive, cann_files=cann_files)


def _pair(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not (name and equals and path):
        raise BadInput(Message("bundle.bad-source", {"word": word}))
    return name, str(absolute(Path(path)))


def _was_made(ui: Ui, options: BundleOptions, out: Path) -> int:
    """A bundle of the same stack and lock that stands already is only verified. Raises BadInput for anything else."""
    check_place(out)
    try:
        with open_bundle(out) as bundle:
            manifest = bundle.manifest
    except BadInput as error:  # its hint is for who was given that bundle
        raise BadInput(error.message, Message("bundle.another-hint")) from error
    wanted = (options.lock.hash, options.stack.platform.tag, request_values(options.request))
    if (manifest.lock, manifest.platform, dict(manifest.request)) != wanted:
        said = {"path": str(out), "stack": manifest.stack, "platform": manifest.platform}
        raise BadInput(Message("bundle.another", said), Message("bundle.another-hint"))
    _report(ui, manifest, out)
    return int(ExitCode.FINE)


def _list(ui: Ui, contents: Contents, out: Path, resolver: Resolver) -> None:
    """What goes in, what does not, and how long it takes. On stderr with --json."""
    options = contents.options
    head = {"stack": options.stack.name, "platform": options.stack.platform.tag, "path": str(out)}
    ui.say(Message("bundle.head", head), err=ui.is_json)
    for note in app.resolution.assumption_notes(options.stack):
        ui.say(note, err=True)
    for kind in ("wheel", "sdist", "build", "tool", "source"):
        sizes = [item.wanted.size for item in contents.items if item.kind == kind]
        if sizes:
            args = {"what": Message(f"bundle.kind-{kind}"), "count": len(sizes), "size": _mib(sum(sizes))}
            ui.say(Message("bundle.row", args), err=ui.is_json)
    for found in contents.sources:
        row = found.row
        args = {"name": row.name, "repo": row.repo, "ref": row.ref, "commit": row.commit[:12], "path": found.given}
        ui.say(Message(f"bundle.source-{row.origin}", {**args, "why": found.why}), err=ui.is_json)
    _list_needed(ui, contents.needed)
    left = still_to_fetch(contents.wanted, staging(out))
    rate = bytes_per_second(contents.wanted, resolver.settings) if left else 0.0
    args = {"size": _mib(left), "whole": _mib(contents.fetched + contents.copied)}
    if rate:
        minutes = max(1, round(left / rate / 60))
        ui.say(Message("bundle.time", {**args, "rate": f"{rate / _MIB:.1f}", "minutes": minutes}), err=ui.is_json)
    else:
        ui.say(Message("bundle.total", args), err=ui.is_json)


def _list_needed(ui: Ui, needed: tuple[Needed, ...]) -> None:
    system = tuple(row.name for row in needed if row.kind == "system")
    for row in needed:
        if row.kind != "system":
            size = Message("bundle.size", {"size": _mib(row.size)}) if row.size else Message("bundle.size-unknown")
            args = {"name": row.name, "size": size, "detail": row.detail or Message("bundle.not-known")}
            ui.say(Message(f"bundle.need-{row.kind}", args), err=ui.is_json)
    if system:
        ui.say(Message("bundle.need-system", {"names": system}), err=ui.is_json)


def _print_plan(ui: Ui, contents: Contents, out: Path) -> None:
    if ui.is_json:
        options = contents.options
        files = [
            {"path": item.wanted.path, "kind": item.kind, "name": item.name, "version": item.version,
             "size": item.wanted.size}
            for item in contents.items
        ]  # fmt: skip
        ui.print_json(
            {
                "schema": "npuenv.bundle-plan/1",
                "exit": 0,
                "stack": options.stack.name,
                "platform": options.stack.platform.tag,
                "path": str(out),
                "bytes": contents.fetched + contents.copied,
                "files": files,
                "sources": [asdict(found.row) for found in contents.sources],
                "needed": [asdict(row) for row in contents.needed],
            }
        )


def _make(ui: Ui, contents: Contents, out: Path, resolver: Resolver) -> Manifest:
    with DownloadBar(ui, contents.fetched, len(contents.items)) as transfer:
        return make_bundle(contents, out, resolver, tell=transfer.tell)


def _report(ui: Ui, manifest: Manifest, out: Path) -> None:
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.bundled/1",
                "exit": 0,
                "path": str(out),
                "stack": manifest.stack,
                "platform": manifest.platform,
                "manifest_sha256": manifest.digest,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "sources": [asdict(row) for row in manifest.sources],
                "needed": [asdict(row) for row in manifest.needed],
            }
        )
        return
    ui.say(Message("bundle.made", {"path": str(out), "count": len(manifest.files), "size": _mib(manifest.size)}))
    ui.say(Message("bundle.digest", {"digest": manifest.digest}))
    _list_needed(ui, manifest.needed)
    is_file = out.is_file()
    args = {"path": str(out), "name": out.name, "folder": f"npuenv-{manifest.stack}.{manifest.platform}"}
    ui.say(Message("bundle.then-archive" if is_file else "bundle.then-folder", args))


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}" if size < 100 * _MIB else f"{size / _MIB:.0f}"
