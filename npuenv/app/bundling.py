"""Everything that an offline machine needs for a stack, in one folder or archive: `bundle`, `preview_bundle`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.app.progress import SILENT, Progress
from npuenv.bundle.fetch import still_to_fetch
from npuenv.bundle.layout import Manifest, request_values
from npuenv.bundle.make import (
    BundleOptions,
    BundlePlan,
    BundleRequest,
    check_place,
    check_room,
    gather,
    make_bundle,
    staging,
)
from npuenv.bundle.reader import open_bundle
from npuenv.bundle.sources import check_cann_files, check_python_archive, check_sources
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.lock.checking import require_complete
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.resolve.types import Request


@dataclass(frozen=True, slots=True)
class BundleResult:
    """A bundle that is complete."""

    out: Path
    manifest: Manifest


def bundle(request: Request, options: BundleOptions | None = None, progress: Progress = SILENT) -> BundleResult:
    """Makes the bundle of a stack; one of the same stack and lock that is there already is only verified.

    Raises BadInput (place, files, another bundle there), ConflictError, CannotTell, NothingFits, StepFailed.
    """
    opened = _open_request(request, options or BundleOptions(), progress)
    if opened.out.exists():
        return BundleResult(opened.out, verify_bundle(opened))
    plan = _plan(opened, progress)
    progress.confirm()
    with progress.fetching(plan) as tell:
        return BundleResult(plan.out, make_bundle(plan.contents, plan.out, tell=tell))


def preview_bundle(request: Request, options: BundleOptions | None = None, progress: Progress = SILENT) -> BundlePlan:
    """What the bundle of a stack would hold. Nothing is written. Raises as `bundle`."""
    return _plan(_open_request(request, options or BundleOptions(), progress), progress)


def _open_request(request: Request, options: BundleOptions, progress: Progress) -> BundleRequest:
    """The stack and its lock, with the user's files. Raises BadInput for what does not fit the stack."""
    if options.out:
        check_place(options.out)
    resolver = resolution.this_resolver(progress)
    asked, request = request, resolution.for_this_machine(request, frozenset({"hardware"}))
    stack = resolution.resolve(request)
    for note in resolution.basis_of(request, stack, asked):
        progress.note(note)
    lock = resolution.lock(stack, resolver, fill=options.fill, progress=progress)
    require_complete(lock, resolver, request)
    given, left_out = check_sources(stack, options.given, options.left_out)
    if options.python_archive:
        check_python_archive(options.python_archive, stack.platform)
    check_cann_files(resolver.host, options.cann_files, stack)
    return BundleRequest(stack, lock, resolver, request, replace(options, given=given, left_out=left_out))


def _plan(request: BundleRequest, progress: Progress) -> BundlePlan:
    """Raises BadInput where the disk does not have the room."""
    args = {"stack": request.stack.name, "platform": request.stack.platform.tag}
    progress.activity(Message("bundle.gathering", args))
    contents = gather(request, load_matrix())
    plan = BundlePlan(contents, request.out, still_to_fetch(contents.downloads, staging(request.out)))
    progress.planned(plan)
    check_room(contents, request.out)
    return plan


def verify_bundle(request: BundleRequest) -> Manifest:
    """The manifest of a bundle that is there already. Raises BadInput for anything but one of the same request."""
    out = request.out
    check_place(out)
    try:
        with open_bundle(out) as found:
            manifest = found.manifest
    except BadInput as error:  # its hint is for who was given that bundle
        raise BadInput(error.message, Message("bundle.another-hint")) from error
    wanted = (request.lock.hash, request.stack.platform.tag, request_values(request.request))
    if (manifest.lock, manifest.platform, dict(manifest.request)) != wanted:
        said = {"path": str(out), "stack": manifest.stack, "platform": manifest.platform}
        raise BadInput(Message("bundle.another", said), Message("bundle.another-hint"))
    return manifest
