"""From what a user asks for to the launch files of either framework, with placement and estimate: `launch`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import names_of
from npuenv.preflight.memory import estimate, find_model, plan
from npuenv.preflight.memory.types import Cards, Placement
from npuenv.render.files import UNSAFE_IN_YAML, plain
from npuenv.render.launch.job import Paths, chosen_placement, parse_cards, unknown
from npuenv.render.launch.roll import render_roll, replaced_value
from npuenv.render.launch.roll_recipe import (
    filled,
    form_of,
    job_of,
    judged_as,
    placed_job,
    published_placement,
    published_train,
    release_of,
    templates_for,
)
from npuenv.render.launch.verl import render_verl
from npuenv.render.launch.verl_job import check_recipe, environment, job_for, written
from npuenv.render.variables import render_ray
from npuenv.resolve.parts import missing_model_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import LaunchRecipe
    from npuenv.preflight.memory.types import Estimate, Job, Layout
    from npuenv.render.launch.roll_recipe import Filled
    from npuenv.resolve.types import Stack

FRAMEWORKS = ("verl", "roll")
FIRST_RECIPE = {"verl": "quick-start", "roll": "agentic-frozen-lake"}
_TRAIN_FILE, _VALIDATION_FILE = "data.train_files", "data.val_files"
# What a recipe's data must hold -> verl's preparation that writes it; it is told to write below the data folder of the
# run manifests.
_PREPARATIONS = {"launch.image-data": "geo3k", "launch.sft-data": "gsm8k_multiturn_sft"}

# What the cards and the model decide: said with options of their own, so that nothing contradicts the plan.
_VERL_OPTION = {
    "trainer.n_gpus_per_node": "--cards-per-node, --train-cards",
    "trainer.nnodes": "--nodes",
    "rollout.n_gpus_per_node": "--infer-cards",
    "rollout.nnodes": "--nodes",
    "actor_rollout_ref.model.path": "--model",
    "model.path": "--model",
}


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user said. None or "": not said, the recipe or the stack decides."""

    recipe: str = ""  # a published run of the stack's framework
    release: str = ""  # of the framework, or any commit of it
    model: str | None = None
    cards_per_node: int | None = None
    cards_of_host: int | None = None  # what the host has that the files are for; None: not known
    nodes: int | None = None
    card_memory_gib: float | None = None
    train: str | None = None
    infer: str | None = None
    reference: str | None = None
    layout: Layout | None = None
    head: str = ""
    allows_local_code: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The files of a run by name, and what they rest on."""

    files: Mapping[str, str]
    stack: Stack
    options: LaunchOptions  # with recipe and release
    job: Job
    placement: Placement
    estimate: Estimate
    because: Message  # how many cards it is for, and why
    notes: tuple[Message, ...] = ()  # what was decided in a way that the user may not expect

    @property
    def fits(self) -> bool:
        """Whether the run fits into the cards' memory, by the estimate."""
        return self.estimate.verdict != "infeasible"


def recipes(framework: str) -> dict[str, Message | str]:
    """The recipes of a framework that can be rendered, with what each is.

    Raises: BadInput for a framework without launch files.
    """
    matrix = load_matrix()
    if framework == "roll":
        return {row.id: Message(row.about) for row in matrix.roll_recipes}
    if framework == "verl":
        rows = [row for row in matrix.launch_recipes if not row.refused]
        return {row.id: f"{row.algorithm}, {row.model}, {row.strategy}, {row.rollout}" for row in rows}
    raise unknown(framework, FRAMEWORKS, "framework")


def launch(asked: LaunchOptions, stack: Stack, *, lang: str = "en") -> LaunchFiles:
    """The launch files that were asked for. Whether they fit into memory stands in the estimate.

    Raises: BadInput for unknown names, and for cards, sizes and settings that do not go together.
    """
    matrix, framework = load_matrix(), stack.framework
    known = recipes(framework)
    asked = replace(
        asked, recipe=asked.recipe or FIRST_RECIPE[framework], release=asked.release or _release_of(stack, matrix)
    )
    # A recipe that is not listed has a sentence of its own, which says why it is not rendered.
    rows = matrix.roll_recipes if framework == "roll" else matrix.launch_recipes
    if asked.recipe not in {row.id for row in rows}:
        raise unknown(asked.recipe, known, "recipe")
    judged = judged_as(framework, asked.release)
    made = _roll(asked, stack, lang) if framework == "roll" else _verl(asked, stack)
    pin = stack.pin("transformers")
    name = made.job.model.id.rstrip("/").rpartition("/")[2]
    missing = missing_model_type(name, pin.version if pin is not None else None, stack.framework, matrix)
    notes = (missing, judged, _unusual(asked, made))
    return replace(made, options=asked, notes=(*(note for note in notes if note is not None), *made.notes))


