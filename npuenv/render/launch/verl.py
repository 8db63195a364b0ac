"""The launch files of a verl run: a command with its overrides, and the same as a YAML for Hydra.

Pure and deterministic. What a job, its placement and its paths say wins over the recipe; the recipe fills in the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import npuenv
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import names_of
from npuenv.preflight.memory import estimate, find_model, plan
from npuenv.preflight.memory.types import Cards, Job, Placement
from npuenv.render import variables
from npuenv.render.files import UNSAFE_IN_YAML, UNSAFE_OR_BLANK, fill, plain
from npuenv.render.launch.job import (
    LaunchFiles,
    LaunchOptions,
    because,
    cards_of,
    chosen_placement,
    form_of,
    parse_cards,
    ray_scripts,
    refuse_verl,
    unknown,
)
from npuenv.render.launch.verl_job import (
    Paths,
    check,
    check_layout,
    check_recipe,
    environment,
    for_release,
    job_for,
    left_out,
    of_job,
    on_nodes,
    word,
    written,
    yaml,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from npuenv.matrix.rows import LaunchRecipe
    from npuenv.preflight.memory.types import Job
    from npuenv.render.launch.verl_job import OnNodes, Value
    from npuenv.resolve.types import Stack

_TRAIN_FILE, _VALIDATION_FILE = "data.train_files", "data.val_files"
# What a recipe's data must hold -> verl's preparation that writes it; it is told to write below the data folder of the
# run manifests.
_PREPARATIONS = {"launch.image-data": "geo3k", "launch.sft-data": "gsm8k_multiturn_sft"}
# What the cards and the model decide: said with options of their own, so that nothing contradicts the plan.
_OWN_OPTION = {
    "trainer.n_gpus_per_node": "--cards-per-node, --train-cards",
    "trainer.nnodes": "--nodes",
    "rollout.n_gpus_per_node": "--infer-cards",
    "rollout.nnodes": "--nodes",
    "actor_rollout_ref.model.path": "--model",
    "model.path": "--model",
}
# entry -> the program, and the configuration of verl that its values are written over
PROGRAMS = {
    "main": ("verl.trainer.main_ppo", "ppo_trainer"),
    "one-step-off": ("verl.experimental.one_step_off_policy.main_ppo", "ppo_trainer"),
    "sft": ("verl.trainer.sft_trainer", "sft_trainer_engine"),
}
# This program's own configuration looks for verl's below the working folder; here it is found wherever verl lies.
_SEARCH_PATH = "pkg://verl.trainer.config"
_SECTIONS = (
    "algorithm", "data", "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref", "actor_rollout_ref", "critic", "custom_reward_function", "reward", "reward_model", "model",
    "optim", "engine", "rollout", "ray_init", "ray_kwargs", "trainer",
)  # fmt: skip


def launch_verl(asked: LaunchOptions, stack: Stack) -> LaunchFiles:
    """The files of a recipe of verl, as `launch` gives them; `asked` has recipe and release. Raises: BadInput."""
    row = next(row for row in load_matrix().launch_recipes if row.id == asked.recipe)
    asked = replace(asked, release=form_of("verl", asked.release))
    # First of all: a recipe that is not rendered has no values to judge.
    check_recipe(row, asked.release)
    recipe = _with_overrides(row, asked)
    cards = cards_of(asked, stack, Cards(recipe.hardware[0], recipe.cards_per_node, recipe.nodes))
    model = plain(asked.model or recipe.model, "--model", UNSAFE_IN_YAML)
    job = job_for(recipe, model=find_model(model), cards=cards, release=asked.release)
    placement = _placement(asked, recipe, job)
    paths = _paths(recipe, model, asked.overrides)
    added = {word.lstrip("+") for word in asked.overrides if word.startswith("+")}
    files = render_verl(job, placement, recipe, stack=stack, paths=paths, added=added)
    # Ray's processes have the environment of the shell that starts Ray. Without Ray there is nothing to start.
    scripts = {} if recipe.entry == "sft" else ray_scripts(asked, cards, stack, environment(recipe))
    return LaunchFiles(
        files={**files, **scripts},
        stack=stack,
        options=asked,
        job=job,
        placement=placement,
        estimate=estimate(job, placement),
        because=because(asked, cards, recipe.cards_per_node),
    )


def _paths(recipe: LaunchRecipe, model: str, overrides: Mapping[str, str]) -> Paths:
    preparation = next((_PREPARATIONS[note] for note in recipe.notes if note in _PREPARATIONS), "gsm8k")
    prepared = {
        _TRAIN_FILE: f"/data/{preparation}/train.parquet",
        _VALIDATION_FILE: f"/data/{preparation}/test.parquet",
    }
    said = {**prepared, **overrides}
    own = any(said[key] != prepared[key] for key in prepared)
    return Paths(model, said[_TRAIN_FILE], said[_VALIDATION_FILE], preparation="" if own else preparation)


def _placement(asked: LaunchOptions, recipe: LaunchRecipe, job: Job) -> Placement:
    if recipe.entry == "sft":
        return _training_alone(asked, recipe, job.cards)
    chosen = chosen_placement(asked, job.cards)
    layout = chosen.layout if chosen is not None else asked.layout
    if layout is not None:
        check_layout(recipe, layout)  # before cards are planned or counted for it
    if chosen is not None:
        # verl's reference works where training does.
        return chosen if asked.reference else replace(chosen, reference=chosen.train)
    if recipe.infer_cards_per_node:
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
    """The last cards of every node generate: the share of them that the recipe was published with."""
    first = cards.per_node - max(1, cards.per_node * recipe.infer_cards_per_node // recipe.cards_per_node)
    if not first:
        raise BadInput(Message("placement.too-few-cards", {"cards": cards.per_node}))
    train = tuple(card for card in range(cards.count) if card % cards.per_node < first)
    infer = tuple(card for card in range(cards.count) if card % cards.per_node >= first)
    return Placement(train, infer, train)


def _with_overrides(recipe: LaunchRecipe, asked: LaunchOptions) -> LaunchRecipe:
    known = {*written(recipe), *names_of("verl", asked.release)}
    keys = {word.lstrip("+"): value for word, value in asked.overrides.items()}
    own = next((key for key in keys if key in _OWN_OPTION), None)
    if own is not None:
        args = {"key": own, "option": _OWN_OPTION[own]}
        raise BadInput(Message("launch_roll.own-option", args), Message("launch_roll.own-option-hint", args))
    strange = next((key for key in asked.overrides if not key.startswith("+") and key not in known), None)
    if strange is not None:
        raise unknown(strange, sorted(known), "verl-key")
    values = {key: value for key, value in keys.items() if key not in (_TRAIN_FILE, _VALIDATION_FILE)}
    return replace(recipe, values={**recipe.values, **values})


def render_verl(
    job: Job, placement: Placement, recipe: LaunchRecipe, *, stack: Stack, paths: Paths, added: Collection[str] = ()
) -> dict[str, str]:
    """The files by name: `run.sh` for a POSIX shell, and `config.yaml` for verl's `--config-dir`.

    Both say the same. `added` are keys that the user insists on, whether the release lists them or not.

    Raises: BadInput for what verl cannot run, and for values that could break out of the files.
    """
    values = overrides(job, placement, recipe, paths)
    words = words_of(values, recipe, added)
    if recipe.entry != "sft":  # no rule judges that program
        refuse_verl(PROGRAMS[recipe.entry][0], words, job.cards, job.release)
    nodes = on_nodes(job.cards, placement)
    head = _head(job, recipe, stack, paths)
    return {
        "run.sh": _script(words, nodes, recipe, stack=stack, head=head),
        "config.yaml": _yaml(values, recipe, head),
    }


def overrides(job: Job, placement: Placement, recipe: LaunchRecipe, paths: Paths) -> dict[str, Value]:
    """verl's keys, as `job.release` names them, with their values. Raises: BadInput for what verl cannot run."""
    for what in ("model", "train_file", "validation_file"):
        plain(getattr(paths, what), f"paths.{what}", UNSAFE_OR_BLANK)
    values, nodes = written(recipe), on_nodes(job.cards, placement)
    check(job, placement, recipe, values, nodes)
    values |= of_job(job, nodes, recipe, values, paths)
    for key, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                plain(each, key, UNSAFE_OR_BLANK)
    return dict(sorted(for_release(values, job.release).items(), key=lambda item: _section(item[0])))


