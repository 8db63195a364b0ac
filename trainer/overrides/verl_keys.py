"""The table of verl's keys: which setting of ours each is, or why it changes nothing here.

Source: verl, trainer/config/ppo_trainer.yaml and the files it includes; the noise keys are those of its AQN branch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Union

from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
NOISE, REWARD, KL = "trainer.noise_injection.", "custom_reward_function.", "algorithm.kl_ctrl."
OVERLONG, CORRECTION = "reward_model.overlong_buffer.", "algorithm.rollout_correction."

# One of ours in its place, with the same meaning.
SAME: Mapping[str, str] = {
    "data.train_files": "train_files",
    "data.val_files": "val_files",
    "data.max_prompt_length": "max_prompt_tokens",
    "data.max_response_length": "max_new_tokens",
    "data.filter_overlong_prompts": "filter_overlong_prompts",
    "data.seed": "seed",
    f"{MODEL}path": "path",
    f"{MODEL}enable_gradient_checkpointing": "gradient_checkpointing",
    f"{MODEL}lora_rank": "lora_rank",
    f"{MODEL}lora_alpha": "lora_alpha",
    f"{MODEL}target_modules": "lora_targets",
    f"{ACTOR}optim.lr": "lr",
    f"{ACTOR}optim.weight_decay": "weight_decay",
    f"{ACTOR}grad_clip": "grad_clip",
    f"{ACTOR}entropy_coeff": "entropy_coef",
    f"{ACTOR}clip_ratio_c": "dual_clip",
    f"{ACTOR}loss_agg_mode": "aggregation",
    f"{ACTOR}ppo_micro_batch_size_per_gpu": "micro_batch_rows",
    f"{ROLLOUT}n": "rollouts_per_prompt",
    f"{ROLLOUT}temperature": "temperature",
    f"{ROLLOUT}tensor_model_parallel_size": "tensor_parallel",
    f"{ROLLOUT}gpu_memory_utilization": "memory_fraction",
    f"{ROLLOUT}enforce_eager": "enforce_eager",
    f"{ROLLOUT}free_cache_engine": "sleep",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lam",
    "algorithm.norm_adv_by_std_in_grpo": "scale_by_std",
    "algorithm.filter_groups.enable": "dynamic_sampling",
    "critic.optim.lr": "critic_lr",
    "critic.cliprange_value": "value_clip",
    "trainer.device": "device",
    f"{OVERLONG}penalty_factor": "overlong_factor",
    f"{ACTOR}ppo_epochs": "ppo_epochs",
    f"{ACTOR}tau_pos": "tau_pos",
    f"{ACTOR}tau_neg": "tau_neg",
    f"{ACTOR}policy_loss.clip_cov_ratio": "cov_ratio",
    f"{ACTOR}policy_loss.clip_cov_lb": "clip_cov_low",
    f"{ACTOR}policy_loss.clip_cov_ub": "clip_cov_high",
    f"{ACTOR}policy_loss.kl_cov_ratio": "cov_ratio",
    f"{ACTOR}policy_loss.ppo_kl_coef": "kl_cov_coef",
    f"{ROLLOUT}top_p": "top_p",
    "algorithm.gdpo_reward_keys": "reward_parts",
    "algorithm.gdpo_reward_weights": "reward_part_weights",
    f"{CORRECTION}rollout_rs": "rejection",
    f"{CORRECTION}rollout_rs_threshold": "rejection_threshold",
}
_ESTIMATORS = (
    *("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "gae"),
    *("grpo_passk", "gpg", "remax", "gdpo", "optimal_token_baseline"),
)
# One of this trainer's settings, in which another value means the same.
WORDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "algorithm.adv_estimator": (
        "estimator",
        {
            **{name: name for name in _ESTIMATORS},
            "grpo_vectorized": "grpo",
            "tir_optimal_token_baseline": "optimal_token_baseline",
        },
    ),
    f"{ACTOR}policy_loss.loss_mode": (
        "loss",
        {
            "vanilla": "clip",
            "geo_mean": "gmpo",
            **{name: name for name in ("gspo", "cispo", "gpg", "sapo", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl")},
        },
    ),
    f"{ACTOR}optim.lr_scheduler_type": ("lr_schedule", {"constant": "constant", "cosine": "cosine"}),
    f"{ACTOR}optim.warmup_style": ("lr_schedule", {"constant": "constant", "cosine": "cosine"}),
    f"{ROLLOUT}name": ("engine", {"vllm": "vllm", "hf": "transformers"}),
    "trainer.resume_mode": ("resume", {"disable": "false", "auto": "auto"}),
    "algorithm.filter_groups.max_num_gen_batches": ("max_generations", {"0": "10000"}),
}
# One of this trainer's settings, in which -1 means never, or no limit.
EVERY: Mapping[str, str] = {
    "trainer.save_freq": "save_every",
    "trainer.test_freq": "validate_every",
    f"{ACTOR}optim.lr_warmup_steps": "warmup_steps",
    f"{ROLLOUT}top_k": "top_k",
}
# What is read together with others, below.
TOGETHER = (
    "data.train_batch_size",
    f"{ACTOR}ppo_mini_batch_size",
    f"{ACTOR}clip_ratio",
    f"{ACTOR}clip_ratio_low",
    f"{ACTOR}clip_ratio_high",
    f"{ACTOR}use_kl_loss",
    f"{ACTOR}kl_loss_coef",
    f"{ACTOR}kl_loss_type",
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    *(f"{KL}{name}" for name in ("type", "kl_coef", "target_kl", "horizon")),
    *(
        f"{NOISE}{name}"
        for name in ("enabled", "sigma_start", "sigma_end", "num_stages", "target_modules", "exclude_patterns")
    ),
    f"{REWARD}path",
    f"{REWARD}name",
    f"{OVERLONG}enable",
    f"{OVERLONG}len",
    f"{CORRECTION}rollout_is",
    f"{CORRECTION}rollout_is_threshold",
    "trainer.logger",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
_PACKED = "tokens are packed without padding wherever the model allows it"
_ROWS = "ppo_micro_batch_size_per_gpu sets the rows of every forward pass of the learner"
_MEMORY = "weights and optimizer stay on the device"
_HOME = "--out names the folder of a run"
_RANKS = "ranks=N starts the processes"
_CARDS = "train_cards and infer_cards name the cards, a process each, and Ray starts those"
_RAY = "ray=ADDRESS names the Ray to join; without train_cards there is none"
_ENGINE = "the engine is left to decide"
# Accepted whatever the value, with the reason why it changes nothing.
IGNORED: Mapping[str, str] = {
    f"{MODEL}use_remove_padding": _PACKED,
    f"{MODEL}use_shm": _MEMORY,
    f"{MODEL}trust_remote_code": "code of a model's folder is never run",
    f"{ACTOR}strategy": "one process per device holds the whole model",
    f"{ACTOR}use_torch_compile": "nothing is compiled",
    f"{ACTOR}ulysses_sequence_parallel_size": _RANKS,
    f"{ACTOR}ppo_max_token_len_per_gpu": _ROWS,
    f"{ACTOR}shuffle": "mini batches are always drawn anew",
    f"{ROLLOUT}enable_chunked_prefill": _ENGINE,
    f"{ROLLOUT}max_num_batched_tokens": _ENGINE,
    f"{ROLLOUT}max_num_seqs": _ENGINE,
    f"{ROLLOUT}max_model_len": "it follows from the lengths of prompt and answer",
    f"{ROLLOUT}mode": _ENGINE,
    f"{ROLLOUT}load_format": "the engine gets the learner's weights before it samples",
    f"{ROLLOUT}dtype": "dtype is that of the learner",
    f"{ROLLOUT}disable_log_stats": _ENGINE,
    f"{ROLLOUT}calculate_log_probs": "the sampler's log-probabilities are always kept",
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": _ROWS,
    f"{ROLLOUT}log_prob_use_dynamic_bsz": _ROWS,
    f"{ROLLOUT}val_kwargs.do_sample": "validation is greedy",
    f"{ROLLOUT}val_kwargs.n": "validation is greedy: one answer each",
    f"{ROLLOUT}val_kwargs.temperature": "validation is greedy",
    f"{ROLLOUT}val_kwargs.top_p": "validation is greedy",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": _ROWS,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": _ROWS,
    "actor_rollout_ref.ref.strategy": "one process per device holds the whole model",
    **{
        f"actor_rollout_ref.{role}.fsdp_config.{name}": _MEMORY
        for role in ("actor", "ref")
        for name in (
            "param_offload",
            "optimizer_offload",
            "fsdp_size",
            "forward_prefetch",
            "reshard_after_forward",
            "offload_policy",
            "model_dtype",
        )
    },
    "actor_rollout_ref.hybrid_engine": "learner and sampler always share their devices",
    "data.shuffle": "prompts are always drawn at random",
    "data.prompt_key": "the columns are those of verl's preprocessing",
    "data.reward_fn_key": "the columns are those of verl's preprocessing",
    "data.return_raw_chat": "the prompt is kept",
    "data.dataloader_num_workers": "the questions are held in memory",
    "data.filter_overlong_prompts_workers": "the questions are read by one process",
    "data.val_batch_size": "held-out questions are answered as many at a time as a step has rows",
    "reward_model.enable": "rewards come from the task or a function",
    "reward_model.reward_manager": "rewards come from the task or a function",
    f"{CORRECTION}loss_type": f"it is read with {CORRECTION}bypass_mode=True only",
    f"{CORRECTION}rollout_rs_threshold_lower": f"it is read with {CORRECTION}rollout_rs only",
    "algorithm.filter_groups.metric": "groups are judged by their rewards",
    "trainer.project_name": _HOME,
    "trainer.experiment_name": _HOME,
    "trainer.default_local_dir": _HOME,
    "trainer.n_gpus_per_node": f"{_CARDS}; cards_per_node=N says how many a node has",
    "trainer.nnodes": f"{_CARDS}; nodes=N says in how many nodes they are",
    "trainer.val_before_train": "every run is validated before its first step",
    "trainer.balance_batch": "a rank's share is whole groups",
    "trainer.log_val_generations": "each evaluation keeps a few answers",
    "trainer.max_actor_ckpt_to_keep": "the last whole checkpoint is kept",
    "trainer.max_critic_ckpt_to_keep": "the last whole checkpoint is kept",
}
IGNORED_BELOW: Mapping[str, str] = {
    "ray_kwargs.": _RAY,
    "ray_init.": _RAY,
    f"{ACTOR}megatron.": "one process per device holds the whole model",
    "actor_rollout_ref.ref.megatron.": "one process per device holds the whole model",
    f"{ROLLOUT}engine_kwargs.": _ENGINE,
}
# Accepted at these values, where nothing is to be done; at any other they would be broken silently.
ONLY: Mapping[str, tuple[tuple[Value, ...], str]] = {
    "data.truncation": (("error",), "an overlong prompt is left out or an error, and never cut"),
    f"{ACTOR}use_dynamic_bsz": ((False,), "rows per forward pass are fixed"),
    f"{ROLLOUT}do_sample": ((True,), "answers are drawn"),
    **{
        f"{CORRECTION}{name}": (
            (False,),
            "the old policy is the learner's, and correction=token or sequence weighs its gap from the sampler",
        )
        for name in ("bypass_mode", "bypass_old_logprob_for_rollout", "use_pure_rollout_correction")
    },
    f"{CORRECTION}rollout_token_veto_threshold": ((None,), "rejection=token_k1 leaves out single tokens"),
    f"{CORRECTION}rollout_is_batch_normalize": ((False,), "weights stay as they are between correction_floor and _cap"),
    "trainer.critic_warmup": ((0,), "policy and critic learn from the first step on"),
}


Value = Union[None, bool, int, float, str, "list[Value]"]

_DEEPEST = 8  # lists within lists
_LONGEST_NUMBER = 300  # characters; longer ones are texts
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def read_value(text: str) -> Value:
    """The value of a text. Raises BadSetting for unclosed brackets and quotes, dictionaries and `${...}`.

    Example: "[a, 'b, c', 2]" -> ["a", "b, c", 2]
    """
    text = text.strip()
    if not text.startswith(("[", "'", '"')):
        return _plain(text)
    value, place = _value(text, 0, depth=0)
    if text[place:].strip():
        raise BadSetting(f"{text!r} goes on behind its end with {text[place:].strip()!r}")
    return value


def _value(text: str, place: int, *, depth: int) -> tuple[Value, int]:
    place = _skip(text, place)
    if text[place : place + 1] == "[":
        return _list(text, place + 1, depth=depth + 1)
    if text[place : place + 1] in ("'", '"'):
        return _quoted(text, place)
    end = place
    while end < len(text) and text[end] not in ",]":
        end += 1
    return _plain(text[place:end].strip()), end


def _list(text: str, place: int, *, depth: int) -> tuple[Value, int]:
    if depth > _DEEPEST:
        raise BadSetting(f"{text[:40]!r} holds lists more than {_DEEPEST} deep")
    found: list[Value] = []
    place = _skip(text, place)
    if text[place : place + 1] == "]":
        return found, place + 1
    while True:
        value, place = _value(text, place, depth=depth)
        if value == "":
            raise BadSetting(f"{text!r} has a place with nothing in it")
        found.append(value)
        place = _skip(text, place)
        mark, place = text[place : place + 1], place + 1
        if mark == "]":
            return found, place
        if mark != ",":
            raise BadSetting(f"{text!r} has a [ that is not closed")


def _quoted(text: str, place: int) -> tuple[str, int]:
    quote, end = text[place], place + 1
    letters: list[str] = []
    while end < len(text):
        if text[end] == quote:
            return "".join(letters), end + 1
        if text[end] == "\\" and text[end + 1 : end + 2] in (quote, "\\"):
            end += 1
        letters.append(text[end])
        end += 1
    raise BadSetting(f"{text!r} has a {quote} that is not closed")


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _plain(text: str) -> Value:
    if "${" in text:
        raise BadSetting(f"{text!r} refers to another key, which is not looked up here: write its value")
    if text.startswith("{"):
        raise BadSetting(f"{text!r} is a dictionary: give its keys one by one, KEY.SUB=VALUE")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) <= _LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def spell(value: Value) -> str:
    """A value as a setting of ours takes it: lists by comma, null as nothing. Example: ["a", True] -> "a,true"."""
    if isinstance(value, list):
        return ",".join(spell(each) for each in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
