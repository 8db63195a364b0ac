"""The compiled operators below ASCEND_OPP_PATH: for which chips there are any, and the custom ones beside them.

Chips are named as in the folders: ascend910b (A2), ascend910_93 (A3), ascend310p.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import file_text, pairs
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

TBE = "op_impl/ai_core/tbe"
_CHIP = re.compile(r"ascend[0-9][0-9a-z_]*")
# The one operator group that a toolkit without its kernels package brings.
_TOOLKIT_ONLY = frozenset({"ops_oam"})


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operators that came with CANN."""

    folder: str
    chips: tuple[str, ...]  # those with operators
    hollow: tuple[str, ...]  # those with a folder and next to nothing in it


@dataclass(frozen=True, slots=True)
class Custom:
    """One package of custom operators."""

    path: str
    named_by: str  # ASCEND_CUSTOM_OPP_PATH, or the config.ini that lists it
    is_there: bool
    chips: (
        tuple[str, ...] | None
    )  # for which it brings kernels; None: it has no folder of kernels, or it cannot be listed


@dataclass(frozen=True, slots=True)
class CustomOps:
    """Every package of custom operators that CANN would load."""

    packages: tuple[Custom, ...]
    unreadable: tuple[str, ...]  # config.ini files that this user may not read; CANN stops on one


def kernels(host: Host, opp: str) -> Fact[Kernels]:
    """The chips with kernels below an opp folder. Known and empty where the folder above lists none of them; unknown
    where that one cannot be seen either."""
    above = f"{opp}/built-in/{TBE}"
    folder = f"{above}/kernel"
    looked = host.look(folder)
    if looked.state is PathState.FOLDER:
        chips = [name for name in looked.names if _CHIP.fullmatch(name)]
        hollow = [name for name in chips if set(host.look(f"{folder}/{name}").names) <= _TOOLKIT_ONLY]
        full = tuple(name for name in chips if name not in hollow)
        return known(Kernels(folder, full, tuple(hollow)), Evidence(folder, " ".join(chips) or "empty"))
    parent = host.look(above)
    if looked.state is PathState.ABSENT and parent.state is PathState.FOLDER and parent.names:
        return known(Kernels(folder, (), ()), Evidence(above, " ".join(parent.names[:8])))
    return unknown(Evidence(folder, looked.error or looked.state.value))


def custom(host: Host, opp: str) -> Fact[CustomOps]:
    """The packages that ASCEND_CUSTOM_OPP_PATH and vendors/config.ini name; absent where neither names any."""
    named = [path for path in host.environ().get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if path.startswith("/")]
    packages = [_package(host, posixpath.normpath(path), "ASCEND_CUSTOM_OPP_PATH") for path in dict.fromkeys(named)]
    config = f"{opp}/vendors/config.ini"
    unreadable: list[str] = []
    if opp:
        text = file_text(host, config)
        names = pairs(text.value or "").get("load_priority", "").split(",")
        packages += [_package(host, f"{opp}/vendors/{name.strip()}", config) for name in names if name.strip()]
        unreadable += [config] if host.look(config).state is PathState.UNREADABLE else []
    lines = [Evidence(item.named_by, f"{item.path}{'' if item.is_there else ': absent'}") for item in packages]
    lines += [Evidence(path, "unreadable") for path in unreadable]
    if not lines:
        return absent(Evidence(config, "no custom operators"))
    return known(CustomOps(tuple(packages), tuple(unreadable)), *lines)


def _package(host: Host, path: str, named_by: str) -> Custom:
    if host.look(path).state is not PathState.FOLDER:
        return Custom(path, named_by, False, None)
    looked = host.look(f"{path}/{TBE}/kernel")
    chips = tuple(name for name in looked.names if _CHIP.fullmatch(name))
    return Custom(path, named_by, True, chips if looked.state is PathState.FOLDER and chips else None)
