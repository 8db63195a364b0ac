"""verl's command lines: the published ones are understood whole, and nothing is guessed."""

from __future__ import annotations

import re
import shlex

import pytest

from trainer import overrides
from trainer.config import BadSetting, Config, ParsedSettings, read
from trainer.overrides import verl_keys

# The overrides of verl's quick start for Ascend (GRPO, Qwen2.5-0.5B-Instruct, GSM8K, 8 cards), verl 0.4.1 to 0.9.1.
QUICK_START = shlex.split("""
algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.001
data.train_files=/data/gsm8k/train.parquet data.val_files=/data/gsm8k/test.parquet data.train_batch_size=128
data.max_prompt_length=512 data.max_response_length=128 data.filter_overlong_prompts=True data.truncation='error'
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
trainer.experiment_name=qwen2_7b_function_rm trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=-1
trainer.test_freq=5 trainer.total_epochs=1
""")

# The guide to adaptive noise (Qwen2.5 on 8 x 910C), its base column, with the file names of verl's own converter.
NOISE_GUIDE = shlex.split("""
algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False
data.train_files=/data/gsm8k/train.parquet data.val_files=/data/gsm8k/test.parquet data.train_batch_size=64
data.max_prompt_length=512 data.max_response_length=2048 data.filter_overlong_prompts=True data.truncation=error
actor_rollout_ref.model.path=/models/Qwen2.5-1.5B-Instruct
actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=16
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.4
actor_rollout_ref.rollout.enforce_eager=true actor_rollout_ref.rollout.n=4
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2
custom_reward_function.path=/opt/verl/verl/utils/reward_score/gsm8k.py custom_reward_function.name=compute_score
trainer.critic_warmup=0 trainer.logger=['console'] trainer.n_gpus_per_node=8 trainer.nnodes=1
trainer.save_freq=-1 trainer.test_freq=20 trainer.total_epochs=2 trainer.val_before_train=True
+trainer.noise_injection.enabled=true +trainer.noise_injection.sigma_start=0.05
+trainer.noise_injection.sigma_end=0.0005 ++trainer.noise_injection.num_stages=10
""")


def understood(*words: str) -> ParsedSettings:
    return read(words, devices=("auto", "cpu"))


def refused(*words: str) -> str:
    with pytest.raises(BadSetting) as caught:
        understood(*words)
    return str(caught.value)


def values(given: ParsedSettings, *names: str) -> dict[str, object]:
    flat = given.config.flat()
    return {name: flat[name] for name in names}


def test_the_38_words_of_the_quick_start_all_have_a_meaning_or_a_reason() -> None:
    given = understood(*QUICK_START)
    assert len(QUICK_START) == 38
    expected = {
        "estimator": "grpo",
        "task": "gsm8k",
        "train_files": "/data/gsm8k/train.parquet",
        "val_files": "/data/gsm8k/test.parquet",
        "prompts_per_step": 128,
        "mini_batches": 2,
        "micro_batch_rows": 20,
        "max_prompt_tokens": 512,
        "max_new_tokens": 128,
        "filter_overlong_prompts": True,
        "path": "Qwen/Qwen2.5-0.5B-Instruct",
        "gradient_checkpointing": True,
        "lr": 5e-7,
        "entropy_coef": 0.001,
        "kl_coef": 0.001,
        "kl_in": "loss",
        "kl": "low_var",
        "engine": "vllm",
        "rollouts_per_prompt": 5,
        "tensor_parallel": 2,
        "memory_fraction": 0.6,
        "loggers": "",
        "save_every": 0,
        "validate_every": 5,
        "epochs": 1,
        "lr_schedule": "constant",
        "weight_decay": 0.01,
    }
    assert values(given, *expected) == expected
    told = {*given.translated, *given.ignored}
    assert [word for word in QUICK_START if word not in told] == []
    assert {word.partition("=")[0].rpartition(".")[2] for word in given.ignored} == {
        "kl_coef", "truncation", "use_remove_padding", "param_offload", "optimizer_offload", "enable_chunked_prefill",
        "log_prob_micro_batch_size_per_gpu", "critic_warmup", "project_name", "experiment_name", "n_gpus_per_node",
        "nnodes",
    }  # fmt: skip
    assert given.translated["actor_rollout_ref.actor.ppo_mini_batch_size=64"] == "mini_batches=2 (128 / 64)"
    assert given.assumed == {"lr_schedule": "constant", "weight_decay": "0.01"}


