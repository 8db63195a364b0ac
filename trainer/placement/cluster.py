"""The Ray cluster of a run: an existing one, one of this run's own, or one on all nodes of a launcher; and its head.

A Ray that this process did not start is left unchanged. Every wait has a timeout, and missing resources are reported
before Ray, which waits silently, is asked for them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import launch
from trainer.device import RAY_KEEPS_OUT, RAY_RESOURCES, cores
from trainer.launch import given_back
from trainer.placement import CPU, Node, Placement, PlacementError, list_nodes, place_workers, ray_nodes, worker_actor
from trainer.placement.ray_nodes import RAY_VARIABLES, answers, holders, ray_error_line
from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer.config import Config
    from trainer.placement import Layout

    Say = Callable[[str], object]

_PROBE_S = 5.0
# A node that has just started Ray is registered after a moment.
_GRACE_S = 4.0
# For the other nodes to learn of the end; each may have to start a process for that.
_PART_S = 20.0
# Between two looks at the head.
_LOOK_S = 1.0
_KNOCK_S = 1.0
# So long the head may be silent: less than the minute after which Ray ends this process.
_SILENT_S = 20.0
# And so long when nothing listens there any more.
_REFUSED_S = 5.0
# The time for the run to end then; Ray waits for its head while it disconnects.
_LEAVE_S = 20.0
_LONGEST_SOCKET = 40  # characters of the folder: a socket's path has 107, of which Ray takes 65


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray that this process is connected to."""

    is_own: bool  # started for this run, and for nothing else
    address: str
    num_expected: int | None  # nodes that are on their way; None: those that are there are all
    others: str = ""  # other users with processes in it, as text

    def nodes(self) -> list[Node]:
        """The living nodes. Ray's status may be older than this."""
        import ray

        home = ray.get_runtime_context().get_node_id()
        return [
            Node(each["NodeID"], each["NodeManagerAddress"], dict(each["Resources"]), each["NodeID"] == home)
            for each in ray.nodes()
            if each["Alive"]
        ]

    def placement(self, layout: Layout, kind: str | None, *, limit_s: float, is_first: bool) -> Placement:
        """Places for all, as soon as the nodes are there. Raises PlacementError at the time limit or earlier.

        Not the first time, nodes that are not there are not on their way but lost.
        """
        began = time.monotonic()
        while True:
            nodes = self.nodes()
            is_coming = is_first and self.num_expected is not None and len(nodes) < self.num_expected
            try:
                if not is_coming:
                    return place_workers(layout, nodes, kind=kind)
                raise PlacementError(f"{len(nodes)} of {self.num_expected} nodes have joined Ray: {list_nodes(nodes)}")
            except PlacementError:
                waited_s = time.monotonic() - began
                if waited_s > (limit_s if is_coming else min(_GRACE_S, limit_s)):
                    raise
            time.sleep(0.2)

    def part(self, code: int, reason: str) -> None:
        """Tells the programs that a launcher has started on the other nodes how the run ended, so that they end the
        same way.

        A node that is out of reach finds the head gone and reports that.
        """
        if self.num_expected is None:
            return
        import ray
        from ray import cloudpickle
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cloudpickle.register_pickle_by_value(worker_actor)  # nodes need not have the trainer
        word = ray.remote(num_cpus=0, max_retries=0)(worker_actor.leave_word)
        with contextlib.suppress(Exception):  # a Ray that is broken is no news by now
            asked = [
                word.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False)).remote(
                    ray_nodes.LAST_WORD, json.dumps({"code": code, "reason": reason})
                )
                for node in self.nodes()
                if not node.is_home
            ]
            ray.wait(asked, num_returns=len(asked), timeout=_PART_S)


@contextlib.contextmanager
def opened(config: Config, layout: Layout, say: Say) -> Iterator[Cluster]:
    """A connection to the Ray of the settings, for as long as the block runs. Raises PlacementError."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # important events are reported in this program's own messages
    with contextlib.ExitStack() as stack:
        # Ray puts handlers of its own in the place of the run's.
        with given_back(), _named_failure("train_cards" if layout.has_cards else "generators"):
            cluster = _open(config, layout, say, stack)
        yield cluster


def _open(config: Config, layout: Layout, say: Say, stack: contextlib.ExitStack) -> Cluster:
    address, limit_s = _named(config), config.placement.cluster_limit_s
    if address == "local" or not layout.has_cards:
        return _own(layout, stack)
    if address:
        if config.placement.ray == "auto":
            say(f"joins the Ray at {address}, which RAY_ADDRESS names; ray=local starts another one")
        return _join_others(address, stack, say)
    if is_to_be_made(config):
        started = stack.enter_context(ray_nodes.started_head(layout.num_seats, limit_s=limit_s))
        joined = _join(started, stack, num_expected=launch.size(), is_own=True)
        say(f"Ray's head is at {started}; waits for {launch.size()} nodes")
        return joined
    if (found := _running()) is not None:
        running, is_ours = found
        if is_ours:
            say(f"joins the Ray at {running} that runs on this node; ray=local starts another one")
            return _join_others(running, stack, say)
        say(f"another user's Ray runs on this node: starts its own; ray={running} joins that one")
    return _own(layout, stack)


def _join_others(address: str, stack: contextlib.ExitStack, say: Say) -> Cluster:
    """Connects to an existing Ray, and reports its other users."""
    joined = _join(address, stack, num_expected=None, is_own=False)
    others = holders({node.key for node in joined.nodes()})
    if others:
        say(f"the Ray at {address} is shared with {others}")
    return replace(joined, others=others)


def _named(config: Config) -> str:
    """The Ray that the settings or RAY_ADDRESS name, or `local`; empty where neither does."""
    given = config.placement.ray
    address = given if given != "auto" else os.environ.get("RAY_ADDRESS", "")
    return "" if address == "auto" else address


def is_to_be_made(config: Config) -> bool:
    """Whether Ray is to be started on all nodes on which a launcher has started this program."""
    return ray_nodes.is_one_of_several() and not _named(config)


def _running() -> tuple[str, bool] | None:
    """The address of a Ray that was started on this node before, if it answers, and whether by this user."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        address, is_ours = file.read_text(encoding="ascii").strip(), file.stat().st_uid == os.getuid()
    except (OSError, UnicodeDecodeError):
        return None
    return (address, is_ours) if answers(address, 1.0) is None else None


