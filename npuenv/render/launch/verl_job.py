"""A published verl recipe as a job, and a job as values of verl's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from npuenv.core import versions
from npuenv.core.finding import Location
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.memory.types import Job, Sizes
from npuenv.preflight.rules.jobs import verl_job
from npuenv.preflight.types import Launch, Machine, Setting
from npuenv.render.launch.verl_values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix.rows import LaunchRecipe
    from npuenv.preflight.memory.types import Cards, Engine, Model
    from npuenv.render.launch.job import Paths
    from npuenv.render.launch.verl_check import OnNodes
    from npuenv.render.launch.verl_values import Value

_M, _A, _R, _F = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout", "ref"))
# verl finds the cards by itself from this release on (auto_set_device in verl/trainer/main_ppo.py; absent in 0.6.1).
_FINDS_DEVICE = ">=0.7.0"
_BATCHED = f"{_R}.max_num_batched_tokens"
_BATCHED_TOKENS = 8192  # what verl gives the engine for one forward pass where nothing is said
_BUDGET = 16384  # tokens of a dynamic batch where nothing is said


def written(recipe: LaunchRecipe) -> dict[str, Value]:
    """The values of a recipe, over those of the one it is based on."""
    base = next((row for row in load_matrix().launch_recipes if row.id == recipe.base), None)
    values = written(base) if base is not None else {}
    return values | {key: value_of(text) for key, text in recipe.values.items()}


def environment(recipe: LaunchRecipe) -> dict[str, str]:
    """The variables that a recipe exports, over those of the one it is based on."""
    base = next((row for row in load_matrix().launch_recipes if row.id == recipe.base), None)
    return {**(environment(base) if base is not None else {}), **recipe.environ}


def job_for(recipe: LaunchRecipe, *, model: Model, cards: Cards, release: str) -> Job:
    """The job that a recipe was published with, for a model, cards and a release of verl."""
    values = written(recipe)
    if recipe.entry == "sft":
        return _sft_job(values, model=model, cards=cards, release=release, strategy=recipe.strategy)
    values = {f"{_A}.strategy": recipe.strategy} | values
    launch = launch_of("verl", release, values, environment(recipe))
    return replace(verl_job(launch, model, cards), has_critic=recipe.algorithm == "ppo")


def launch_of(
    framework: Literal["verl", "roll"], release: str, values: Mapping[str, object], environ: Mapping[str, str]
) -> Launch:
    """The values of a recipe as a launch, over what the release sets by itself."""

    def settings(pairs: Mapping[str, object]) -> dict[str, Setting]:
        return {key: Setting(key, found, str(found), Location("", 0)) for key, found in pairs.items()}

    known = defaults_of(framework, release)
    return Launch(framework, release, settings(values), known, settings(environ), Machine(), "command")


def _sft_job(values: Mapping[str, Value], *, model: Model, cards: Cards, release: str, strategy: str) -> Job:
    """Supervised training: nothing is generated."""
    return Job(
        framework="verl",
        release=release,
        model=model,
        cards=cards,
        sizes=_sft_sizes(values),
        # A name that is none is refused with the sentence of `check`.
        engine=cast("Engine", values.get("engine.strategy", strategy)),
        gpu_memory_utilization=0.0,
        offloads_parameters=values.get("engine.param_offload") is True,
        offloads_optimizer=values.get("engine.optimizer_offload") is True,
        checkpoints_gradients=values.get("model.enable_gradient_checkpointing") is not False,
        has_reference=False,
        removes_padding=values.get("model.use_remove_padding") is True,
        lora_rank=_number(values, "model.lora_rank", 0),
        sequence_parallel=_number(values, "engine.ulysses_sequence_parallel_size"),
    )


def _number(values: Mapping[str, Value], key: str, default: int = 1) -> int:
    found = values.get(key, default)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def _sft_sizes(values: Mapping[str, Value]) -> Sizes:
    """A step of supervised training: nothing is generated; one half of a sequence counts as its prompt."""
    length, micro = _number(values, "data.max_length", 2), _number(values, "data.micro_batch_size_per_gpu")
    batch, is_dynamic = _number(values, "data.train_batch_size"), values.get("data.use_dynamic_bsz") is True
    budget = _number(values, "data.max_token_len_per_gpu", _BUDGET) if is_dynamic else None
    return Sizes(length // 2, length - length // 2, batch, 1, batch, micro, micro, micro_tokens=budget)


def of_job(
    job: Job, nodes: OnNodes, recipe: LaunchRecipe, values: Mapping[str, Value], paths: Paths
) -> dict[str, Value]:
    """What a job, its cards and paths say, whatever the recipe's values are."""
    found = _of_sft(job) if recipe.entry == "sft" else _of_rl(job, values) | _of_critic(job, values, paths)
    model = "model.path" if recipe.entry == "sft" else f"{_M}.path"
    found |= {model: paths.model, "data.train_files": paths.train_file, "data.val_files": paths.validation_file}
    found |= {"trainer.n_gpus_per_node": nodes.train, "trainer.nnodes": nodes.nodes}
    if recipe.entry == "one-step-off":
        found |= {"rollout.n_gpus_per_node": nodes.infer, "rollout.nnodes": nodes.nodes}
    if not versions.accepts(_FINDS_DEVICE, job.release):
        found["trainer.device"] = "npu"
    return found


