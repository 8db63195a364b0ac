"""What must agree between the nodes of a cluster. Pure: facts in, findings out.

What is wrong with a node by itself is for that node's own doctor; here it is reported where nodes differ.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import title as title_of_check
from npuenv.cluster.consistency import cards, conflicts, readers
from npuenv.cluster.consistency.cards import numbers
from npuenv.cluster.consistency.findings import (
    AREA,
    NONE,
    NOT_PROBED,
    ConsistencyRule,
    NodeValues,
    finding,
    group_values,
    is_layout,
    judge_rule,
    message,
)
from npuenv.cluster.consistency.readers import session_variables
from npuenv.core.documents import folder_of, load_toml
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from npuenv.cluster.consistency.findings import NodeIdentity, Partition
    from npuenv.core.messages import Message
    from npuenv.facts.collect import Facts

    Check = Callable[[Mapping[str, Facts], Mapping[str, NodeIdentity]], Finding]

_FIRST = (
    conflicts.machines,
    conflicts.host_addresses,
    conflicts.names,
    conflicts.hostname,
    conflicts.clock,
    conflicts.health,
)
_LAST = (conflicts.links, conflicts.card_addresses, conflicts.super_devices)
_OF_CARDS = (conflicts.health, *_LAST)
# What no rule is about, and the findings that it follows from; `follows_from` says it of rules.
_FOLLOWS_FROM = {"card-addresses": ("machines",), "host-addresses": ("machines",), "names": ("machines",)}


def check_consistency(
    nodes: Mapping[str, Facts],
    *,
    identities: Mapping[str, NodeIdentity] | None = None,
    cardless: Collection[str] = (),
    head: str = "",
) -> list[Finding]:
    """One finding for each thing that must agree, in the order of the table. [] for fewer than two nodes.

    `nodes`: the facts by the names of the inventory. `identities`: the result of `npuenv.cluster.probing`; None skips
    clocks and names. `cardless`: nodes that are left out of comparisons of cards. `head`: the node of Ray's head, if
    known.
    """
    if len(nodes) < 2:
        return []
    identities = NOT_PROBED if identities is None else identities
    carded = {name: facts for name, facts in nodes.items() if name not in cardless}
    found = [_run_check(check, carded if check in _OF_CARDS else nodes, identities) for check in _FIRST]
    found += [_apply_rule(rule, carded if rule.needs_cards else nodes) for rule in rules()]
    found += [_run_check(check, carded, identities) for check in _LAST]
    found += [_run_check(conflicts.ray_head, {head: nodes[head]}, identities)] if head in nodes else []
    return _without_consequences([_without_blind(item, nodes) for item in found])


def check_identities(nodes: Mapping[str, Facts], identities: Mapping[str, NodeIdentity]) -> list[Finding]:
    """The findings about names and clocks, which need no facts."""
    return [_run_check(check, nodes, identities) for check in (conflicts.names, conflicts.clock)]


def title(check_id: str) -> Message:
    """The title of a finding of this package: of `agree.tls`, "TLS switch of the cards"."""
    return message(f"title-{check_id.partition('.')[2]}")


def _run_check(check: Check, nodes: Mapping[str, Facts], identities: Mapping[str, NodeIdentity]) -> Finding:
    """The finding of a check. A bug in one must not hide the findings of the others."""
    try:
        return check(nodes, identities)
    except Exception as error:
        name, line = check.__name__.replace("_", "-"), Evidence("npuenv", f"{type(error).__name__}: {error}")
        return finding(name, Status.UNKNOWN, message("crashed"), [("npuenv", line)], source="npuenv")


def _apply_rule(rule: ConsistencyRule, nodes: Mapping[str, Facts]) -> Finding:
    if len(nodes) < 2:
        return finding(rule.id, Status.SKIP, message("skip-one-carded"), source=rule.source)
    if rule.is_about_cards and not any(numbers(facts) or facts.npu.smi.value for facts in nodes.values()):
        return finding(rule.id, Status.SKIP, message("skip-no-card"), source=rule.source)
    by_node = {node: _read(rule, facts) for node, facts in nodes.items()}
    partitions = group_values(by_node, tolerance=rule.tolerance, expected=rule.expected)
    if rule.is_layout and not all(partition.is_unanimous for partition in partitions) and is_layout(by_node):
        return finding(rule.id, Status.OK, message("layout-alike"), source=rule.source)
    has_tie = any(not partition.is_unanimous and partition.majority is None for partition in partitions)
    is_plan = rule.layout is not None and has_tie and rule.layout(nodes)
    return judge_rule(rule, by_node, partitions, _status_of_difference(rule, partitions, nodes), is_plan=is_plan)


def _read(rule: ConsistencyRule, facts: Facts) -> NodeValues:
    """The values of a node. A bug in one reader must not hide the other rows."""
    try:
        return rule.read(facts)
    except Exception as error:
        return NodeValues(unknown={None: Evidence("npuenv", f"{type(error).__name__}: {error}")})


def _status_of_difference(rule: ConsistencyRule, partitions: Sequence[Partition], nodes: Mapping[str, Facts]) -> Status:
    """The status of the differences between the nodes; see rules.toml."""
    apart = [partition for partition in partitions if not partition.is_unanimous]
    word, _, number = rule.differs.partition(":")
    is_grave = {
        "fail": True,
        "warn": False,
        "release": any(_releases_differ(partition, int(number or 0), rule.may_lack) for partition in apart),
        "set": any(len([value for value in partition.holders if value != ":default"]) > 1 for partition in apart),
        "breaking": any(session_variables().breaking.fullmatch(partition.topic) for partition in apart),
        "with-ray": any(_has_ray(facts) for facts in nodes.values()),
    }[word]
    return Status.FAIL if is_grave else Status.WARN


def _releases_differ(partition: Partition, count: int, may_lack: Collection[str]) -> bool:
    if NONE in partition.holders and partition.topic not in may_lack:
        return True
    return len({tuple(re.findall(r"\d+", text)[:count]) for text in partition.holders if text != NONE}) > 1


def _has_ray(facts: Facts) -> bool:
    python = facts.python.interpreter.value
    return python is not None and "ray" in python.distributions


def _without_blind(item: Finding, nodes: Mapping[str, Facts]) -> Finding:
    """Skips what is unknown only because a tool fails on a node: the node's own finding says so."""
    owners = [_owner(line, nodes) for line in item.evidence] if item.status is Status.UNKNOWN else []
    if not owners or None in owners:
        return item
    causes = tuple(title_of_check(owner) for owner in dict.fromkeys(owners) if owner)
    return finding(item.check.partition(".")[2], Status.SKIP, message("because", cause=causes), source=item.source)


