"""The variables of a stack's processes, and the shell scripts that set them: activation scripts, Ray's start scripts.

There is an activation script for bash, zsh and every POSIX shell, one for fish, one for tcsh. They evaluate what the
program `entering.py` prints (`activation_program` beside this file), which lies in the environment beside the data that
it reads, and says how the way back is kept. The scripts print nothing, and no file holds a proxy.

Ray's scripts start it on the nodes of a run, by themselves or by hand: POSIX shell, for `sh` on every node. Ray counts
the cards itself where it sees their devices; where it does not, it is told `--resources='{"NPU": n}'`, and never
`--num-gpus`: a head started with that has GPUs and waits for NPUs for ever.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import npuenv
from npuenv.core import versions
from npuenv.core.documents import folder_of
from npuenv.core.errors import BadInput
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.install.cann import cann_scripts, compiler_scripts
from npuenv.matrix import load_matrix
from npuenv.render.activation_program import CSH_END, csh_quoted, fish_quoted, sh_quoted
from npuenv.render.files import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix.rows import Setting
    from npuenv.preflight.memory.types import Cards
    from npuenv.resolve.types import Stack


ROLES = ("build", "rollout", "train")


def render_activations(stack: Stack, root: str) -> Mapping[str, str]:
    """The files for an environment at `root`: path below it -> text. Pure and deterministic.

    To be sourced are `activate.sh`, `activate.fish` and `activate.csh`; the others belong to them.
    """
    usage = fill("activation_usage.j2", stack=stack.name, roles=" | ".join(ROLES), nodes="multi | single").rstrip()
    place = root.encode("utf-8", "surrogateescape")
    quoted = {"sh": sh_quoted(place), "fish": fish_quoted(place), "csh": csh_quoted(place)}
    return {
        **{
            f"activate.{shell}": fill(
                f"activation.{shell}.j2",
                root=word.decode("utf-8", "surrogateescape"),
                usage=usage,
                end=CSH_END.decode(),
            )
            for shell, word in quoted.items()
        },
        ".npuenv/activation.json": json.dumps(_activation_data(stack, root), indent=1, sort_keys=True) + "\n",
        ".npuenv/entering.py": (folder_of(__file__) / "activation_program.py").read_text(encoding="utf-8"),
    }


def settings_of(stack: Stack, role: str) -> Mapping[str, str]:
    """The matrix's settings for one role of the stack's processes, those its vllm-ascend reads."""
    rows = load_matrix().settings
    return {row.name: row.value for row in rows if row.role == role and _applies(row, stack)}


def outlived(stack: Stack) -> Mapping[str, str]:
    """The framework's settings that vllm-ascend has stopped reading by the stack's release of it."""
    rows = [row for row in load_matrix().settings if stack.framework in row.frameworks and row.until]
    pin = stack.pin("vllm-ascend")
    if pin is None:
        return {}
    return {row.name: row.value for row in rows if versions.accepts(f">={row.until}", pin.version)}


def _activation_data(stack: Stack, root: str) -> dict[str, object]:
    """What `entering.py` reads. `{cache}` in a value stands for npuenv's folder in the user's cache."""
    run = settings_of(stack, "run")
    cann, nnal = cann_scripts(stack)
    compiler = compiler_scripts(stack)
    return {
        "stack": stack.name,
        "root": root,
        "scripts": [cann, *compiler, nnal] if stack.cann_root else [],
        "may_lack": list(compiler),
        "on_path": [f"{root}/src/{source.name}" for source in stack.git_sources if source.how == "pythonpath"],
        "settings": dict(stack.env),
        "nodes": {"single": run, "multi": {**run, **settings_of(stack, "multi-node")}},
        "roles": {role: settings_of(stack, role) for role in ROLES},
        "texts": {lang: {key: say(message, lang) for key, message in _ACTIVATION_TEXTS.items()} for lang in LANGUAGES},
    }


def _applies(row: Setting, stack: Stack) -> bool:
    """Whether a setting is for the stack's framework, and read by its vllm-ascend where that is what reads it."""
    if stack.framework not in row.frameworks:
        return False
    pin = stack.pin("vllm-ascend")
    if pin is None:
        return not row.since
    return not (row.since and not versions.accepts(f">={row.since}", pin.version)) and not (
        row.until and versions.accepts(f">={row.until}", pin.version)
    )