def _join(address: str, stack: contextlib.ExitStack, *, num_expected: int | None, is_own: bool) -> Cluster:
    """Connects to a Ray. First checks that its port is open, because Ray itself would wait for minutes."""
    trouble = answers(address, _PROBE_S)
    if trouble is not None:
        raise PlacementError(f"ray={address}: {trouble}. Is Ray started there (`ray start --head`), and the port open?")
    import ray

    _init(address=address)
    stack.callback(_quietly, ray.shutdown)
    return Cluster(is_own, address, num_expected)


@functools.cache
def _token() -> str:
    """One for all runs of this process: Ray keeps the first that it has read (authentication_token_loader.cc)."""
    return secrets.token_hex(32)


def _own(layout: Layout, stack: contextlib.ExitStack) -> Cluster:
    """Starts Ray on this node only; it ends with this process, however that ends.

    Ray counts the cards itself: with an explicit number of GPUs it would count the NPUs as those.
    """
    folder = _short_folder()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    environ = {**RAY_VARIABLES, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    if not layout.has_cards:  # else Ray hides all cards from processes that have reserved none
        environ |= dict.fromkeys(RAY_KEEPS_OUT.values(), "1")
    stack.enter_context(_variables(environ))
    import ray

    # On CPUs all processes are on this node, whatever their number.
    cpus = max(cores(), layout.num_seats)
    _init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder)
    stack.callback(_quietly, ray.shutdown)
    return Cluster(True, ray.get_runtime_context().gcs_address, None)


def _init(**how: Any) -> None:
    import ray
    from ray._private import worker

    ray.init(**how, configure_logging=False, logging_level=logging.CRITICAL, log_to_driver=False, namespace="trainer")
    # Ray prints events of its processes on this one's standard output, whatever the log settings. A run prints nothing
    # there, and reports a loss itself.
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def _quietly(function: Callable[[], object]) -> None:
    """Ends what may be half gone already; what then is left goes with this process."""
    with contextlib.suppress(Exception):
        function()


@contextlib.contextmanager
def _variables(environ: dict[str, str]) -> Iterator[None]:
    """Within it this process and what it starts have these variables; those of the user stay as they are."""
    before = {name: os.environ.get(name) for name in environ}
    for name, value in environ.items():
        if not (name in RAY_VARIABLES and before[name] is not None):
            os.environ[name] = value
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


@contextlib.contextmanager
def _named_failure(setting: str) -> Iterator[None]:
    try:
        yield
    except (BadSetting, KeyboardInterrupt):
        raise
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise PlacementError(f"Ray cannot be imported: {error}") from error
        raise PlacementError(
            f"{setting} needs Ray, which is not installed here: install the package ray, or take an environment that "
            "has it (`npuenv install cpu-full`)"
        ) from error
    except Exception as error:  # Ray reports everything with errors of many kinds
        raise PlacementError(f"Ray could not be started or joined: {ray_error_line(error)}") from error


def _short_folder() -> str:
    """A folder of this run's own: others may not write in it, and the path of a socket in it is short enough."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="ray-", dir=base if len(base) <= _LONGEST_SOCKET - 14 else "/tmp")


def kind_wanted(config: Config) -> str | None:
    """The resource for `device`; None for whatever the nodes have.

    A run on CPUs reserves existing cards all the same, so that its processes are placed as they will be on cards.
    """
    return RAY_RESOURCES.get(config.run.device) if config.placement.train_cards else CPU


# The head.


class HeadLost(Exception):
    """Ray's head no longer responds; the text says where and since when."""


class Head:
    """The last response of Ray's head, while the block of a `with` runs.

    Without its head Ray's calls block, and after a minute Ray kills the calling process without a visible message. So
    the head is queried during the run. Two threads: one queries, and may block; the other measures the time since the
    last response. When the head is silent the run is notified. `end` is called, in a thread, when the head was lost and
    this process is still there after some seconds: it is to end it.
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

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *raised: object) -> None:
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
