"""An engine over generators elsewhere: the same answers however many they are and whatever happens to them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, InProcess, dead, silent, weights
from tests.trainer.trainer_cases import CPU, END, changed
from trainer.engines import remote
from trainer.engines.engine import Sampling, new_seeds, pick, uniform
from trainer.engines.generator_client import EngineSpec, Generated, GeneratorLost
from trainer.engines.remote import MOST_TRIES
from trainer.generator import Server, build_local_engine
from trainer.tasks.digits import successor
from trainer.weights import NotWhole, Packer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.generator_client import Generated
    from trainer.types import Rollout

pytestmark = pytest.mark.slow

FOUR = Sampling(4, 3, 1.0)


def tokens(groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in group] for group in groups]


def logprobs(groups: Sequence[Sequence[Rollout]]) -> list[float]:
    return [value for group in groups for each in group for value in each.logprobs]


def test_one_two_three_and_more_generators_than_prompts_draw_the_same() -> None:
    made = [Crew().engine(size) for size in (1, 2, 3, 7)]
    for _ in range(2):
        found = [engine.generate(PROMPTS, FOUR) for engine in made]
        for other in found[1:]:
            assert tokens(other) == tokens(found[0])
            assert logprobs(other) == pytest.approx(logprobs(found[0]), abs=1e-5)
    assert len({str(tokens(Crew().engine(2, seed=seed).generate(PROMPTS, FOUR))) for seed in (1, 2)}) == 2


def test_each_call_draws_anew_and_a_restored_state_draws_again() -> None:
    engine = Crew().engine(2)
    state = engine.random_state().clone()
    first, second = engine.generate(PROMPTS, FOUR), engine.generate(PROMPTS, FOUR)
    assert tokens(first) != tokens(second)
    engine.restore_random_state(state)
    assert engine.generate(PROMPTS, FOUR) == first


def test_greedy_answers_cost_no_random_numbers() -> None:
    engine = Crew().engine(2)
    state = engine.random_state().clone()
    greedy = Sampling(1, 3, 1.0, is_greedy=True)
    assert engine.generate(PROMPTS, greedy) == engine.generate(PROMPTS, greedy)
    assert torch.equal(engine.random_state(), state)


def test_a_prompts_seed_alone_decides_its_draws_and_they_follow_the_chances() -> None:
    generator = torch.Generator().manual_seed(0)
    seeds = new_seeds(3, generator)
    alike = replace(FOUR, seeds=seeds)
    table = uniform(alike, 3, dtype=torch.float64, device="cpu")
    alone = uniform(replace(FOUR, seeds=seeds[1:2]), 1, dtype=torch.float64, device="cpu")
    assert table is not None and alone is not None
    assert table.shape == (3, 12)
    assert torch.equal(table[:, 4:8], alone)
    assert uniform(FOUR, 3, dtype=torch.float64, device="cpu") is None
    with pytest.raises(ValueError, match="3 seeds for 2 prompts"):
        uniform(alike, 2, dtype=torch.float64, device="cpu")
    # 20 000 draws: a share is off by more than 0.02 with a chance below 1e-7
    drawn = pick(torch.tensor([[0.5, 0.0, 0.3, 0.2]]).repeat(20_000, 1), torch.rand(20_000, generator=generator))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    assert shares.tolist() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.02)
    assert shares[1] == 0


def test_published_weights_are_those_of_every_generator_and_come_back_by_name() -> None:
    crew = Crew()
    engine = crew.engine(2, bucket_mib=1)
    sent = weights(5)
    before = engine.generate(PROMPTS, FOUR)
    engine.load_weights(sent)
    assert all(torch.equal(engine.weights()[name], each) for name, each in sent.items())
    assert engine.weights().keys() == sent.keys()
    other = Crew().engine(1)
    other.generate(PROMPTS, FOUR)
    other.load_weights(sent)
    after = engine.generate(PROMPTS, FOUR)
    assert tokens(after) == tokens(other.generate(PROMPTS, FOUR))
    assert tokens(after) != tokens(before)


def test_what_was_published_stays_though_the_learner_moves_on() -> None:
    engine, sent = Crew().engine(1), {name: each.detach().clone() for name, each in weights(5).items()}
    engine.load_weights(sent)
    kept = {name: each.clone() for name, each in sent.items()}
    for each in sent.values():
        each.zero_()
    assert all(torch.equal(engine.weights()[name], each) for name, each in kept.items())


def test_twins_share_generators_and_each_draws_with_its_own_weights() -> None:
    crew = Crew()
    live = crew.engine(2)
    live.load_weights(weights(5))
    alone = Crew().engine(2)
    alone.load_weights(weights(5))
    twin = live.twin()
    twin.restore_random_state(live.random_state())
    twin.load_weights(weights(6))
    other = twin.generate(PROMPTS, FOUR)
    for _ in range(2):
        assert tokens(live.generate(PROMPTS, FOUR)) == tokens(alone.generate(PROMPTS, FOUR))
        assert tokens(twin.generate(PROMPTS, FOUR)) != tokens(other)
    assert len(crew.started) == 2
    assert all(torch.equal(live.weights()[name], each) for name, each in weights(5).items())


def test_sleeping_is_for_engines_that_were_asked_to() -> None:
    for can_sleep, told in ((False, []), (True, ["sleep", "wake"])):
        crew = Crew()
        engine = crew.engine(2, sleep=can_sleep)
        engine.sleep()
        engine.wake()
        assert [each.told for each in crew.started] == [told, told]


def answered(spoils: dict[int, list[Callable[[Generated], Generated]]], size: int = 2) -> tuple[Crew, list[str]]:
    """Answers with these faults are those without; the crew, and what was lost."""
    crew, whole = Crew(spoils=spoils), Crew().engine(size)
    engine = crew.engine(size)
    for each in (engine, whole):
        each.load_weights(weights(5))
    found, wanted = engine.generate(PROMPTS, FOUR), whole.generate(PROMPTS, FOUR)
    assert found == wanted  # bit by bit: a lost share is made again as it was
    assert torch.equal(engine.random_state(), whole.random_state())
    return crew, engine.pool.losses


def test_a_lost_share_is_made_again_by_another_and_a_new_generator_takes_the_place() -> None:
    crew, losses = answered({1: [dead]})
    assert len(losses) == 1 and re.fullmatch(r"generator \? .*SIGKILL", losses[0])
    assert [each.name for each in crew.started] == ["generator 0", "generator 1", "generator 1"]
    assert [each.is_ended for each in crew.started] == [False, True, False]
    assert [len(each.asked) for each in crew.started] == [2, 1, 0]


def test_where_all_are_lost_new_ones_are_sent_the_weights_and_do_the_work() -> None:
    crew, losses = answered({0: [dead], 1: [silent]})
    assert re.fullmatch(r"generator 1 .*\b5 s", losses[1])
    assert [bool(each.loaded) for each in crew.started] == [True] * 4
    _, losses = answered({0: [dead, dead]}, size=1)
    assert [each.partition("SIG")[2] for each in losses] == ["KILL"] * 2


def garbage(change: Callable[[Rollout], Rollout]) -> Callable[[Generated], Generated]:
    """The last rollout of all, changed."""

    def spoil(found: Generated) -> Generated:
        *groups, last = found.groups
        return replace(found, groups=[*groups, (*last[:-1], change(last[-1]))])

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: replace(f, version=f.version - 1), "version -1 .* 0"),
        (lambda f: replace(f, groups=f.groups[1:]), r"\[4, 4\] .*\b3 prompts.*\b4\b"),
        (lambda f: replace(f, groups=[f.groups[0][1:], *f.groups[1:]]), r"\[3, 4, 4\] .*\b3 prompts"),
        (garbage(lambda r: replace(r, tokens=(END + 1,), logprobs=(-1.0,))), "token 19,"),
        (garbage(lambda r: replace(r, tokens=(-1,), logprobs=(-1.0,))), "token -1,"),
        (garbage(lambda r: replace(r, tokens=(1,), logprobs=(float("nan"),))), "nan .*log-prob"),
        (garbage(lambda r: replace(r, tokens=(1,), logprobs=(float("-inf"),))), "-inf .*log-prob"),
        (garbage(lambda r: replace(r, tokens=(1,), logprobs=(0.5,))), r"0\.5 .*log-prob"),
        (garbage(lambda r: replace(r, tokens=(1, 1), logprobs=(-0.5,))), "2 tokens.* 1 log-prob"),
        (garbage(lambda r: replace(r, tokens=(1,) * 4, logprobs=(-0.5,) * 4)), "4 tokens.* 4 log-prob"),
    ],
)
def test_garbage_is_a_lost_generator_whose_answers_nobody_sees(
    spoil: Callable[[Generated], Generated], said: str
) -> None:
    crew, losses = answered({1: [spoil]})
    assert len(losses) == 1 and re.match(f"generator 1 .*{said}", losses[0])
    assert crew.started[1].is_ended


def test_a_share_that_every_generator_fails_at_ends_the_run_with_the_last_cause() -> None:
    crew = Crew(spoils={0: [dead] * 9, 1: [dead] * 9})
    engine = crew.engine(2)
    with pytest.raises(GeneratorLost, match=rf"SIGKILL,.*\b{MOST_TRIES} times"):
        engine.generate(PROMPTS, FOUR)
    assert len(crew.started) <= 2 * MOST_TRIES


def test_one_bad_place_is_given_up_and_the_others_go_on() -> None:
    crew = Crew(spoils={1: [dead] * 9})
    engine, whole = crew.engine(2), Crew().engine(2)
    for _ in range(MOST_TRIES + 2):
        assert engine.generate(PROMPTS, FOUR) == whole.generate(PROMPTS, FOUR)
    assert [slot.generator is None for slot in engine.pool.slots] == [False, True]
    assert len(engine.pool.losses) == MOST_TRIES


def test_a_generator_lost_while_weights_come_is_replaced_and_gets_them_when_it_is_asked() -> None:
    crew = Crew()
    engine = crew.engine(2)
    crew.started[0].end()
    engine.load_weights(weights(5))
    assert engine.pool.losses == ["generator 0 was ended"]
    assert not crew.started[2].loaded
    engine.generate(PROMPTS, FOUR)
    assert crew.started[2].loaded


def test_weights_that_do_not_arrive_whole_are_a_lost_generator() -> None:
    crew = Crew()
    engine = crew.engine(2)
    original = crew.started[1].load

    def damaged(bucket):  # type: ignore[no-untyped-def]
        return original(replace(bucket, checksum=bucket.checksum + 1))

    crew.started[1].load = damaged  # type: ignore[method-assign]
    engine.load_weights(weights(5))
    (lost,) = engine.pool.losses
    assert re.match(r"generator 1 .*NotWhole: bucket 0 of version 0\b", lost)
    assert [each.is_ended for each in crew.started] == [False, True, False]


def test_nobody_is_started_in_the_place_of_one_that_was_ended_with_the_run() -> None:
    crew = Crew()
    engine = crew.engine(2)
    engine.end()
    engine.end()
    with pytest.raises(GeneratorLost, match=r"generator 0 .*ended; generator 1 .*ended"):
        engine.generate(PROMPTS, FOUR)
    assert [each.is_ended for each in crew.started] == [True, True]
    assert len(crew.started) == 2


def test_what_was_done_is_counted_once() -> None:
    crew = Crew(spoils={1: [dead]})
    engine = crew.engine(2)
    engine.load_weights(weights(5))
    engine.generate(PROMPTS, FOUR)
    spent = engine.take_stats()
    assert spent.num_lost == 1
    assert spent.weights_bytes == 2 * sum(len(each.flat) for each in crew.started[0].loaded)
    assert spent.busy_s > 0 and spent.weights_s > 0
    assert engine.take_stats().num_lost == 0
    assert isinstance(crew.started[0], InProcess) and FLAT.rollout.generators == 2


# An engine over generators elsewhere, at its edges: what is waited for, what is sent, what counts as lost in a row.

GREEDY = Sampling(1, 3, 1.0, is_greedy=True)


def taking(seconds: float) -> Callable[[Generated], Generated]:
    return lambda found: replace(found, seconds=seconds)


def fine(found: Generated) -> Generated:
    return found


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


def test_a_server_whose_weights_are_not_of_one_version_answers_nothing() -> None:
    order = EngineSpec.of(FLAT, successor(1), seed=0)
    engine = build_local_engine(order, CPU, sampling_seed=0)

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