def _owner(line: Evidence, nodes: Mapping[str, Facts]) -> str | None:
    """The check of a node that explains why this line has no value; None if none does."""
    node, _, command = line.command.partition(": ")
    facts = nodes.get(node)
    if facts is not None and command.startswith("npu-smi") and facts.npu.smi_trouble.is_known:
        return "driver.npu-smi"
    return "network.hccn-tool" if facts is not None and "hccn_tool" in command and facts.hccn.refused.is_known else None


def _without_consequences(found: Sequence[Finding]) -> list[Finding]:
    """The findings; those that follow from another one are skipped."""
    follows_from = {**_FOLLOWS_FROM, **{rule.id: rule.follows_from for rule in rules()}}
    bad = {item.check.partition(".")[2]: item.status for item in found if item.status in (Status.FAIL, Status.WARN)}
    subnet = next((item for item in found if item.check == f"{AREA}.host-subnet" and item.status is Status.OK), None)
    kept = []
    for item in found:
        name = item.check.partition(".")[2]
        # A failure is never hidden by a warning.
        causes = (cause for cause in follows_from.get(name, ()) if bad.get(cause) in (Status.FAIL, item.status))
        cause = next(causes, None)
        if cause and name in bad:
            item = finding(name, Status.SKIP, message("because", cause=title(f"{AREA}.{cause}")), source=item.source)
        elif name == "hccl-interface" and name in bad and subnet is not None and "value" in subnet.says.args:
            # Names of interfaces do not matter within one subnet.
            says = message("names-in-one-subnet", says=item.says, subnet=subnet.says.args["value"])
            item = finding(name, Status.OK, says, source=item.source)
        kept.append(item)
    return kept


@functools.cache
def rules() -> tuple[ConsistencyRule, ...]:
    """The rows of `rules.toml`, in the order of the report."""
    return tuple(_rule(row) for row in load_toml(folder_of(__file__) / "rules.toml", is_ours=True)["rule"])


def _rule(row: Mapping[str, Any]) -> ConsistencyRule:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    if "from" in given:
        given["read"] = _named(given.pop("from"))
    else:
        path, text, absent = given.pop("fact"), given.pop("show", "{}"), given.pop("absent", NONE) or None
        given["read"] = functools.partial(readers.plain, path=path, text=text, absent=absent)
    if "layout" in given:
        given["layout"] = _named(given["layout"])
    return ConsistencyRule(**{"fix": row["id"], **given})


def _named(name: str) -> Any:
    """The function that a row names as `module.function`."""
    module, _, function = name.partition(".")
    return getattr({"readers": readers, "cards": cards}[module], function)