def _release_of(stack: Stack, matrix: Matrix) -> str:
    row = next((row for row in matrix.recipes if stack.name.startswith(row.id)), None)
    if row is None:
        args = {"stack": stack.name}
        raise BadInput(Message("launch_roll.no-release", args), Message("launch_roll.no-release-hint"))
    return row.release


def _unusual(asked: LaunchOptions, made: LaunchFiles) -> Message | None:
    """Says it where the recipe's number of cards was taken and the hardware's nodes mostly have another."""
    cards = made.job.cards
    row = next((row for row in load_matrix().container_cards if row.hardware == cards.hardware), None)
    if (
        asked.cards_per_node is not None
        or asked.cards_of_host is not None
        or row is None
        or not row.usual
        or cards.per_node <= row.usual
    ):
        return None
    args = {"cards": cards.per_node, "hardware": cards.hardware, "usual": row.usual}
    return Message("launch_roll.unusual-cards", args)


def _roll(asked: LaunchOptions, stack: Stack, lang: str) -> LaunchFiles:

    matrix = load_matrix()
    release = release_of(asked.release, matrix.roll_releases)
    recipe = filled(
        asked.recipe,
        matrix.roll_recipes,
        release,
        asked.release,
        overrides=asked.overrides,
        allows_local_code=asked.allows_local_code,
    )
    row = recipe.row
    model = recipe.values["pretrain"] if "pretrain" in recipe.explicit else asked.model
    if model is not None:
        recipe = replace(recipe, values={**recipe.values, **templates_for(model, recipe.values, asked.overrides)})
    cards = _cards(asked, stack, Cards(row.hardware, row.cards_per_node, row.nodes))
    job = job_of(recipe, find_model(asked.model or row.shape), cards, num_train=published_train(row))
    placement = _roll_placement(asked, recipe, job)
    job = placed_job(job, recipe, placement)
    files = render_roll(job, placement, recipe, stack=stack, model=asked.model or "", head=asked.head, lang=lang)
    notes = _roll_notes(asked, recipe, placement)
    because = _because(asked, cards, row.cards_per_node)
    files = {**files, **_ray(asked, cards, stack)}
    return LaunchFiles(files, stack, asked, job, placement, estimate(job, placement), because, notes)


def _roll_notes(asked: LaunchOptions, recipe: Filled, placement: Placement) -> tuple[Message, ...]:
    """Says it where a value is not the guide's, and where a plan puts both roles on the same cards, which the recipe
    holds apart."""
    replaced = tuple(Message("launch_roll.note", {"what": replaced_value(recipe, key)}) for key in recipe.replaced)
    is_chosen = asked.layout is not None or asked.train is not None or asked.infer is not None
    if is_chosen or placement.layout == "split" or published_placement(recipe.row).layout != "split":
        return replaced
    row = recipe.row
    return (*replaced, Message("launch_roll.planned-together", {"nodes": row.nodes, "cards": row.cards_per_node}))


def _roll_placement(asked: LaunchOptions, recipe: Filled, job: Job) -> Placement:
    chosen = chosen_placement(
        job.cards, train=asked.train, infer=asked.infer, reference=asked.reference, layout=asked.layout
    )
    if chosen is not None:
        return chosen
    published = published_placement(recipe.row)
    is_as_published = (job.cards.per_node, job.cards.nodes) == (recipe.row.cards_per_node, recipe.row.nodes)
    if is_as_published and asked.layout in (None, published.layout):
        return published
    return plan(job, layout=asked.layout)


def _verl(asked: LaunchOptions, stack: Stack) -> LaunchFiles:

    row = next(row for row in load_matrix().launch_recipes if row.id == asked.recipe)
    asked = replace(asked, release=form_of("verl", asked.release))
    release = asked.release
    # First of all: a recipe that is not rendered has no values to judge.
    check_recipe(row, release)
    recipe = _with_overrides(row, asked)
    cards = _cards(asked, stack, Cards(recipe.hardware[0], recipe.cards_per_node, recipe.nodes))
    model = plain(asked.model or recipe.model, "--model", UNSAFE_IN_YAML)
    job = job_for(recipe, model=find_model(model), cards=cards, release=release)
    placement = _verl_placement(asked, recipe, job)
    found = estimate(job, placement)
    paths = _verl_paths(recipe, model, asked.overrides)
    added = {word.lstrip("+") for word in asked.overrides if word.startswith("+")}
    files = render_verl(job, placement, recipe, stack=stack, paths=paths, added=added)
    # Ray's processes have the environment of the shell that starts Ray. Without Ray there is nothing to start.
    scripts = {} if recipe.entry == "sft" else _ray(asked, cards, stack, environment(recipe))
    because = _because(asked, cards, recipe.cards_per_node)
    files = {**files, **scripts}
    return LaunchFiles(files, stack, asked, job, placement, found, because)


