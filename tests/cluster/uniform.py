"""A uniform cluster made from one recorded machine: `cluster(machine, count)` gives the facts of each node.

Only what has to differ from node to node is changed in the texts of the recorded machine: its name, its address and the
addresses of its cards. `planted(...)` reads one or two of the nodes again with a fault in what they print.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from npuenv.facts.collect import Facts, collect
from tests.support.machines.composed import machine
from tests.support.machines.edits import edited
from tests.support.machines.simulated import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIRST_HOST = 12  # the recorded machines with several nodes have 10.20.0.12
RAY_NOTE = "/tmp/ray/ray_current_cluster"


def name_of(number: int) -> str:
    return f"node{number:02}"


@functools.cache
def description(source: str, number: int) -> dict[str, Any]:
    """The recorded machine as node `number` of a cluster, counted from 1."""
    told = machine(source)
    cards = len({key for key in told["devices"] if re.fullmatch(r"/dev/davinci\d+", key)})
    cluster_note = told["files"].get(RAY_NOTE)
    text = json.dumps(told, ensure_ascii=False)
    own = _address(told)
    head, _, last = own.rpartition(".")
    text = re.sub(rf"(?<![\d.]){re.escape(own)}(?![\d.])", f"{head}.{int(last) + number - 1}", text)
    text = re.sub(
        r"(?<![\d.])10\.12\.165\.(8[0-9]|9[0-5])(?![\d.])",
        lambda found: f"10.12.165.{int(found[1]) + (number - 1) * cards}",
        text,
    )
    text = re.sub(rf"(?<![\w.-]){re.escape(told['name'])}(?![\w-])", name_of(number), text)
    text = re.sub(r"SDID : (\d+)", lambda found: f"SDID : {int(found[1]) + (number - 1) * cards}", text)
    told = json.loads(text)
    if told["environ"].get("MASTER_ADDR"):
        told["environ"].update({"MASTER_ADDR": f"10.20.0.{FIRST_HOST}", "RANK": str(number - 1)})
    if cluster_note is not None:
        told["files"][RAY_NOTE] = cluster_note  # the head's address, on all nodes
    # JSON has no numbers for keys.
    told["user"]["groups"] = {int(key): value for key, value in told["user"]["groups"].items()}
    return dict(told)


def _address(told: Mapping[str, Any]) -> str:
    """The machine's own address in the network between the nodes."""
    rows = (row.split() for row in told["commands"]["ip -br addr"].splitlines())
    addresses: list[str] = [word.partition("/")[0] for row in rows if row[0] != "lo" for word in row[2:]]
    return next(address for address in addresses if "." in address)


def facts_of(told: Mapping[str, Any], level: int = 2) -> Facts:
    """What the ordinary doctor reads of a machine.

    Without the host that makes a capture, which takes longer than all else: test_doctor_hosts.py goes through captures.
    """
    host = SimulatedHost(dict(told))
    return collect(host, python=told["python"]["executable"], level=level, framework=told["framework"])


@functools.cache
def _healthy(source: str, number: int, level: int, tls: str) -> Facts:
    return facts_of(edited(description(source, number), switched(tls)), level)


def switched(tls: str) -> list[dict[str, Any]]:
    """The edits that set the switch of all cards of a machine: `on`, or `off` as it is recorded."""
    if tls == "off":
        return []
    return [
        {"replace_all": "tls switch[0]", "by": "tls switch[1]", "among": ["hccn_tool"]},
        *(
            {"file": "/etc/hccn.conf", "replace": f"tls_enable_{card}=0", "by": f"tls_enable_{card}=1"}
            for card in range(8)
        ),
    ]


def cluster(source: str, count: int, *, level: int = 2, tls: str = "off") -> dict[str, Facts]:
    """The facts of a cluster of `count` nodes of one kind."""
    return {name_of(number): _healthy(source, number, level, tls) for number in range(1, count + 1)}


def planted(
    source: str, count: int, faults: Mapping[int, Sequence[Mapping[str, Any]]], *, level: int = 2, tls: str = "off"
) -> dict[str, Facts]:
    """The same cluster, with what some of the nodes print edited."""
    nodes = cluster(source, count, level=level, tls=tls)
    for number, edits in faults.items():
        told = edited(edited(description(source, number), switched(tls)), edits)
        nodes[name_of(number)] = facts_of(told, level)
    return nodes
