"""Where a stack's CANN keeps the scripts that set its environment."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack


def cann_scripts(stack: Stack) -> tuple[str, str]:
    """The two scripts that give a shell the settings of CANN and of NNAL.

    In the older layout (`ascend-toolkit/8.3.RC1`) the script lies beside the version folder, in the newer one
    (`cann-8.5.0`) inside it.
    """
    root = PurePosixPath(stack.cann_root or "/usr/local/Ascend/ascend-toolkit/latest")
    is_old = root.parent.name == "ascend-toolkit"
    home, ascend = (root.parent, root.parent.parent) if is_old else (root, root.parent)
    return str(home / "set_env.sh"), str(ascend / "nnal" / "atb" / "set_env.sh")