def test_the_words_of_the_noise_guide_too_with_hydras_plus_before_them() -> None:
    given = understood(*NOISE_GUIDE)
    assert len(NOISE_GUIDE) == 37
    expected = {
        "noise_start": 0.05,
        "noise_end": 0.0005,
        "noise_stages": 10,
        "noise_targets": "",
        "mini_batches": 4,
        "enforce_eager": True,
        "reward_function": "",
        "task": "gsm8k",
        "epochs": 2,
        "entropy_coef": 0.0,
        "kl_coef": 0.001,
    }
    assert values(given, *expected) == expected
    told = {*given.translated, *given.ignored}
    assert [word for word in NOISE_GUIDE if word.lstrip("+") not in told] == []
    assert "task gsm8k" in given.ignored["custom_reward_function.path=/opt/verl/verl/utils/reward_score/gsm8k.py"]


def test_lists_of_layers_become_ours() -> None:
    noise = "trainer.noise_injection."
    words = [f"{noise}enabled=True", f"{noise}target_modules=[post_attention_layernorm]"]
    given = understood(*words, f"{noise}exclude_patterns=[\"input_layernorm\", 'router']")
    assert given.config.noise.noise_targets == "post_attention_layernorm"
    assert given.config.noise.noise_excludes == "input_layernorm,router"
    assert given.config.noise.noise_stages == 10  # the branch's default
    off = understood(f"{noise}enabled=False", f"{noise}num_stages=10")
    assert (off.config.noise.noise_stages, list(off.ignored)) == (0, [f"{noise}num_stages=10"])


def test_the_divergence_counts_where_verl_would_count_it() -> None:
    actor, names = "actor_rollout_ref.actor.", ("kl_in", "kl_coef", "kl")
    assert values(understood(f"{actor}grad_clip=1"), "kl_coef") == {"kl_coef": 0.0}
    assert values(understood(f"{actor}use_kl_loss=True"), *names) == {"kl_in": "loss", "kl_coef": 1e-3, "kl": "low_var"}
    given = understood("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.2", "algorithm.kl_penalty=kl")
    assert values(given, *names) == {"kl_in": "reward", "kl_coef": 0.2, "kl": "k1"}
    given = understood("algorithm.use_kl_in_reward=True")
    assert values(given, *names) == {"kl_in": "reward", "kl_coef": 1e-3, "kl": "k1"}
    assert understood("algorithm.use_kl_in_reward=True", "kl=k3").config.algorithm.kl == "k3"
    assert "one place" in refused(f"{actor}use_kl_loss=True", "algorithm.use_kl_in_reward=True")
    assert "Accepted: kl, k1, abs, mse" in refused(f"{actor}use_kl_loss=True", f"{actor}kl_loss_type=full")


