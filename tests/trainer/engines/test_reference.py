"""The reference policy in the generators: it says what the learner's own would, and stays what it is."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, weights
from tests.trainer.trainer_cases import CPU, PAD, TEXT, changed, group
from trainer.algorithms.packing import make_batch
from trainer.config import BadSetting
from trainer.engines import reference
from trainer.engines.engine import Sampling
from trainer.engines.generator_client import GeneratorLost, ReferenceLogProbs
from trainer.engines.remote import MOST_TRIES
from trainer.models import build
from trainer.trainer import build_trainer
from trainer.types import Group, Prompt
from trainer.weights import NotWhole, Packer, fingerprint, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.generator import Server
    from trainer.types import Batch

pytestmark = pytest.mark.slow

THERE = changed(FLAT, reference_place="generators")
BUILT = dict(build(FLAT, TEXT.vocabulary_size, seed=0, device=CPU).named_parameters())


def answers(config: Config = FLAT, size: int = 6, prompts: int = 5) -> Batch:
    """What an engine says to some prompts, of unequal lengths; micro batches have no part in it."""
    return _answers(changed(config, micro_batch_rows=0), size, prompts)


@lru_cache
def _answers(config: Config, size: int, prompts: int) -> Batch:
    asked = [(*PROMPTS[at % len(PROMPTS)][:-1], at % 7, 11) for at in range(prompts)]
    groups = Crew(config).engine(1).generate(asked, Sampling(size, 5, 1.0))
    made = [Group(Prompt("", prompt, ""), rollouts) for prompt, rollouts in zip(asked, groups, strict=True)]
    wide = torch.promote_types(getattr(torch, config.run.dtype), torch.float32)
    return make_batch(made, torch.zeros(prompts * size, dtype=wide), pad=PAD)


def own(config: Config, batch: Batch) -> Tensor:
    """What the learner says with a reference of its own."""
    known = build_trainer(
        changed(config, reference_place="learner", generators=0), CPU, seed=0
    ).learner.compute_logprobs(batch)
    assert known.reference_BT is not None
    return known.reference_BT


def said(config: Config, batch: Batch, size: int) -> Tensor:
    engine = Crew(config).engine(size)
    return engine.reference_logprobs(batch, rows_at_once=config.optim.micro_batch_rows)


# The numbers.


CUTS = [(0, 1), (4, 1), (7, 1), (100, 1), (6, 5), (3, 5), (2, 3)]


@pytest.mark.parametrize(
    ("dtype", "rows", "size"),
    [
        *[("float32", *each) for each in CUTS if each not in ((4, 1), (6, 5))],
        *[(dtype, 3, 5) for dtype in ("float64", "bfloat16")],
        *[pytest.param("float32", *each, marks=pytest.mark.slow) for each in ((4, 1), (6, 5))],
        *[
            pytest.param(dtype, *each, marks=pytest.mark.slow)
            for dtype in ("float64", "bfloat16")
            for each in CUTS
            if each != (3, 5)
        ],
    ],
)
def test_the_same_micro_batches_give_the_bits_of_the_learners_own(dtype: str, rows: int, size: int) -> None:
    """With groups of 6 and a share of whole groups, micro batches of 6, 3 and 2 are those of the whole batch."""
    config = changed(THERE, dtype=dtype, micro_batch_rows=rows, temperature=0.7)
    batch = answers(config)
    assert torch.equal(said(config, batch, size), own(config, batch))


@pytest.mark.parametrize(
    ("dtype", "limit"), [pytest.param("float32", 5e-6, marks=pytest.mark.slow), ("float64", 1e-14)]
)
@pytest.mark.slow
def test_other_micro_batches_round_otherwise_and_no_more(dtype: str, limit: float) -> None:
    """The largest differences measured are 4.8e-7 and 8.9e-16, of log-probabilities near -3.

    In four layers of 256 they are 7.2e-7 and 1.4e-15, and 0.003 in bfloat16.
    """
    config = changed(THERE, dtype=dtype, hidden=64, intermediate=128)
    batch = answers(config, size=8)
    wanted = own(config, batch)
    assert float(wanted[batch.mask_BT].max()) < -0.5
    for size, rows in ((2, 0), (3, 0), (7, 0), (2, 5), (4, 1)):
        found = said(changed(config, micro_batch_rows=rows), batch, size)
        assert found.dtype == wanted.dtype
        assert float((found - wanted).abs().max()) < limit
        assert bool((found[~batch.mask_BT] == 0).all())


def test_lora_leaves_its_adapters_out_of_the_reference() -> None:
    config = changed(THERE, lora_rank=2)
    batch = answers(config)
    assert torch.equal(said(config, batch, 1), own(config, batch))
    assert torch.equal(said(config, batch, 1), said(THERE, batch, 1))


def test_a_share_is_of_whole_prompts_and_rows_without_a_token_are_nobodys() -> None:
    batch = make_batch(
        [group("1=", (5,), (6, 7)), group("2=", (), ()), group("3=", (), (8,)), group("4=", (9, 1), (2,))],
        torch.zeros(8),
        pad=PAD,
    )

    def cut(count: int, rows: int) -> list[list[list[int]]]:
        return [[part.tolist() for part in share] for share in reference.cut(batch, count, rows)]

    assert cut(1, 0) == [[[0, 1, 2, 3, 4, 5, 6, 7]]]
    assert cut(1, 3) == [[[0, 1, 2], [3, 4, 5], [6, 7]]]
    assert cut(2, 0) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert cut(3, 0) == [[[0, 1]], [], [[4, 5, 6, 7]]]
    assert cut(2, 2) == [[[0, 1]], [[4, 5], [6, 7]]]
    assert cut(4, 1) == [[[0], [1]], [], [[5]], [[6], [7]]]
    assert cut(9, 0)[8] == [[6, 7]]
    found = said(changed(THERE, micro_batch_rows=1), batch, 4)
    assert (found != 0).tolist() == batch.mask_BT.tolist()


def test_what_is_sent_of_some_rows_is_small_and_holds_no_memory_of_others() -> None:
    batch = answers(size=50)
    part = reference.asked(batch, torch.arange(3))
    assert len(part.rollout_logprobs_BT) == len(part.rewards_B) == 0
    for each in (part.tokens_BT, part.mask_BT, part.prompts_PS):
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size()


# What changes it, and what does not.


def server() -> Server:
    return Crew(THERE).start(0).server


def buckets(values: dict[str, Tensor], version: int = 0) -> list[Any]:
    return list(Packer(1 << 12).pack(values.items(), version))


def test_new_weights_are_the_engines_and_never_the_references() -> None:
    batch, made = answers(), server()
    before = made.reference_logprobs([batch])
    drawn = made.generate(PROMPTS, Sampling(4, 3, 1.0, seeds=(1, 2, 3, 4, 5)))
    for version in range(2):
        for bucket in buckets(weights(7 + version), version):
            made.load(bucket)
    after = made.reference_logprobs([batch])
    assert torch.equal(after.logprobs[0], before.logprobs[0])
    assert after.mark == before.mark == fingerprint(BUILT.items())
    assert made.generate(PROMPTS, Sampling(4, 3, 1.0, seeds=(1, 2, 3, 4, 5))).groups != drawn.groups
    held = made._reference
    assert held is not None
    theirs = {each.data_ptr() for each in made._engine.weights().values()}
    assert not theirs & {each.data_ptr() for each in held.weights().values()}


def test_another_reference_replaces_the_reference_and_never_the_engines_weights() -> None:
    batch, made, other = answers(), server(), weights(7)
    before = made.reference_logprobs([batch])
    for bucket in buckets(other):
        made.load_reference(bucket)
    after = made.reference_logprobs([batch])
    assert after.mark == fingerprint(other.items()) != before.mark
    assert not torch.equal(after.logprobs[0], before.logprobs[0])
    assert all(torch.equal(each, made._engine.weights()[name]) for name, each in BUILT.items())
    assert made.generate(PROMPTS, Sampling(1, 3, 1.0, True)).version == -1


def test_a_reference_that_came_in_part_or_damaged_says_nothing() -> None:
    batch, made = answers(), server()
    half = buckets(weights(7))
    made.load_reference(half[0])
    assert made.reference_logprobs([batch]).mark == fingerprint(BUILT.items())  # nothing was taken over yet
    assert made._replacing is not None
    made._replacing._take = lambda _: None
    with pytest.raises(NotWhole, match="hold "):
        for bucket in half[1:]:
            made.load_reference(bucket)
    with pytest.raises(NotWhole, match="one version"):
        made.reference_logprobs([batch])
    with pytest.raises(ValueError, match="reference policy"):
        Crew(FLAT).start(0).server.reference_logprobs([batch])
    with pytest.raises(ValueError, match="reference policy"):
        Crew(FLAT).start(0).server.load_reference(half[0])


def test_a_run_that_begins_elsewhere_sends_its_reference_to_each_generator_once() -> None:
    crew, batch, other = Crew(THERE), answers(), weights(7)
    engine = crew.engine(2, bucket_mib=1)
    engine.expect_reference(fingerprint(BUILT.items()))
    before = engine.reference_logprobs(batch, rows_at_once=0)
    engine.load_weights(weights(5))
    engine.set_reference(other.items())
    kept = {name: each.detach().clone() for name, each in other.items()}
    for each in other.values():
        each.detach().zero_()
    for _ in range(2):
        after = engine.reference_logprobs(batch, rows_at_once=0)
    assert not torch.equal(after, before)
    assert engine.origin is not None and engine.origin.mark == fingerprint(kept.items())
    # Neither lies where the other does.
    assert fingerprint(engine.weights().items()) == fingerprint(weights(5).items())
    engine.load_weights(weights(6))
    assert fingerprint(unpack(engine.origin.buckets).items()) == engine.origin.mark
    twin = engine.twin()
    assert twin.origin is engine.origin
    assert torch.equal(twin.reference_logprobs(batch, rows_at_once=0), after)
    assert [len(each.replaced) for each in crew.started] == [len(engine.origin.buckets)] * 2


# Faults.


def killed(found: ReferenceLogProbs) -> ReferenceLogProbs:
    raise GeneratorLost("generator ?", "was killed by SIGKILL")


def silent(found: ReferenceLogProbs) -> ReferenceLogProbs:
    raise TimeoutError


def with_value(value: float) -> Callable[[ReferenceLogProbs], ReferenceLogProbs]:
    def spoil(found: ReferenceLogProbs) -> ReferenceLogProbs:
        first = found.logprobs[0].clone()
        first[-1, 0] = value
        return replace(found, logprobs=(first, *found.logprobs[1:]))

    return spoil


def short(found: ReferenceLogProbs) -> ReferenceLogProbs:
    return replace(found, logprobs=(found.logprobs[0][1:], *found.logprobs[1:]))


def fewer(found: ReferenceLogProbs) -> ReferenceLogProbs:
    return replace(found, logprobs=found.logprobs[1:])


FAULTS: Sequence[tuple[Callable[[ReferenceLogProbs], ReferenceLogProbs], str]] = [
    (killed, "SIGKILL"),
    (silent, r"\b5 s"),
    (with_value(float("nan")), r" nan\b.* reference policy"),
    (with_value(-float("inf")), r" -inf\b.* reference policy"),
    (with_value(0.25), r" 0\.25\b.* reference policy"),
    (short, r"reference policy.* \d+ x \d .* \d+ x \d"),
    (fewer, r"reference policy.* no tokens.* \d+ x \d"),
]


@pytest.mark.parametrize(
    ("is_moved", "fault", "why"),
    [
        *((True, *each) for each in FAULTS),
        *(pytest.param(False, *each, marks=pytest.mark.slow if at else ()) for at, each in enumerate(FAULTS)),
    ],
)
def test_a_generator_that_is_lost_gives_its_share_and_its_reference_to_the_next(
    fault: Callable[[ReferenceLogProbs], ReferenceLogProbs], why: str, is_moved: bool
) -> None:
    batch = answers()
    crew, whole = Crew(THERE, spoils_of_reference={1: [fault]}), Crew(THERE).engine(2)
    engine = crew.engine(2)
    for each in (engine, whole):
        each.expect_reference(fingerprint(BUILT.items()))
        if is_moved:
            each.set_reference(weights(7).items())
    assert torch.equal(
        engine.reference_logprobs(batch, rows_at_once=0), whole.reference_logprobs(batch, rows_at_once=0)
    )
    assert [each.name for each in crew.started] == ["generator 0", "generator 1", "generator 1"]
    assert crew.started[1].is_ended
    assert engine.stats.num_lost == 1
    # What was lost was asked for once more as a whole, and nothing else was.
    assert [len(each.referred) for each in crew.started] == [2, 1, 0]
    lost, again = crew.started[1].referred[0], crew.started[0].referred[1]
    assert torch.equal(lost[0].tokens_BT, again[0].tokens_BT)
    # From then on the new one has its share, and the reference that the run began with.
    assert torch.equal(
        engine.reference_logprobs(batch, rows_at_once=0), whole.reference_logprobs(batch, rows_at_once=0)
    )
    assert [len(each.referred) for each in crew.started] == [3, 1, 1]
    sent = len(engine.origin.buckets) if engine.origin is not None else 0
    assert [len(each.replaced) for each in crew.started] == [sent] * 3
    assert bool(sent) is is_moved


@pytest.mark.parametrize(("fault", "why"), FAULTS)
def test_a_share_that_nobody_can_answer_ends_with_the_cause(
    fault: Callable[[ReferenceLogProbs], ReferenceLogProbs], why: str
) -> None:
    crew = Crew(THERE, spoils_of_reference={at: [fault] * 9 for at in range(2)})
    with pytest.raises(GeneratorLost, match=rf"{why},.*\b{MOST_TRIES} times"):
        crew.engine(2).reference_logprobs(answers(), rows_at_once=0)


def test_a_generator_that_makes_another_reference_is_named_and_nobody_else_is_asked() -> None:
    crew = Crew(THERE)
    engine = crew.engine(2)
    engine.expect_reference(fingerprint(weights(7).items()))
    with pytest.raises(BadSetting, match=r"generator 0 .* reference_place=learner"):
        engine.reference_logprobs(answers(), rows_at_once=0)
    assert len(crew.started) == 2
