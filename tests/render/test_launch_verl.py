"""verl launch files: the guides' values, the names of each release, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.preflight.memory.types import Placement
from npuenv.render.launch.verl import overrides, render_verl
from npuenv.render.launch.verl_job import Paths, for_release
from tests.render.conftest import make_stack, pin
from tests.render.verl_jobs import RECIPES, TEST, TRAIN, published, words_of

if TYPE_CHECKING:
    from pathlib import Path

# The guide's 38, with the experiment named after the model that is really trained.
QUICK_START = set(
    f"""algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.001
    data.train_files={TRAIN} data.val_files={TEST} data.train_batch_size=128 data.max_prompt_length=512
    data.max_response_length=128 data.filter_overlong_prompts=True data.truncation=error
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.entropy_coeff=0.001
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=20
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.fsdp_config.param_offload=False
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    actor_rollout_ref.rollout.enable_chunked_prefill=False
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 actor_rollout_ref.ref.fsdp_config.param_offload=True
    trainer.critic_warmup=0 trainer.logger=console trainer.project_name=verl_grpo_example_gsm8k
    trainer.experiment_name=qwen2_5_0_5b_gsm8k trainer.n_gpus_per_node=8 trainer.nnodes=1
    trainer.save_freq=-1 trainer.test_freq=5 trainer.total_epochs=1""".split()
)
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
# The columns of the AQN guide: step, response, mini batch, micro batch, share of the card.
AQN = {"aqn-base": (64, 2048, 16, 2, 0.4), "aqn-4x": (64, 2048, 16, 8, 0.4), "aqn-hbm": (128, 1024, 32, 16, 0.8)}
RENDERED = sorted(id for id, row in RECIPES.items() if not row.refused)


def rendered(id: str, release: str = "0.9.1", **changes: Any) -> dict[str, str]:
    job, placement, recipe, paths = published(id, release)
    job = dataclasses.replace(job, **changes)
    return render_verl(job, placement, recipe, stack=make_stack(), paths=paths)


def refusal(id: str, release: str = "0.9.1", *, placement: Placement | None = None, **changes: Any) -> str:
    """The key of the sentence with which it is refused; the sentence is there in both languages."""
    job, whole, recipe, paths = published(id, release)
    with pytest.raises(BadInput) as error:
        render_verl(dataclasses.replace(job, **changes), placement or whole, recipe, stack=make_stack(), paths=paths)
    for message in filter(None, (error.value.message, error.value.hint)):
        assert say(message, "en") != say(message, "zh")
    said = error.value.message
    rules: Any = said.args.get("what")
    return str(rules[0].key) if said.key == "launch.not-run" else said.key


def sized(id: str, **changes: Any) -> dict[str, Any]:
    return {"sizes": dataclasses.replace(published(id)[0].sizes, **changes)}


def test_the_quick_start_has_the_guides_38_overrides() -> None:
    words = words_of(rendered("quick-start", "0.7.1")["run.sh"])
    assert len(words) == 38
    assert set(words) == QUICK_START


def test_releases_that_do_not_find_the_cards_are_told_the_device() -> None:
    for release in ("0.5.0", "0.6.1"):
        assert set(words_of(rendered("quick-start", release)["run.sh"])) - QUICK_START == {"trainer.device=npu"}


@pytest.mark.parametrize("id", AQN)
def test_the_columns_of_the_aqn_guide_are_exact(id: str) -> None:
    job, placement, recipe, paths = published(id)
    step, response, mini, micro, share = AQN[id]
    values = overrides(job, placement, recipe, paths)
    expected = {
        "data.train_batch_size": step,
        "data.max_prompt_length": 512,
        "data.max_response_length": response,
        f"{ACTOR}.optim.lr": 5e-7,
        f"{ACTOR}.ppo_mini_batch_size": mini,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro,
        f"{REF}.log_prob_micro_batch_size_per_gpu": micro,
        f"{ROLLOUT}.gpu_memory_utilization": share,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.n": 4,
        "data.filter_overlong_prompts": True,
        "algorithm.use_kl_in_reward": False,
        "trainer.critic_warmup": 0,
        "trainer.total_epochs": 2,
        "trainer.test_freq": 20,
        "trainer.save_freq": -1,
        "trainer.val_before_train": True,
        "trainer.logger": "console",
        "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": 1,
    }
    assert {key: values.get(key) for key in expected} == expected
    assert not [key for key in values if "noise" in key or "custom_reward" in key]


@pytest.mark.parametrize("id", AQN)
def test_the_aqn_guides_buffer_is_exported_and_counted(id: str) -> None:
    assert 'export HCCL_BUFFSIZE="${HCCL_BUFFSIZE-512}"\n' in rendered(id)["run.sh"]
    assert published(id)[0].hccl_buffer_mib == 512
    assert "HCCL_BUFFSIZE" not in rendered("quick-start")["run.sh"]


def test_the_ppo_recipe_has_the_values_of_the_script_that_it_names() -> None:
    """Read in examples/ppo_trainer/run_qwen3-8b_npu.sh, which run.sh names; its successor has others."""
    expected = {
        "data.train_batch_size": 256,
        "data.max_prompt_length": 2000,
        "data.max_response_length": 12000,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{ACTOR}.ulysses_sequence_parallel_size": 2,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.fsdp_config.param_offload": True,
        f"{ACTOR}.fsdp_config.optimizer_offload": True,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.gpu_memory_utilization": 0.9,
        f"{ROLLOUT}.max_num_batched_tokens": 14000,
        "critic.ulysses_sequence_parallel_size": 2,
        "critic.fsdp.param_offload": True,
        "trainer.total_training_steps": 100,
    }
    values = overrides(*published("ppo-qwen3-8b", "0.9.1"))
    assert {key: values.get(key) for key in expected} == expected
    assert "Based on examples/ppo_trainer/run_qwen3-8b_npu.sh," in rendered("ppo-qwen3-8b")["run.sh"]
    assert "Based on examples/ppo_trainer/run_qwen3_8b_vllm_fsdp_npu.sh," in rendered("ppo-qwen3-8b-1k-2k")["run.sh"]


def test_noise_keys_are_refused_with_a_sentence_and_left_out_ones_are_said() -> None:
    assert refusal("aqn-noise") == "launch.noise-stock"
    with_noise = dataclasses.replace(
        RECIPES["aqn-base"], values={**RECIPES["aqn-base"].values, "trainer.noise_injection.enabled": "True"}
    )
    job, placement, _, paths = published("aqn-base")
    with pytest.raises(BadInput) as error:
        render_verl(job, placement, with_noise, stack=make_stack(), paths=paths)
    assert error.value.message.key == "launch.noise-stock"
    assert "trainer.noise_injection" in rendered("aqn-base")["run.sh"].split("set -eu")[0]


def test_keys_are_named_as_the_release_names_them() -> None:
    old, new = (set(overrides(*published("ppo-qwen3-8b", release))) for release in ("0.7.1", "0.8.0"))
    offloads = [f"{what}_offload" for what in ("param", "optimizer")]
    assert old - new == {*(f"critic.model.fsdp_config.{what}" for what in offloads), f"{ACTOR}.use_torch_compile"}
    assert new - old == {
        *(f"critic.fsdp.{what}" for what in offloads),
        f"{ACTOR}.fsdp_config.use_torch_compile",
    }
    before = overrides(*published("dapo-qwen2.5-7b", "0.7.0"))
    after = overrides(*published("dapo-qwen2.5-7b", "0.9.0"))
    assert before["reward_model.reward_manager"] == after["reward.reward_manager.name"] == "dapo"
    assert before[f"{ACTOR}.use_torch_compile"] is after[f"{ACTOR}.fsdp_config.use_torch_compile"] is False
    assert before[f"{ROLLOUT}.update_weights_bucket_megabytes"] == 4096
    assert after["algorithm.filter_groups.enable"] is True
    assert not [key for key in before if "filter_groups" in key or "gen_batch" in key]


@pytest.mark.parametrize(
    ("key", "release", "named"),
    [
        ("ray_kwargs.ray_init.num_cpus", "0.5.0", "ray_init.num_cpus"),
        ("ray_kwargs.ray_init.num_cpus", "0.6.1", "ray_kwargs.ray_init.num_cpus"),
        ("trainer.use_legacy_worker_impl", "0.7.1", "trainer.use_legacy_worker_impl"),
        ("trainer.use_legacy_worker_impl", "0.8.0", None),
        ("actor_rollout_ref.nccl_timeout", "0.5.0", None),
        ("reward.custom_reward_function.path", "0.7.0", "custom_reward_function.path"),
        ("reward.custom_reward_function.path", "0.7.1", "reward.custom_reward_function.path"),
    ],
)
def test_a_renamed_key_follows_the_release(key: str, release: str, named: str | None) -> None:
    assert list(for_release({key: 1}, release)) == ([] if named is None else [named])


def test_what_a_release_cannot_do_is_said_at_the_top() -> None:
    assert "filter_groups" in rendered("dapo-qwen2.5-7b", "0.8.0")["run.sh"].split("set -eu")[0]
    assert "filter_groups" not in rendered("dapo-qwen2.5-7b", "0.9.1")["run.sh"].split("set -eu")[0]


@pytest.mark.slow
def test_the_yaml_says_the_same_as_the_words() -> None:
    for id in RENDERED:
        files = rendered(id)
        tree = YAML(typ="safe").load(files["config.yaml"])
        for word in words_of(files["run.sh"]):
            key, _, text = word.lstrip("+").partition("=")
            branch = tree
            for name in key.split("."):
                branch = branch[name]
            if key == "hydra.searchpath":
                assert branch == ["pkg://verl.trainer.config"]
            elif isinstance(branch, list):
                assert text == f"[{','.join(branch)}]"
            else:
                assert str(branch) == text if isinstance(branch, (str, bool)) else branch == float(text)


def test_the_jobs_own_numbers_win_over_the_recipe() -> None:
    job, placement, recipe, paths = published("quick-start")
    sizes = dataclasses.replace(
        job.sizes, prompts=256, mini_batch=128, micro_batch=8, prompt_length=1024, response_length=9000, rollouts=8,
        log_prob_micro_batch=16, max_model_len=10240,
    )  # fmt: skip
    job = dataclasses.replace(
        job, sizes=sizes, engine="fsdp2", tensor_parallel=4, gpu_memory_utilization=0.45, offloads_parameters=True,
        offloads_optimizer=True, offloads_reference=False, removes_padding=True, checkpoints_gradients=False,
        lora_rank=32,
    )  # fmt: skip
    values = overrides(job, placement, recipe, paths)
    expected = {
        "data.train_batch_size": 256,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 9000,
        f"{ACTOR}.ppo_mini_batch_size": 128,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.param_offload": True,
        f"{ACTOR}.fsdp_config.optimizer_offload": True,
        f"{REF}.fsdp_config.param_offload": False,
        f"{ROLLOUT}.n": 8,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16,
        f"{ROLLOUT}.tensor_model_parallel_size": 4,
        f"{ROLLOUT}.gpu_memory_utilization": 0.45,
        f"{ROLLOUT}.max_model_len": 10240,
        f"{ROLLOUT}.max_num_batched_tokens": 10240,  # without chunks a whole sequence must fit into one pass
        f"{ROLLOUT}.load_format": "safetensors",
        "actor_rollout_ref.model.lora_rank": 32,
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    }
    assert {key: values.get(key) for key in expected} == expected


def test_the_critic_is_the_jobs_too() -> None:
    job, placement, recipe, paths = published("ppo-qwen3-8b", "0.9.1")
    job = dataclasses.replace(job, engine="fsdp2", offloads_optimizer=False, removes_padding=False)
    values = overrides(job, placement, recipe, paths)
    expected = {
        "critic.model.path": paths.model,
        "critic.strategy": "fsdp2",
        "critic.fsdp.param_offload": True,
        "critic.fsdp.optimizer_offload": False,
        "critic.model.use_remove_padding": False,
        "critic.model.enable_gradient_checkpointing": True,
    }
    assert {key: values.get(key) for key in expected} == expected


def test_token_budgets_grow_with_the_sequences_and_never_shrink() -> None:
    longer = sized("dapo-qwen2.5-7b", response_length=40960)
    job, placement, recipe, paths = published("dapo-qwen2.5-7b")
    values = overrides(dataclasses.replace(job, **longer), placement, recipe, paths)
    # 2048 + 40960 tokens over sequence parallel 4.
    assert values[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 10752
    assert values["reward.reward_kwargs.max_resp_len"] == 40960
    shorter = dataclasses.replace(job, **sized("dapo-qwen2.5-7b", response_length=1024))
    assert overrides(shorter, placement, recipe, paths)[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 5632


def test_separate_cards_are_counted_for_both_roles() -> None:
    values = overrides(*published("one-step-off-qwen3-8b", "0.9.1"))
    wanted = ("trainer.n_gpus_per_node", "trainer.nnodes", "rollout.n_gpus_per_node", "rollout.nnodes")
    assert [values[key] for key in wanted] == [8, 1, 8, 1]
    assert words_of(rendered("one-step-off-qwen3-8b")["run.sh"])[0] == "hydra.searchpath=[pkg://verl.trainer.config]"


def test_some_cards_of_a_node_are_made_the_visible_ones() -> None:
    job, _, recipe, paths = published("aqn-base")
    some = (4, 5, 6, 7)
    script = render_verl(job, Placement(some, some, some), recipe, stack=make_stack(), paths=paths)["run.sh"]
    assert 'export ASCEND_RT_VISIBLE_DEVICES="${ASCEND_RT_VISIBLE_DEVICES-4,5,6,7}"' in script
    assert "trainer.n_gpus_per_node=4" in words_of(script)
    assert "ASCEND_RT_VISIBLE_DEVICES" not in rendered("aqn-base")["run.sh"]


@pytest.mark.parametrize(
    ("id", "changes", "key"),
    [
        ("quick-start", {"tensor_parallel": 3}, "preflight_rules.tensor-parallel"),
        ("quick-start", {"engine": "megatron"}, "launch.engine"),
        ("quick-start", {"engine": "deepspeed-zero3"}, "launch.engine"),
        ("quick-start", sized("quick-start", micro_batch=24), "preflight_rules.micro-batch"),
        ("quick-start", sized("quick-start", mini_batch=129), "preflight_rules.mini-batch"),
        ("quick-start", sized("quick-start", mini_batch=63), "preflight_rules.mini-batch-uneven"),
        ("quick-start", sized("quick-start", prompts=129), "preflight_rules.train-batch"),
        ("quick-start", {"release": "0.4.1"}, "launch.not-in-release"),
        ("grpo-deepseek-v3", {}, "launch.megatron-only"),
        ("retool-sft-qwen2-7b", {}, "launch.recipe-only"),
    ],
)
def test_what_verl_cannot_run_is_refused(id: str, changes: dict[str, Any], key: str) -> None:
    assert refusal(id, **changes) == key


@pytest.mark.parametrize(
    ("id", "train", "infer", "key"),
    [
        ("quick-start", range(4), range(4, 8), "launch.split-in-main"),
        ("one-step-off-qwen3-8b", range(16), range(16), "launch.colocated-one-step"),
        ("quick-start", range(4), range(8), "launch.overlap"),
        ("quick-start", range(9), range(9), "launch.no-card"),
        # 12 of 16 cards on one node are even, but share out neither the batch nor the engines.
        ("grpo-qwen2.5-32b", range(12), range(12), "preflight_rules.train-batch"),
        ("grpo-qwen2.5-32b", range(24), range(24), "launch.uneven"),
        ("grpo-qwen2.5-32b", range(16, 32), range(16, 32), "launch.uneven"),
    ],
)
def test_cards_that_verl_has_no_words_for_are_refused(id: str, train: range, infer: range, key: str) -> None:
    placement = Placement(tuple(train), tuple(infer), tuple(infer))
    assert refusal(id, placement=placement) == key


@pytest.mark.parametrize(
    "path", ["/data/$(reboot)", "/a'b", '/a"b', "/a\nb", "/a`b`", "/a\\b", "${HOME}/x", "", "  ", "/a\u2028b"]
)
@pytest.mark.parametrize("field", ["model", "train_file", "validation_file"])
def test_a_path_that_could_break_out_is_refused(path: str, field: str) -> None:
    job, placement, recipe, paths = published("quick-start")
    with pytest.raises(BadInput) as error:
        render_verl(job, placement, recipe, stack=make_stack(), paths=dataclasses.replace(paths, **{field: path}))
    assert error.value.message.key == "render.unsafe-value"
    assert field in str(error.value.message.args["what"])


def test_the_shell_passes_odd_paths_on_whole(tmp_path: Path) -> None:
    """The script really runs, with a python3 that prints what it is given."""
    job, placement, recipe, _ = published("quick-start")
    odd = Paths("~/models/Qwen 2.5 (0.5B)", "/data/a,b 模型;rm -rf *.parquet", "1e5")
    files = render_verl(job, placement, recipe, stack=make_stack(), paths=odd)
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "run.sh").write_text(files["run.sh"], encoding="utf-8")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    shown = subprocess.run(
        ["sh", str(tmp_path / "run.sh"), "trainer.total_epochs=9"],
        env=environ, capture_output=True, encoding="utf-8", timeout=120, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert shown[:2] == ["-m", "verl.trainer.main_ppo"]
    assert shown[-1] == "trainer.total_epochs=9"
    # Hydra's own quotes keep the comma and the number a text.
    assert "actor_rollout_ref.model.path='~/models/Qwen 2.5 (0.5B)'" in shown
    assert "data.train_files='/data/a,b 模型;rm -rf *.parquet'" in shown
    assert "data.val_files='1e5'" in shown
    assert YAML(typ="safe").load(files["config.yaml"])["data"]["val_files"] == "1e5"


def test_every_script_is_clean_posix_shell(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    for id in RENDERED:
        (tmp_path / f"{id}.sh").write_text(rendered(id)["run.sh"], encoding="utf-8")
    scripts = sorted(str(path) for path in tmp_path.iterdir())
    for script in scripts:
        assert subprocess.run(["sh", "-n", script], capture_output=True, timeout=120, check=False).stderr == b""
    if shellcheck is None:
        pytest.skip("there is no shellcheck on PATH; sh -n was content")
    found = subprocess.run([shellcheck, "-s", "sh", *scripts], capture_output=True, text=True, timeout=240, check=False)
    assert found.stdout == ""


def test_what_belongs_to_one_role_is_not_exported_for_all() -> None:
    stack = make_stack(pins=(*make_stack().pins, pin("vllm-ascend", "0.11.0")))
    script = render_verl(*published("quick-start")[:3], stack=stack, paths=published("quick-start")[3])["run.sh"]
    exported = {line.split("=")[0].removeprefix("export ") for line in script.splitlines() if "export " in line}
    assert {"PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE"} & exported == set()
    assert {"OMP_NUM_THREADS", "HCCL_CONNECT_TIMEOUT", "VLLM_ASCEND_ENABLE_NZ"} <= exported
    assert "HCCL_IF_BASE_PORT" not in exported


def test_many_nodes_have_their_settings_and_wait_for_a_cluster() -> None:
    script = rendered("grpo-qwen2.5-32b")["run.sh"]
    assert 'export HCCL_IF_BASE_PORT="${HCCL_IF_BASE_PORT-23456}"' in script
    assert 'export RAY_ADDRESS="${RAY_ADDRESS-auto}"' in script
    assert "RAY_ADDRESS" not in rendered("quick-start")["run.sh"]


@pytest.mark.parametrize(("ray", "is_set"), [("2.58.1", False), ("2.59.0", True), ("2.60.0", True)])
def test_the_stacks_ray_decides_about_the_token(ray: str, is_set: bool) -> None:
    stack = make_stack(pins=(*make_stack().pins, pin("ray", ray)))
    job, placement, recipe, paths = published("grpo-qwen2.5-32b")
    assert ("RAY_AUTH_MODE" in render_verl(job, placement, recipe, stack=stack, paths=paths)["run.sh"]) is is_set


def test_the_head_names_stack_release_and_recipe_and_the_bytes_repeat() -> None:
    stack = make_stack()
    job, placement, recipe, paths = published("quick-start")
    first, again = (render_verl(job, placement, recipe, stack=stack, paths=paths) for _ in range(2))
    assert first == again
    for text in first.values():
        head = next(line for line in text.splitlines() if line.startswith("# npuenv "))
        assert {"0.7.1", "quick-start", "sample-1.0"} <= set(head.replace(",", "").split())


def test_every_base_of_a_recipe_is_there_and_no_value_is_said_twice() -> None:
    for row in RECIPES.values():
        assert not row.base or row.base in RECIPES
        base = RECIPES[row.base].values if row.base else {}
        assert not [key for key, value in row.values.items() if base.get(key) == value]
