"""The scripts that start Ray on the nodes of a run, by themselves or by hand.

POSIX shell, for `sh` on every node. Ray counts the cards itself where it sees their devices; where it does not, it is
told `--resources='{"NPU": n}'`, and never `--num-gpus`: a head started with that has GPUs and waits for NPUs for ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.render.launch import ray_environ
from npuenv.render.template import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.preflight.memory.types import Cards
    from npuenv.resolve.types import Stack

FILES = ("network.sh", "ray_auto.sh", "ray_head.sh", "ray_worker.sh")
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
        "exports": ray_environ.exports(framework, stack, is_multi_node=cards.nodes > 1, own=own),
        "ray_auth": ray_environ.needs_auth_mode(stack),
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
