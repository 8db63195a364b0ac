"""A ROLL sample filled in for one release, the job that it describes, and the values of the file that is written.

Values are YAML texts under dotted keys, as in the matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import fields_of
from npuenv.preflight.configs import counted_as, short_name
from npuenv.preflight.memory.types import Cards, Job, Placement, ranges
from npuenv.preflight.rules.keys import part_of
from npuenv.preflight.rules.memory import ROLL_SHARDS, ROLL_STRATEGIES, roll_job
from npuenv.preflight.yaml_text import scalar
from npuenv.render.files import UNSAFE_IN_YAML, plain
from npuenv.render.launch.job import launch_of, nested, parse_cards, refuse_numbers, unknown
from npuenv.render.variables import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.matrix.rows import RollDeparture, RollRecipe, RollRelease
    from npuenv.preflight.memory.types import Job, Model
    from npuenv.resolve.types import Stack


TRAIN = "actor_train.training_args.per_device_train_batch_size"
ACCUMULATION = "actor_train.training_args.gradient_accumulation_steps"
TRAIN_CONFIG = "actor_train.strategy_args.strategy_config"
INFER_CONFIG = "actor_infer.strategy_args.strategy_config"
REFERENCE_CONFIG = "reference.strategy_args.strategy_config"
OFFLOAD = f"{TRAIN_CONFIG}.offload_policy"
# What a step holds, which null leaves open.
_NEEDED = (
    "rollout_batch_size", "num_return_sequences_in_group", "prompt_length", "response_length", "sequence_length",
    "train_env_manager.num_env_groups", "train_env_manager.group_size", "actor_infer.generating_args.max_new_tokens",
    f"{INFER_CONFIG}.gpu_memory_utilization",
)  # fmt: skip
# Reward workers that run what the model wrote, unless another machine does it for them.
LOCAL_CODE = "CodeSandboxRewardWorker"
# What the placement and the sizes decide: said with options of their own, so that nothing contradicts the plan.
_OWN_OPTION = {
    "device_mapping": "--train-cards, --infer-cards, --reference-cards",
    "num_gpus_per_node": "--cards-per-node",
}


@dataclass(frozen=True, slots=True)
class Filled:
    """A recipe as it is to be written for one release."""

    chain: tuple[RollRecipe, ...]  # the recipe after those that it is like, the most general first
    release: RollRelease
    release_name: str  # as it was asked for: "0.3.0", "main @8eb27cc2"
    values: Mapping[str, str]  # dotted key -> YAML text, in the order of the file
    published_update: int  # sequences of one update in the published plan
    explicit: frozenset[str]  # the keys that the user set
    allows_local_code: bool

    @property
    def row(self) -> RollRecipe:
        """The recipe itself."""
        return self.chain[-1]

    @property
    def version(self) -> str:
        """The release as a version; of a commit, the version that stands for it."""
        return counted_as("roll", self.release_name)

    @property
    def defaults(self) -> tuple[str, ...]:
        """The files of examples/config that it takes in, each once."""
        return tuple(dict.fromkeys((*(name for each in self.chain for name in each.defaults), *self.release.defaults)))

    @property
    def lacks_local_code(self) -> bool:
        """Whether the sample has a reward that runs the model's code, left out here."""
        return not self.allows_local_code and any(each.local_code for each in self.chain)

    @property
    def replaced(self) -> dict[str, str]:
        """The guide's values in place of which this release's form has others: dotted key -> what the guide says."""
        published = {key: text for each in self.chain for key, text in each.values.items()}
        forms = [_of_engine(each, self.release) for each in self.chain]
        return {
            key: published[key]
            for form in forms
            for key in form
            if form[key] != published.get(key, form[key]) and key not in self.explicit
        }

    @property
    def departures(self) -> tuple[RollDeparture, ...]:
        """In what it is not the sample, but for keys that the user set."""
        return tuple(each for part in self.chain for each in part.departure if each.key not in self.explicit)

    def number(self, key: str) -> int:
        """The whole number under a key. Raises: BadInput where it is none, or below 1."""
        text = self.values.get(key, "")
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise BadInput(Message("launch_roll.no-number", {"key": key, "value": text or "-"}))
        return int(text)


