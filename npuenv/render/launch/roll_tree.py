"""The content of a ROLL launch file as a tree of values: `tree_of`, and `mapping_text` for `device_mapping`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.memory.types import ranges
from npuenv.preflight.rules.jobs import ROLL_STRATEGIES
from npuenv.render.activation import settings_of
from npuenv.render.launch.job import nested
from npuenv.render.launch.roll_recipe import ACCUMULATION, INFER_CONFIG, REFERENCE_CONFIG, TRAIN_CONFIG, accumulation
from npuenv.render.words import UNSAFE_IN_YAML, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.preflight.memory.types import Job, Placement
    from npuenv.render.launch.roll_recipe import Filled
    from npuenv.resolve.types import Stack

# The order inside a role, as ROLL's own samples have it.
_ROLE = (
    "worker_cls",
    "model_args",
    "training_args",
    "data_args",
    "generating_args",
    "strategy_args",
    "device_mapping",
    "system_envs",
    "infer_batch_size",
)
# Before it stand the run's variables.
_AFTER_VARIABLES = "max_steps"
_ROLES = ("actor_train", "actor_infer", "reference")
# For several processes on a card HCCL wants free ports of the host beside those of the card.
# Source: hicann/hccl docs/zh/user_guide/hccl_env/HCCL_HOST_SOCKET_PORT_RANGE.md
_TOGETHER = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}


def tree_of(
    job: Job, placement: Placement, recipe: Filled, *, stack: Stack, model: str, defaults: Sequence[str]
) -> dict[str, Any]:
    """The file's content: nested mappings in the order of the file, leaves as the YAML reader gives them.

    Raises: BadInput for a value that is no YAML.
    """
    values = dict(_written(job, placement, recipe, model))
    tree = nested(values)
    together = _TOGETHER if placement.layout == "colocated" else {}
    tree["system_envs"] = {**_variables(stack, "all"), **together, **tree.get("system_envs", {})}
    for role, cards in zip(_ROLES, (placement.train, placement.infer, placement.reference), strict=True):
        tree[role]["device_mapping"] = mapping_text(cards)
    for role, setting in (("actor_train", "train"), ("actor_infer", "rollout")):
        tree[role]["system_envs"] = {**_variables(stack, setting), **tree[role].get("system_envs", {})}
    for role in _ROLES:
        tree[role] = _ordered(tree[role], _ROLE)
    return {**_head(defaults), **_with_variables_first(tree)}


def mapping_text(cards: Iterable[int]) -> str:
    """The Python expression that ROLL evaluates to a list of cards.

    Example: (0, 1, 2, 3, 8, 9) -> "list(range(0,4)) + list(range(8,10))"
    """
    return " + ".join(f"list(range({first},{last + 1}))" for first, last in ranges(cards))


def _head(defaults: Sequence[str]) -> dict[str, Any]:
    # This file last: without `_self_` the release of Hydra decides whose values win.
    taken = {"defaults": [*(f"../config/{name}@_here_" for name in defaults), "_self_"]} if defaults else {}
    return {**taken, "hydra": {"run": {"dir": "."}, "output_subdir": None}}


def _written(job: Job, placement: Placement, recipe: Filled, model: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything but cards and variables; later ones stand where the first stood."""
    texts = dict(recipe.values)
    if model and "pretrain" not in recipe.explicit:
        texts["pretrain"] = plain(model, "pretrain", UNSAFE_IN_YAML)
    yield from _parsed(texts)
    yield ACCUMULATION, accumulation(recipe, len(placement.train))
    derived = (*_training(job, placement), *_generating(job), *_reference(job, placement, recipe))
    yield from ((key, value) for key, value in derived if key not in recipe.explicit)


def _training(job: Job, placement: Placement) -> Iterator[tuple[str, Any]]:
    yield "actor_train.strategy_args.strategy_name", ROLL_STRATEGIES[job.engine]
    if job.engine == "fsdp2":
        yield from _fsdp2(TRAIN_CONFIG, len(placement.train), is_offloaded=job.offloads_parameters)
    else:
        yield TRAIN_CONFIG, "${deepspeed_zero3_cpuoffload}" if job.offloads_parameters else "${deepspeed_zero3}"


def _generating(job: Job) -> Iterator[tuple[str, Any]]:
    sizes = job.sizes
    yield f"{INFER_CONFIG}.max_model_len", sizes.max_model_len or sizes.prompt_length + sizes.response_length
    if job.tensor_parallel > 1:
        yield f"{INFER_CONFIG}.tensor_parallel_size", job.tensor_parallel


def _reference(job: Job, placement: Placement, recipe: Filled) -> Iterator[tuple[str, Any]]:
    if recipe.values["reference.strategy_args.strategy_name"] == "fsdp2_infer":
        yield from _fsdp2(REFERENCE_CONFIG, len(placement.reference), is_offloaded=job.offloads_reference)
    else:
        yield REFERENCE_CONFIG, None


def _fsdp2(key: str, num_cards: int, *, is_offloaded: bool) -> Iterator[tuple[str, Any]]:
    yield f"{key}.fsdp_size", num_cards
    yield f"{key}.param_dtype", "bf16"
    yield f"{key}.reduce_dtype", "float32"
    yield f"{key}.reshard_after_forward", True
    yield f"{key}.offload_policy", is_offloaded


def _parsed(texts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = YAML()  # round trip: 1.0e-6 and [a, b] come out as they went in
    for key, text in texts.items():
        try:
            value = reader.load(text)
        except (YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
            args = {"key": key, "value": text}
            raise BadInput(Message("launch_roll.no-yaml", args), Message("render.unsafe-value-hint")) from error
        yield key, value


def _variables(stack: Stack, role: str) -> dict[str, str]:
    return {name: plain(value, name, UNSAFE_IN_YAML) for name, value in sorted(settings_of(stack, role).items())}


def _ordered(group: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    first = {name: group[name] for name in order if name in group}
    return {**first, **{name: value for name, value in group.items() if name not in first}}


def _with_variables_first(nested: Mapping[str, Any]) -> dict[str, Any]:
    """The run's variables before its schedule, where ROLL's samples have them."""
    ordered: dict[str, Any] = {}
    for name, value in nested.items():
        if name == _AFTER_VARIABLES:
            ordered["system_envs"] = nested["system_envs"]
        if name != "system_envs":
            ordered[name] = value
    return ordered
