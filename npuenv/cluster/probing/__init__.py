"""What the nodes of a cluster find out about each other when they are asked to try. Start from `probe`.

Rounds of small programs over ssh: who is there and what time it is, whose ports are reached, whether a folder is
shared. Nothing is installed; on a node a program listens for some seconds, and only where the user names a shared
folder a small file is written and removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.cluster.consistency.findings import finding, message
from npuenv.cluster.probing.identify import introduce
from npuenv.cluster.probing.ports import reach
from npuenv.cluster.probing.storage import share
from npuenv.cluster.probing.transport import Way
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.consistency.identity import Met
    from npuenv.cluster.types import Node

__all__ = ["Probed", "Way", "probe", "unprobed"]
_SOURCE = "npuenv"


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing came to. `met` is for `npuenv.cluster.consistency.agreement`, which judges names and clocks."""

    met: Mapping[str, Met]
    findings: tuple[Finding, ...]  # about ports, packets and storage
    silent: Mapping[str, str]  # node -> why it took no part


def probe(
    nodes: Sequence[Node],
    way: Way | None = None,
    *,
    ports: Sequence[int] = (),
    is_unfixed: bool = False,
    shared: str | None = None,
) -> Probed:
    """Lets the nodes try each other. `ports` empty: Ray's and HCCL's; `is_unfixed` as for `reach`; `shared` None:
    nothing is written.
    """
    way = way or Way()
    met, silent = introduce(nodes, way)
    here = [node for node in nodes if node.name in met]
    if shared is None:
        storage = finding("storage", Status.SKIP, message("storage-unasked"), source=_SOURCE)
    else:
        storage = share(here, shared, way, absent=silent)
    reached = reach(here, met, way, ports, absent=silent, is_unfixed=is_unfixed)
    return Probed(met, (*reached, storage), silent)


def unprobed() -> tuple[Finding, ...]:
    """The findings where the nodes did not try each other: how to let them."""
    words = {"ports": "unprobed", "packets": "unprobed", "storage": "storage-unasked"}
    return tuple(finding(name, Status.SKIP, message(word), source=_SOURCE) for name, word in words.items())
