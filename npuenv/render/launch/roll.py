"""ROLL's launch files from a job and a placement: the YAML of a pipeline and the script that starts it.

Nothing is read from the machine and nothing is written here. The YAML is made from a tree of values, so every text in
it is quoted as YAML wants it; the script from shell words.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.preflight.memory.types import written_cards
from npuenv.render.activation import outlived
from npuenv.render.launch.roll_recipe import ACCUMULATION, INFER_CONFIG, LOCAL_CODE, OFFLOAD, TRAIN_CONFIG, defaults_of
from npuenv.render.launch.roll_script import script
from npuenv.render.launch.roll_tree import tree_of
from npuenv.render.launch.self_check import refuse_roll
from npuenv.render.yaml import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ruamel.yaml.comments import CommentedMap

    from npuenv.matrix.rows import RollDeparture
    from npuenv.preflight.memory.types import Job, Placement
    from npuenv.render.launch.roll_recipe import Filled
    from npuenv.resolve.types import Stack

_WIDTH = 110  # of a comment's line


def render_roll(
    job: Job,
    placement: Placement,
    recipe: Filled,
    *,
    stack: Stack,
    model: str = "",
    head: str = "",
    lang: str = "en",
    version: str = npuenv.__version__,
) -> dict[str, str]:
    """File name -> text: `<recipe>.yaml` and `run.sh`. Pure and deterministic.

    `job` is as `placed_job` gives it for this placement. `model` is a folder, or a name on a model hub; empty: the
    recipe's. `head` is the address of the first node of several; empty: the
    script takes it from MASTER_ADDR.

    Raises: BadInput for cards, sizes and settings that do not fit together, and for a value that could break out.
    """
    defaults = defaults_of(recipe.row, load_matrix().roll_recipes, recipe.release)
    tree = tree_of(job, placement, recipe, stack=stack, model=model, defaults=defaults)
    _refuse_local_code(recipe, tree)
    title = Message(
        "launch_roll.head",
        {"recipe": recipe.row.id, "release": recipe.release_name, "stack": stack.name, "version": version},
    )
    name = recipe.row.id
    comments = {key: say(message, lang) for key, message in _comments(job, placement, recipe, defaults)}
    lines = [say(message, lang) for message in (title, *_notes(job, placement, recipe, stack))]
    text = _yaml(tree, lines, comments)
    refuse_roll(f"{name}.yaml", text, job.cards, recipe.version)
    return {
        f"{name}.yaml": text,
        "run.sh": script(job, recipe, stack=stack, head=head, title=say(title, lang), lang=lang),
    }


def _refuse_local_code(recipe: Filled, tree: Mapping[str, Any]) -> None:
    """Raises: BadInput for a reward that would run the model's code on the nodes, unless the user allows it."""
    for domain, reward in {} if recipe.allows_local_code else tree.get("rewards", {}).items():
        # Without a setting ROLL's workers run the code themselves: the default of `use_local` is true.
        if str(reward.get("worker_cls", "")).endswith(LOCAL_CODE) and reward.get("use_local", True) is not False:
            raise BadInput(
                Message("launch_roll.local-code", {"domain": domain}), Message("launch_roll.local-code-hint")
            )


def _notes(job: Job, placement: Placement, recipe: Filled, stack: Stack) -> Iterator[Message]:
    """What stands on top of the file, after its title."""
    args = {
        "train": written_cards(placement.train),
        "infer": written_cards(placement.infer),
        "reference": written_cards(placement.reference),
        "nodes": job.cards.nodes,
        "each": job.cards.per_node,
    }
    yield Message("launch_roll.note-cards", args)
    yield Message("launch_roll.note-source", {"source": recipe.row.source})
    yield Message("launch_roll.note-start")
    yield Message("launch_roll.note-count")
    yield from (departed(each, recipe) for each in recipe.departures if each.key not in recipe.values)
    pin, unread = stack.pin("vllm-ascend"), outlived(stack)
    if pin is not None and unread:
        variables = tuple(f"{name}={value}" for name, value in unread.items())
        yield Message("launch_roll.unread-variables", {"variables": variables, "version": pin.version})
    if recipe.lacks_local_code:
        yield Message("launch_roll.note-local-code")


