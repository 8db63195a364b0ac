"""What the nodes of a cluster find out about each other when all are probed at the same time.

Rounds of small programs over ssh: names and clocks, reachable ports, whether a folder is shared. Nothing is installed;
a program listens for some seconds, and only if the user names a shared folder a small file is written and removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.findings import finding, message
from npuenv.cluster.consistency.values import ClockOffset, NodeIdentity, names_to_resolve
from npuenv.cluster.probing.ports import probe_ports
from npuenv.cluster.probing.storage import probe_shared_folder
from npuenv.cluster.transport import Transport, run_program
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.inventory import Node
    from npuenv.cluster.transport import ProbeResult

__all__ = ["ProbeReport", "Transport", "identify_nodes", "probe", "skipped_findings"]
LIMIT_S = 30.0
_SOURCE = "npuenv"
_LOOK_UP_S = 6.0  # for all names of a node together: a name server that is silent is not waited for
_CLOSE_S = 0.5  # a clock that is known no better is asked again, when the network has nothing else to do
_FEW = 4
_SLACK_S = 0.1  # between the end of an answer and the reading of our clock


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of probing. `identities` is for `check_consistency`, which judges names and clocks."""

    identities: Mapping[str, NodeIdentity]
    findings: tuple[Finding, ...]  # about ports, packets and storage
    silent: Mapping[str, str]  # node -> why it took no part


def probe(
    nodes: Sequence[Node],
    transport: Transport | None = None,
    *,
    ports: Sequence[int] = (),
    has_dynamic: bool = False,
    shared: str | None = None,
) -> ProbeReport:
    """Lets the nodes try each other. No `ports`: Ray's and HCCL's; `has_dynamic` as for `probe_ports`; `shared` None:
    nothing is written.
    """
    transport = transport or Transport()
    identities, silent = identify_nodes(nodes, transport)
    present = [node for node in nodes if node.name in identities]
    if shared is None:
        storage = finding("storage", Status.SKIP, message("storage-unasked"), source=_SOURCE)
    else:
        storage = probe_shared_folder(present, shared, transport, absent=silent)
    reached = probe_ports(present, identities, transport, ports, absent=silent, has_dynamic=has_dynamic)
    return ProbeReport(identities, (*reached, storage), silent)


def skipped_findings() -> tuple[Finding, ...]:
    """The findings where the nodes did not try each other: how to let them."""
    words = {"ports": "unprobed", "packets": "unprobed", "storage": "storage-unasked"}
    return tuple(finding(name, Status.SKIP, message(word), source=_SOURCE) for name, word in words.items())


def identify_nodes(nodes: Sequence[Node], transport: Transport) -> tuple[dict[str, NodeIdentity], dict[str, str]]:
    """The identities by the names of the inventory, and why the other nodes gave none.

    Two rounds: host names and clocks, then where the names of all lead on each node; clocks that are not known well
    enough by then are read a third time, a few nodes at once.
    """
    first = {result.node.name: result for result in _round(nodes, (), transport)}
    silent = {name: result.why for name, result in first.items() if result.answer is None}
    present = [node for node in nodes if node.name not in silent]
    names = names_to_resolve(str(first[node.name].fields.get("hostname", "")) for node in present)
    second = {result.node.name: result for result in _round(present, names, transport)} if len(present) > 1 else {}
    rounds = {node.name: [each[node.name] for each in (first, second) if node.name in each] for node in present}
    found = {name: _identity(results) for name, results in rounds.items()}
    for result in _round([node for node in present if _is_far(found[node.name])], (), transport, parallel=_FEW):
        better, known = _offset(result), found[result.node.name]
        if better is not None and (known.offset is None or better.within_s < known.offset.within_s):
            found[result.node.name] = replace(known, offset=better)
    return found, silent


def _round(
    nodes: Sequence[Node], names: Sequence[str], transport: Transport, parallel: int | None = None
) -> list[ProbeResult]:
    request = {"names": list(names), "limit_s": _LOOK_UP_S}
    results = run_program(
        nodes, "introduce", lambda _: request, limit_s=LIMIT_S, transport=transport, parallel=parallel
    )
    return list(results)


def _identity(rounds: Sequence[ProbeResult]) -> NodeIdentity:
    """What several rounds with one node come to: the last names, and the clock that is known best."""
    answer = rounds[0].fields
    resolved: Mapping[str, Any] = next(
        (result.fields["sees"] for result in reversed(rounds) if result.fields.get("sees")), {}
    )
    offsets = [offset for result in rounds if (offset := _offset(result)) is not None]
    return NodeIdentity(
        hostname=str(answer.get("hostname", "")),
        boot=str(answer.get("boot", "")),
        offset=min(offsets, key=lambda offset: offset.within_s, default=None),
        resolved={str(name): tuple(map(str, found)) for name, found in resolved.items()},
        addresses=tuple(map(str, answer.get("addresses", ()))),
        login=str(answer.get("login", "")),
    )


def _offset(result: ProbeResult) -> ClockOffset | None:
    """How far its clock is ahead: it read it after we began, and again before we had its answer."""
    began, ended = result.fields.get("began"), result.fields.get("ended")
    if not isinstance(began, float) or not isinstance(ended, float):
        return None
    low, high = ended - result.ended, began - result.began + _SLACK_S
    if high < low:  # its clock was set between the two readings
        return None
    line = f"its clock {began:.2f} to {ended:.2f}, asked {result.began:.2f} to {result.ended:.2f}"
    return ClockOffset((low + high) / 2, (high - low) / 2, line)


def _is_far(identity: NodeIdentity) -> bool:
    return identity.offset is None or identity.offset.within_s > _CLOSE_S
