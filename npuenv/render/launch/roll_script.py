"""The script that starts a ROLL pipeline on one node or, run on each of them, on many: `script`.

POSIX shell, made from words that are quoted here. On many nodes it is ROLL's automatic manner: the same script on every
node, RANK tells them apart, ROLL starts Ray itself, and a worker's script ends with 0 once its node has joined.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.render.activation import settings_of
from npuenv.render.words import UNSAFE_IN_YAML, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Job
    from npuenv.render.launch.roll_recipe import Filled
    from npuenv.resolve.types import Stack

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
