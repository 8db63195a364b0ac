"""Clusters with changed facts, nodes that have met, and what the comparison says of them in few words."""

from __future__ import annotations

import dataclasses
import re
import string
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency import check_consistency
from npuenv.cluster.consistency.findings import ClockOffset, NodeIdentity
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from tests.cluster.uniform import cluster, name_of
from tests.support.sentences import say_template, sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collect import Facts
    from tests.support.changes import Change

USUAL = "a2-b3-host-roll"
BAD = (Status.WARN, Status.FAIL)
LINE = Evidence("question", "answer")
NAMES = ("node01", "node02", "node03")


def changed(count: int, changes: Mapping[int, Change]) -> dict[str, Facts]:
    """A uniform cluster with changed facts on some of its nodes, which are numbered from 1."""
    nodes = cluster(USUAL, count)
    for number, change in changes.items():
        nodes[name_of(number)] = change(nodes[name_of(number)])
    return nodes


def find(name: str, nodes: Mapping[str, Facts], met: Mapping[str, NodeIdentity] | None = None) -> Finding:
    return next(item for item in check_consistency(nodes, identities=met) if item.check == f"agree.{name}")


def told(name: str, nodes: Mapping[str, Facts], met: Mapping[str, NodeIdentity] | None = None) -> tuple[str, str]:
    finding = find(name, nodes, met)
    return finding.status.value, say(finding.says)


def words(name: str, /, **args: Any) -> str:
    """The sentence `agree.NAME`."""
    return sentence(f"agree.{name}", **args)


def spoken(text: str) -> str:
    """A planted fault's words: `{word-none}` stands for those of the catalogue, `{odd 3}` for those with a number."""

    def found(key: re.Match[str]) -> str:
        fields = [name for _, name, _, _ in string.Formatter().parse(say_template(f"agree.{key[1]}")) if name]
        return words(key[1], **{name: key[2] if name == "count" else "" for name in fields})

    return re.sub(" +", " ", re.sub(r"\{([a-z-]+)(?: (\d+))?\}", found, text))


def odd(who: str, count: int, common: str) -> str:
    """Some have another value, and so many others the common one."""
    return words("odd", odd=who, count=count, common=common)


def tied(groups: str) -> str:
    return words("tied", groups=groups)


def same(value: str, count: int) -> str:
    return words("same", value=value, count=count)


def met(*names: str, **changes: NodeIdentity) -> dict[str, NodeIdentity]:
    """Nodes that see each other alike."""
    addresses = {name: f"10.20.0.{12 + at}" for at, name in enumerate(names)}
    usual = {
        name: NodeIdentity(
            hostname=name,
            boot=f"boot-{name}",
            offset=ClockOffset(0.1, 0.3, "asked"),
            resolved={other: (address,) for other, address in addresses.items()},
            addresses=(addresses[name],),
            login=addresses[name],
        )
        for name in names
    }
    return {**usual, **changes}


def differing(of: NodeIdentity, **values: Any) -> NodeIdentity:
    return dataclasses.replace(of, **values)
