"""How an attempt ends, by what its ranks leave behind; without Ray, whose answers are made here."""

from __future__ import annotations

import json
import signal
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from trainer import __main__ as entry
from trainer.config import Config, read
from trainer.launch import BROKE, INTERRUPTED
from trainer.metrics.records import Records
from trainer.placement import Layout, Node, PlacementError, place_workers, ray_nodes, supervise, workers
from trainer.placement.cluster import HeadLost
from trainer.placement.rank import Rank
from trainer.placement.supervise import AttemptResult, Run
from trainer.placement.worker_actor import WorkerActor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GLOO = "trainer: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer"
NODES = [Node("a", "10.0.0.1", {"CPU": 4.0}, is_home=True), Node("b", "10.0.0.2", {"CPU": 4.0})]
PLACEMENT = place_workers(Layout((0, 1), (), nodes=2, cards_per_node=1), NODES, kind=None)


class RayActorError(Exception):
    """As Ray tells of an actor that is gone."""


class Late:
    """What does not come while it is waited for."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Ray, as far as it is asked here: a reference is what it refers to, an exception is raised."""

    def get(asked: Any) -> Any:
        if isinstance(asked[0], Exception):
            raise asked[0]
        return asked[0]

    def wait(asked: Sequence[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        late = [each for each in asked if isinstance(each[0], Late)]
        made.waited.append(timeout)
        return [each for each in asked if each not in late], late

    exceptions = SimpleNamespace(RayActorError=RayActorError, RayError=Exception)
    made = SimpleNamespace(get=get, wait=wait, exceptions=exceptions, waited=[])
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr(supervise, "_NODE_S", 0.0)
    return made


def explained(ends: Sequence[Any], alive: Sequence[Node] = NODES) -> AttemptResult:
    ranks: list[Any] = [
        SimpleNamespace(name=f"rank {number} on {NODES[number].address}") for number in range(len(ends))
    ]
    group: Any = SimpleNamespace(ranks=ranks, placement=PLACEMENT)
    head: Any = SimpleNamespace(nodes=lambda is_fresh: alive)
    return supervise._explained(group, {(end, at): ranks[at] for at, end in enumerate(ends)}, head)


@pytest.mark.usefixtures("ray")
def test_a_rank_that_lost_another_is_no_fault_of_its_own() -> None:
    assert explained([(1, GLOO), Late()]).is_lost
    assert not explained([(1, "trainer: ValueError: a reward"), Late()]).is_lost
    # One that failed by itself, and one that lost it.
    assert explained([(1, GLOO), (1, "trainer: ValueError: a reward")]) == AttemptResult(
        BROKE, "ValueError: a reward", is_lost=False, rank=1
    )
    killed = RayActorError("Worker unexpectedly exits with a connection error code 2.")
    assert explained([(1, GLOO), killed]) == AttemptResult(BROKE, "rank 1 on 10.0.0.2 was killed", is_lost=True, rank=1)
    assert explained([(2, "trainer: lr=x is refused"), Late()]).code == 2


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("said", [GLOO, "trainer: KeyError: whatever a rank meets then"])
def test_a_node_that_is_gone_is_named_whatever_the_others_ended_with(said: str) -> None:
    found = explained([(1, said), Late()], NODES[:1])
    assert (found.code, found.reason, found.is_lost) == (BROKE, LOST.reason, True)
    # Nothing can be asked of Ray any more, or of what another attempt would need.
    with pytest.raises(HeadLost, match="its raylet"):
        explained([(1, said), Late()], NODES[1:])


def test_a_loss_that_only_a_survivor_tells_is_waited_for_until_the_node_is_known_to_be_gone(
    ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_NODE_S", 60.0)
    looks = iter([NODES, NODES, NODES[:1]])
    ranks: list[Any] = [SimpleNamespace(name=f"rank {number}") for number in range(2)]
    group: Any = SimpleNamespace(ranks=ranks, placement=PLACEMENT)
    head: Any = SimpleNamespace(nodes=lambda is_fresh: next(looks))
    found = supervise._explained(group, {((1, GLOO), 0): ranks[0], (Late(), 1): ranks[1]}, head)
    assert found.reason == LOST.reason
    assert len(ray.waited) == 3


def test_a_rank_remembers_a_signal_within_its_steps_only() -> None:
    rank = Rank([], [])
    assert rank.leave(signal.SIGINT) is False
    with rank._interrupt.deferred():
        assert rank.leave(signal.SIGTERM) is True
    assert rank._interrupt.name == "SIGTERM"


@pytest.mark.parametrize(
    ("answers", "num_waits"),
    [([True, False], 2), ([False, False], 1), ([AttributeError("not made yet"), Late()], 1)],
)
def test_ranks_are_waited_for_only_where_one_will_leave_after_its_step(
    answers: list[Any], num_waits: int, ray: SimpleNamespace
) -> None:
    ranks = [SimpleNamespace(ask=lambda *_, each=each, **__: (each,)) for each in answers]
    run: Any = SimpleNamespace(config=Config())
    group: Any = SimpleNamespace(ranks=ranks)
    assert supervise._leave(run, group, [((0, ""),)], "SIGINT").code == INTERRUPTED
    assert len(ray.waited) == num_waits


def run_of(out: Path, *words: str) -> Run:
    config = read(["train_cards=0", *words], devices=("auto", "cpu")).config
    return Run(["train"], list(words), config, Layout((0,), (), 0, 0), out, lambda said: None)


def test_what_ray_fails_with_ends_the_run_in_a_sentence_and_the_folders_errors_pass(tmp_path: Path) -> None:
    def failing(error: Exception) -> Any:
        def placement(*_: object, **__: object) -> None:
            raise error

        return SimpleNamespace(placement=placement)

    head: Any = SimpleNamespace(nodes=lambda is_fresh: NODES)
    found = supervise._attempt(run_of(tmp_path), failing(ConnectionError("gone")), head)
    assert (found.code, found.is_lost) == (BROKE, False)
    assert found.reason.endswith(" ConnectionError: gone")
    found = supervise._attempt(run_of(tmp_path), failing(HeadLost("silent at 10.0.0.1:6379")), head)
    assert (found.code, found.is_lost) == (BROKE, False)
    assert found.reason.startswith("silent at 10.0.0.1:6379. ")
    assert supervise._close(run_of(tmp_path), found) == BROKE
    assert '"kind": "ranks"' in (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(OSError, match="Read-only"):
        supervise._attempt(run_of(tmp_path), failing(OSError(30, "Read-only file system", str(tmp_path))), head)


BROKEN = AttemptResult(BROKE, GLOO, is_lost=True, rank=0)
KILLED = AttemptResult(BROKE, "rank 1 on 10.0.0.2 was killed", is_lost=True, rank=1)
LOST = AttemptResult(BROKE, "node 10.0.0.2 was lost, and with it rank 1", is_lost=True, node="b")
NO_PLACE = AttemptResult(BROKE, "no place", is_lost=False)


@pytest.mark.parametrize(
    ("attempts", "reasons"),
    [
        # What a dead node's neighbours say first, and what Ray knows a minute later: one loss.
        ([(BROKEN, "ab"), (LOST, "ab"), (NO_PLACE, "ac")], [LOST]),
        ([(KILLED, "ab"), (LOST, "ab"), (KILLED, "ac"), (NO_PLACE, "ac")], [LOST, KILLED]),
        # Another node than those of the attempt before.
        ([(BROKEN, "ac"), (LOST, "ab"), (NO_PLACE, "ac")], [BROKEN, LOST]),
        ([(BROKEN, "ab"), (KILLED, "ab"), (NO_PLACE, "ab")], [BROKEN, KILLED]),
    ],
)
def test_a_node_that_is_known_to_be_gone_only_later_is_one_loss(
    attempts: Sequence[tuple[AttemptResult, str]],
    reasons: Sequence[AttemptResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(attempts)

    def attempt(run: Run, *_: Any) -> AttemptResult:
        ended, nodes = next(left)
        run.nodes.append(set(nodes))
        return ended

    monkeypatch.setattr(supervise, "_attempt", attempt)
    run = run_of(tmp_path, "restarts=2")
    ended = supervise._attempts(run, cast("Any", None), cast("Any", None))
    assert ended == attempts[-1][0]
    assert [each["reason"] for each in run.restarts] == [each.reason for each in reasons]


def test_a_loss_after_a_step_was_saved_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    run.restarts.append({"reason": "", "from_step": 4})
    run.nodes += [{"a", "b"}, {"a", "b"}]
    assert supervise._is_known(run, LOST, 4)
    assert not supervise._is_known(run, LOST, 8)


def test_why_a_run_ended_stays_in_its_records_though_a_rank_writes_on(tmp_path: Path) -> None:
    with Records(tmp_path) as ranks:
        ranks.write("step", step=1)
        supervise._close(run_of(tmp_path), AttemptResult(BROKE, "Ray is gone", is_lost=False))
        ranks.write("step", step=2)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["step", "ranks", "step"]


def test_a_rank_that_ended_by_itself_has_its_code_in_the_records_and_one_that_was_killed_has_none(
    tmp_path: Path,
) -> None:
    for ended in (supervise._failure(0, 1, "trainer: GeneratorLost: generator 0 was killed"), KILLED):
        supervise._close(run_of(tmp_path), ended)
    own, killed = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (own["rank"], own["code"]) == (0, BROKE)
    assert killed["rank"] == 1 and "code" not in killed


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), {"save_every=10"}),
        (("save_every=0",), {"save_every=10"}),
        (("trainer.save_freq=-1",), {"trainer.save_freq=10", "save_every=10"}),
        (("save_every=3",), {"save_every=3"}),
    ],
)
def test_a_placed_run_saves_every_ten_steps_however_it_was_told_to_save_never(
    words: tuple[str, ...], settings: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []

    def lead(run: Run) -> int:
        runs.append(run)
        return 0

    monkeypatch.setattr(supervise, "lead", lead)
    order = entry._order(["--out", str(tmp_path), "train_cards=0", *words])
    assert entry._place(order) == 0
    assert {each for each in runs[0].settings if "save" in each} == settings
    assert read(runs[0].settings, devices=("auto", "cpu")).config.run.save_every in (10, 3)


# What is asked of a place.


def test_a_process_settles_once_and_says_later_why_it_could_not(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CARDS", "4,5,6,7")
    monkeypatch.setattr("trainer.placement.worker_actor._given", lambda resource: ["4"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    cards = {"variable": "CARDS", "resource": "NPU", "local": (1,), "held": (0, 1)}
    made = WorkerActor()
    first = made.settle(str(tmp_path), None, "127.0.0.1", cards)
    assert (first["ids"], first["held"]) == (["5"], ["4", "5"])
    assert made.settle(str(tmp_path), None, "127.0.0.1", cards) is first  # of another rank that shares it
    assert made._kept is not None
    made._kept.close()
    broken = WorkerActor()
    with pytest.raises(Exception, match="zip"):
        broken.settle(str(tmp_path), b"no archive", "127.0.0.1", {})
    for ask in (lambda: broken.prepare("trainer.generator:serve"), lambda: broken.call("generate")):
        with pytest.raises(Exception, match="zip"):
            ask()


def test_the_port_at_which_ranks_meet_is_nobody_elses_until_they_do(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    made, distributed = WorkerActor(), cast("Any", torch.distributed)
    port = made.settle(str(tmp_path), None, "127.0.0.1", {})["port"]
    assert made._kept is not None
    with made._kept, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        met = distributed.TCPStore("127.0.0.1", port, 1, is_master=True)
        met.set("rank", "0")
        assert met.get("rank") == b"0"


@pytest.mark.parametrize(
    ("given", "cards", "is_refused"),
    [
        (["0", "1"], 4, False),
        (["2", "3"], 4, False),  # Ray counts the generators' cards for the ranks: all four are this run's
        (["4", "5"], 8, True),
        (["4", "5"], 4, False),  # under other names than the node's, and the run holds them all
    ],
)
def test_cards_are_refused_only_where_ray_may_give_them_to_others(
    given: list[str], cards: int, is_refused: bool
) -> None:
    node = Node("a", "10.0.0.1", {"NPU": float(cards), "CPU": 8.0}, is_home=True)
    placement = place_workers(Layout((0, 1), ((2,), (3,)), 1, cards), [node], kind="NPU")
    held = [str(each) for each in range(4)]
    facts = [{"ids": [str(at)], "held": held, "given": [given[at]]} for at in range(2)]
    workers._check_ids(placement, facts, is_own=True)
    if not is_refused:
        workers._check_ids(placement, facts, is_own=False)
        return
    with pytest.raises(PlacementError, match=r"cards 4,5 of 10\.0\.0\.1 .* 0,1,2,3 "):
        workers._check_ids(placement, facts, is_own=False)


def test_a_head_is_not_started_where_something_listens_already(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(listening.getsockname()[1]))
        place = ":".join(map(str, listening.getsockname()))
        with pytest.raises(PlacementError, match=f"listens at {place}"), ray_nodes.started_head(1, limit_s=1.0):
            pass
