"""The count of operations: against a count by hand, and against what torch counts while the model runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END, PAD, TEXT, TINY, changed, decoder, group, rollout
from trainer.algorithms.packing import make_batch
from trainer.config import Config
from trainer.metrics import meter
from trainer.models import build, ops
from trainer.tasks.digits import prompt
from trainer.types import Group

GROUPS = [group("12=", [1, 2, 3, 4], [5, END]), group("1+2=", [1, 2], [3, 4, END])]


def products(counted: dict[object, int]) -> int:
    return sum(number for name, number in counted.items() if str(name) in ("aten.mm", "aten.addmm"))


def test_the_example_of_the_docstring() -> None:
    found = meter.work([group("12=", [1, 2], [1, 2, 3])])
    assert found == meter.Work(tokens=6, passing=2, outputs=4, pairs=19, last_pairs=16)


def test_pairs_are_those_a_causal_model_sees() -> None:
    found = meter.work(GROUPS)
    pairs = 0
    for each in GROUPS:
        length = len(each.prompt.tokens)
        pairs += sum(place + 1 for place in range(length))
        pairs += sum(length + place + 1 for answer in each.rollouts for place in range(len(answer.tokens) - 1))
    assert found.pairs == pairs


@pytest.mark.slow
def test_linear_layers_are_counted_exactly_forwards_and_backwards() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = decoder()
    batch, done = make_batch(GROUPS, torch.zeros(2, 2), pad=PAD), meter.work(GROUPS)
    size = meter.sizes(model)
    assert size is not None
    attention = 4 * size.width * (done.pairs + done.last_pairs)
    with FlopCounterMode(display=False) as counter:
        scored = model.token_logprobs(batch, temperature=1.0)
    assert products(counter.get_flop_counts()["Global"]) == meter.forward(size, done) - attention
    with FlopCounterMode(display=False) as counter:
        (scored.logprobs_BT.sum() + scored.entropy_BT.sum()).backward()
    again = 2 * size.output * done.outputs  # the logits are not kept but computed once more, which is no work
    assert products(counter.get_flop_counts()["Global"]) == meter.backward(size, done) - 2 * attention + again


def test_only_actions_are_predicted_in_an_episode() -> None:
    episode = replace(rollout([1, 2, 3, 4]), response_mask=(True, False, False, True))
    asked = prompt("1=", "1", TEXT)
    assert meter.work([Group(asked, (episode,))]).outputs == 1 + 1
    assert meter.work([Group(asked, (rollout([1, 2, 3, 4]),))]).outputs == 1 + 3


def test_frozen_weights_have_no_gradient_of_their_own() -> None:
    whole, adapted = (
        meter.sizes(build(changed(TINY, lora_rank=rank), TEXT.vocabulary_size, seed=0, device=CPU)) for rank in (0, 2)
    )
    assert whole is not None
    assert adapted is not None
    assert adapted.learning == adapted.adapters == adapted.body - whole.body > 0
    assert not adapted.output_learns
    done = meter.work(GROUPS)
    assert meter.backward(whole, done) == 2 * meter.forward(whole, done)
    linear = 2 * (adapted.body * done.tokens - adapted.spared * done.passing)
    attention = 4 * adapted.width * (done.pairs + done.last_pairs)
    of_weights = linear * adapted.learning // adapted.body
    # The frozen output layer passes the gradient on once, as every frozen layer does.
    assert meter.backward(adapted, done) == linear + of_weights + 2 * attention + 2 * adapted.output * done.outputs


def test_phases_hold_the_passes_that_the_settings_ask_for() -> None:
    size, done = meter.sizes(decoder()), meter.work(GROUPS)
    assert size is not None
    one = float(meter.forward(size, done))

    def phases(**settings: object) -> dict[str, float]:
        return meter.of_phases(size, done, changed(TINY, **settings), drawn_over_used=1.5)

    assert phases(kl_coef=0.0, mini_batches=1) == {"gen": 1.5 * one, "update_actor": 3 * one}
    assert phases(kl_coef=0.1, mini_batches=1)["old_log_prob"] == one
    assert phases(kl_coef=0.1, mini_batches=2)["old_log_prob"] == 2 * one
    with_critic = phases(kl_coef=0.0, mini_batches=2, estimator="gae")
    body = meter.forward(replace(size, output=0), done)
    assert with_critic["old_log_prob"] == one + body
    assert with_critic["update_actor"] == 3 * (one + body)


def test_a_model_whose_products_cannot_be_told_has_no_count() -> None:
    assert meter.sizes(torch.nn.Linear(3, 4)) is None


def test_the_peak_is_what_was_set_or_what_was_measured_in_bounded_time() -> None:
    said = meter.peak(changed(Config(), peak_tflops=354.0), CPU)
    assert (said.tflops, said.source, said.side, said.seconds) == (354.0, "setting", None, 0.0)
    found = meter.peak(Config(), CPU)
    assert found.source == "measured"
    assert found.side in (256, 512, 1024, 2048)
    # From a slow core shared by several to one with wide matrix units.
    assert 1e-4 < found.tflops < 20
    assert found.seconds < 1.0


@pytest.mark.parametrize("has_instructions", [True, False])
def test_the_peak_of_bfloat16_is_that_of_the_products_that_the_run_computes(
    monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    """Else a run without instructions would use several times the peak."""
    kinds = set()

    def product_s(factor: torch.Tensor, _: torch.device) -> float:
        kinds.add(factor.dtype)
        return 1.0

    monkeypatch.setattr(ops, "multiplies_bfloat16", lambda: has_instructions)
    monkeypatch.setattr(meter, "_product_s", product_s)
    meter.peak(changed(Config(), dtype="bfloat16"), CPU)
    assert kinds == {torch.bfloat16 if has_instructions else torch.float32}


@pytest.mark.full
def test_a_model_of_transformers_is_counted_like_the_built_in_one() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from trainer.models.pretrained import Pretrained

    shape = transformers.Qwen2Config(
        vocab_size=19, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, tie_word_embeddings=True,
    )  # fmt: skip
    theirs = meter.sizes(Pretrained(transformers.Qwen2ForCausalLM(shape)))
    ours = meter.sizes(decoder())
    assert theirs is not None
    assert ours is not None
    assert (theirs.body, theirs.output, theirs.layers, theirs.width) == (ours.body, ours.output, 2, 16)
    assert theirs.spared == 0
