"""Rules' values and corrections at their borders."""

from __future__ import annotations

import pytest

from npuenv.matrix.keys import defaults_of
from npuenv.preflight.examine import examine
from npuenv.preflight.reading import ReadOptions, read_words
from npuenv.preflight.rules.base import value
from npuenv.preflight.rules.batches import fitting
from npuenv.preflight.rules.memory import job_of
from npuenv.preflight.types import Launch, Machine

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MACHINE = Machine(hardware="a2", cards_per_node=8, nodes=1, memory_gib=64.0)


def launch(*words: str, release: str = "0.7.1") -> Launch:
    asked = ReadOptions(defaults_of, "verl", release, machine=MACHINE)
    return read_words(("python3", "-m", "verl.trainer.main_ppo", *words), asked).launch


@pytest.mark.parametrize(
    ("words", "expected"), [((), False), ((f"{ACTOR}.entropy_from_logits_with_chunking=True",), True)]
)
def test_a_default_that_points_elsewhere_has_the_value_that_stands_there(
    words: tuple[str, ...], expected: bool
) -> None:
    found = launch(*words, release="0.9.1")
    assert value(found, f"{ACTOR}.fsdp_config.entropy_from_logits_with_chunking") is expected


def test_a_mini_batch_that_can_be_dealt_out_stays_though_it_does_not_divide_the_batch() -> None:
    words = ("data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=24", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2")
    cards = ("trainer.n_gpus_per_node=8", "trainer.nnodes=1", f"{ROLLOUT}.n=1")
    changes = {each.key: each.value for each in fitting(launch(*words, *cards))}
    assert changes == {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}


JOB = (
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "trainer.n_gpus_per_node=8", "trainer.nnodes=1",
    f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.gpu_memory_utilization=0.6", f"{ACTOR}.use_dynamic_bsz=True",
    "algorithm.adv_estimator=grpo", "data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=64",
    "data.max_prompt_length=2048", "data.max_response_length=6144",
)  # fmt: skip


@pytest.mark.parametrize(
    ("word", "is_judged"), [(f"{ACTOR}.strategy=${{oc.env:S}}", False), ("trainer.strategy_notes=${oc.env:S}", True)]
)
def test_only_a_strategy_itself_decides_about_memory_while_it_is_open(word: str, is_judged: bool) -> None:
    assert (job_of(launch(*JOB, word)) is not None) == is_judged


def test_relief_cuts_the_tokens_of_log_probabilities_that_are_more_than_a_sequence() -> None:
    tokens = (f"{ACTOR}.ppo_max_token_len_per_gpu=262144", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True")
    found = launch(*JOB, *tokens, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=262144")
    (problem,) = (each for each in examine(found) if each.check == "preflight.memory")
    changes = {each.key: each.value for each in problem.changes}
    assert changes[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 8192
    assert changes[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] == 8192


@pytest.mark.parametrize("is_written", [False, True])
def test_relief_writes_the_reference_s_micro_batch_only_where_it_was_written(is_written: bool) -> None:
    sizes = (f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=64")
    keys = {role: f"{role}.log_prob_micro_batch_size_per_gpu" for role in (ROLLOUT, REF)}
    more = (f"{keys[REF]}=64",) if is_written else ()
    (problem,) = (each for each in examine(launch(*JOB, *sizes, *more)) if each.check == "preflight.memory")
    found = {each.key: each.value for each in problem.changes}
    assert found.get(keys[ROLLOUT]) == 1
    assert found.get(keys[REF]) == (1 if is_written else None)