def test_one_bound_of_the_clip_may_differ_from_the_other() -> None:
    actor, names = "actor_rollout_ref.actor.", ("clip_low", "clip_high")
    assert values(understood(f"{actor}clip_ratio=0.3"), *names) == {"clip_low": 0.3, "clip_high": 0.3}
    given = understood(f"{actor}clip_ratio=0.3", f"{actor}clip_ratio_high=0.4")
    assert values(given, *names) == {"clip_low": 0.3, "clip_high": 0.4}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["actor_rollout_ref.rollout.nn=5"], " actor_rollout_ref.rollout.n or "),
        (["actor_rollout_ref.actor.optim.learning_rate=5"], "no setting"),
        (["trainer.total_epoch=5"], " trainer.total_epochs?"),
        (["+trainer.noise_injection.sigma_begin=1"], " trainer.noise_injection.sigma_"),
        (["~trainer.logger=console"], " '~trainer.logger'"),
        (
            ["data.train_batch_size=100", "actor_rollout_ref.actor.ppo_mini_batch_size=64"],
            "the 100 prompts",
        ),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=64"], "without data.train_batch_size"),
        (["data.train_batch_size=0"], "number from 1 on"),
        (["data.train_batch_size=True"], "number from 1 on"),
        (["lr=1e-3", "actor_rollout_ref.actor.optim.lr=5e-7"], "lr=1e-3 contradicts actor_rollout_ref.actor.optim.lr"),
        (["actor_rollout_ref.actor.optim.lr=50"], "actor_rollout_ref.actor.optim.lr=50: lr=50 "),
        (["actor_rollout_ref.actor.optim.lr=null"], "number from 0 to 10"),
        (["actor_rollout_ref.rollout.name=sglang"], "Accepted: vllm, hf"),
        (["algorithm.adv_estimator=no_such"], "Accepted: grpo, rloo"),
        (["data.truncation=left"], "never cut. Accepted: error"),
        (["actor_rollout_ref.actor.ppo_epochs=0"], "ppo_epochs=0: ppo_epochs=0 is not accepted"),
        (["algorithm.rollout_correction.rollout_rs=seq_max_k1"], "rejection=seq_max_k1 is not accepted"),
        (["trainer.logger=[console,mlflow]"], "Accepted: tensorboard"),
        (["data.train_files=[a.parquet"], "data.train_files: '[a.parquet' "),
        (["data.train_files=mine.parquet"], "task=gsm8k, math, code or file"),
        (["data.max_prompt_length=${data.max_response_length}"], "another key"),
        (["actor_rollout_ref.actor.use_kl_loss=perhaps"], "Accepted: true, false"),
        (
            [f"actor_rollout_ref.actor.optim.{word}" for word in ("warmup_style=cosine", "lr_scheduler_type=constant")],
            "set lr_schedule",
        ),
    ],
)  # fmt: skip
def test_a_word_that_cannot_be_had_is_an_error_that_says_what_can(words: list[str], says: str) -> None:
    assert says in refused(*words)


def test_the_same_said_twice_is_no_contradiction_and_the_last_of_one_key_counts() -> None:
    given = understood("lr=0.001", "actor_rollout_ref.actor.optim.lr=1e-3", "data.seed=1", "data.seed=2")
    assert (given.config.optim.lr, given.config.run.seed) == (0.001, 2)


def test_our_words_stand_where_verls_are_silent() -> None:
    given = understood("actor_rollout_ref.actor.optim.lr=1e-3", "entropy_coef=0.1", "prompts_per_step=8")
    assert values(given, "entropy_coef", "prompts_per_step", "mini_batches") == {
        "entropy_coef": 0.1, "prompts_per_step": 8, "mini_batches": 1,
    }  # fmt: skip
    assert (
        understood("prompts_per_step=8", "actor_rollout_ref.actor.ppo_mini_batch_size=2").config.optim.mini_batches == 4
    )


VERLS = {
    "entropy_coef": "0", "lr": "1e-6", "lr_schedule": "constant", "weight_decay": "0.01", "kl_coef": "0",
    "mini_batches": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    "word",
    ["actor_rollout_ref.actor.grad_clip=1", "actor_rollout_ref.rollout.n=4", "algorithm.adv_estimator=rloo",
     "data.seed=1", "trainer.nnodes=1", "ray_kwargs.ray_init.num_cpus=4"],
)  # fmt: skip
def test_one_word_of_verls_whichever_brings_verls_loss_and_optimizer_and_says_so(word: str) -> None:
    given = understood(word)
    assert given.assumed == VERLS
    assert {name: str(value) for name, value in values(given, *VERLS).items()} == {
        **VERLS, "entropy_coef": "0.0", "lr": "1e-06", "kl_coef": "0.0",
    }  # fmt: skip
    assert [told for told in given.translated if told.startswith("(")] == []


