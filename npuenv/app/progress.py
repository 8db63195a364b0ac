"""What the use cases report while they work: each class shows nothing; a caller overrides what it needs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.app.job import InstallJob
    from npuenv.app.resolution import ConflictError
    from npuenv.bundle.fetch import DownloadProgress
    from npuenv.bundle.make import BundlePlan
    from npuenv.cluster.captures import NodeCapture
    from npuenv.core.messages import Message
    from npuenv.install.environments import PackageChange
    from npuenv.install.executor import Event


class Progress:
    """Shows nothing and agrees to everything; a caller overrides what it needs."""

    def note(self, message: Message) -> None:
        """Something to know that nobody asked for, such as what was assumed."""

    def warning(self, message: Message) -> None:
        """A setting of pip on this machine that cannot be used."""

    def activity(self, message: Message) -> None:
        """What begins now and may take a while."""

    def step(self, event: Event) -> None:
        """A step of a plan starts, prints a line, ends or is skipped."""

    def waiting(self, path: str, pids: tuple[int, ...]) -> None:
        """Another process works on the environment; `pids` as far as known."""

    def approve(self, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
        """The plan before anything is changed, and what an update changes; raises to refuse it."""


SILENT = Progress()


class BundleProgress(Progress):
    """Shows nothing and agrees to everything; a caller overrides what it needs."""

    def planned(self, plan: BundlePlan) -> None:
        """What goes in is known."""

    def confirm(self) -> None:
        """Before anything is fetched; raises to refuse it."""

    def fetching(self, plan: BundlePlan) -> contextlib.AbstractContextManager[Callable[[DownloadProgress], None]]:
        """Gives what is called with how far the downloads are."""
        return contextlib.nullcontext(lambda progress: None)


class LocksProgress(Progress):
    """Shows nothing; a caller overrides what it needs."""

    def locks(self, total: int) -> contextlib.AbstractContextManager[Callable[[str], object]]:
        """Gives what is called with the name of each lock that is done, of `total` in all."""
        return contextlib.nullcontext(lambda name: None)


class MeshProgress(Progress):
    """Shows nothing and agrees to everything; a caller overrides what it needs."""

    def confirm(self, most: int) -> None:
        """Before a full mesh of more than `most` devices; raises to refuse it."""

    def pings(self, total: int) -> contextlib.AbstractContextManager[Callable[[int], object]]:
        """Gives what is called with the number of pings that are done, of `total`, after each."""
        return contextlib.nullcontext(lambda done: None)

    def unfinished(self, mode: str, state: Path, *, is_interrupted: bool) -> None:
        """What is done is saved, and can be resumed: the run was interrupted, or some pings could not be made."""


class NodesProgress(Progress):
    """Shows nothing; a caller overrides what it needs."""

    def captures(self, total: int) -> contextlib.AbstractContextManager[Callable[[NodeCapture], object]]:
        """Gives what is called with each capture, of `total` in all."""
        return contextlib.nullcontext(lambda capture: None)

    def conflict(self, error: ConflictError) -> None:
        """The stack fits no machine like one of the nodes."""