def _of_rl(job: Job, values: Mapping[str, Value]) -> dict[str, Value]:
    sizes = job.sizes
    found: dict[str, Value] = {
        "data.train_batch_size": sizes.prompts,
        "data.max_prompt_length": sizes.prompt_length,
        "data.max_response_length": sizes.response_length,
        # Said always: verl 0.7.1 turned the default around.
        f"{_M}.use_remove_padding": job.removes_padding,
        f"{_M}.enable_gradient_checkpointing": job.checkpoints_gradients,
        f"{_A}.ppo_mini_batch_size": sizes.mini_batch,
        f"{_A}.fsdp_config.param_offload": job.offloads_parameters,
        f"{_A}.fsdp_config.optimizer_offload": job.offloads_optimizer,
        f"{_R}.n": sizes.rollouts,
        f"{_R}.tensor_model_parallel_size": job.tensor_parallel,
        f"{_R}.gpu_memory_utilization": job.gpu_memory_utilization,
        f"{_F}.fsdp_config.param_offload": job.offloads_reference,
    }
    # With a dynamic batch the token budget counts, and verl leaves the number of sequences aside.
    scoring = sizes.log_prob_micro_batch
    micro = (
        (f"{_A}.ppo_micro_batch_size_per_gpu", f"{_A}.use_dynamic_bsz", sizes.micro_batch),
        (f"{_R}.log_prob_micro_batch_size_per_gpu", f"{_R}.log_prob_use_dynamic_bsz", scoring),
        (
            f"{_F}.log_prob_micro_batch_size_per_gpu",
            f"{_F}.log_prob_use_dynamic_bsz",
            sizes.reference_micro_batch or scoring,
        ),
    )
    found |= {key: size for key, dynamic, size in micro if key in values or not values.get(dynamic)}
    if job.engine != "fsdp" or f"{_A}.strategy" in values:
        found[f"{_A}.strategy"] = job.engine
    if sizes.max_model_len is not None:
        found[f"{_R}.max_model_len"] = sizes.max_model_len
    return found | _of_lora(job, values) | _of_lengths(job, values)


def _of_lora(job: Job, values: Mapping[str, Value]) -> dict[str, Value]:
    if not job.lora_rank:
        return {}
    return {
        f"{_M}.lora_rank": job.lora_rank,
        f"{_M}.lora_alpha": values.get(f"{_M}.lora_alpha", job.lora_rank),
        f"{_M}.target_modules": "all-linear",
        # The engine must hold real weights below the adapter: verl sends it the adapter alone.
        f"{_R}.load_format": "safetensors",
    }


def _of_lengths(job: Job, values: Mapping[str, Value]) -> dict[str, Value]:
    """Budgets in tokens, raised where the job's sequences are longer than the recipe's."""
    longest = job.sizes.prompt_length + job.sizes.response_length
    found: dict[str, Value] = {}
    for key in (
        f"{_A}.ppo_max_token_len_per_gpu",
        f"{_R}.log_prob_max_token_len_per_gpu",
        f"{_F}.log_prob_max_token_len_per_gpu",
        "critic.ppo_max_token_len_per_gpu",
    ):
        need = -(-longest // job.sequence_parallel)
        budget = values.get(key)
        if isinstance(budget, int) and budget < need:
            found[key] = need
    batched = values.get(_BATCHED, _BATCHED_TOKENS)
    longest = max(longest, job.sizes.max_model_len or 0)
    # Only without chunks must a whole sequence fit into one pass.
    if isinstance(batched, int) and batched < longest and values.get(f"{_R}.enable_chunked_prefill") is False:
        found[_BATCHED] = longest
    if isinstance(values.get("reward.reward_kwargs.max_resp_len"), int):
        found["reward.reward_kwargs.max_resp_len"] = job.sizes.response_length
    return found


def _of_critic(job: Job, values: Mapping[str, Value], paths: Paths) -> dict[str, Value]:
    if not job.has_critic:
        return {}
    found: dict[str, Value] = {
        "critic.model.path": paths.model,
        "critic.model.use_remove_padding": job.removes_padding,
        "critic.model.enable_gradient_checkpointing": job.checkpoints_gradients,
        "critic.fsdp.param_offload": job.offloads_parameters,
        "critic.fsdp.optimizer_offload": job.offloads_optimizer,
    }
    if not values.get("critic.use_dynamic_bsz"):
        found["critic.ppo_micro_batch_size_per_gpu"] = job.sizes.micro_batch
    return found | ({"critic.strategy": job.engine} if job.engine != "fsdp" else {})


def _of_sft(job: Job) -> dict[str, Value]:
    sizes = job.sizes
    return {
        "data.train_batch_size": sizes.prompts,
        "data.max_length": sizes.prompt_length + sizes.response_length,
        "data.micro_batch_size_per_gpu": sizes.micro_batch,
        "model.use_remove_padding": job.removes_padding,
        "model.enable_gradient_checkpointing": job.checkpoints_gradients,
        "model.lora_rank": job.lora_rank,
        "engine.strategy": job.engine,
        "engine.param_offload": job.offloads_parameters,
        "engine.optimizer_offload": job.offloads_optimizer,
    }