def test_without_a_word_of_verls_nothing_is_verls() -> None:
    assert understood("rollouts_per_prompt=4", "optim.grad_clip=1").assumed == {}
    assert understood("rollouts_per_prompt=4").config.optim == Config().optim


def test_what_is_given_under_either_name_is_not_assumed() -> None:
    given = understood("data.seed=1", "lr=0.1", "actor_rollout_ref.actor.optim.weight_decay=0")
    assert given.assumed == {name: value for name, value in VERLS.items() if name not in ("lr", "weight_decay")}
    assert values(given, "lr", "weight_decay") == {"lr": 0.1, "weight_decay": 0.0}


def test_the_critic_is_verls_where_there_is_one() -> None:
    assert understood("algorithm.adv_estimator=gae").config.optim.critic_lr == 1e-5
    assert understood("estimator=GAE", "data.seed=1").assumed == {**VERLS, "critic_lr": "1e-5"}
    assert understood("algorithm.adv_estimator=gae", "critic.optim.lr=2e-5").config.optim.critic_lr == 2e-5


@pytest.mark.parametrize(("prompts", "count"), [(1024, 4), (257, 2), (256, 1), (16, 1)])
def test_a_mini_batch_has_256_prompts_where_nothing_is_said(prompts: int, count: int) -> None:
    given = understood(f"data.train_batch_size={prompts}")
    assert (given.config.optim.mini_batches, given.assumed["mini_batches"]) == (count, str(count))


OF_VLLM = {
    "tensor_model_parallel_size=2": "tensor_parallel", "gpu_memory_utilization=0.9": "memory_fraction",
    "enforce_eager=True": "enforce_eager", "free_cache_engine=True": "sleep",
}  # fmt: skip
CORRECTION = "algorithm.rollout_correction."
NAME_OF_ENGINE = "actor_rollout_ref.rollout.name"


@pytest.mark.parametrize(("word", "name"), OF_VLLM.items())
@pytest.mark.parametrize(
    ("chosen", "engine"),
    [([f"{NAME_OF_ENGINE}=hf"], "transformers"), ([], "builtin"), (["engine=scripted"], "scripted")],
)
def test_what_only_vllm_reads_is_ignored_with_another_engine(
    chosen: list[str], engine: str, word: str, name: str
) -> None:
    word = f"actor_rollout_ref.rollout.{word}"
    given = understood(word, *chosen)
    assert list(given.ignored) == [word]
    assert re.search(rf"engine=vllm .*\b{name}\b.*\bengine={engine}$", given.ignored[word])
    assert word not in given.translated
    assert values(given, name) == {name: Config().flat()[name]}


@pytest.mark.parametrize("chosen", [f"{NAME_OF_ENGINE}=vllm", "engine=VLLM"])
def test_with_vllm_it_is_translated(chosen: str) -> None:
    words = [f"actor_rollout_ref.rollout.{word}" for word in OF_VLLM]
    given = understood(*words, chosen)
    assert (given.ignored, {*words} - {*given.translated}) == ({}, set())
    assert values(given, *OF_VLLM.values()) == {
        "tensor_parallel": 2, "memory_fraction": 0.9, "enforce_eager": True, "sleep": True,
    }  # fmt: skip


def test_what_only_a_critic_reads_is_ignored_without_one() -> None:
    given = understood("algorithm.adv_estimator=grpo", "critic.optim.lr=0.5", "algorithm.lam=0.9")
    ours = {"critic.optim.lr=0.5": "critic_lr", "algorithm.lam=0.9": "lam"}
    assert given.ignored.keys() == ours.keys()
    for word, why in given.ignored.items():
        assert re.search(rf"estimator=gae .*\b{ours[word]}\b.*\bestimator=grpo$", why)
    assert understood("algorithm.adv_estimator=gae", "algorithm.lam=0.9").config.algorithm.lam == 0.9


