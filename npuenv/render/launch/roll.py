"""The launch files of a ROLL run: the YAML of a pipeline and the script that starts it.

Nothing is read from the machine and nothing is written here. The YAML is made from a tree of values, so every text in
it is quoted as YAML wants it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.preflight.memory import estimate, find_model, plan
from npuenv.preflight.memory.types import Job, Placement, written_cards
from npuenv.render.files import UNSAFE_IN_YAML, fill, plain, yaml_text
from npuenv.render.launch.job import (
    LaunchFiles,
    LaunchOptions,
    because,
    cards_of,
    chosen_placement,
    ray_scripts,
    refuse_roll,
)
from npuenv.render.launch.roll_recipe import (
    ACCUMULATION,
    INFER_CONFIG,
    LOCAL_CODE,
    OFFLOAD,
    TRAIN_CONFIG,
    filled,
    job_of,
    placed_job,
    published_cards,
    published_placement,
    published_train,
    templates_for,
    tree_of,
)
from npuenv.render.variables import outlived, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ruamel.yaml.comments import CommentedMap

    from npuenv.matrix.rows import RollDeparture
    from npuenv.preflight.memory.types import Job, Placement
    from npuenv.render.launch.roll_recipe import Filled
    from npuenv.resolve.types import Stack


_WIDTH = 110  # of a comment's line


def launch_roll(asked: LaunchOptions, stack: Stack, lang: str) -> LaunchFiles:
    """The files of a sample of ROLL, as `launch` gives them; `asked` has recipe and release. Raises: BadInput."""
    recipe = filled(asked.recipe, asked.release, overrides=asked.overrides, allows_local_code=asked.allows_local_code)
    row = recipe.row
    model = recipe.values["pretrain"] if "pretrain" in recipe.explicit else asked.model
    if model is not None:
        recipe = replace(recipe, values={**recipe.values, **templates_for(model, recipe.values, asked.overrides)})
    cards = cards_of(asked, stack, published_cards(row))
    job = job_of(recipe, find_model(asked.model or row.shape), cards, num_train=published_train(row))
    placement = _placement(asked, recipe, job)
    job = placed_job(job, recipe, placement)
    files = render_roll(job, placement, recipe, stack=stack, model=asked.model or "", head=asked.head, lang=lang)
    return LaunchFiles(
        files={**files, **ray_scripts(asked, cards, stack)},
        stack=stack,
        options=asked,
        job=job,
        placement=placement,
        estimate=estimate(job, placement),
        because=because(asked, cards, row.cards_per_node),
        notes=_said(asked, recipe, placement),
    )


def _said(asked: LaunchOptions, recipe: Filled, placement: Placement) -> tuple[Message, ...]:
    """Says it where a value is not the guide's, and where a plan puts both roles on the same cards, which the recipe
    holds apart."""
    replaced = tuple(Message("launch_roll.note", {"what": replaced_value(recipe, key)}) for key in recipe.replaced)
    is_chosen = asked.layout is not None or asked.train is not None or asked.infer is not None
    if is_chosen or placement.layout == "split" or published_placement(recipe.row).layout != "split":
        return replaced
    row = recipe.row
    return (*replaced, Message("launch_roll.planned-together", {"nodes": row.nodes, "cards": row.cards_per_node}))


def _placement(asked: LaunchOptions, recipe: Filled, job: Job) -> Placement:
    chosen = chosen_placement(asked, job.cards)
    if chosen is not None:
        return chosen
    published = published_placement(recipe.row)
    is_as_published = (job.cards.per_node, job.cards.nodes) == (recipe.row.cards_per_node, recipe.row.nodes)
    if is_as_published and asked.layout in (None, published.layout):
        return published
    return plan(job, layout=asked.layout)


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
    recipe's. `head` is the address of the first node of several; empty: the script takes it from MASTER_ADDR.

    Raises: BadInput for cards, sizes and settings that do not fit together, and for a value that could break out.
    """
    tree = tree_of(job, placement, recipe, stack=stack, model=model)
    _refuse_local_code(recipe, tree)
    title = Message(
        "launch_roll.head",
        {"recipe": recipe.row.id, "release": recipe.release_name, "stack": stack.name, "version": version},
    )
    name = recipe.row.id
    comments = {key: say(message, lang) for key, message in _comments(job, placement, recipe)}
    lines = [say(message, lang) for message in (title, *_notes(job, placement, recipe, stack))]
    text = _yaml(tree, lines, comments)
    refuse_roll(f"{name}.yaml", text, job.cards, recipe.version)
    return {
        f"{name}.yaml": text,
        "run.sh": _script(job, recipe, stack=stack, head=head, title=say(title, lang), lang=lang),
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


def _comments(job: Job, placement: Placement, recipe: Filled) -> Iterator[tuple[str, Message]]:
    """Dotted key -> why its value is what it is."""
    sizes = job.sizes
    update = sizes.mini_batch * sizes.rollouts
    if recipe.defaults:
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
    return "\n".join([*top, "", yaml_text([_commented(tree, comments, "", 0)])])


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
    return textwrap.wrap(_one_line(words), _WIDTH - indent, break_long_words=True, break_on_hyphens=False)


_PIPELINE = {"agentic": "examples/start_agentic_pipeline.py", "rlvr": "examples/start_rlvr_pipeline.py"}
# Below examples/: ROLL finds a configuration only from there, and `../config` of its defaults only from beside it.
_FOLDER = "npuenv"
_CACHE_FOLDER = "${XDG_CACHE_HOME:-$HOME/.cache}/npuenv"
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")


def _script(job: Job, recipe: Filled, *, stack: Stack, head: str, title: str, lang: str) -> str:
    """The script's text. Raises: BadInput for an address that could break out."""
    nodes = job.cards.nodes
    if nodes > 1 and head and not _ADDRESS.fullmatch(head):
        raise BadInput(Message("launch_roll.bad-head", {"head": repr(head)}), Message("launch_roll.bad-head-hint"))

    def text(key: str, **args: object) -> str:
        return _one_line(say(Message(f"launch_roll.{key}", args), lang))

    return fill(
        "roll_run.sh.j2",
        title=_one_line(title),
        text=text,
        program=_PIPELINE[recipe.row.pipeline],
        exports=[
            _export(*each)
            for role in ("run", "multi-node")[:nodes]
            for each in sorted(settings_of(stack, role).items())
        ],
        nodes=nodes,
        head=head,
        folder=_FOLDER,
        recipe=recipe.row.id,
    )


def _export(name: str, value: str) -> str:
    """A variable that is set already stays as it is."""
    rest = plain(value, name, UNSAFE_IN_YAML)
    if rest.startswith("{cache}"):
        return f'export {name}="${{{name}:-{_CACHE_FOLDER}{rest.removeprefix("{cache}")}}}"'
    return f'export {name}="${{{name}-{rest}}}"'


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
