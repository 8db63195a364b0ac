"""Watches whether Ray's head responds, and ends the run if it does not.

Without its head Ray's calls block, and after a minute Ray kills the calling process without a visible message. So a
thread queries the head during the run. When the head is silent the run is notified; a run that cannot end then is
killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.placement.reach import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer.placement.cards import Node
    from trainer.placement.cluster import Cluster

_LOOK_S = 1.0
_KNOCK_S = 1.0
# So long the head may be silent: less than the minute after which Ray ends this process.
_SILENT_S = 20.0
# And so long when nothing listens there any more.
_REFUSED_S = 5.0
# The time for the run to end then; Ray waits for its head while it disconnects.
_LEAVE_S = 20.0


class HeadLost(Exception):
    """Ray's head no longer responds; the text says where and since when."""


class Head:
    """The head's last response. Two threads: one queries, and may block; the other measures the time since the last
    response.
    """

    def __init__(self, cluster: Cluster, end: Callable[[str], object]) -> None:
        self._cluster, self._end = cluster, end
        self._news = threading.Condition()
        self._nodes: Sequence[Node] = cluster.nodes()
        self._num_answers = 0
        self._lost: str | None = None
        self._hurry, self._is_left, self._is_over = threading.Event(), threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._ask, self._watch)]
        for each in self._threads:
            each.start()

    def nodes(self, *, is_fresh: bool = False) -> Sequence[Node]:
        """The living nodes in the head's last response; in its next one if `is_fresh`. Raises HeadLost."""
        with self._news:
            # The next answer may have been on its way already.
            next_answer = self._num_answers + (2 if is_fresh else 0)
            while self._lost is None and self._num_answers < next_answer:
                self._hurry.set()
                self._news.wait(_LOOK_S)
            if self._lost is not None:
                raise HeadLost(self._lost)
            return self._nodes

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def leave(self) -> None:
        """Stops the queries, because Ray is about to be disconnected. With a lost head the watch goes on until this
        process has ended.
        """
        self._is_left.set()
        self._hurry.set()
        self._threads[0].join(_LOOK_S)
        if self._lost is None:
            self._is_over.set()

    def _ask(self) -> None:
        while True:
            self._hurry.wait(_LOOK_S)
            self._hurry.clear()
            if self._is_left.is_set():
                return
            with contextlib.suppress(Exception):  # a head that fails is as good as one that is silent
                nodes = self._cluster.nodes()
                with self._news:
                    self._nodes, self._num_answers = nodes, self._num_answers + 1
                    self._news.notify_all()

    def _watch(self) -> None:
        # Looks are counted, not seconds: this process may have been stopped for a while.
        num_seen, num_silent = 0, 0
        while not self._is_over.wait(_LOOK_S):
            num_silent = num_silent + 1 if num_seen == self._num_answers else 0
            num_seen = self._num_answers
            if self._is_left.is_set():
                continue
            if (why := self._trouble(num_silent * _LOOK_S)) is not None:
                return self._tell(f"Ray's head at {self._cluster.address} does not answer any more: {why}")
        return None

    def _trouble(self, silent_s: float) -> str | None:
        if silent_s < _REFUSED_S:
            return None
        trouble = answers(self._cluster.address, _KNOCK_S)
        return f"it has been silent for {silent_s:.0f} s" if trouble is None and silent_s >= _SILENT_S else trouble

    def _tell(self, lost: str) -> None:
        with self._news:
            self._lost = lost
            self._news.notify_all()
        if self._cluster.is_own:
            _kill_own()
        if not self._is_over.wait(_LEAVE_S):
            self._end(lost)


@contextlib.contextmanager
def watched(cluster: Cluster, end: Callable[[str], object]) -> Iterator[Head]:
    """The head while the block runs. `end` is called, in a thread, when the head was lost and this process is still
    there after some seconds: it is to end it.
    """
    head = Head(cluster, end)
    try:
        yield head
    finally:
        head.leave()


def _kill_own() -> None:
    """Kills the Ray that this process has started and whose head hangs, with all that runs in it.

    What waits for it fails then, and can be left; some of it would wait for the head for a minute more.
    """
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            children.setdefault(int(rest.split()[1]), []).append(int(path.parent.name))
    doomed = list(children.get(os.getpid(), ()))
    for pid in doomed:
        doomed += children.get(pid, ())
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
