"""The launch files of a verl run: a command with its overrides, and the same as a YAML for Hydra.

Pure and deterministic. What a job, its placement and its paths say wins over the recipe; the recipe fills in the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import npuenv
from npuenv.core import versions
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.render import variables
from npuenv.render.files import UNSAFE_OR_BLANK, fill, plain
from npuenv.render.launch.job import refuse_verl
from npuenv.render.launch.verl_job import (
    check,
    environment,
    for_release,
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
    from npuenv.preflight.memory.types import Job, Placement
    from npuenv.render.launch.job import Paths
    from npuenv.render.launch.verl_job import OnNodes, Value
    from npuenv.resolve.types import Stack

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


def render_verl(
    job: Job,
    placement: Placement,
    recipe: LaunchRecipe,
    *,
    stack: Stack,
    paths: Paths,
    added: Collection[str] = (),
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
