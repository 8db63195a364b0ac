"""ROLL's launch files from a job and a placement: the YAML of a pipeline and the script that starts it.

Nothing is read from the machine and nothing is written here. The YAML is made from a tree of values, so every text in
it is quoted as YAML wants it; the script from shell words.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.preflight.memory.types import ranges, written_cards
from npuenv.preflight.rules.memory import ROLL_STRATEGIES
from npuenv.render.files import UNSAFE_IN_YAML, plain, yaml_text
from npuenv.render.launch.job import nested, refuse_roll
from npuenv.render.launch.roll_recipe import (
    ACCUMULATION,
    INFER_CONFIG,
    LOCAL_CODE,
    OFFLOAD,
    REFERENCE_CONFIG,
    TRAIN_CONFIG,
    accumulation,
    defaults_of,
)
from npuenv.render.variables import outlived, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    recipe's. `head` is the address of the first node of several; empty: the script takes it from MASTER_ADDR.

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
    clean = "".join(letter if letter.isprintable() else " " for letter in words)
    return textwrap.wrap(clean, _WIDTH - indent, break_long_words=True, break_on_hyphens=False)


# The order inside a role, as ROLL's own samples have it.
_ROLE = (
    "worker_cls",
    "model_args",
    "training_args",
    "data_args",
    "generating_args",
    "strategy_args",
    "device_mapping",
    "system_envs",
    "infer_batch_size",
)
# Before it stand the run's variables.
_AFTER_VARIABLES = "max_steps"
_ROLES = ("actor_train", "actor_infer", "reference")
# For several processes on a card HCCL wants free ports of the host beside those of the card.
# Source: hicann/hccl docs/zh/user_guide/hccl_env/HCCL_HOST_SOCKET_PORT_RANGE.md
_TOGETHER = {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}


def tree_of(
    job: Job, placement: Placement, recipe: Filled, *, stack: Stack, model: str, defaults: Sequence[str]
) -> dict[str, Any]:
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
    return {**_head(defaults), **_with_variables_first(tree)}


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


_PIPELINE = {"agentic": "examples/start_agentic_pipeline.py", "rlvr": "examples/start_rlvr_pipeline.py"}
# Below examples/: ROLL finds a configuration only from there, and `../config` of its defaults only from beside it.
_FOLDER = "npuenv"
_CACHE = "{cache}"
_CACHE_FOLDER = '"${XDG_CACHE_HOME:-$HOME/.cache}/npuenv"'
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
_RAY_PORT = 6379
_DASHBOARD_PORT = 8265


def script(job: Job, recipe: Filled, *, stack: Stack, head: str, title: str, lang: str) -> str:
    """The script's text. Raises: BadInput for an address that could break out."""
    lines = ["#!/bin/sh", f"# {_one_line(title)}", "set -eu"]
    lines += _tree(recipe, lang)
    lines += _comment("sh-variables", lang)
    lines += [f"export {name}={value}" for name, value in _settings(stack, "run")]
    if job.cards.nodes > 1:
        lines += [f"export {name}={value}" for name, value in _settings(stack, "multi-node")]
        lines += _many_nodes(job, head, lang)
    lines += _start(recipe, lang)
    return "\n".join(lines) + "\n"


def _tree(recipe: Filled, lang: str) -> list[str]:
    program = _PIPELINE[recipe.row.pipeline]
    return [
        "",
        'here="$(CDPATH="" cd -- "$(dirname -- "$0")" && pwd)"',
        *_comment("sh-tree", lang),
        'tree="${ROLL_ROOT:-$(pwd)}"',
        *_stop_if(f'[ ! -f "$tree/{program}" ]', "sh-no-tree", {"program": program}, lang, shown='": $tree"'),
        *_comment("sh-path", lang),
        'export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}"',
        "",
    ]