@pytest.mark.parametrize(
    ("threshold", "settings"),
    [
        ("5", {"correction_cap": 5.0, "correction_floor": 0.0, "correction_bound": "truncate"}),
        ("0.5_5.0", {"correction_cap": 5.0, "correction_floor": 0.5, "correction_bound": "mask"}),
    ],
)
def test_the_correction_of_verl_is_ours(threshold: str, settings: dict[str, object]) -> None:
    words = [f"{CORRECTION}rollout_is=sequence", f"{CORRECTION}rollout_is_threshold={threshold}"]
    given = understood(*words)
    assert values(given, "correction", *settings) == {"correction": "sequence", **settings}
    assert (given.ignored, list(given.translated)) == ({}, words)
    assert understood(f"{CORRECTION}rollout_is=null").config.algorithm.correction == "none"
    assert list(understood(words[1]).ignored) == [words[1]]
    assert understood(words[1], "generators=1", "off_policy=1").ignored == {}


def test_every_key_of_verls_correction_is_known_and_one_that_cannot_be_had_names_ours() -> None:
    """Keys: verl 0.6.1 and 0.9, trainer/config/algorithm/rollout_correction.yaml."""
    refused_ones = {
        "bypass_mode": "true", "rollout_is_batch_normalize": "true",
        "rollout_token_veto_threshold": "1e-4", "bypass_old_logprob_for_rollout": "true",
        "use_pure_rollout_correction": "true",
    }  # fmt: skip
    for key, value in refused_ones.items():
        says = refused(f"{CORRECTION}{key}={value}")
        assert set(re.findall(r"\b(?:correction|rejection)_?\w*", says)) & {*Config().flat()}, key
    others = "rollout_is rollout_is_threshold rollout_rs rollout_rs_threshold rollout_rs_threshold_lower loss_type"
    assert [name for name in others.split() if not overrides.knows(f"{CORRECTION}{name}")] == []


@pytest.mark.parametrize(("word", "name"), {"k1+": "k1+", "low_var_kl+": "k3+", "abs": "abs", "mse": "k2"}.items())
def test_verls_estimators_of_the_divergence_are_ours(word: str, name: str) -> None:
    given = understood("actor_rollout_ref.actor.use_kl_loss=True", f"actor_rollout_ref.actor.kl_loss_type={word}")
    assert given.config.algorithm.kl == name


def test_every_key_is_in_one_table_and_every_setting_that_it_names_exists() -> None:
    tables = (verl_keys.SAME, verl_keys.WORDS, verl_keys.EVERY, verl_keys.TOGETHER, verl_keys.ONLY, verl_keys.IGNORED)
    keys = [key for table in tables for key in table]
    assert len(keys) == len(set(keys))
    ours = {*verl_keys.SAME.values(), *verl_keys.EVERY.values(), *(name for name, _ in verl_keys.WORDS.values())}
    assert ours <= set(Config().flat())
    assert overrides.knows("ray_kwargs.ray_init.num_cpus")
    assert not overrides.knows("ray_kwargs")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True), ("false", False), ("null", None), ("", ""), ("5e-7", 5e-7), ("1_000", 1000), ("-1", -1),
        (".5", 0.5), ("1.", 1.0), ("'5'", "5"), ('"a \\" b"', 'a " b'), ("[]", []),
        ("[1, 'b, c', [x]]", [1, "b, c", ["x"]]),
        ("a,b", "a,b"), ("~/x", "~/x"), ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"), (" x ", "x"),
        ("9" * 400, "9" * 400), ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_values_are_read_as_hydra_reads_them(text: str, value: object) -> None:
    found = verl_keys.read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["[1", "['a]", "'a", "[1] x", "[1,,2]", "[1,]", "{a: 1}", "[${x}]", "[" * 50 + "]" * 50]
)
def test_values_that_are_no_values_are_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        verl_keys.read_value(text)
