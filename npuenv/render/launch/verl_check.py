"""How verl counts the cards of a placement, so many on each node, and what it cannot run: said before anything is
written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.matrix.rows import LaunchRecipe
    from npuenv.preflight.memory.types import Cards, Job, Placement
    from npuenv.render.launch.verl_values import Value

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
        names |= {"since": recipe.since, "until": recipe.until or "-"}
        raise BadInput(Message("launch.not-in-release", names), Message("launch.not-in-release-hint", names))


def _roles(placement: Placement, recipe: LaunchRecipe, values: Mapping[str, Value]) -> None:
    noise = next((key for key in values if key.startswith("trainer.noise_injection")), None)
    if noise is not None:
        raise BadInput(Message("launch.noise-stock", {"recipe": recipe.id}), Message("launch.refused-hint"))
    is_split = placement.layout == "split"
    if recipe.entry != "sft" and is_split != (recipe.entry == "one-step-off"):
        key = "launch.split-in-main" if is_split else "launch.colocated-one-step"
        raise BadInput(Message(key, {"recipe": recipe.id}), Message(f"{key}-hint"))
    if recipe.entry == "main" and set(placement.train) != set(placement.infer):
        raise BadInput(Message("launch.overlap"), Message("launch.overlap-hint"))
    if values.get("algorithm.adv_estimator") == "gae" and recipe.algorithm != "ppo":
        raise BadInput(Message("launch.estimator", {"recipe": recipe.id}), Message("launch.estimator-hint"))


def _divides(what: str, whole: int, part: int) -> None:
    if part < 1 or whole < part or whole % part:
        raise BadInput(Message(f"launch.size-{what}", {"part": part, "whole": whole}), Message("launch.size-hint"))
