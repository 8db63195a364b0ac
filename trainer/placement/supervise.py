"""A placed run from start to end: attempts, one after another, until one ends by itself.

An attempt that loses a process or a node, or hangs, is followed by another one. It resumes from the last checkpoint,
whose state includes the random numbers: no rollout counts twice, and the records are truncated at that step.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer import saving
from trainer.config import instead
from trainer.launch import BAD_SETTING, BROKE, COMPLETED, INTERRUPTED
from trainer.placement import cluster as clusters
from trainer.placement import lost_node, ray_nodes, workers
from trainer.placement.rank import Place, share, sharing
from trainer.placement.ray_nodes import OUT_OF_REACH, how_lost, ray_error_line
from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainer.config import Config
    from trainer.placement import Layout, Node, Placement
    from trainer.placement.cluster import Cluster, Head
    from trainer.placement.workers import Worker, WorkerGroup

# Steps between two checkpoints if the settings name none: the maximum loss of a restart.
SAVE_EVERY = 10
# Between two looks at the processes; and between two at what Ray knows of a loss.
_LOOK_S = 1.0
_PAUSE_S = 0.2
# After a process was lost: others may be found lost too, and the one whose loss was the first is to be named.
_GRACE_S = 5.0
# How long the step at hand may take after an interrupt, before everything is ended.
_LEAVE_S = 120.0
# Until Ray knows that a node is gone, whose loss the ranks elsewhere see at once: ten to forty seconds where this run
# has started it, and over a minute with Ray's own settings.
_NODE_S = 75.0
# Beginnings of a rank's last message if it was not the cause; and those of gloo and HCCL, whose errors have no kind
_NOT_OWN = (
    *("GeneratorLost", "DistBackendError", "DistNetworkError", "DistStoreError"),
    *("RayActorError", "ActorDiedError", "ObjectStoreFullError"),
)
_PEER_GONE = ("gloo/transport", "Connection closed by peer", "HCCL function error", "call hccl api failed")
# Another program listens on the port that was reserved for the ranks' rendezvous: there is no other cause, and the next
# attempt uses another port.
_PORT_TAKEN = "EADDRINUSE"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended."""

    code: int
    reason: str  # one sentence; empty when it completed
    is_lost: bool  # a process, a node or an answer was lost: another attempt may fare better
    rank: int | None = None  # the rank at fault; None: none, or unknown
    node: str | None = None  # Ray's key of the node that was lost; None: none was, or it is not known yet
    has_code: bool = field(default=False, compare=False)  # the rank has ended with the code; a lost process has none


