"""A published verl recipe as a job, a job as values of verl's configuration, and what verl cannot run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.preflight.hydra import NotHydra, read_value, write_value
from npuenv.preflight.memory.types import Job, Sizes
from npuenv.preflight.rules.memory import verl_job
from npuenv.preflight.yaml_text import write_scalar
from npuenv.render.launch.job import launch_of, nested, refuse_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.matrix.rows import LaunchKey, LaunchRecipe
    from npuenv.preflight.memory.types import Cards, Engine, Layout, Model, Placement


V = TypeVar("V")
Value = bool | int | float | str | list[str] | None


@dataclass(frozen=True, slots=True)
class Paths:
    """Places as the nodes of the run see them, the same on all of them."""

    model: str  # a folder, or a name like Qwen/Qwen2.5-0.5B-Instruct
    train_file: str
    validation_file: str
    preparation: str = ""  # verl's script that writes the two files, as gsm8k; "": they are the user's own


_M, _A, _R, _F = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout", "ref"))
# verl finds the cards by itself from this release on (auto_set_device in verl/trainer/main_ppo.py; absent in 0.6.1).
_FINDS_DEVICE = ">=0.7.0"
# Keys that a job's number is written to, and for which verl does not take null.
_NEEDED = (
    "data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "data.max_length",
    f"{_A}.ppo_mini_batch_size", f"{_R}.n", f"{_R}.tensor_model_parallel_size", f"{_R}.gpu_memory_utilization",
)  # fmt: skip
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
    """The job of a recipe with its values, for a model, cards and a release of verl. Raises: BadInput."""
    values = {f"{_A}.strategy": recipe.strategy} | written(recipe)
    launch = launch_of("verl", release, values, environment(recipe))
    refuse_numbers(launch, _NEEDED)
    if recipe.entry == "sft":
        return _sft_job(values, model=model, cards=cards, release=release, strategy=recipe.strategy)
    return replace(verl_job(launch, model, cards), has_critic=recipe.algorithm == "ppo")


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
    """The whole number of supervised training's own key. Raises: BadInput for a word, in the words of the rules."""
    found = values.get(key)
    if found is None:
        return default
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    says = Message("preflight_rules.number", {"key": key, "text": str(found), "takes": f"{min(default, 1)} <= x"})
    raise BadInput(Message("launch.not-run", {"what": (says,)}))


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
    found |= {key: size for key, dynamic, size in micro if values.get(key) is not None or not values.get(dynamic)}
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


ENGINES = ("fsdp", "fsdp2")


@dataclass(frozen=True, slots=True)
class OnNodes:
    """A placement as verl takes it: it is told numbers of cards, not which."""

    nodes: int
    train: int  # cards of a node that train
    infer: int  # cards of a node that generate: the same ones in a colocated placement
    visible: tuple[int, ...] | None  # the cards of a node that the run may see; None: all of them


def on_nodes(cards: Cards, placement: Placement) -> OnNodes:
    """The placement by node. Raises: BadInput where it differs from node to node, for verl has no words for that."""
    train, infer = _by_node(cards, placement.train), _by_node(cards, placement.infer)
    used = tuple(sorted({*train, *infer}))
    # Supervised training generates nothing: `infer` may be empty.
    if not train or used != tuple(range(len(used))):
        raise _uneven(placement)
    seen = tuple(tuple(sorted({*train.get(node, ()), *infer.get(node, ())})) for node in used)
    counts = {(len(train.get(node, ())), len(infer.get(node, ()))) for node in used}
    if len(counts) != 1 or len(set(seen)) != 1:
        raise _uneven(placement)
    [(trains, infers)] = counts
    return OnNodes(len(used), trains, infers, None if len(seen[0]) == cards.per_node else seen[0])