def release_of(name: str, rows: Iterable[RollRelease]) -> RollRelease:
    """The form that a release's launch files have; `name` is a version, a commit or what a stack calls its release.

    Raises: BadInput for a release that no row names.
    Example: "0.3.0", "v0.3.0", "main @8eb27cc2", "8eb27cc2" -> the row of FSDP2
    """
    known = tuple(rows)
    wanted = short_name(name)
    for row in known:
        if row.is_called(wanted):
            return row
    found = [row for row in known if versions.is_release(wanted) and versions.accepts(row.versions, wanted)]
    if not found:
        raise unknown(name, (each for row in reversed(known) for each in (*row.names, row.versions)), "release")
    return found[0]


def filled(name: str, release_name: str, *, overrides: Mapping[str, str], allows_local_code: bool = False) -> Filled:
    """The values of a recipe for a release, the user's on top.

    Raises: BadInput for an unknown release or key, and for a key that an option of its own decides.
    """
    matrix = load_matrix()
    release = release_of(release_name, matrix.roll_releases)
    chain = _chain(name, {row.id: row for row in matrix.roll_recipes})
    values = {key: text for each in chain for key, text in each.values.items()}
    for each in chain:
        values.update(_of_engine(each, release))
        values.update(each.local_code if allows_local_code else {})
    update = int(values[TRAIN]) * int(values[ACCUMULATION]) * published_train(chain[-1])
    explicit: set[str] = set()
    for word, value in overrides.items():
        key = word.lstrip("+")
        _refuse_own_option(key)
        if word == key and key not in values and not is_read(key):
            raise unknown(key, alike(key, values), "key")
        values[key] = value
        explicit.add(key)
    return Filled(chain, release, release_name, values, update, frozenset(explicit), allows_local_code)


def _chain(name: str, rows: Mapping[str, RollRecipe]) -> tuple[RollRecipe, ...]:
    """The recipe after those that it is like, the most general first."""
    if name not in rows:
        raise unknown(name, rows, "recipe")
    row = rows[name]
    return (*(_chain(row.like, rows) if row.like else ()), row)


def _of_engine(row: RollRecipe, release: RollRelease) -> Mapping[str, str]:
    """The values that a recipe has for the release's engine alone."""
    return row.fsdp2 if release.engine == "fsdp2" else row.deepspeed


def _refuse_own_option(key: str) -> None:
    option = _OWN_OPTION.get(key.rpartition(".")[2])
    if option is not None:
        args = {"key": key, "option": option}
        raise BadInput(Message("launch_roll.own-option", args), Message("launch_roll.own-option-hint", args))


def is_read(key: str) -> bool:
    """Whether ROLL, or an interpolation of its own files, reads a dotted key. Free groups take every name."""
    part, name, _ = part_of(key)
    return key.partition(".")[0] in fields_of("top") and (not part or name in fields_of(part))


def alike(key: str, written: Iterable[str]) -> tuple[str, ...]:
    """Names that a misspelt key may stand for: those that are written, and its neighbours in the same group."""
    part, _, above = part_of(key)
    return tuple(dict.fromkeys((*written, *(f"{above}{name}" for name in fields_of(part)))))


_KEY = "actor_train.data_args.template"
# A model's name -> the template under which ROLL's samples train that family (examples/*, data_args.template).
_FAMILIES = ((r"qwen[-_]?2[._]?5", "qwen2_5"), (r"qwen[-_]?3(?![._]?\d)", "qwen3"))


