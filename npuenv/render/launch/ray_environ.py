"""The environment settings that every process of a run needs, as lines of a POSIX shell script.

What belongs to one role alone (training or generating) is not here: a shell's environment reaches all processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.matrix import load_matrix
from npuenv.render.activation import settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.resolve.types import Stack

_CACHE = "${XDG_CACHE_HOME:-${HOME:?}/.cache}/npuenv"


def exports(
    framework: str, stack: Stack | None, *, is_multi_node: bool, own: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """One `export` a line, the run's `own` ones over the settings. A variable that is set already keeps its value."""
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