@dataclass(slots=True)
class Run:
    """What stays the same over the attempts."""

    command: Sequence[str]  # for every rank, before the settings
    settings: Sequence[str]
    config: Config
    layout: Layout
    out: Path
    say: Callable[[str], object]
    restarts: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[set[str]] = field(default_factory=list)  # Ray's keys of those of each attempt
    is_closed: bool = False  # its end has been recorded and reported
    earlier: tuple[int, int] | None = None  # what an earlier run saved there, from which this run must not resume

    def __post_init__(self) -> None:
        self.earlier = self._saved() if self.config.run.resume == "false" else None

    def saved_step(self) -> int | None:
        """The step to resume the next attempt from; None: nothing was saved yet."""
        return saving.saved_step(self.out) if self._saved() not in (None, self.earlier) else None

    def _saved(self) -> tuple[int, int] | None:
        try:
            found = (self.out / saving.CHECKPOINT / saving.MANIFEST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def lead(run: Run) -> int:
    """Runs all attempts; returns the exit code. The reason of a failure is in the last record and on stderr. Raises
    BadSetting.
    """
    limit_s = run.config.placement.cluster_limit_s
    if ray_nodes.joined_node():
        if not clusters.is_to_be_made(run.config):
            run.say(
                "Ray is there already: the first node's program leads the run, and nothing is left to do on this one"
            )
            return COMPLETED
        return ray_nodes.follow_head(run.layout.num_seats, run.say, limit_s=limit_s)
    with (
        clusters.opened(run.config, run.layout, run.say) as cluster,
        clusters.Head(cluster, lambda lost: _end_here(run, lost)) as head,
    ):
        try:
            ended = _attempts(run, cluster, head)
        except BadSetting as error:
            cluster.part(BAD_SETTING, str(error))
            raise
        if not head.is_lost:
            cluster.part(ended.code, ended.reason)
        return _close(run, ended)


def _end_here(run: Run, lost: str) -> None:
    """Ends this process, which is blocked by a Ray that does not respond; reports why unless that was done."""
    if not run.is_closed:
        _close(run, AttemptResult(BROKE, _without_ray(run, lost), is_lost=False))
    os._exit(BROKE)


def _without_ray(run: Run, why: str) -> str:
    step = run.saved_step()
    return f"{why}. Start Ray anew{f'; resume=true goes on after step {step}' if step else ''}"


def _attempts(run: Run, cluster: Cluster, head: Head) -> AttemptResult:
    """How the last one ended. Raises BadSetting."""
    while True:
        ended = _attempt(run, cluster, head)
        step = run.saved_step()
        if _is_known(run, ended, step):
            run.restarts.pop()
        if not ended.is_lost or len(run.restarts) >= run.config.placement.restarts:
            return ended
        run.restarts.append({"reason": ended.reason, "from_step": step or 0})
        where = f"goes on after step {step}" if step else "begins anew: nothing was saved yet"
        run.say(f"{ended.reason}; {where} (restart {len(run.restarts)} of {run.config.placement.restarts})")


def _is_known(run: Run, ended: AttemptResult, step: int | None) -> bool:
    """Whether this is the loss that ended the attempt before, of which only now Ray knows that it is a node's.

    Nothing was saved in between, and the node had a part in both.
    """
    is_new = not run.restarts or ended.node is None or run.restarts[-1]["from_step"] != (step or 0)
    return not is_new and ended.node in run.nodes[-2]


def _attempt(run: Run, cluster: Cluster, head: Head) -> AttemptResult:
    limit_s = run.config.placement.cluster_limit_s
    kind, placement = clusters.kind_wanted(run.config), None
    try:
        _nodes(head, is_fresh=True)
        placement = cluster.placement(run.layout, kind, limit_s=limit_s, is_first=not run.restarts)
        run.nodes.append({node.key for node in placement.nodes})
        are_missing = run.layout.has_cards and placement.resource == "CPU"
        header = {
            "layout": run.layout.describe(),
            "resource": placement.resource,
            "note": "no node has cards: processes on CPUs take their places" if are_missing else None,
            "nodes": [node.address for node in placement.nodes],
            "ranks": [placement.nodes[each.node].address for each in placement.learners],
            "generators": [placement.nodes[each.node].address for each in placement.generators],
            "ray": {"address": cluster.address, "is_own": cluster.is_own, "others": cluster.others},
            "restarts": run.restarts,
        }
        with workers.started(placement, cluster, header, run.say, limit_s=limit_s) as group:
            workers.check_folder(group, run.out, limit_s)
            return _follow(run, group, head)
    except clusters.HeadLost as error:
        return AttemptResult(BROKE, _without_ray(run, str(error)), is_lost=False)
    except BadSetting as error:
        if placement is not None and (lost := _by_lost_node(placement, cluster.nodes())) is not None:
            return lost
        if not run.restarts:
            raise
        # Lost once, the run has no place any more: that is how it ends.
        return AttemptResult(BROKE, f"{run.restarts[-1]['reason']}; then {error}", is_lost=False)
    except Exception as error:  # Ray reports everything with errors of many kinds
        if isinstance(error, OSError) and str(error.filename).startswith(str(run.out)):
            raise
        return AttemptResult(BROKE, f"Ray failed: {ray_error_line(error)}", is_lost=False)


def _follow(run: Run, group: WorkerGroup, head: Head) -> AttemptResult:
    """Lets the ranks run, and watches them. Raises HeadLost."""
    import ray

    goes_on = run.saved_step() is not None and bool(run.restarts)
    words = [*run.command, *(instead(run.settings, "resume", "auto") if goes_on else run.settings)]
    label = f"trainer-{secrets.token_hex(4)}"
    places = [
        Place(each, group.placement, group.group, f"{label}-{each.name}", run.out / f"generator-{number}.log")
        for number, each in enumerate(group.placement.generators)
    ]
    for number, each in enumerate(group.ranks):
        own = share(places, number, len(group.ranks))
        common = sharing(len(places), number, len(group.ranks))
        each.handle.prepare.options(concurrency_group="work").remote("trainer.placement.rank:Rank", words, own, common)
    runs = {each.ask("run"): each for each in group.ranks}
    given = run.config.placement
    watch = Watch(group, given.hang_limit_s, start_limit_s=max(given.hang_limit_s, given.cluster_limit_s))
    try:
        while True:
            done, _ = ray.wait(list(runs), num_returns=len(runs), timeout=_LOOK_S)
            ended = [(runs[each], _outcome(each)) for each in done]
            if any(code != COMPLETED for _, (code, _) in ended):
                return _explained(group, runs, head)
            if len(done) == len(runs):
                return AttemptResult(COMPLETED, "", is_lost=False)
            if (lost := _lost_node(group, head)) is not None:
                return lost
            if (reason := watch.look()) is not None:
                return AttemptResult(BROKE, reason, is_lost=True)
    except clusters.HeadLost:
        workers.end(group)
        raise
    except KeyboardInterrupt as error:
        return _leave(run, group, list(runs), str(error) or "SIGINT")


def _lost_node(group: WorkerGroup, head: Head, *, is_fresh: bool = False) -> AttemptResult | None:
    """How the attempt ended if a node was lost. Raises HeadLost."""
    return _by_lost_node(group.placement, _nodes(head, is_fresh=is_fresh))


def _by_lost_node(placement: Placement, alive: Sequence[Node]) -> AttemptResult | None:
    if (lost := lost_node(placement, alive)) is None:
        return None
    node, reason = lost
    return AttemptResult(BROKE, reason, is_lost=True, node=node.key)


def _nodes(head: Head, *, is_fresh: bool) -> Sequence[Node]:
    """The living nodes. Raises HeadLost, also if this node is not among them: then Ray cannot be used."""
    nodes = head.nodes(is_fresh=is_fresh)
    if not any(node.is_home for node in nodes):
        raise clusters.HeadLost("Ray on this node is gone: its raylet has ended")
    return nodes


def _outcome(done: Any) -> tuple[int | None, str]:
    """A rank's exit code and last message; no code if the process was lost."""
    import ray

    try:
        code, output = ray.get(done)
    except ray.exceptions.RayActorError as error:
        return None, how_lost(error)
    except Exception as error:  # the process could not even begin
        return BROKE, ray_error_line(error)
    return int(code), str(output)


def _explained(group: WorkerGroup, runs: dict[Any, Worker], head: Head) -> AttemptResult:
    """Why the attempt ended, once a rank has; with the node that was lost, if one was. Raises HeadLost.

    While others say nothing, a rank that lost them is no more than a sign: their node may be about to be found gone.
    """
    deadline = time.monotonic() + _NODE_S
    while True:
        cause, is_open = _cause(group, runs)
        lost = _lost_node(group, head, is_fresh=True) if cause.code == BROKE else None
        if lost is not None:
            return lost
        if not is_open or time.monotonic() > deadline:
            return cause
        time.sleep(_PAUSE_S)


def _cause(group: WorkerGroup, runs: dict[Any, Worker]) -> tuple[AttemptResult, bool]:
    """Why the attempt ended, a lost process before one that fails for want of it; and whether more will be known."""
    import ray

    done, late = ray.wait(list(runs), num_returns=len(runs), timeout=_GRACE_S)
    found = [(runs[each], *_outcome(each)) for each in done]
    lost = [(worker, _by_now(worker, why)) for worker, code, why in found if code is None]
    if lost:
        worker, why = min(lost, key=lambda each: each[1] == OUT_OF_REACH)
        ended = AttemptResult(BROKE, f"{worker.name} {why}", is_lost=True, rank=group.ranks.index(worker))
        return ended, why == OUT_OF_REACH
    codes = [code for _, code, _ in found]
    if INTERRUPTED in codes:
        return AttemptResult(INTERRUPTED, "", is_lost=False), False
    failed = [_failure(group.ranks.index(worker), code, output) for worker, code, output in found if code != COMPLETED]
    if failed:
        # A rank that loses another fails too: the first other failure gives the reason.
        cause = next((each for each in failed if not each.is_lost), failed[0])
        return cause, cause.is_lost and bool(late) and _PORT_TAKEN not in cause.reason
    names = ", ".join(runs[each].name for each in late)
    return AttemptResult(BROKE, f"{names} did not end with the others", is_lost=True), False


def _by_now(worker: Worker, why: str) -> str:
    """Why a process was lost, checked again if that was unknown: its node may be lost, or Ray be slow to report it."""
    import ray

    if why != OUT_OF_REACH:
        return why
    asked = worker.ask("beat", is_beside=True)
    if not ray.wait([asked], num_returns=1, timeout=_LOOK_S)[0]:
        return why
    try:
        ray.get(asked)
    except ray.exceptions.RayActorError as error:
        return how_lost(error)
    return "was cut off for a while"  # it lives, but its result is lost


def _failure(rank: int, code: int | None, output: str) -> AttemptResult:
    """How a rank failed, by its last message."""
    last = output.strip().splitlines()[-1].removeprefix("trainer: ") if output.strip() else f"ended with {code}"
    is_lost = last.startswith(_NOT_OWN) or any(words in last for words in _PEER_GONE)
    return AttemptResult(code or BROKE, last, is_lost=is_lost, rank=rank, has_code=True)


class Watch:
    """Whether the processes make progress. One that hangs blocks all: the one that waits for no other is named."""

    def __init__(self, group: WorkerGroup, limit_s: float, *, start_limit_s: float) -> None:
        self._workers, self._limit_s = group, limit_s
        self._start_limit_s = start_limit_s  # until the first step, which waits for imports above all
        self._asked: dict[int, Any] = {}  # the pending request of each rank
        self._beats: dict[int, dict[str, Any]] = {}
        self._heard: dict[int, float] = {}
        self._marks: dict[int, Any] = {}
        self._moved = time.monotonic()

    def look(self) -> str | None:
        """Who hangs or is lost, in a sentence; None while all get on."""
        import ray

        now = time.monotonic()
        for number, worker in enumerate(self._workers.ranks):
            asked = self._asked.get(number)
            if asked is None:
                self._asked[number] = worker.ask("beat", is_beside=True)
                self._heard.setdefault(number, now)
            elif ray.wait([asked], timeout=0)[0]:
                del self._asked[number]
                with contextlib.suppress(Exception):  # a lost process is seen where its run ends
                    self._take(number, ray.get(asked), now)
        has_begun = any(each["has_learnt"] for each in self._beats.values())  # they take each step together
        if now - self._moved <= (self._limit_s if has_begun else self._start_limit_s):
            return None
        return self._who_hangs(now)

    def _take(self, number: int, beat: dict[str, Any], now: float) -> None:
        self._beats[number], self._heard[number] = beat, now
        if self._marks.get(number) != beat["mark"]:
            self._marks[number], self._moved = beat["mark"], now

    def _who_hangs(self, now: float) -> str:
        """Example: `rank 1 on 10.0.0.2 hangs: it has not answered for 30 s; no step was done for 32 s`."""
        since = f"nothing has got on for {now - self._moved:.0f} s"
        deaf = [each for each, at in self._heard.items() if now - at > min(self._limit_s, 10.0)]
        if deaf:
            return f"{self._names(deaf)} hangs: it does not answer; {since}"
        awaited = sorted({name for beat in self._beats.values() for name in beat["awaits"]})
        if awaited:
            who = [each for each, beat in self._beats.items() if beat["awaits"]]
            hang, wait = ("hang" if len(awaited) > 1 else "hangs"), ("wait" if len(who) > 1 else "waits")
            return f"{' and '.join(awaited)} {hang}: {self._names(who)} {wait} for an answer; {since}"
        awake = [each for each, beat in self._beats.items() if not beat["waits"]]
        if awake and len(awake) < len(self._workers.ranks):
            return f"{self._names(awake)} hangs in {self._beats[awake[0]]['at']}; {since}"
        where = "; ".join(f"{self._workers.ranks[each].name} in {beat['at']}" for each, beat in self._beats.items())
        return f"the run hangs ({where or 'no rank has answered'}); {since}"

    def _names(self, numbers: Sequence[int]) -> str:
        return " and ".join(self._workers.ranks[each].name for each in sorted(numbers))


def _leave(run: Run, group: WorkerGroup, runs: list[Any], name: str) -> AttemptResult:
    """Lets the ranks finish the step at hand and save; at a second signal, or when that takes too long, not.

    Before the first step there is nothing to finish.
    """
    import ray

    number = signal.Signals[name].value if name in signal.Signals.__members__ else signal.SIGINT.value
    with contextlib.suppress(KeyboardInterrupt):
        asked = [each.ask("leave", number, is_beside=True) for each in group.ranks]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_GRACE_S)
        if any(_is_answered(each) for each in answered):
            ray.wait(runs, num_returns=len(runs), timeout=min(_LEAVE_S, run.config.placement.hang_limit_s))
    return AttemptResult(INTERRUPTED, "", is_lost=False)


def _is_answered(answer: Any) -> bool:
    """Whether a rank will leave after its step; one that is not even made, or is lost, will not."""
    import ray

    try:
        return bool(ray.get(answer))
    except Exception:  # any error: the process is about to be ended
        return False


def _close(run: Run, ended: AttemptResult) -> int:
    """Writes the records that the ranks could not write, and reports the end."""
    if ended.code in (COMPLETED, INTERRUPTED):
        return ended.code
    from trainer.metrics.records import Records

    with Records(run.out, append=True) as records:
        values: dict[str, Any] = {} if ended.rank is None else {"rank": ended.rank}
        if ended.has_code or not ended.is_lost:
            values["code"] = ended.code
        records.write("ranks", passed=False, reason=ended.reason, restarts=run.restarts, **values)
    run.say(ended.reason)
    run.is_closed = True
    return ended.code