def _comments(
    job: Job, placement: Placement, recipe: Filled, defaults: tuple[str, ...]
) -> Iterator[tuple[str, Message]]:
    """Dotted key -> why its value is what it is."""
    sizes = job.sizes
    update = sizes.mini_batch * sizes.rollouts
    if defaults:
        yield "defaults", Message("launch_roll.why-defaults")
    yield "system_envs", Message("launch_roll.why-variables")
    yield "pretrain", Message("launch_roll.why-model")
    yield "actor_train.model_args.attn_implementation", Message("launch_roll.why-attention")
    yield ACCUMULATION, Message("launch_roll.why-accumulation", {"update": update, "cards": len(placement.train)})
    yield TRAIN_CONFIG, Message(f"launch_roll.why-{job.engine}", {"release": recipe.release_name})
    if job.offloads_parameters:
        key = OFFLOAD if job.engine == "fsdp2" else TRAIN_CONFIG
        why = "colocated" if placement.layout == "colocated" else "offload"
        yield key, Message(f"launch_roll.why-{why}")
    yield "actor_train.system_envs", Message("launch_roll.why-train-variables")
    yield "actor_infer.system_envs", Message("launch_roll.why-infer-variables")
    whole = sizes.prompt_length + sizes.response_length
    args = {"prompt": sizes.prompt_length, "response": sizes.response_length, "whole": whole}
    yield f"{INFER_CONFIG}.max_model_len", Message(f"launch_roll.why-length-{recipe.row.pipeline}", args)
    if set(placement.reference) & set(placement.infer):
        share = {"share": f"{1 - job.gpu_memory_utilization:.0%}"}
        yield "reference.device_mapping", Message("launch_roll.why-shared", share)
    yield from ((key, replaced_value(recipe, key)) for key in recipe.replaced)
    yield from ((each.key, departed(each, recipe)) for each in recipe.departures if each.key in recipe.values)
    if recipe.allows_local_code and "rewards.code_sandbox.use_local" in recipe.values:
        yield "rewards.code_sandbox", Message("launch_roll.why-local-code")


def departed(departure: RollDeparture, recipe: Filled) -> Message:
    """In what a value is not the sample's, and why."""
    is_written = departure.key in recipe.values
    how = "left-out" if not is_written else "changed" if departure.sample else "added"
    args = {"key": departure.key, "sample": departure.sample, "why": Message(departure.why)}
    return Message(f"launch_roll.departed-{how}", args)


def replaced_value(recipe: Filled, key: str) -> Message:
    """Why a value is not the guide's."""
    args = {"key": key, "value": recipe.values[key], "guide": recipe.replaced[key], "release": recipe.release_name}
    return Message("launch_roll.why-replaced", args)


def _yaml(tree: Mapping[str, Any], head: list[str], comments: Mapping[str, str]) -> str:
    top = [f"# {line}" for words in head for line in _wrapped(words, 0)]
    return "\n".join([*top, "", text_of([_commented(tree, comments, "", 0)])])


def _commented(tree: Mapping[str, Any], comments: Mapping[str, str], above: str, depth: int) -> CommentedMap:
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.scalarstring import SingleQuotedScalarString

    group = CommentedMap()
    for name, value in tree.items():
        key = f"{above}.{name}" if above else name
        if isinstance(value, dict):
            group[name] = _commented(value, comments, key, depth + 1)
        elif above.endswith("system_envs"):
            # Unquoted, numbers and truth values would reach os.environ as such, which takes texts only.
            group[name] = SingleQuotedScalarString(value)
        else:
            group[name] = value
        if key in comments:
            lines = "\n".join(_wrapped(comments[key], depth * 2))
            group.yaml_set_comment_before_after_key(name, before=lines, indent=depth * 2)
    return group


def _wrapped(words: str, indent: int) -> list[str]:
    clean = "".join(letter if letter.isprintable() else " " for letter in words)
    return textwrap.wrap(clean, _WIDTH - indent, break_long_words=True, break_on_hyphens=False)
