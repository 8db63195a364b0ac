"""A generator in an actor of Ray: it answers as an engine here would, and however it ends, it is named."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, weights
from tests.trainer.placement.ray_cases import NEEDS_RAY, is_gone, places_of
from tests.trainer.trainer_cases import CPU, PAD, TINY, changed
from trainer.algorithms.packing import make_batch
from trainer.config import BadSetting
from trainer.engines import remote
from trainer.engines.engine import Sampling, new_seeds
from trainer.engines.generator_client import EngineSpec, GeneratorLost
from trainer.engines.reference import asked
from trainer.loop import train_step
from trainer.placement import workers
from trainer.placement.rank import Place, RayGenerator
from trainer.run_state import state_of
from trainer.saving.checkpoint import difference
from trainer.tasks import choose
from trainer.tasks.digits import successor
from trainer.trainer import build_trainer
from trainer.types import Group, Prompt
from trainer.weights import Bucket, Packer, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer.config import Config

pytestmark = NEEDS_RAY

# A process that imports torch takes seconds to start, and a minute on a slow and busy machine.
LIMIT_S = 240.0
SEEDED = Sampling(4, 3, 1.0, seeds=new_seeds(len(PROMPTS), torch.Generator().manual_seed(1)))
WITH_REFERENCE = changed(FLAT, reference_place="generators")
AHEAD = changed(
    TINY, layers=1, distractors=0, steps=1000, generators=2, off_policy=1, correction="token",
    generator_timeout_s=120.0,
)  # fmt: skip
KILLS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the generators write their logs."""
    return tmp_path_factory.mktemp("generators")


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[list[Place]]:
    """For four generators, in a Ray that this process has started: the first is `child`'s."""
    with places_of(changed(FLAT, generators=4), folder) as found:
        yield found


def order(config: Config = FLAT) -> EngineSpec:
    return EngineSpec.of(config, successor(1), seed=0)


def pid_of(made: RayGenerator) -> int:
    import ray

    found = ray.get(workers.settle(made._handle, made._place.slot, made._place.placement))
    return int(found["pid"])


@pytest.fixture(scope="module")
def child(places: list[Place]) -> Iterator[RayGenerator]:
    """For all tests that do not ask which weights it has."""
    made = RayGenerator(places[0], order(WITH_REFERENCE))
    yield made
    made.end()


@pytest.fixture
def fresh(places: list[Place]) -> Iterator[RayGenerator]:
    """One with the weights that it starts with."""
    made = RayGenerator(places[1], order())
    yield made
    made.end()


def test_it_draws_what_an_engine_here_draws_whatever_weights_it_is_sent(fresh: RayGenerator) -> None:
    local = Crew().start(0).server
    answer = fresh.generate(PROMPTS, SEEDED)
    found, wanted = answer.result(LIMIT_S), local.generate(PROMPTS, SEEDED)
    assert (found.groups, found.version) == (wanted.groups, -1)
    assert answer.result(0.0) is found
    packer = Packer(1 << 12)
    for version in range(3):
        buckets = list(packer.pack(weights(version).items(), version))
        assert len(buckets) > 2
        loaded = [fresh.load(bucket) for bucket in buckets]
        drawn = fresh.generate(PROMPTS, SEEDED)
        assert [each.result(LIMIT_S) for each in loaded] == [None] * len(buckets)
        for bucket in buckets:
            local.load(bucket)
        found = drawn.result(LIMIT_S)
        assert (found.version, found.groups) == (version, local.generate(PROMPTS, SEEDED).groups)


def test_a_version_counts_when_it_has_arrived_complete_and_as_it_was_sent(fresh: RayGenerator) -> None:
    def version() -> int:
        return fresh.generate(PROMPTS, SEEDED).result(LIMIT_S).version

    def send(bucket: Bucket) -> None:
        fresh.load(bucket).result(LIMIT_S)

    first, *others = Packer(1 << 12).pack(weights(5).items(), 0)
    for bucket in others:
        send(bucket)
    assert version() == -1
    with pytest.raises(GeneratorLost, match=r"generator 1 on \S+ failed: NotWhole: bucket 0 of version 0\b"):
        send(replace(first, checksum=first.checksum + 1))
    assert version() == -1
    send(first)
    assert version() == 0


def test_its_reference_says_what_one_here_says_and_stays_when_weights_come(child: RayGenerator) -> None:
    local = Crew(WITH_REFERENCE).start(0).server
    drawn = zip(PROMPTS, local.generate(PROMPTS, SEEDED).groups, strict=True)
    answers = [Group(Prompt("", question, ""), said) for question, said in drawn]
    batch = make_batch(answers, torch.zeros(4 * len(PROMPTS)), pad=PAD)
    parts = [asked(batch, rows) for rows in torch.arange(4 * len(PROMPTS)).split(7)]
    wanted = local.reference_logprobs(parts)
    for version in range(2):
        loaded = [child.load(bucket) for bucket in Packer(1 << 12).pack(weights(8).items(), 100 + version)]
        found = child.reference_logprobs(parts).result(LIMIT_S)
        assert [each.result(LIMIT_S) for each in loaded] == [None] * len(loaded)
        assert all(torch.equal(one, other) for one, other in zip(found.logprobs, wanted.logprobs, strict=True))
        assert (found.mark, len(found.logprobs)) == (wanted.mark, 3)
    for bucket in Packer(1 << 12).pack(weights(9).items(), 0):
        child.load_reference(bucket)
        local.load_reference(bucket)
    found, wanted = child.reference_logprobs(parts).result(LIMIT_S), local.reference_logprobs(parts)
    assert found.mark == wanted.mark == fingerprint(weights(9).items())
    assert all(torch.equal(one, other) for one, other in zip(found.logprobs, wanted.logprobs, strict=True))


