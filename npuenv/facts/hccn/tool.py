"""Where hccn_tool is. The program is a large file, so its folder is listed and links are asked for their ends: the file
itself is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

TOOLS = "/usr/local/Ascend/driver/tools"
DRIVER_TOOL = f"{TOOLS}/hccn_tool"
LINKED_TOOL = "/usr/bin/hccn_tool"  # images often lack this link


@dataclass(frozen=True, slots=True)
class Tool:
    """The tool that is used. It can be there and yet not be found by its name."""

    path: str
    is_linked: bool  # also found as `hccn_tool` by a shell


def hccn_tool(host: Host) -> Fact[Tool]:
    """The tool of the driver's folder, or that to which /usr/bin links; absent where there is neither."""
    folder, link = host.look(TOOLS), host.run(("readlink", LINKED_TOOL))
    is_linked = link.code == 0
    if "hccn_tool" in folder.names:
        return known(Tool(DRIVER_TOOL, is_linked), Evidence(TOOLS, "hccn_tool"))
    if is_linked and link.out.strip() != DRIVER_TOOL:
        return known(Tool(LINKED_TOOL, True), Evidence(f"readlink {LINKED_TOOL}", link.out.strip()))
    if folder.state is PathState.UNREADABLE:
        return unknown(Evidence(TOOLS, folder.error))
    why = "hccn_tool is not in it" if folder.state is PathState.FOLDER else folder.state.value
    dangling = (Evidence(f"readlink {LINKED_TOOL}", f"{link.out.strip()}, which is not there"),) if is_linked else ()
    return absent(Evidence(TOOLS, why), *dangling)
