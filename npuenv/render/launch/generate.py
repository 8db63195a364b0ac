"""The launch files that a user asks for, of either framework: `launch`. `verl.py` and `roll.py` make them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.preflight.configs import short_name
from npuenv.render.launch.job import LaunchFiles, LaunchOptions, judged_as, unknown
from npuenv.render.launch.roll import launch_roll
from npuenv.render.launch.roll_recipe import release_of
from npuenv.render.launch.verl import launch_verl
from npuenv.resolve.parts import missing_model_type

if TYPE_CHECKING:
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Stack

FRAMEWORKS = ("verl", "roll")
FIRST_RECIPE = {"verl": "quick-start", "roll": "agentic-frozen-lake"}


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
    made = _launch(asked, stack, lang)
    pin = stack.pin("transformers")
    name = made.job.model.id.rstrip("/").rpartition("/")[2]
    missing = missing_model_type(name, pin.version if pin is not None else None, stack.framework, matrix)
    notes = (missing, judged, _unusual(asked, made, stack))
    return replace(made, options=asked, notes=(*(note for note in notes if note is not None), *made.notes))


def _launch(asked: LaunchOptions, stack: Stack, lang: str = "en") -> LaunchFiles:
    return launch_roll(asked, stack, lang) if stack.framework == "roll" else launch_verl(asked, stack)


def _release_of(stack: Stack, matrix: Matrix) -> str:
    row = next((row for row in matrix.recipes if stack.name.startswith(row.id)), None)
    if row is None:
        args = {"stack": stack.name}
        raise BadInput(Message("launch_roll.no-release", args), Message("launch_roll.no-release-hint"))
    return row.release


def _unusual(asked: LaunchOptions, made: LaunchFiles, stack: Stack) -> Message | None:
    """Says it where the recipe's number of cards was taken and the hardware's nodes mostly have another."""
    cards = made.job.cards
    row = next((row for row in load_matrix().container_cards if row.hardware == cards.hardware), None)
    is_said = asked.cards_per_node is not None or asked.cards_of_host is not None
    if is_said or row is None or not row.usual or cards.per_node == row.usual:
        return None
    args = {"cards": cards.per_node, "hardware": cards.hardware, "usual": row.usual}
    if cards.per_node > row.usual:
        return Message("launch_roll.unusual-cards", args)
    words = (f"--cards-per-node {row.usual}", *_changes(replace(asked, cards_per_node=row.usual), stack))
    return Message("launch_roll.idle-cards", {**args, "words": " ".join(words)})


def _changes(asked: LaunchOptions, stack: Stack) -> tuple[str, ...]:
    """The settings that a launch would be refused without, each as KEY=VALUE, as far as the refusal tells them."""
    try:
        _launch(asked, stack)
    except BadInput as error:
        changes = error.hint.args.get("changes") if error.hint is not None else None
        return changes if isinstance(changes, tuple) else ()
    return ()


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