def words_of(values: Mapping[str, Value], recipe: LaunchRecipe, added: Collection[str] = ()) -> list[str]:
    """The overrides as words of a shell command, as `run.sh` has them; `added` as for `render_verl`."""
    rows = load_matrix().launch_keys
    words = [
        word(key, value, is_added=key in added or any(row.adds(key) for row in rows)) for key, value in values.items()
    ]
    return [word("hydra.searchpath", [_SEARCH_PATH]), *words] if recipe.entry == "one-step-off" else words


def _section(key: str) -> int:
    found = [at for at, section in enumerate(_SECTIONS) if key.startswith(f"{section}.")]
    return found[0] if found else len(_SECTIONS)


def _head(job: Job, recipe: LaunchRecipe, stack: Stack, paths: Paths) -> tuple[str, ...]:
    """The sentences at the top of both files."""
    args: dict[str, object] = {"version": npuenv.__version__, "release": job.release, "recipe": recipe.id}
    args |= {"stack": stack.name, "model": plain(job.model.id, "model", UNSAFE_OR_BLANK)}
    about = {"script": recipe.script, "cards": recipe.cards_per_node * recipe.nodes, "nodes": recipe.nodes}
    notes = (*recipe.notes, *left_out(written(recipe), job.release))
    lines = [Message("launch.made", args), Message("launch.recipe", about), *(Message(note) for note in notes)]
    if paths.preparation:
        option = "--local_save_dir" if versions.accepts(">=0.6.0", job.release) else "--local_dir"
        folder = paths.train_file.rpartition("/")[0]
        lines.append(Message("launch.prepared", {"script": paths.preparation, "option": option, "folder": folder}))
    return tuple(say(line) for line in lines)