def _many_nodes(job: Job, head: str, lang: str) -> list[str]:
    nodes = job.cards.nodes
    if head and not _ADDRESS.fullmatch(head):
        raise BadInput(Message("launch_roll.bad-head", {"head": repr(head)}), Message("launch_roll.bad-head-hint"))
    default = [f'MASTER_ADDR="${{MASTER_ADDR:-{head}}}"'] if head else []
    lines = [
        *_comment("sh-nodes", lang, {"nodes": nodes, "last": nodes - 1}),
        *_stop_if('[ -z "${RANK:-}" ]', "sh-no-rank", {"last": nodes - 1}, lang),
        *default,
        *_stop_if('[ -z "${MASTER_ADDR:-}" ]', "sh-no-head", {}, lang),
        f"export RANK MASTER_ADDR WORLD_SIZE={nodes}",
        f'export MASTER_PORT="${{MASTER_PORT:-{_RAY_PORT}}}" DASHBOARD_PORT="${{DASHBOARD_PORT:-{_DASHBOARD_PORT}}}"',
        *_comment("sh-interface", lang),
        'if [ -z "${HCCL_SOCKET_IFNAME:-}" ]; then',
        # ip knows addresses only, no names.
        '    head="$(getent ahosts "$MASTER_ADDR" 2>/dev/null | awk \'NR == 1 { print $1 }\' || :)"',
        '    head="${head:-$MASTER_ADDR}"',
        # The head's own address is routed through lo: there the interface that holds it is asked for.
        '    own="$(ip -o addr show to "$head" 2>/dev/null | awk \'NR == 1 { print $2 }\' || :)"',
        '    route="$(ip -o route get "$head" 2>/dev/null || :)"',
        "    via=\"$(printf '%s\\n' \"$route\" | sed -n '1s/.* dev \\([^ ]*\\).*/\\1/p')\"",
        '    name="${own:-$via}"',
        *_stop_if('[ -z "$name" ]', "sh-no-interface", {}, lang, shown='": $MASTER_ADDR"', indent="    "),
        # A plain name is a prefix to HCCL: eth1 would take eth10 too.
        '    export HCCL_SOCKET_IFNAME="=$name"',
        # These two take the name alone.
        '    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$name}" TP_SOCKET_IFNAME="${TP_SOCKET_IFNAME:-$name}"',
        '    if [ -z "${HCCL_IF_IP:-}" ]; then',
        "        source=\"$(printf '%s\\n' \"$route\" | sed -n '1s/.* src \\([^ ]*\\).*/\\1/p')\"",
        '        if [ -n "$source" ]; then export HCCL_IF_IP="$source"; fi',
        "    fi",
        "fi",
    ]
    opens = 'if [ -n "${RANK:-}" ] || ! ray status >/dev/null 2>&1; then'
    return ["", *_comment("sh-by-hand", lang), opens, *(f"    {line}" for line in lines), "fi"]


def _start(recipe: Filled, lang: str) -> list[str]:
    name, program = recipe.row.id, _PIPELINE[recipe.row.pipeline]
    return [
        "",
        *_comment("sh-copy", lang),
        f'mkdir -p -- "$tree/examples/{_FOLDER}"',
        f'cp -- "$here/{name}.yaml" "$tree/examples/{_FOLDER}/{name}.yaml"',
        'cd -- "$tree"',
        f"exec python {program} --config_path {_FOLDER} --config_name {shlex.quote(name)}",
    ]


def _settings(stack: Stack, role: str) -> Iterator[tuple[str, str]]:
    """Variables with their values as shell words; one that is set already stays as it is."""
    for name, value in sorted(settings_of(stack, role).items()):
        rest = plain(value, name, UNSAFE_IN_YAML)
        if rest.startswith(_CACHE):
            place = f'{_CACHE_FOLDER[:-1]}{rest.removeprefix(_CACHE)}"'
            yield name, f'"${{{name}:-{place[1:-1]}}}"'
        else:
            yield name, f'"${{{name}-{rest}}}"'


def _stop_if(
    condition: str, key: str, args: dict[str, object], lang: str, *, shown: str = "", indent: str = ""
) -> list[str]:
    text = shlex.quote(_one_line(say(Message(f"launch_roll.{key}", args), lang)))
    return [
        f"{indent}if {condition}; then",
        f"{indent}    printf '%s\\n' {text}{shown} >&2",
        f"{indent}    exit 2",
        f"{indent}fi",
    ]


def _comment(key: str, lang: str, args: dict[str, object] | None = None) -> list[str]:
    return [f"# {_one_line(say(Message(f'launch_roll.{key}', args or {}), lang))}"]


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