def _verl_paths(recipe: LaunchRecipe, model: str, overrides: Mapping[str, str]) -> Paths:

    preparation = next((_PREPARATIONS[note] for note in recipe.notes if note in _PREPARATIONS), "gsm8k")
    prepared = {
        _TRAIN_FILE: f"/data/{preparation}/train.parquet",
        _VALIDATION_FILE: f"/data/{preparation}/test.parquet",
    }
    said = {**prepared, **overrides}
    own = any(said[key] != prepared[key] for key in prepared)
    return Paths(model, said[_TRAIN_FILE], said[_VALIDATION_FILE], preparation="" if own else preparation)


def _verl_placement(asked: LaunchOptions, recipe: LaunchRecipe, job: Job) -> Placement:
    if recipe.entry == "sft":
        return _training_alone(asked, recipe, job.cards)
    chosen = chosen_placement(
        job.cards, train=asked.train, infer=asked.infer, reference=asked.reference, layout=asked.layout
    )
    if chosen is not None:
        # verl's reference works where training does.
        return chosen if asked.reference else replace(chosen, reference=chosen.train)
    if recipe.infer_cards_per_node and asked.layout is None:
        return _generating_apart(recipe, job.cards)
    return plan(job, layout=asked.layout)


def _training_alone(asked: LaunchOptions, recipe: LaunchRecipe, cards: Cards) -> Placement:
    """The cards of supervised training: nothing is generated. Raises: BadInput for options about generation."""
    options = {"--infer-cards": asked.infer, "--reference-cards": asked.reference, "--layout": asked.layout}
    option = next((name for name, value in options.items() if value is not None), None)
    if option is not None:
        args = {"recipe": recipe.id, "option": option}
        raise BadInput(Message("launch.generates-nothing", args), Message("launch.generates-nothing-hint", args))
    return Placement(parse_cards(asked.train, cards) if asked.train else tuple(range(cards.count)), (), ())


def _generating_apart(recipe: LaunchRecipe, cards: Cards) -> Placement:
    """The last cards of every node generate, as the recipe was published."""
    first = cards.per_node - recipe.infer_cards_per_node
    train = tuple(card for card in range(cards.count) if card % cards.per_node < first)
    infer = tuple(card for card in range(cards.count) if card % cards.per_node >= first)
    return Placement(train, infer, train)


def _with_overrides(recipe: LaunchRecipe, asked: LaunchOptions) -> LaunchRecipe:

    known = {*written(recipe), *names_of("verl", asked.release)}
    keys = {word.lstrip("+"): value for word, value in asked.overrides.items()}
    own = next((key for key in keys if key in _VERL_OPTION), None)
    if own is not None:
        args = {"key": own, "option": _VERL_OPTION[own]}
        raise BadInput(Message("launch_roll.own-option", args), Message("launch_roll.own-option-hint", args))
    strange = next((key for key in asked.overrides if not key.startswith("+") and key not in known), None)
    if strange is not None:
        raise unknown(strange, sorted(known), "verl-key")
    values = {key: value for key, value in keys.items() if key not in (_TRAIN_FILE, _VALIDATION_FILE)}
    return replace(recipe, values={**recipe.values, **values})


def _cards(asked: LaunchOptions, stack: Stack, published: Cards) -> Cards:
    """The cards of the run: what was said, else the stack's hardware and the published numbers, at most the host's."""
    for option, number in (("--cards-per-node", asked.cards_per_node), ("--nodes", asked.nodes)):
        if number is not None and number < 1:
            raise BadInput(Message("launch_roll.no-number", {"key": option, "value": number}))
    if asked.card_memory_gib is not None and not 0 < asked.card_memory_gib < 4096:
        args = {"value": json.dumps(asked.card_memory_gib)}
        raise BadInput(Message("launch_roll.no-memory", args))
    return Cards(
        hardware=stack.platform.hardware or published.hardware,
        per_node=asked.cards_per_node or min(published.per_node, asked.cards_of_host or published.per_node),
        nodes=asked.nodes or published.nodes,
        memory_gib=asked.card_memory_gib or published.memory_gib,
    )


def _because(asked: LaunchOptions, cards: Cards, published: int) -> Message:
    """How many cards a node has in these files, and who decided it."""
    who = "published"
    if asked.cards_per_node is not None:
        who = "said"
    elif asked.cards_of_host is not None and asked.cards_of_host != published:
        who = "host-fewer" if asked.cards_of_host < published else "host-more"
    args = {"cards": cards.per_node, "nodes": cards.nodes, "published": published, "host": asked.cards_of_host or 0}
    return Message(f"launch_roll.cards-{who}", args)


def _ray(asked: LaunchOptions, cards: Cards, stack: Stack, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The scripts that start Ray by hand or by themselves; one node needs none: the framework starts Ray there."""
    if cards.nodes == 1:
        return {}

    return render_ray(cards, head=asked.head or None, framework=stack.framework, stack=stack, own=own)
