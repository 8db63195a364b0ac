"""Every shipped verl recipe as a job: it fits from its own row, as its key words say, and preflight reads the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core import versions
from npuenv.core.messages import say
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.launch import Machine
from npuenv.preflight.memory import estimate, find_model
from npuenv.preflight.memory.types import Cards, Placement
from npuenv.preflight.reading import read_text
from npuenv.preflight.rules import examine
from npuenv.preflight.rules.memory import job_of
from npuenv.render.launch.verl import render_verl
from npuenv.render.launch.verl_job import job_for
from tests.render.conftest import make_stack
from tests.render.verl_jobs import RECIPES, published
from tests.support.sentences import says

if TYPE_CHECKING:
    from npuenv.core.messages import Message
    from npuenv.preflight.memory.types import Job

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
LISTED = sorted(id for id, row in RECIPES.items() if not row.refused)
# The planner and preflight both judge these: training and generation by vLLM on the same cards.
TOGETHER = [id for id in LISTED if RECIPES[id].entry == "main" and RECIPES[id].rollout == "vllm"]
RELEASES = ("0.5.0", "0.7.1", "0.9.1")


def shipped(id: str, release: str = "0.9.1", **values: str) -> tuple[Job, Placement]:
    """A row's job on its own cards, with further values: two underscores stand for a dot of their keys."""
    row = RECIPES[id]
    keys = {name.replace("__", "."): text for name, text in values.items()}
    row = dataclasses.replace(row, values={**row.values, **keys})
    cards = Cards(row.hardware[0], row.cards_per_node, row.nodes)
    job = job_for(row, model=find_model(row.model), cards=cards, release=release)
    placement = published(id, release)[1]
    return job, placement if row.entry == "sft" else dataclasses.replace(placement, reference=placement.train)


@pytest.mark.parametrize("id", LISTED)
def test_a_shipped_row_fits_on_its_own_cards(id: str) -> None:
    found = estimate(*shipped(id))
    assert found.verdict in ("feasible", "tight"), say(found.says[0])
    assert 10 < found.peak_gib <= 64


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("id", TOGETHER)
@pytest.mark.one_in(4)
def test_preflight_reads_the_same_job_from_the_script(id: str, release: str) -> None:
    row = RECIPES[id]
    if not versions.accepts(f">={row.since}", release):
        pytest.skip(f"rendered from {row.since} on")
    job, placement = shipped(id, release)
    script = render_verl(job, placement, row, stack=make_stack(), paths=published(id, release)[3])["run.sh"]
    machine = Machine(row.hardware[0], row.cards_per_node, row.nodes, 64.0)
    found = job_of(read_text(script, Path("run.sh"), ReadOptions(defaults_of, "verl", release, machine)).launch)
    assert found is not None
    assert found[0] == job


