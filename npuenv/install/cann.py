"""The scripts of a stack's CANN that set its environment, and how to run a program with them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack


def cann_scripts(stack: Stack) -> tuple[str, str]:
    """The two scripts that set the variables of CANN and of NNAL.

    In the older layout (`ascend-toolkit/8.3.RC1`) the script is beside the version folder, in the newer one
    (`cann-8.5.0`) inside it.
    """
    root = _cann_root(stack)
    home = root.parent if _is_old(root) else root
    return str(home / "set_env.sh"), str(PurePosixPath(ascend_folder(stack)) / "nnal" / "atb" / "set_env.sh")


def compiler_scripts(stack: Stack) -> tuple[str, ...]:
    """The script that puts `bishengir-compile` on PATH, where triton-ascend looks for it; none in the older layout.

    The published images of CANN 8.5 and later run it between those of `cann_scripts`, those of 8.3 have no such script.
    Source: Ascend/cann-container-image cann/8.5.0-910b-ubuntu22.04-py3.11/Dockerfile, 9.1.0 and 8.3.rc1 beside it.
    Example: ("/usr/local/Ascend/cann-8.5.0/share/info/ascendnpu-ir/bin/set_env.sh",)
    """
    root = _cann_root(stack)
    return () if _is_old(root) else (str(root / "share" / "info" / "ascendnpu-ir" / "bin" / "set_env.sh"),)


def ascend_folder(stack: Stack) -> str:
    """The install path for CANN's installers.

    Example: /usr/local/Ascend for /usr/local/Ascend/cann-8.5.0 and for /usr/local/Ascend/ascend-toolkit/8.3.RC1
    """
    root = _cann_root(stack)
    return str(root.parent.parent if _is_old(root) else root.parent)


def _cann_root(stack: Stack) -> PurePosixPath:
    return PurePosixPath(stack.cann_root or "/usr/local/Ascend/ascend-toolkit/latest")


def _is_old(root: PurePosixPath) -> bool:
    return root.parent.name == "ascend-toolkit"


LAUNCHER = """\
#!/bin/sh
# Runs a command with the environment of CANN (its script is named in NPUENV_CANN) and of NNAL, where that is installed.
# These scripts read variables that need not be set, so `set -u` must be off here.
set +u
if [ ! -r "$NPUENV_CANN" ]; then
    echo "CANN is not installed: there is no $NPUENV_CANN" >&2
    exit 1
fi
. "$NPUENV_CANN"
if [ -r "$NPUENV_NNAL" ]; then
    . "$NPUENV_NNAL"
fi
if [ -n "$VIRTUAL_ENV" ]; then
    PATH="$VIRTUAL_ENV/bin:$PATH"
    export PATH
fi
exec "$@"
"""
