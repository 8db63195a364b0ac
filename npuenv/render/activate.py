"""The activation script of an environment. Start from `render_activation`.

To be sourced by bash, dash or any POSIX shell. It sets PATH, VIRTUAL_ENV and what the stack says, sources CANN's own
scripts, and defines `npuenv_deactivate`, which puts everything back. It prints nothing, proxies least of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.plan.cann import cann_scripts
from npuenv.render.template import fill

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

_CANN_NAMES = ("LD_LIBRARY_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH",
               "TOOLCHAIN_HOME", "ATB_HOME_PATH", "CMAKE_PREFIX_PATH", "PYTHONPATH")  # fmt: skip


def render_activation(stack: Stack, root: str) -> str:
    """The script for an environment at `root`. Pure and deterministic; the text ends with a line feed."""
    on_path = [f"{root}/src/{source.name}" for source in stack.git_sources if source.how == "pythonpath"]
    by_cann = _CANN_NAMES if stack.cann_root else ("PYTHONPATH",) * bool(on_path)
    return fill(
        "activate.sh.j2",
        stack=stack.name,
        root=root,
        names=list(dict.fromkeys(("PATH", "VIRTUAL_ENV", *by_cann, *stack.env))),
        scripts=cann_scripts(stack) if stack.cann_root else (),
        on_path=on_path[::-1],  # each is put in front of the one before
        settings=stack.env,
    )
