"""Corrections that have to go together: what is said for one problem is what --fix writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.fixing import corrected, fix
from npuenv.preflight.launch import Machine
from npuenv.preflight.reading import read_file, read_words
from npuenv.preflight.rules import examine

if TYPE_CHECKING:
    from pathlib import Path

ACTOR = "actor_rollout_ref.actor"
TRAIN, MINI, MICRO = (
    "data.train_batch_size",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
)
BATCHES = {"preflight.train-batch", "preflight.mini-batch", "preflight.mini-batch-uneven", "preflight.micro-batch"}
ASKED = ReadOptions(defaults_of, "verl", "0.7.1")


def command(train: int, mini: int, micro: int, n: int, *more: str) -> list[str]:
    sizes = (f"{TRAIN}={train}", f"{MINI}={mini}", f"{MICRO}={micro}", f"actor_rollout_ref.rollout.n={n}")
    fixed = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1")
    cards = ("trainer.n_gpus_per_node=8", "trainer.nnodes=1", "algorithm.adv_estimator=grpo")
    return ["python3", "-m", "verl.trainer.main_ppo", *sizes, *fixed, *cards, *more]


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ((100, 100, 2, 1), (104, 104, 1)),  # the mini batch grows with the batch, and 13 a card take only 1
        ((100, 50, 4, 1), (104, 104, 1)),  # between 50 and 104 nothing divides 104 and can be dealt out to 8 cards
        ((64, 128, 3, 5), (64, 64, 2)),
        ((100, 128, 2, 1), (104, 104, 1)),
        ((64, 60, 5, 1), (64, 64, 4)),
        ((64, 64, 3, 1), (64, 64, 2)),
        ((64, 12, 2, 1), (64, 16, 2)),
    ],
)
def test_the_three_batches_are_corrected_as_one_whole(
    written: tuple[int, int, int, int], right: tuple[int, int, int]
) -> None:
    reading = read_words(command(*written), ASKED)
    problems = [each for each in examine(reading.launch) if each.check in BATCHES]
    first = {change.key: change.value for change in problems[0].changes}
    assert problems and all(each.changes == problems[0].changes for each in problems)
    fixed = fix(reading, ASKED)
    after = [word.value for word in read_words(fixed.after.split(), ASKED).words]
    found = tuple(int(word.partition("=")[2]) for key in (TRAIN, MINI, MICRO) for word in after if f"{key}=" in word)
    assert found == right
    assert {**dict(zip((TRAIN, MINI, MICRO), written)), **first} == dict(zip((TRAIN, MINI, MICRO), right))
    assert not [each for each in fixed.left if each.check in BATCHES]
    said = {word for each in problems for word in corrected(reading, ASKED, each)}
    assert said == {word for word in after if word not in command(*written)}


@pytest.mark.parametrize("train", [100, 128])
def test_dynamic_batches_leave_the_other_sizes_alone(train: int) -> None:
    reading = read_words(command(train, 256, 7, 1, f"{ACTOR}.use_dynamic_bsz=True"), ASKED)
    problems = [each for each in examine(reading.launch) if each.check in BATCHES]
    assert {each.check: [(c.key, c.value) for c in each.changes] for each in problems} == {
        "preflight.mini-batch": [(MINI, train)]
    }


ROLL = """\
pretrain: Qwen/Qwen2.5-7B-Instruct
actor_train:
  strategy_args:
    strategy_name: megatron_train
    strategy_config:   # as on the GPUs
      tensor_model_parallel_size: 2
      pipeline_model_parallel_size: 2
      use_distributed_optimizer: true
      recompute_granularity: full
{extra}  device_mapping: list(range(0,8))
reference:
  strategy_args:
    strategy_name: megatron_infer
    strategy_config:
      tensor_model_parallel_size: 2
  device_mapping: list(range(0,8))