def templates_for(model: str, values: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """The template under each key of `values` that names one and that the user left alone, by the model's name.

    A template that the user sets for training holds for the other roles too.
    Raises: BadInput for a model of no known family where the user names none.
    """
    said = {word.lstrip("+"): value for word, value in overrides.items()}
    keys = [key for key in values if key.endswith(".data_args.template") and key not in said]
    template = said.get(_KEY) or _by_name(said.get("pretrain") or model)
    if keys and template is None:
        args = {"model": model, "key": _KEY, "known": tuple(name for _, name in _FAMILIES)}
        raise BadInput(Message("launch_roll.no-template", args), Message("launch_roll.no-template-hint", args))
    return {key: template for key in keys if template is not None}


def _by_name(model: str) -> str | None:
    name = model.rstrip("/").rpartition("/")[2].casefold()
    return next((template for pattern, template in _FAMILIES if re.match(pattern, name)), None)


def job_of(recipe: Filled, model: Model, cards: Cards, *, num_train: int) -> Job:
    """The run that a recipe describes, as far as cards and memory go.

    `num_train` is how many cards train; where the user left accumulation alone, the sequences of one update are those
    of the published plan, whatever that number is. Raises: BadInput for a value that is not the number it must be.
    """
    said = {key: scalar(recipe.values[key]) for key in recipe.explicit if "${" not in recipe.values[key]}
    refuse_numbers(launch_of("roll", recipe.version, said, {}), _NEEDED)
    values: dict[str, object] = {
        OFFLOAD: recipe.row.offloads and not recipe.values.keys() & {OFFLOAD, TRAIN_CONFIG},
        "reference.device_mapping": recipe.row.reference,
        **{key: scalar(text) for key, text in recipe.values.items()},
        "actor_train.strategy_args.strategy_name": ROLL_STRATEGIES[recipe.release.engine],
    }
    job = roll_job(launch_of("roll", recipe.version, values, {}), model, cards, num_train=num_train)
    # One copy over all cards that train is what is written, however many they turn out to be.
    return _with_update(replace(job, shard_cards=None), recipe, num_train)


def _with_update(job: Job, recipe: Filled, num_train: int) -> Job:
    prompts = max(1, update_sequences(recipe, num_train) // job.sizes.rollouts)
    return replace(job, sizes=replace(job.sizes, mini_batch=prompts))


def placed_job(job: Job, recipe: Filled, placement: Placement) -> Job:
    """The job with what its placement decides: colocated training always leaves the cards while others generate."""
    job = _with_update(job, recipe, len(placement.train))
    job = replace(job, shard_cards=recipe.number(ROLL_SHARDS) if ROLL_SHARDS in recipe.explicit else None)
    if placement.layout == "split" or OFFLOAD in recipe.explicit:
        return job
    return replace(job, offloads_parameters=True, offloads_optimizer=True, offloads_reference=True)


def published_train(row: RollRecipe) -> int:
    """How many cards train in the published plan."""
    return len(parse_cards(row.train, published_cards(row)))


def published_cards(row: RollRecipe) -> Cards:
    """The cards of the published plan."""
    return Cards(row.hardware, row.cards_per_node, row.nodes)


def published_placement(row: RollRecipe) -> Placement:
    """The published plan."""
    cards = published_cards(row)
    return Placement(*(parse_cards(text, cards) for text in (row.train, row.infer, row.reference)))


def update_sequences(recipe: Filled, num_train: int) -> int:
    """Sequences of one update over all cards that train.

    The published plan's, so that other cards do not make another optimization problem; the user's where the user set
    the accumulation.
    """
    if ACCUMULATION not in recipe.explicit:
        return recipe.published_update
    return recipe.number(TRAIN) * recipe.number(ACCUMULATION) * num_train


def accumulation(recipe: Filled, num_train: int) -> int:
    """Accumulation steps on so many cards, the sequences of one update kept. Raises: BadInput where it is no number."""
    update, micro = update_sequences(recipe, num_train), recipe.number(TRAIN)
    if update % (micro * num_train):
        near = {"micro": TRAIN, "accumulation": ACCUMULATION, "steps": max(1, round(update / num_train))}
        raise BadInput(
            Message("launch_roll.no-accumulation", {"update": update, "micro": micro, "cards": num_train}),
            Message("launch_roll.no-accumulation-hint", near),
        )
    return update // (micro * num_train)


# The order inside a role, as ROLL's own samples have it.
_ROLE = (
    "worker_cls", "model_args", "training_args", "data_args", "generating_args", "strategy_args", "device_mapping",
    "system_envs", "infer_batch_size",
)  # fmt: skip
# Before it stand the run's variables.
_AFTER_VARIABLES = "max_steps"
_ROLES = ("actor_train", "actor_infer", "reference")
# For several processes on a card HCCL wants free ports of the host beside those of the card.
# Source: hicann/hccl docs/zh/user_guide/hccl_env/HCCL_HOST_SOCKET_PORT_RANGE.md
_TOGETHER = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}


def tree_of(job: Job, placement: Placement, recipe: Filled, *, stack: Stack, model: str) -> dict[str, Any]:
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
    return {**_head(recipe.defaults), **_with_variables_first(tree)}


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
