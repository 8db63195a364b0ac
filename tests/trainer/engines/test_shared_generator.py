"""Several ranks with one generator: one sends weights, all hold the same, and any of them can send them again."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest
import torch

from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, InProcess, Local, dead, weights
from tests.trainer.trainer_cases import changed
from trainer.engines import remote
from trainer.engines.engine import Sampling
from trainer.engines.generator_client import EngineSpec, GeneratorLost
from trainer.engines.shared_generator import SharedRemote
from trainer.placement.rank import share, sharing
from trainer.tasks import choose
from trainer.weights import fingerprint, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.distributed import World
    from trainer.engines.remote import Remote

T = TypeVar("T")
FOUR = Sampling(4, 3, 1.0)
RANKS = 3


@dataclass
class House(Crew):
    """One generator for all ranks: as Ray does by its label, the one that lives is found, else one is started."""

    is_doomed: bool = False  # no rank but the one that sends ever finds what was left
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, slot: int) -> InProcess:
        with self.lock:
            if self.started and not self.started[-1].is_ended:
                return self.started[-1]
            made = Crew.start(self, slot)
            if self.is_doomed:
                made.left = lambda kind: Local(partial(gone, kind))  # type: ignore[method-assign]
            return made

    def ranks(self, **values: Any) -> list[Remote]:
        order = EngineSpec.of(self.config, choose(self.config), seed=0)
        pools = [remote.Pool(self.start, 1, timeout_s=5.0, **sharing(1, number, RANKS)) for number in range(RANKS)]
        return [remote.over(pool, order, seed=3 + number, kind=SharedRemote) for number, pool in enumerate(pools)]


class Meeting:
    """The collectives of ranks that are threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS, timeout=240.0)
        self._said: dict[int, Any] = {}

    def barrier(self) -> None:
        self._barrier.wait()

    def gather(self, value: Any) -> list[Any]:
        self._said[threading.get_ident()] = value
        self._barrier.wait()
        found = list(self._said.values())
        self._barrier.wait()
        return found


def together(engines: list[Remote], work: Callable[[Remote, World], T]) -> list[T]:
    """What each rank's thread gives."""
    world = cast("World", Meeting())
    with ThreadPoolExecutor(len(engines)) as threads:
        return [each.result(480.0) for each in [threads.submit(work, engine, world) for engine in engines]]


def publish(seed: int) -> Callable[[Remote, World], None]:
    def work(engine: Remote, world: World) -> None:
        world.barrier()
        engine.load_weights_each(weights(seed).items())
        engine.barrier(world)

    return work


def alone(rank: int, seed: int) -> Any:
    """The answers of a rank that has a generator for itself."""
    engine = Crew().engine(1, seed=3 + rank)
    engine.load_weights(weights(seed))
    return engine.generate(PROMPTS, FOUR)


def num_buckets(seed: int) -> int:
    """How many there are of one version."""
    crew = Crew()
    crew.engine(1).load_weights(weights(seed))
    return len(crew.started[0].loaded)


def test_one_rank_sends_a_version_and_every_rank_holds_and_uses_it() -> None:
    house = House()
    engines = house.ranks()
    for seed in (5, 6):
        together(engines, publish(seed))
        for rank, engine in enumerate(engines):
            assert all(torch.equal(engine.weights()[name], each) for name, each in weights(seed).items())
            engine.restore_random_state(torch.Generator().manual_seed(3 + rank).get_state())
            assert engine.generate(PROMPTS, FOUR) == alone(rank, seed)
    assert len(house.started) == 1
    assert len(house.started[0].loaded) == 2 * num_buckets(5), "one rank sends, the others do not"


def test_those_who_do_not_send_pack_nothing_and_look_at_what_was_sent_where_it_lies() -> None:
    engines = House().ranks()
    together(engines, publish(5))
    sender, *others = engines
    assert sender.packer._memory
    for each in others:
        assert each.packer._memory == []
        assert all(mine.data_ptr() == its.data_ptr() for mine, its in zip(held(each), held(sender), strict=True))
        assert each.take_stats().weights_bytes == 0


def test_what_each_rank_sends_by_itself_is_kept_until_the_next_version_of_all() -> None:
    house = House()
    engines = house.ranks()
    for engine in engines:  # as before an evaluation whose weights are not those that the run samples with
        engine.load_weights(weights(4))
        assert engine.packer._memory
    together(engines, publish(5))
    assert [each.packer._memory == [] for each in engines] == [False, True, True]
    assert [engine.generate(PROMPTS, FOUR) for engine in engines] == [alone(rank, 5) for rank in range(RANKS)]


