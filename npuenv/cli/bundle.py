"""`npuenv bundle`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import FILE, HelpfulCommand, Ui, absolute, common_options, request_options
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.app import BundleResult
    from npuenv.bundle.layout import Needed
    from npuenv.bundle.make import BundlePlan
    from npuenv.resolve.types import Request

_MIB = 1024**2


class _Architecture(click.Choice):  # type: ignore[type-arg]  # generic from click 8.2 on
    """An architecture by any name that --arch takes, such as arm64."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_usual_name(value), param, ctx)


def _usual_name(arch: str) -> str:
    from npuenv.resolve.request import ARCHITECTURES

    return ARCHITECTURES.get(arch.strip().casefold(), arch)


@click.command("bundle", cls=HelpfulCommand)
@request_options
@click.option(
    "--platform", type=_Architecture(("aarch64", "x86_64")), help="Architecture of the target; same as --arch."
)
@click.option("--python-archive", type=FILE, metavar="FILE", help="Add a Python interpreter, unpacked on the target.")
@click.option(
    "--cann-file", "cann_files", type=FILE, multiple=True, metavar="FILE", help="Add a CANN file; repeatable."
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
@click.option("-o", "--output", "out", type=FILE, metavar="FILE|DIR", help="Output folder, or .tar archive.")
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
    if platform and request.arch and platform != _usual_name(request.arch):
        raise BadInput(Message("bundle.two-platforms", {"platform": platform, "arch": request.arch}))
    request = replace(request, arch=platform or request.arch)
    options = app.BundleOptions(
        given=dict(_pair(word) for word in given),
        left_out=frozenset(left_out),
        python_archive=absolute(python_archive) if python_archive else None,
        cann_files=tuple(absolute(path) for path in cann_files),
        fill=fill,
        out=absolute(out) if out else None,
        home=Path() if out else absolute(Path()),
    )
    progress = _BundleProgress(ui, yes=yes)
    if dry_run:
        plan = app.preview_bundle(request, options, progress)
        if ui.is_json:
            ui.print_json(_plan_document(plan))
    else:
        _report(ui, app.bundle(request, options, progress))
    return 0


def _pair(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not (name and equals and path):
        raise BadInput(Message("bundle.bad-source", {"word": word}))
    return name, str(absolute(Path(path)))


class _BundleProgress(StepProgress):
    def planned(self, plan: BundlePlan) -> None:
        _list(self._ui, plan)


def _list(ui: Ui, plan: BundlePlan) -> None:
    """What goes in, what does not, and how long it takes. On stderr with --json."""
    contents, stack = plan.contents, plan.contents.request.stack
    head = {"stack": stack.name, "platform": stack.platform.tag, "path": str(plan.out)}
    ui.say(Message("bundle.head", head), err=ui.is_json)
    for kind in ("wheel", "sdist", "build", "tool", "source"):
        sizes = [item.download.size for item in contents.items if item.kind == kind]
        if sizes:
            args = {"what": Message(f"bundle.kind-{kind}"), "count": len(sizes), "size": _mib(sum(sizes))}
            ui.say(Message("bundle.row", args), err=ui.is_json)
    for found in contents.sources:
        row = found.row
        args = {"name": row.name, "repo": row.repo, "ref": row.ref, "commit": row.commit[:12], "path": found.given}
        ui.say(Message(f"bundle.source-{row.origin}", {**args, "why": found.why}), err=ui.is_json)
    _list_needed(ui, contents.needed)
    args = {"size": _mib(plan.num_left), "whole": _mib(contents.fetched + contents.copied)}
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


def _plan_document(plan: BundlePlan) -> dict[str, object]:
    contents, stack = plan.contents, plan.contents.request.stack
    files = [
        {"path": item.download.path, "kind": item.kind, "name": item.name, "version": item.version,
         "size": item.download.size}
        for item in contents.items
    ]  # fmt: skip
    return {
        "schema": "npuenv.bundle-plan/1",
        "exit": 0,
        "stack": stack.name,
        "platform": stack.platform.tag,
        "path": str(plan.out),
        "bytes": contents.fetched + contents.copied,
        "files": files,
        "sources": [asdict(found.row) for found in contents.sources],
        "needed": [asdict(row) for row in contents.needed],
    }


def _report(ui: Ui, result: BundleResult) -> None:
    manifest, out = result.manifest, result.out
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