def _script(words: Sequence[str], nodes: OnNodes, recipe: LaunchRecipe, *, stack: Stack, head: tuple[str, ...]) -> str:
    program, _ = PROGRAMS[recipe.entry]
    is_torchrun = recipe.entry == "sft"
    return fill(
        "verl_run.sh.j2",
        head=head,
        exports=variables.exports("verl", stack, is_multi_node=nodes.nodes > 1, own=environment(recipe)),
        held_back=variables.held_back("verl", stack),
        ray_auth=variables.needs_auth_mode(stack),
        visible=",".join(str(card) for card in nodes.visible) if nodes.visible is not None else "",
        nodes=nodes.nodes,
        cards=nodes.train,
        program=program,
        is_torchrun=is_torchrun,
        config_program=f"torchrun ... -m {program}" if is_torchrun else f"python3 -m {program}",
        words=words,
    )


def _yaml(values: Mapping[str, Value], recipe: LaunchRecipe, head: tuple[str, ...]) -> str:
    program, config = PROGRAMS[recipe.entry]
    lines = [f"# {line}" for line in (*head, say(Message("launch.yaml-use", {"program": program})))]
    if recipe.entry == "one-step-off":
        lines += ["hydra:", f'  searchpath: ["{_SEARCH_PATH}"]']
    lines += ["defaults:", f"  - {config}", "  - _self_", ""]
    return "\n".join(lines) + yaml(values)
