"""Rules' values and corrections at their borders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.launch import Launch, Machine
from npuenv.preflight.reading import read_file, read_words
from npuenv.preflight.rules import examine
from npuenv.preflight.rules.base import value
from npuenv.preflight.rules.memory import job_of
from npuenv.preflight.rules.sizes import fitting

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize(("cards", "is_said"), [(16, False), (32, True)])
def test_no_node_has_more_cards_than_its_hardware_allows(cards: int, is_said: bool) -> None:
    found = replace(launch(f"trainer.n_gpus_per_node={cards}"), machine=Machine(hardware="a3"))
    assert ("preflight.cards-machine" in {each.check for each in examine(found)}) is is_said


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


ROLL = """
pretrain: Qwen/Qwen2.5-7B-Instruct
prompt_length: 1024
response_length: 3072
rollout_batch_size: 64
num_return_sequences_in_group: 8
actor_train:
  training_args: {per_device_train_batch_size: 32, gradient_accumulation_steps: 2}
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 8, offload_policy: true}}
  device_mapping: list(range(0,8))
  infer_batch_size: 4
actor_infer:
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.6}}
  device_mapping: list(range(0,8))
"""


@pytest.mark.parametrize(
    ("word", "is_judged"), [(f"{ACTOR}.strategy=${{oc.env:S}}", False), ("trainer.strategy_notes=${oc.env:S}", True)]
)
def test_only_a_strategy_itself_decides_about_memory_while_it_is_open(word: str, is_judged: bool) -> None:
    assert (job_of(launch(*JOB, word)) is not None) == is_judged


UPDATE, SCORING = f"{ACTOR}.ppo_max_token_len_per_gpu", "log_prob_max_token_len_per_gpu"
MICRO = "micro_batch_size_per_gpu"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # The log-probabilities follow the update's budget by themselves, unless they have one of their own.
        ((f"{UPDATE}=262144",), {UPDATE: 32768}),
        (
            (f"{UPDATE}=262144", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True", f"{ROLLOUT}.{SCORING}=262144"),
            {UPDATE: 32768, f"{ROLLOUT}.{SCORING}": 32768},
        ),
        ((f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_{MICRO}=64"), {f"{ACTOR}.ppo_{MICRO}": 4}),
        (
            (f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_{MICRO}=64", f"{ACTOR}.use_kl_loss=True",
             f"{REF}.log_prob_{MICRO}=64"),
            {f"{ACTOR}.ppo_{MICRO}": 2, f"{ROLLOUT}.log_prob_{MICRO}": 4, f"{REF}.log_prob_{MICRO}": 4},
        ),
        # Only with shorter answers: the user's choice.
        (("actor_rollout_ref.model.path=Qwen/Qwen2.5-72B-Instruct", "trainer.n_gpus_per_node=8"), {}),
    ],
)  # fmt: skip
def test_the_memorys_corrections_are_its_advice_and_the_launch_fits_with_them(
    words: tuple[str, ...], expected: dict[str, int]
) -> None:
    (problem,) = (each for each in examine(launch(*JOB, *words)) if each.check == "preflight.memory")
    changes = {each.key: each.value for each in problem.changes}
    assert changes == expected
    corrected = launch(*JOB, *words, *(f"{key}={value}" for key, value in changes.items()))
    left = [each for each in examine(corrected) if each.check == "preflight.memory"]
    assert bool(left) is not bool(changes)


def test_roll_accumulates_more_where_its_micro_batch_is_lowered(tmp_path: Path) -> None:
    """The sequences of an update stay."""
    path = tmp_path / "own.yaml"
    path.write_text(ROLL, encoding="utf-8")
    asked = ReadOptions(defaults_of, "roll", "0.3.0", machine=MACHINE)
    (problem,) = (each for each in examine(read_file(path, asked).launch) if each.check == "preflight.memory")
    found = {each.key.rpartition(".")[2]: each.value for each in problem.changes}
    assert found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] == 32 * 2