def _by_node(cards: Cards, numbers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Node -> the numbers on it. Raises: BadInput for a card that does not exist."""
    absent = [number for number in numbers if not 0 <= number < cards.count]
    if absent:
        args = {"card": absent[0], "last": cards.count - 1}
        raise BadInput(Message("launch.no-card", args), Message("launch.no-card-hint", args))
    nodes = sorted({number // cards.per_node for number in numbers})
    return {
        node: tuple(sorted({each % cards.per_node for each in numbers if each // cards.per_node == node}))
        for node in nodes
    }


def _uneven(placement: Placement) -> BadInput:
    args = {"train": _list(placement.train), "infer": _list(placement.infer)}
    return BadInput(Message("launch.uneven", args), Message("launch.uneven-hint"))


def _list(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers) or "-"


def check(job: Job, placement: Placement, recipe: LaunchRecipe, values: Mapping[str, Value], nodes: OnNodes) -> None:
    """Raises: BadInput naming the first thing that does not go together."""
    check_recipe(recipe, job.release)
    if job.engine not in ENGINES:
        args = {"engine": job.engine, "known": ENGINES}
        raise BadInput(Message("launch.engine", args), Message("launch.engine-hint"))
    _roles(placement, recipe, values)
    if recipe.entry == "sft":
        cards = nodes.train * nodes.nodes
        _divides("sequence-parallel", cards, job.sequence_parallel)
        _divides("examples", job.sizes.prompts, cards // job.sequence_parallel)


def check_recipe(recipe: LaunchRecipe, release: str) -> None:
    """Refuses a recipe that is not rendered, or not for this release; no job is needed. Raises: BadInput."""
    names: dict[str, object] = {"recipe": recipe.id, "release": release, "script": recipe.script}
    if recipe.refused:
        raise BadInput(Message(recipe.refused, names), Message("launch.refused-hint"))
    too_old = not versions.accepts(f">={recipe.since}", release)
    if too_old or (recipe.until and versions.accepts(f">={recipe.until}", release)):
        names |= {"since": recipe.since, "until": recipe.until}
        key = "launch.not-in-release-until" if recipe.until else "launch.not-in-release"
        raise BadInput(Message(key, names), Message(f"{key}-hint", names))


def _roles(placement: Placement, recipe: LaunchRecipe, values: Mapping[str, Value]) -> None:
    noise = next((key for key in values if key.startswith("trainer.noise_injection")), None)
    if noise is not None:
        raise BadInput(Message("launch.noise-stock", {"recipe": recipe.id}), Message("launch.refused-hint"))
    check_layout(recipe, placement.layout)
    if recipe.entry == "main" and set(placement.train) != set(placement.infer):
        raise BadInput(Message("launch.overlap"), Message("launch.overlap-hint"))
    if values.get("algorithm.adv_estimator") == "gae" and recipe.algorithm != "ppo":
        raise BadInput(Message("launch.estimator", {"recipe": recipe.id}), Message("launch.estimator-hint"))


def check_layout(recipe: LaunchRecipe, layout: Layout) -> None:
    """Refuses a layout that the recipe's program does not have. Raises: BadInput."""
    if recipe.entry == "sft" or (layout == "split") == (recipe.entry == "one-step-off"):
        return
    key = "launch.split-in-main" if layout == "split" else "launch.colocated-one-step"
    other = next(row for row in load_matrix().launch_recipes if row.entry == "one-step-off")
    args = {"recipe": recipe.id, "other": other.id, "since": other.since}
    raise BadInput(Message(key, args), Message(f"{key}-hint", args))


def _divides(what: str, whole: int, part: int) -> None:
    if part < 1 or whole < part or whole % part:
        raise BadInput(Message(f"launch.size-{what}", {"part": part, "whole": whole}), Message("launch.size-hint"))


# A word that no shell expands or parts.
_PLAIN_SHELL = re.compile(r"[A-Za-z0-9_./:@%+=,-]+\Z")


def value_of(text: str) -> Value:
    """The value that Hydra makes of a text; the text itself, which then needs quotes, where Hydra would refuse it.

    Example: "5e-7" -> 5e-07, "True" -> True, "[console,wandb]" -> ["console", "wandb"], "vllm" -> "vllm"
    """
    try:
        found: Value = read_value(text)
    except NotHydra:
        return text
    return found


def word(key: str, value: Value, *, is_added: bool = False) -> str:
    """An override as one word of a POSIX shell command; `is_added` for a key that verl's configuration does not list.

    Example: ("trainer.logger", ["console", "wandb"]) -> "trainer.logger=[console,wandb]" with the quotes around it
    """
    # Not a single plus: Hydra refuses that one where a release does have the key.
    text = f"{'++' if is_added else ''}{key}={write_value(value)}"
    return text if _PLAIN_SHELL.match(text) else f'"{text}"'


def yaml(values: Mapping[str, Value]) -> str:
    """Dotted keys as nested YAML, in the order in which each branch comes first."""
    tree = nested({key: write_scalar(value) for key, value in values.items()})
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(branch: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, below in branch.items():
        if isinstance(below, dict):
            yield f"{indent}{name}:"
            yield from _lines(below, indent + "  ")
        else:
            yield f"{indent}{name}: {below}"


def for_release(values: Mapping[str, V], release: str) -> dict[str, V]:
    """The values under the names of a release, in their order, without those that it has no name for."""
    named = ((_name(key, release), value) for key, value in values.items())
    return {key: value for key, value in named if key}


def left_out(keys: Iterable[str], release: str) -> tuple[str, ...]:
    """Keys of sentences about what is lost where a release has no name for some of the keys, each once."""
    rows = [_row(key) for key in keys if not _name(key, release)]
    return tuple(dict.fromkeys(row.note for row in rows if row is not None and row.note))


def _name(key: str, release: str) -> str:
    """The key's name in a release; "" where it has none."""
    row = _row(key)
    if row is None:
        return key
    if row.until and versions.accepts(f">={row.until}", release):
        return ""
    if not row.since or versions.accepts(f">={row.since}", release):
        return key
    return row.before + key.removeprefix(row.key) if row.before else ""


def _row(key: str) -> LaunchKey | None:
    return next((row for row in load_matrix().launch_keys if row.covers(key)), None)