def held(engine: Remote) -> list[torch.Tensor]:
    return list(engine.weights().values())


@pytest.mark.parametrize("who", range(RANKS))
def test_whoever_meets_the_loss_sends_the_next_generator_its_weights(who: int) -> None:
    house = House()
    engines = house.ranks()
    together(engines, publish(5))
    house.started[0].spoil = dead
    assert engines[who].generate(PROMPTS, FOUR) == alone(who, 5)
    assert len(house.started) == 2 and house.started[1].loaded
    for rank in {*range(RANKS)} - {who}:  # they ask the one that is gone, and find the other
        assert engines[rank].generate(PROMPTS, FOUR) == alone(rank, 5)
    assert len(house.started) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_generator_lost_while_weights_are_handed_over_has_a_successor_with_them(when: str) -> None:
    house = House()
    engines = house.ranks()
    together(engines, publish(4))

    def work(engine: Remote, world: World) -> None:
        world.barrier()
        engine.load_weights_each(weights(5).items())
        world.barrier()
        if engine.pool.sends and when == "after":  # the others have not looked yet
            house.started[-1].end()
        engine.barrier(world)

    if when == "before":
        house.started[0].end()
    together(engines, work)
    assert len(house.started) == 2
    assert [engine.generate(PROMPTS, FOUR) for engine in engines] == [alone(rank, 5) for rank in range(RANKS)]


def test_a_generator_that_is_lost_each_time_ends_the_run_instead_of_holding_it_up() -> None:
    house = House(is_doomed=True)
    sender, *others = together(house.ranks(), refused)
    assert sender.count("generator 0 ") == 3
    assert [bool(re.match(r"slot \d .*lost again", each)) for each in others] == [True] * 2


def refused(engine: Remote, world: World) -> str:
    engine.load_weights_each(weights(5).items())
    with pytest.raises(GeneratorLost) as lost:
        engine.barrier(world)
    return str(lost.value)


def gone(kind: str) -> Any:
    raise GeneratorLost("generator 0", "was killed by SIGKILL")


def test_a_reference_is_sent_once_and_held_by_every_rank_for_the_next_generator() -> None:
    house = House(config=changed(FLAT, reference_place="generators"))
    engines = house.ranks()

    def work(engine: Remote, world: World) -> None:
        engine.set_reference(weights(8).items())
        engine.load_weights_each(weights(5).items())
        engine.barrier(world)

    together(engines, work)
    (first,) = house.started
    assert len(first.replaced) == num_buckets(5)
    mark = fingerprint(weights(8).items())
    for engine in engines:
        assert engine.origin is not None and engine.origin.mark == mark
        kept = unpack(engine.origin.buckets)
        assert all(torch.equal(kept[name], each) for name, each in weights(8).items())
    first.end()
    last = engines[-1]
    slot = last.pool.slots[0]
    last._lose(slot, GeneratorLost("generator 0", "was ended"))
    for each in (*last._send(slot), *last._send_reference(slot)):
        each.result(5.0)
    assert house.started[-1] is not first
    assert house.started[-1].server._reference is not None
    assert house.started[-1].server._reference.mark == mark


def test_twins_over_a_shared_generator_share_it_too() -> None:
    house = House()
    engines = house.ranks()
    together(engines, publish(5))
    twins = [engine.twin() for engine in engines]
    together(twins, publish(6))
    assert all(isinstance(each, SharedRemote) for each in twins)
    assert [each.packer._memory == [] for each in twins] == [False, True, True]
    for rank, engine in enumerate(engines):
        assert engine.generate(PROMPTS, FOUR) == alone(rank, 5)


def test_who_waits_behind_others_has_time_for_their_turns() -> None:
    pool = remote.Pool(Crew().start, 1, timeout_s=5.0, sharers=8)
    pool.slots[0].is_new = False
    assert 39.0 < pool.deadline(pool.slots[0]) - time.monotonic() <= 40.0


@pytest.mark.parametrize(("places", "ranks"), [(1, 3), (2, 3), (2, 4), (4, 4), (4, 2), (0, 2)])
def test_of_those_that_share_a_generator_exactly_one_sends(places: int, ranks: int) -> None:
    numbers: Any = list(range(places))
    senders: dict[Any, int] = {}
    for rank in range(ranks):
        told = sharing(places, rank, ranks)
        for place in share(numbers, rank, ranks):
            senders[place] = senders.get(place, 0) + told["sends"]
        assert told["sharers"] == max(1, -(-ranks // max(1, places)))
    assert senders == dict.fromkeys(numbers, 1)