def _kept(*names: str) -> dict[str, object]:
    """Placeholders that stand for themselves: the program in the environment fills them."""
    return {name: f"{{{name}}}" for name in names}


_ACTIVATION_TEXTS = {
    "choice": Message("stack.activate-choice", _kept("variable", "value", "known")),
    "no-profile": Message("stack.activate-no-profile", _kept("stack")),
    "no-script": Message("stack.activate-no-script", _kept("path")),
    "no-bash": Message("stack.activate-no-bash", _kept("why")),
    "ended": Message("stack.activate-ended", _kept("paths", "code")),
    "no-proxy": Message("stack.activate-no-proxy"),
    "unsourced": Message("stack.activate-unsourced", _kept("command")),
}


RAY_FILES = ("network.sh", "ray_auto.sh", "ray_head.sh", "ray_worker.sh")
_CACHE = "${XDG_CACHE_HOME:-${HOME:?}/.cache}/npuenv"
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*\Z")


def render_ray(
    cards: Cards,
    *,
    head: str | None,
    port: int = 6379,
    dashboard_port: int = 8265,
    framework: str,
    stack: Stack | None,
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The scripts by name. `ray_auto.sh` runs on every node and goes by RANK, WORLD_SIZE and MASTER_ADDR; `ray_head.sh`
    and `ray_worker.sh` are the same by hand; `network.sh` belongs to all three.

    `head` is the head's address or name; None: it has to be given when a script runs. `own` are the run's variables.
    Raises: BadInput for an address or a port that is none.
    """
    if head is not None and not _ADDRESS.match(head):
        raise BadInput(Message("launch.no-address", {"value": repr(head)}), Message("launch.no-address-hint"))
    for number in (port, dashboard_port):
        if not 1 <= number <= 65535:
            raise BadInput(Message("launch.no-port", {"value": number}))
    values = {
        "title": _ray_title(cards, framework, stack),
        "exports": exports(framework, stack, is_multi_node=cards.nodes > 1, own=own),
        "ray_auth": needs_auth_mode(stack),
        "head": head or "",
        "port": port,
        "dashboard_port": dashboard_port,
        "nodes": cards.nodes,
        "cards": cards.per_node,
    }
    return {name: fill(f"{name}.j2", **values) for name in RAY_FILES}


def _ray_title(cards: Cards, framework: str, stack: Stack | None) -> str:
    args: dict[str, object] = {"version": npuenv.__version__, "framework": framework}
    args |= {"nodes": cards.nodes, "cards": cards.per_node, "stack": stack.name if stack is not None else ""}
    return say(Message("launch.ray-made" if stack is not None else "launch.ray-made-without-stack", args))


def exports(
    framework: str, stack: Stack | None, *, is_multi_node: bool, own: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """One `export` a line, the run's `own` ones over the settings. A variable that is set already keeps its value.

    What belongs to one role alone is not here: a shell's environment reaches all processes.
    """
    roles = ("all", "run", "multi-node") if is_multi_node else ("all", "run")
    found: dict[str, str] = {}
    for role in roles:
        found.update(_settings(framework, stack, role))
    found.update(own or {})
    return tuple(f'export {name}="${{{name}-{value.replace("{cache}", _CACHE)}}}"' for name, value in found.items())


def held_back(framework: str, stack: Stack | None) -> tuple[str, ...]:
    """`NAME=value (role)` of each setting that is for training or generating processes alone."""
    return tuple(
        f"{name}={value or '(empty)'} ({role})"
        for role in ("train", "rollout")
        for name, value in _settings(framework, stack, role).items()
    )


def _settings(framework: str, stack: Stack | None, role: str) -> Mapping[str, str]:
    if stack is not None:
        return settings_of(stack, role)
    # Without a stack nobody knows the release of vllm-ascend. A variable that it does not read does no harm, but for
    # those whose time is over: they are left out.
    rows = load_matrix().settings
    return {row.name: row.value for row in rows if row.role == role and framework in row.frameworks and not row.until}


def needs_auth_mode(stack: Stack | None) -> bool:
    """Whether the stack's Ray may ask for a token that only one node has: from 2.59 on, and where its version is open.

    There a plain `ray.init()` leaves a token in the home, a later head takes it up, and the other nodes cannot join.
    """
    pin = stack.pin("ray") if stack is not None else None
    return pin is None or versions.accepts(">=2.59", pin.version)
