"""A ROLL sample filled in for one release, the job that it describes, and which releases can be rendered.

Values are YAML texts under dotted keys, as in the matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import fields_of, known_releases, nearest_release
from npuenv.preflight.configs import counted_as, short_name
from npuenv.preflight.memory.types import Cards, Placement
from npuenv.preflight.rules.keys import part_of
from npuenv.preflight.rules.memory import ROLL_SHARDS, ROLL_STRATEGIES, roll_job
from npuenv.preflight.yaml_text import scalar
from npuenv.render.launch.job import parse_cards, unknown
from npuenv.render.launch.verl_job import launch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.matrix.rows import Recipe, RollDeparture, RollRecipe, RollRelease
    from npuenv.preflight.memory.types import Job, Model


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


TRAIN = "actor_train.training_args.per_device_train_batch_size"
ACCUMULATION = "actor_train.training_args.gradient_accumulation_steps"
TRAIN_CONFIG = "actor_train.strategy_args.strategy_config"
INFER_CONFIG = "actor_infer.strategy_args.strategy_config"
REFERENCE_CONFIG = "reference.strategy_args.strategy_config"
OFFLOAD = f"{TRAIN_CONFIG}.offload_policy"
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

    row: RollRecipe
    release: RollRelease
    release_name: str  # as it was asked for: "0.3.0", "main @8eb27cc2"
    values: Mapping[str, str]  # dotted key -> YAML text, in the order of the file
    published_update: int  # sequences of one update in the published plan
    explicit: frozenset[str] = frozenset()  # the keys that the user set
    allows_local_code: bool = False
    lacks_local_code: bool = False  # the sample has a reward that runs the model's code, left out here
    replaced: Mapping[str, str] = field(default_factory=dict)  # dotted key -> the guide's value that does not fit here
    departures: tuple[RollDeparture, ...] = ()  # from the sample, but for keys that the user set

    @property
    def version(self) -> str:
        """The release as a version; of a commit, the version that stands for it."""
        return counted_as("roll", self.release_name)

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


def recipe_of(name: str, rows: Iterable[RollRecipe]) -> RollRecipe:
    """A recipe by its name. Raises: BadInput with the nearest name."""
    known = {row.id: row for row in rows}
    if name not in known:
        raise unknown(name, known, "recipe")
    return known[name]


def filled(
    name: str,
    recipes: Iterable[RollRecipe],
    release: RollRelease,
    release_name: str,
    *,
    overrides: Mapping[str, str],
    allows_local_code: bool = False,
) -> Filled:
    """The values of a recipe for a release, the user's on top.

    Raises: BadInput for an unknown recipe or key, and for a key that an option of its own decides.
    """
    known = tuple(recipes)
    row = recipe_of(name, known)
    by_id = {each.id: each for each in known}
    values = _inherited(row, by_id, release, allows_local_code)
    update = int(values[TRAIN]) * int(values[ACCUMULATION]) * published_train(row)
    explicit: set[str] = set()
    for word, value in overrides.items():
        key = word.lstrip("+")
        _refuse_own_option(key)
        if word == key and key not in values and not is_read(key):
            raise unknown(key, alike(key, values), "key")
        values[key] = value
        explicit.add(key)
    replaced = {key: text for key, text in _replaced(row, known, release).items() if key not in explicit}
    chain = _chain(row, by_id)
    return Filled(
        row,
        release,
        release_name,
        values,
        update,
        frozenset(explicit),
        allows_local_code=allows_local_code,
        lacks_local_code=not allows_local_code and any(each.local_code for each in chain),
        replaced=replaced,
        departures=tuple(each for part in chain for each in part.departure if each.key not in explicit),
    )


def defaults_of(row: RollRecipe, rows: Iterable[RollRecipe], release: RollRelease) -> tuple[str, ...]:
    """The files of examples/config that a recipe takes in for a release, each once."""
    chain = _chain(row, {each.id: each for each in rows})
    return tuple(dict.fromkeys((*(name for each in chain for name in each.defaults), *release.defaults)))


def _inherited(
    row: RollRecipe, by_id: Mapping[str, RollRecipe], release: RollRelease, allows_local_code: bool
) -> dict[str, str]:
    chain = _chain(row, by_id)
    values = {key: text for each in chain for key, text in each.values.items()}
    for each in chain:
        values.update(each.fsdp2 if release.engine == "fsdp2" else each.deepspeed)
        values.update(each.local_code if allows_local_code else {})
    return values


def _replaced(row: RollRecipe, rows: Iterable[RollRecipe], release: RollRelease) -> dict[str, str]:
    """The guide's values in place of which this release's form has others: dotted key -> what the guide says."""
    chain = _chain(row, {each.id: each for each in rows})
    published = {key: text for each in chain for key, text in each.values.items()}
    forms = [each.fsdp2 if release.engine == "fsdp2" else each.deepspeed for each in chain]
    return {key: published[key] for form in forms for key in form if form[key] != published.get(key, form[key])}


def _chain(row: RollRecipe, by_id: Mapping[str, RollRecipe]) -> tuple[RollRecipe, ...]:
    """The recipe after those that it is like, the most general first."""
    return (*(_chain(by_id[row.like], by_id) if row.like else ()), row)


def _refuse_own_option(key: str) -> None:
    option = _OWN_OPTION.get(key.rpartition(".")[2])
    if option is not None:
        args = {"key": key, "option": option}
        raise BadInput(Message("launch_roll.own-option", args), Message("launch_roll.own-option-hint", args))


def job_of(recipe: Filled, model: Model, cards: Cards, *, num_train: int) -> Job:
    """The run that a recipe describes, as far as cards and memory go.

    `num_train` is how many cards train; where the user left accumulation alone, the sequences of one update are those
    of the published plan, whatever that number is.
    """
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


_COMMIT = re.compile(r"[0-9a-f]{7,40}|main")


def judged_as(framework: str, release: str) -> Message | None:
    """What to tell about a release that is not known itself, but lies near one that is; None for a known one.

    Raises: BadInput for a name that is neither a version nor a commit, and for a version older than all known ones or
    of another major number than the newest.
    Example: verl 0.9.1 -> None; 0.10.0 -> "judged as 0.9.1"; 9.9 -> BadInput
    """
    name = short_name(release)
    if framework == "roll" and not versions.is_release(name):
        return None
    known = _known(framework)
    if name in known:
        return None
    if _COMMIT.fullmatch(name):
        newest = form_of(framework, name)
        return Message("launch.judged-as", {"framework": framework, "release": name, "nearest": newest})
    nearest = nearest_release(framework, name)
    args: dict[str, object] = {"framework": framework, "release": name, "nearest": nearest or "-", "known": known}
    if nearest is None or versions.python_version(name).major != versions.python_version(known[-1]).major:
        raise BadInput(Message("launch.no-release", args), Message("launch.no-release-hint", args))
    return Message("launch.judged-as", args)


def form_of(framework: str, release: str) -> str:
    """The release whose form launch files get: a version itself, and the newest one for a commit of verl."""
    name = short_name(release)
    return known_releases(framework)[-1] if _COMMIT.fullmatch(name) else name


def refuse_contradiction(row: Recipe, framework: str | None, release: str | None) -> None:
    """Refuses a framework or a release that is not the stack's, `row` being the stack's row.

    Two names for one form of ROLL's launch files do not contradict each other. Raises: BadInput.
    """
    args: dict[str, object] = {"stack": row.id, "framework": row.framework, "holds": row.release}
    hint = Message("launch.not-the-stack-hint", args)
    if framework is not None and framework != row.framework:
        raise BadInput(Message("launch.not-the-stack", {**args, "asked": framework}), hint)
    if release is None or _is_same(row, release):
        return
    raise BadInput(Message("launch.not-the-stack", {**args, "asked": f"{row.framework} {release}"}), hint)


def _is_same(row: Recipe, release: str) -> bool:
    if row.framework == "roll":
        rows = load_matrix().roll_releases
        return release_of(release, rows) == release_of(row.release, rows)
    holds, asked = short_name(row.release), short_name(release)
    return holds == asked or not versions.is_release(holds)


def _known(framework: str) -> tuple[str, ...]:
    """The versions that keys were recorded for, that renamed one, or that a stack has, oldest first."""
    rows = (row for row in load_matrix().recipes if row.framework == framework)
    stacks = (row.release for row in rows if versions.is_release(row.release))
    renamed = (row.since for row in load_matrix().launch_keys if row.since and framework == "verl")
    return tuple(sorted({*known_releases(framework), *stacks, *renamed}, key=versions.python_version))
