"""The scripts that start Ray on the nodes of a run, by themselves or by hand, and the variables that a run exports.

POSIX shell, for `sh` on every node. Ray counts the cards itself where it sees their devices; where it does not, it is
told `--resources='{"NPU": n}'`, and never `--num-gpus`: a head started with that has GPUs and waits for NPUs for ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import npuenv
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.render.activation import settings_of
from npuenv.render.template import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.preflight.memory.types import Cards
    from npuenv.resolve.types import Stack

FILES = ("network.sh", "ray_auto.sh", "ray_head.sh", "ray_worker.sh")
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
        "title": _title(cards, framework, stack),
        "exports": exports(framework, stack, is_multi_node=cards.nodes > 1, own=own),
        "ray_auth": needs_auth_mode(stack),
        "head": head or "",
        "port": port,
        "dashboard_port": dashboard_port,
        "nodes": cards.nodes,
        "cards": cards.per_node,
    }
    return {name: fill(f"{_template(name)}.j2", **values) for name in FILES}


def _template(name: str) -> str:
    return name if name.startswith("ray_") else f"ray_{name}"


def _title(cards: Cards, framework: str, stack: Stack | None) -> str:
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
