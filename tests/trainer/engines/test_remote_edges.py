"""An engine over generators elsewhere, at its edges: what is waited for, what is sent, what counts as lost in a row."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, dead, weights
from tests.trainer.trainer_cases import CPU, changed
from trainer.engines import factory, remote
from trainer.engines.base import Sampling, pick, uniform
from trainer.engines.generator_client import EngineSpec
from trainer.engines.remote import MOST_TRIES
from trainer.generator import Server
from trainer.tasks.digits import successor
from trainer.weights import NotWhole, Packer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.generator_client import Generated

pytestmark = pytest.mark.slow

FOUR = Sampling(4, 3, 1.0)
GREEDY = Sampling(1, 3, 1.0, is_greedy=True)


def taking(seconds: float) -> Callable[[Generated], Generated]:
    return lambda found: replace(found, seconds=seconds)


def fine(found: Generated) -> Generated:
    return found


# Time.


def left_s(engine: remote.Remote, slot: int) -> float:
    return engine.pool.deadline(engine.pool.slots[slot]) - time.monotonic()


def test_only_the_first_answer_of_a_generator_may_take_as_long_as_a_start() -> None:
    crew = Crew()
    engine = crew.engine(2)
    assert left_s(engine, 0) > 300 and left_s(engine, 1) > 300
    engine.generate(PROMPTS, FOUR)
    assert left_s(engine, 0) <= 5.0 and left_s(engine, 1) <= 5.0
    crew.started[1].spoil = dead
    engine.generate(PROMPTS, FOUR)
    assert left_s(engine, 0) <= 5.0
    assert left_s(engine, 1) > 300, "another one was started in the place of the lost one"
    engine.generate(PROMPTS, FOUR)
    assert left_s(engine, 1) <= 5.0


def test_the_generators_time_is_the_mean_over_them_and_greedy_answers_do_not_count() -> None:
    engine = Crew(spoils={0: [taking(3.0)], 1: [taking(1.0)]}).engine(2)
    engine.generate(PROMPTS, FOUR)
    assert engine.take_stats().busy_s == pytest.approx(2.0)
    engine.generate(PROMPTS, GREEDY)
    assert engine.take_stats().busy_s == 0


# Losses.


def test_losses_with_answers_between_them_do_not_add_up() -> None:
    crew = Crew()
    engine = crew.engine(2)
    for _ in range(MOST_TRIES + 1):
        slot = engine.pool.slots[1]
        assert slot.generator is crew.started[-1]
        crew.started[-1].spoil = dead
        engine.generate(PROMPTS, FOUR)  # it is lost, and its share is made by the other one
        assert slot.num_lost == 1
        engine.generate(PROMPTS, FOUR)  # the one in its place answers
        assert slot.num_lost == 0
    assert len(engine.pool.losses) == MOST_TRIES + 1
    assert [each.number for each in engine.pool.running()] == [0, 1]


def test_a_place_that_has_lost_some_is_asked_after_the_others() -> None:
    engine = Crew(spoils={0: [dead]}).engine(3)
    engine.generate(PROMPTS, FOUR)
    assert [slot.number for slot in engine.pool.running()] == [1, 2, 0]


def test_a_lost_generator_holds_no_version_that_its_successor_could_be_taken_to_have() -> None:
    crew = Crew(spoils={0: [dead]})
    engine = crew.engine(1)
    engine.load_weights(weights(5))
    engine.generate(PROMPTS, FOUR)
    assert [len(each.loaded) for each in crew.started] == [len(crew.started[0].loaded)] * 2
    assert len(engine.pool.losses) == 1


# What is sent.


def test_weights_are_sent_once_to_each_generator() -> None:
    crew = Crew()
    engine = crew.engine(2)
    engine.load_weights(weights(5))
    sent = [len(each.loaded) for each in crew.started]
    for _ in range(2):
        engine.generate(PROMPTS, FOUR)
    assert [len(each.loaded) for each in crew.started] == sent
    assert sent[0] > 0


def test_twins_that_take_turns_are_sent_their_weights_at_each_turn_and_no_more() -> None:
    crew = Crew()
    live = crew.engine(1)
    live.load_weights(weights(5))
    twin = live.twin()
    twin.load_weights(weights(6))
    (generator,) = crew.started
    each = len(generator.loaded) // 2
    for turn, engine in enumerate((twin, live, live, twin), start=0):
        before = len(generator.loaded)
        engine.generate(PROMPTS, FOUR)
        assert len(generator.loaded) - before == (each if turn in (1, 3) else 0)


def test_a_twin_sleeps_as_the_engine_does() -> None:
    crew = Crew()
    crew.engine(1, sleep=True).twin().sleep()
    assert crew.started[0].told == ["sleep"]


def test_a_log_probability_may_be_above_0_by_what_rounding_adds() -> None:
    def rounded(found: Generated) -> Generated:
        groups = [tuple(replace(r, logprobs=(5e-5,) * len(r.tokens)) for r in group) for group in found.groups]
        return replace(found, groups=groups)

    engine = Crew(spoils={0: [rounded], 1: [fine]}).engine(2)
    engine.generate(PROMPTS, FOUR)
    assert engine.pool.losses == []


@pytest.mark.parametrize(("told", "size"), [(30, 30), (5, 19)])
def test_a_model_that_knows_more_tokens_than_its_tokenizer_may_say_them(tmp_path: Path, told: int, size: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": told}), encoding="utf-8")
    config = changed(FLAT, path=str(tmp_path))
    pool = remote.Pool(Crew().start, 1, timeout_s=5.0)
    assert remote.over(pool, EngineSpec.of(config, successor(1), seed=0), seed=0).vocabulary_size == size


# The other end.


def test_a_server_whose_weights_are_not_of_one_version_answers_nothing() -> None:
    order = EngineSpec.of(FLAT, successor(1), seed=0)
    engine = factory.build_local_engine(order, CPU, sampling_seed=0)

    def half(sent: Mapping[str, Tensor]) -> None:
        raise KeyError("half of it")

    engine.load_weights = half  # type: ignore[method-assign, assignment]
    server = Server(engine)
    sampling = replace(FOUR, seeds=(1,))
    assert server.generate(PROMPTS[:1], sampling).version == -1
    with pytest.raises(KeyError):
        for bucket in Packer(1 << 20).pack(weights(5).items(), 0):
            server.load(bucket)
    with pytest.raises(NotWhole, match="one version"):
        server.generate(PROMPTS[:1], sampling)


def test_a_generator_is_told_that_there_is_an_environment() -> None:
    class Grid:
        pass

    plain = successor(1)
    assert not EngineSpec.of(FLAT, plain, seed=0).has_environment
    assert EngineSpec.of(FLAT, replace(plain, environment=Grid), seed=0).has_environment  # type: ignore[arg-type]


# Draws.


def test_a_number_on_the_border_of_two_tokens_belongs_to_the_later_one_and_never_to_one_without_a_chance() -> None:
    chances = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    for number, token in ((0.0, 1), (0.25, 1), (0.5, 2), (1 - 2**-53, 2)):
        assert pick(chances, torch.tensor([number], dtype=torch.float64)).tolist() == [token], number


def test_chances_need_not_add_up_to_one() -> None:
    chances = torch.tensor([[1.0, 1.0], [0.1, 0.3]])
    assert pick(chances, torch.tensor([0.75, 0.5])).tolist() == [1, 1]
    assert pick(chances, torch.tensor([0.25, 0.2])).tolist() == [0, 0]


def test_a_greedy_answer_has_no_draws_though_its_prompt_has_a_seed() -> None:
    assert uniform(replace(GREEDY, seeds=(7,)), 1, dtype=torch.float32, device="cpu") is None
