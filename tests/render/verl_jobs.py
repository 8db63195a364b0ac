"""Jobs as the published verl recipes have them, for the tests of the launch files."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.matrix import load_matrix
from npuenv.preflight.memory.types import Cards, Model, Placement
from npuenv.render.launch.verl_job import Paths, job_for

if TYPE_CHECKING:
    from npuenv.matrix.rows import LaunchRecipe
    from npuenv.preflight.memory.types import Job

TRAIN, TEST = "/data/gsm8k/train.parquet", "/data/gsm8k/test.parquet"
RECIPES = {row.id: row for row in load_matrix().launch_recipes}


def published(id: str, release: str = "0.7.1") -> tuple[Job, Placement, LaunchRecipe, Paths]:
    """A recipe on the cards that it was published for."""
    recipe = RECIPES[id]
    cards = Cards(recipe.hardware[0], recipe.cards_per_node, recipe.nodes)
    model = Model(recipe.model, 7.6e9, 28, 3584, 18944, 28, 4, 128, 152064, False)
    trains = recipe.cards_per_node - recipe.infer_cards_per_node
    every = tuple(range(cards.count))
    train = tuple(card for card in every if card % cards.per_node < trains)
    infer = tuple(card for card in every if card not in train) or every
    job = job_for(recipe, model=model, cards=cards, release=release)
    placement = Placement(train, (), ()) if recipe.entry == "sft" else Placement(train, infer, infer)
    return job, placement, recipe, Paths(recipe.model, TRAIN, TEST)


def words_of(script: str) -> list[str]:
    """The overrides in a script, as the shell would pass them."""
    command = script.split("\nexec ", 1)[1].replace("\\\n", " ")
    words = shlex.split(command)
    assert words[-1] == "$@"
    return words[words.index("-m") + 2 : -1]