"""


@pytest.mark.parametrize("extra", ["", "      param_dtype: bf16\n"])
def test_megatrons_settings_go_with_megatron(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(ROLL.replace("{extra}", extra), encoding="utf-8")
    asked = ReadOptions(defaults_of, "roll", "0.3.0")
    fixed = fix(read_file(path, asked), asked)
    path.write_text(fixed.after, encoding="utf-8")
    settings = read_file(path, asked).launch.settings
    base = "actor_train.strategy_args"
    kept = {key: each.value for key, each in settings.items() if ".strategy_args." in key}
    dtype = {f"{base}.strategy_config.param_dtype": "bf16"} if extra else {}
    assert kept == {
        f"{base}.strategy_name": "fsdp2_train",
        f"{base}.strategy_config.fsdp_size": 8,
        **dtype,
        "reference.strategy_args.strategy_name": "hf_infer",
    }
    assert not [each for each in fixed.left if each.check == "preflight.roll-megatron"]


SGLANG = """\
pretrain: X
actor_infer:
  strategy_args:
    strategy_name: sglang
    strategy_config:
      mem_fraction_static: 0.7
{extra}  device_mapping: list(range(0,8))
"""


@pytest.mark.parametrize(
    ("extra", "is_offered"), [("", True), ("      load_format: auto\n", True), ("      ep: 2\n", False)]
)
def test_sglangs_settings_become_those_of_vllm_or_nothing_is_offered(
    tmp_path: Path, extra: str, is_offered: bool
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(SGLANG.replace("{extra}", extra), encoding="utf-8")
    asked = ReadOptions(defaults_of, "roll", "0.3.0")
    after = fix(read_file(path, asked), asked).after
    assert ("strategy_name: vllm" in after, "gpu_memory_utilization: 0.7" in after) == (is_offered, is_offered)
    assert ("mem_fraction_static" in after) is not is_offered


def test_deepspeeds_tree_is_not_left_to_fsdp(tmp_path: Path) -> None:
    text = ROLL.partition("    strategy_config:")[0].replace("megatron_train", "deepspeed_train")
    tree = "    strategy_config:\n      zero_optimization: {stage: 3, offload_param: {device: cpu}}\n"
    path = tmp_path / "own.yaml"
    path.write_text(f"{text}{tree}  device_mapping: list(range(0,4))\n", encoding="utf-8")
    asked = ReadOptions(defaults_of, "roll", "0.3.0")
    fixed = fix(read_file(path, asked), asked)
    path.write_text(fixed.after, encoding="utf-8")
    config = "actor_train.strategy_args.strategy_config."
    settings = read_file(path, asked).launch.settings
    assert {key.removeprefix(config): each.value for key, each in settings.items() if key.startswith(config)} == {
        "fsdp_size": 4,
        "param_dtype": "bf16",
        "reduce_dtype": "float32",
        "reshard_after_forward": True,
        "offload_policy": True,
    }


def test_fsdp_of_roll_without_a_size_is_a_copy_on_each_card(tmp_path: Path) -> None:
    text = ROLL.partition("    strategy_config:")[0].replace("megatron_train", "fsdp2_train")
    infer = "    strategy_name: vllm\n    strategy_config: {gpu_memory_utilization: 0.6}\n"
    path = tmp_path / "own.yaml"
    path.write_text(
        f"prompt_length: 512\nresponse_length: 512\nrollout_batch_size: 64\n{text}    strategy_config: {{}}\n"
        f"  device_mapping: list(range(0,8))\nactor_infer:\n  strategy_args:\n{infer}"
        "  device_mapping: list(range(0,8))\n",
        encoding="utf-8",
    )
    asked = ReadOptions(defaults_of, "roll", "0.3.0", Machine("a2", 8, 1, 64.0))
    found = [each for each in examine(read_file(path, asked).launch) if each.check == "preflight.memory"]
    size = "actor_train.strategy_args.strategy_config.fsdp_size"
    assert [[(change.key, change.value) for change in each.changes] for each in found] == [[(size, 8)]]


@pytest.mark.parametrize(
    ("text", "right"),
    [("0-3", "0,1,2,3"), ("4-5", "4,5"), ("3-0", None), ("2-2", None), ("0..3", None), ("0-3,6", None)],
)
def test_a_range_of_visible_cards_is_spelled_out(text: str, right: str | None) -> None:
    name = "ASCEND_RT_VISIBLE_DEVICES"
    reading = read_words([f"{name}={text}", *command(64, 64, 1, 1, "trainer.n_gpus_per_node=2")], ASKED)
    (found,) = [each for each in examine(reading.launch) if each.check == "preflight.visible-cards"]
    assert [(change.key, change.value) for change in found.changes] == ([(name, right)] if right else [])


def megatron(*more: str) -> list[str]:
    sizes = ("tensor_model_parallel_size=2", "pipeline_model_parallel_size=1")
    engine = ("actor.strategy=megatron", *(f"actor.megatron.{each}" for each in sizes))
    return [*command(32, 16, 7, 2), *(f"actor_rollout_ref.{each}" for each in engine), *more]


def test_megatron_wants_a_batch_of_whole_micro_batches_on_every_group_of_cards() -> None:
    reading = read_words(megatron(), ASKED)
    found = {each.says.key: each for each in examine(reading.launch) if each.severity == "error"}
    assert set(found) == {"preflight_rules.train-batch-micro", "preflight_rules.micro-batch"}
    assert found["preflight_rules.train-batch-micro"].says.args["cards"] == 4
    fixed = fix(reading, ASKED)
    assert not fixed.left and f"{MICRO}=4" in fixed.after
    unknown = read_words(megatron("trainer.n_gpus_per_node=${oc.env:CARDS}"), ASKED)
    keys = [each.says.key for each in examine(unknown.launch) if each.severity == "error"]
    assert keys == ["preflight_rules.train-batch-micro-any"]
    dynamic = read_words(megatron("actor_rollout_ref.actor.use_dynamic_bsz=True"), ASKED)
    assert not [each for each in examine(dynamic.launch) if each.check in BATCHES]