def test_no_wait_is_longer_than_its_bound_and_a_late_answer_still_comes(child: RayGenerator) -> None:
    pid = pid_of(child)
    os.kill(pid, signal.SIGSTOP)
    try:
        prompts = [(at % 17, *(number % 17 for number in range(40))) for at in range(2000)]
        answer = child.generate(prompts, Sampling(1, 1, 1.0, True))
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"generator 0 .*\b0\.2 s"):
            answer.result(0.2)
        assert time.monotonic() - began < 60.0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(answer.result(LIMIT_S).groups) == 2000


def test_a_killed_one_is_named_and_never_comes_back(places: list[Place]) -> None:
    made = RayGenerator(places[2], order())
    assert made.generate(PROMPTS, SEEDED).result(LIMIT_S).version == -1
    os.kill(pid_of(made), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(GeneratorLost, match=r"generator 2 on \S+ was killed"):
            made.generate(PROMPTS, SEEDED).result(LIMIT_S)
    made.end()


def test_a_stopped_one_is_ended_all_the_same(places: list[Place]) -> None:
    made = RayGenerator(places[2], order())
    pid = pid_of(made)
    os.kill(pid, signal.SIGSTOP)
    made.end()
    assert is_gone(pid)
    with pytest.raises(GeneratorLost, match="was ended"):
        made.generate(PROMPTS, SEEDED).result(LIMIT_S)


def test_an_engine_that_cannot_be_made_is_a_bad_setting_in_its_own_words(places: list[Place], tmp_path: Path) -> None:
    made = RayGenerator(places[2], order(changed(FLAT, path=str(tmp_path))))
    with pytest.raises(BadSetting, match=rf"{re.escape(str(tmp_path))}.*config\.json"):
        made.generate(PROMPTS, SEEDED).result(LIMIT_S)
    made.end()


def test_a_killed_one_is_replaced_and_the_answers_are_those_of_a_whole_crew(places: list[Place], folder: Path) -> None:
    def start(slot: int) -> RayGenerator:
        return RayGenerator(places[2 + slot], order())

    crew = remote.Pool(start, 2, timeout_s=LIMIT_S)
    engine, whole = remote.over(crew, order(), seed=3), Crew().engine(2)
    plain = Sampling(4, 3, 1.0)
    try:
        for at in range(3):
            for each in (engine, whole):
                each.load_weights(weights(at))
            assert engine.generate(PROMPTS, plain) == whole.generate(PROMPTS, plain)
            victim = crew.slots[1].generator
            assert isinstance(victim, RayGenerator)
            if at == 0:
                os.kill(pid_of(victim), signal.SIGKILL)
        (lost,) = crew.losses
        assert re.search("generator 3 .* was killed", lost)
    finally:
        engine.end()
    assert {"generator-2.log", "generator-3.log"} <= {each.name for each in folder.iterdir()}


@pytest.mark.long
def test_generators_killed_at_twenty_moments_change_no_bit_of_the_run(places: list[Place]) -> None:
    """Each moment is random within a step, generation, publishing and learning alike; the victim is too."""
    spec = EngineSpec.of(AHEAD, choose(AHEAD), seed=0)
    crew = remote.Pool(lambda slot: RayGenerator(places[2 + slot], spec), 2, timeout_s=120.0)
    live = build_trainer(AHEAD, CPU, seed=0, engine=remote.over(crew, spec, seed=0))
    chance, step, killed = random.Random(5), 0, 0
    with ExitStack() as stack:
        stack.callback(live.close)
        while len(crew.losses) < KILLS:
            step += 1
            is_noticed = len(crew.losses) == killed and not any(slot.is_new for slot in crew.slots)
            if killed < KILLS and is_noticed:
                victim = crew.slots[chance.randrange(2)].generator
                assert isinstance(victim, RayGenerator)
                killer = threading.Timer(chance.random() * 0.04, os.kill, (pid_of(victim), signal.SIGKILL))
                killer.start()
                train_step(live, step)
                killer.join()
                killed += 1
            else:
                train_step(live, step)
    assert all(re.search(" was killed", each) for each in crew.losses)
    whole = build_trainer(AHEAD, CPU, seed=0, engine=Crew(AHEAD).engine(2, seed=0))
    for number in range(1, step + 1):
        train_step(whole, number)
    assert difference(state_of(live, step), state_of(whole, step)) is None