@pytest.mark.parametrize(
    ("id", "key", "text", "field", "expected"),
    [
        ("grpo-qwen3-32b", f"{ACTOR}.ulysses_sequence_parallel_size", "8", "sequence_parallel", 8),
        ("grpo-qwen3-32b", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", "8", "sequence_parallel", 4),
        ("quick-start", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", "2", "sequence_parallel", 2),
        ("quick-start", f"{ACTOR}.use_dynamic_bsz", "True", "micro_tokens", 16384),
        ("dapo-qwen3-14b-base", f"{ACTOR}.ppo_max_token_len_per_gpu", "22528", "micro_tokens", 22528),
        ("quick-start", f"{ROLLOUT}.log_prob_use_dynamic_bsz", "True", "log_prob_tokens", 16384),
        ("quick-start", f"{ACTOR}.use_dynamic_bsz", "True", "log_prob_tokens", 16384),
        ("grpo-qwen3-4b", f"{REF}.log_prob_max_token_len_per_gpu", "6000", "reference_tokens", 6000),
        ("quick-start", f"{REF}.log_prob_micro_batch_size_per_gpu", "8", "reference_micro_batch", 8),
        ("grpo-qwen3-32b", f"{ROLLOUT}.max_num_batched_tokens", "16384", "batched_tokens", 16384),
        # Without chunks one pass holds a whole sequence.
        ("quick-start", f"{ROLLOUT}.max_num_batched_tokens", "512", "batched_tokens", 640),
        ("quick-start", f"{ACTOR}.entropy_coeff", "0", "has_entropy_loss", False),
        ("quick-start", f"{ACTOR}.entropy_from_logits_with_chunking", "True", "chunks_entropy", True),
        ("quick-start", f"{ACTOR}.fsdp_config.entropy_from_logits_with_chunking", "True", "chunks_entropy", True),
        ("quick-start", f"{ROLLOUT}.free_cache_engine", "False", "engine_sleeps", False),
        ("quick-start", "actor_rollout_ref.model.lora_rank", "32", "lora_rank", 32),
        ("sft-lora-qwen3-8b", "data.max_token_len_per_gpu", "4096", "micro_tokens", 4096),
    ],
)
def test_a_key_that_decides_about_memory_reaches_the_job(
    id: str, key: str, text: str, field: str, expected: object
) -> None:
    job, _ = shipped(id, **{key.replace(".", "__"): text})
    assert getattr(job if hasattr(job, field) else job.sizes, field) == expected


def test_sequences_that_are_not_dynamic_beside_an_update_that_is_keep_their_tokens() -> None:
    keys = {f"{ACTOR}.use_dynamic_bsz": "True", f"{ROLLOUT}.log_prob_use_dynamic_bsz": "False"}
    job, _ = shipped("quick-start", **{key.replace(".", "__"): text for key, text in keys.items()})
    assert job.sizes.log_prob_tokens == 40 * (512 + 128)


@pytest.mark.parametrize("id", LISTED)
def test_using_more_of_large_cards_as_advised_divides_and_fits(id: str) -> None:
    """On cards of three times the size there is room: what is advised then must be accepted when it is done."""
    job, placement = shipped(id)
    share = min(0.3, job.gpu_memory_utilization)  # of the larger card: enough for every engine here
    large = dataclasses.replace(job.cards, memory_gib=192.0)
    job = dataclasses.replace(job, cards=large, gpu_memory_utilization=share)
    advice = estimate(job, placement).advice
    assert [each.key for each in advice] == ["placement.advice-room"]
    steps = advice[0].args["steps"]
    assert isinstance(steps, tuple)
    assert steps
    done = _done(job, steps)
    row = RECIPES[id]
    render_verl(done, placement, row, stack=make_stack(), paths=published(id, job.release)[3])
    assert estimate(done, placement).verdict == "feasible"


def _done(job: Job, steps: tuple[Message, ...]) -> Job:
    """The job after the steps of an advice."""
    names = {"micro": "micro_batch", "mini": "mini_batch", "tokens": "micro_tokens"}
    values: dict[str, Any] = {name: value for step in steps for name, value in step.args.items()}
    sizes = dataclasses.replace(job.sizes, **{names[name]: values[name] for name in values if name in names})
    share = float(str(values.get("utilization", job.gpu_memory_utilization)))
    return dataclasses.replace(job, sizes=sizes, gpu_memory_utilization=share)


def test_a_micro_batch_that_holds_a_cards_whole_share_grows_with_the_mini_batch() -> None:
    """The AQN guide's second column: 16 x 4 answers on 8 cards are 8 a card, which its micro batch takes at once."""
    job, placement = shipped("aqn-4x")
    large = dataclasses.replace(job, cards=dataclasses.replace(job.cards, memory_gib=128.0))
    (found,) = estimate(large, placement).advice
    assert says(say(found), "placement.room-mini", mini=32, micro=16)
    (found,) = estimate(job, placement).advice  # on 64 GiB the doubled logits would not fit
    assert not says(say(found), "placement.room-mini") and say(found).endswith("gpu_memory_utilization to 0.5")


_APART = {f"{ACTOR}.use_dynamic_bsz": "True", f"{ROLLOUT}.log_prob_use_dynamic_bsz": "False"}


@pytest.mark.parametrize(
    ("id", "keys", "advised"),
    [
        ("quick-start", _APART | {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "256"}, "scoring-tokens"),
        ("grpo-qwen3-4b", {f"{ROLLOUT}.log_prob_max_token_len_per_gpu": "150000"}, "scoring-tokens"),
        ("grpo-qwen3-4b", {f"{REF}.log_prob_max_token_len_per_gpu": "150000"}, "scoring-tokens"),
        ("quick-start", {f"{REF}.log_prob_micro_batch_size_per_gpu": "512"}, "scoring"),
    ],
)
def test_what_is_advised_names_the_batch_that_is_too_large(id: str, keys: dict[str, str], advised: str) -> None:
    """Not the update's, whose numbers other keys hold."""
    job, placement = shipped(id, **{key.replace(".", "__"): text for key, text in keys.items()})
    found = estimate(job, placement)
    assert found.verdict == "infeasible"
    said = [each.key for each in found.advice]
    assert said[0] == f"placement.advice-{advised}" and said[-1].startswith("placement.advice-then-")


def test_preflight_lowers_the_tokens_of_a_dynamic_batch_that_does_not_fit() -> None:
    row = RECIPES["dapo-qwen2.5-7b"]
    budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
    row = dataclasses.replace(row, values={**row.values, budget: "90000"})
    job, placement = shipped(row.id, "0.7.1", **{budget.replace(".", "__"): "90000"})
    script = render_verl(job, placement, row, stack=make_stack(), paths=published(row.id)[3])["run.sh"]
    asked = ReadOptions(defaults_of, "verl", "0.7.1", Machine("a2", 16, 1, 64.0))
    reading = read_text(script, Path("run.sh"), asked)
    (found,) = [each for each in examine(reading.launch) if each.check == "preflight.memory"]
    assert [(change.key, change.value) for change in found.changes] == [(budget, 22500)]


def test_preflight_lowers_whole_sequences_where_those_are_what_is_too_large() -> None:
    keys = _APART | {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "256"}
    row = RECIPES["quick-start"]
    row = dataclasses.replace(row, values={**row.values, **keys})
    job, placement = shipped(row.id, "0.9.1", **{key.replace(".", "__"): text for key, text in keys.items()})
    script = render_verl(job, placement, row, stack=make_stack(), paths=published(row.id)[3])["run.sh"]
    reading = read_text(script, Path("run.sh"), ReadOptions(defaults_of, "verl", "0.9.1", Machine("a2", 8, 1, 64.0)))
    (found,) = [each for each in examine(reading.launch) if each.check == "preflight.memory"]
    changes = [(each.key, each.value) for each in found.changes]
    assert changes == [(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 128)]
