"""The activation script of an environment. Start from `render_activation`.

To be sourced by bash, dash or any POSIX shell. It sets PATH, VIRTUAL_ENV and what the stack says, sources CANN's own
scripts, and defines `npuenv_deactivate`, which puts everything back. It prints nothing, proxies least of all.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.plan.cann import cann_scripts

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

_CANN_NAMES = ("LD_LIBRARY_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH",
               "TOOLCHAIN_HOME", "ATB_HOME_PATH", "CMAKE_PREFIX_PATH", "PYTHONPATH")  # fmt: skip


def render_activation(stack: Stack, root: str) -> str:
    """The script for an environment at `root`. Pure and deterministic; the text ends with a line feed."""
    on_path = [f"{root}/src/{source.name}" for source in stack.git_sources if source.how == "pythonpath"]
    touched = [
        "PATH",
        "VIRTUAL_ENV",
        *(_CANN_NAMES if stack.cann_root else ("PYTHONPATH",) * bool(on_path)),
        *stack.env,
    ]
    names = list(dict.fromkeys(touched))
    lines = [
        f"# Source this file to use the stack {stack.name}; `npuenv_deactivate` undoes it.",
        'if [ -n "${NPUENV_ACTIVE-}" ]; then npuenv_deactivate; fi',
    ]
    lines += [f'NPUENV_HAD_{name}="${{{name}+set}}"; NPUENV_OLD_{name}="${{{name}-}}"' for name in names]
    lines += [f"VIRTUAL_ENV={shlex.quote(root)}", *_cann(stack)]
    lines += ['PATH="$VIRTUAL_ENV/bin:$PATH"', "export PATH VIRTUAL_ENV"]
    for folder in reversed(on_path):
        # ${X:+:$X}: an empty old value must not leave a colon, which would put the working folder on the path.
        lines += [f'PYTHONPATH={shlex.quote(folder)}"${{PYTHONPATH:+:$PYTHONPATH}}"', "export PYTHONPATH"]
    for name, value in stack.env.items():
        lines += [f"{name}={shlex.quote(value)}", f"export {name}"]
    return "\n".join([*lines, f"NPUENV_ACTIVE={shlex.quote(stack.name)}", *_deactivate(names)]) + "\n"


def _cann(stack: Stack) -> list[str]:
    """Sources the toolkit's and NNAL's scripts where they are; `set -u` pauses, for they read unset variables."""
    if stack.cann_root is None:
        return []
    toolkit, nnal = map(shlex.quote, cann_scripts(stack))
    return [
        'case "$-" in *u*) NPUENV_U=1; set +u ;; *) NPUENV_U= ;; esac',
        'case "$-" in *e*) NPUENV_E=1; set +e ;; *) NPUENV_E= ;; esac',
        f"for NPUENV_FILE in {toolkit} {nnal}; do",
        '    if [ -r "$NPUENV_FILE" ]; then . "$NPUENV_FILE" >/dev/null; fi',
        "done",
        'if [ -n "$NPUENV_U" ]; then set -u; fi',
        'if [ -n "$NPUENV_E" ]; then set -e; fi',
        "unset NPUENV_FILE NPUENV_U NPUENV_E",
        # Scripts of CANN append to PYTHONPATH and leave a colon at its end when it was empty.
        'PYTHONPATH="${PYTHONPATH-}"; PYTHONPATH="${PYTHONPATH%:}"',
        'if [ -n "$PYTHONPATH" ]; then export PYTHONPATH; else unset PYTHONPATH; fi',
    ]


def _deactivate(names: list[str]) -> list[str]:
    lines = ["npuenv_deactivate() {"]
    for name in names:
        lines += [
            f'    if [ -n "$NPUENV_HAD_{name}" ]; then',
            f'        {name}="$NPUENV_OLD_{name}"; export {name}',
            f"    else unset {name}; fi",
            f"    unset NPUENV_HAD_{name} NPUENV_OLD_{name}",
        ]
    return [
        *lines,
        "    unset NPUENV_ACTIVE",
        "    unset -f npuenv_deactivate",
        "    hash -r 2>/dev/null || true",
        "}",
        "hash -r 2>/dev/null || true",
    ]
