"""The cards' own network: /etc/hccn.conf and what hccn_tool answers.

hccn_tool runs from level 2 on, one command after the other. A question about all cards is one fact, whose value has a
fact for each card by its physical id (on 950: its logical one).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Fact
from npuenv.facts.collector import USE_LEVEL, not_asked
from npuenv.facts.hccn.rank_table import ranks
from npuenv.facts.hccn.tls import hccn_conf
from npuenv.facts.hccn.tool import hccn_tool

if TYPE_CHECKING:
    from npuenv.facts.collector import Asker
    from npuenv.facts.hccn.a2 import Address, Gateway, LinkChanges, Optical, Speed, Vnic
    from npuenv.facts.hccn.a5 import DevInfo
    from npuenv.facts.hccn.answers import Refused
    from npuenv.facts.hccn.ping import Ping
    from npuenv.facts.hccn.rank_table import RankTable
    from npuenv.facts.hccn.tls import HccnConf, Tls
    from npuenv.facts.hccn.tool import Tool
    from npuenv.facts.npu import NpuFacts


@dataclass(frozen=True, slots=True)
class HccnFacts:
    """What is true of the network between the cards."""

    conf: Fact[HccnConf]
    rank_table: Fact[RankTable]  # what RANK_TABLE_FILE names
    tool: Fact[Tool]
    grammar: Fact[str]  # a2 (also A3) or 950
    refused: Fact[Refused]  # the first refusal that is about the tool or its caller, not about what was asked
    links: Fact[dict[int, Fact[str]]]  # UP, DOWN
    addresses: Fact[dict[int, Fact[Address]]]
    net_health: Fact[dict[int, Fact[str]]]
    vnics: Fact[dict[int, Fact[Vnic]]]
    tls: Fact[dict[int, Fact[Tls]]]  # of the cards whose key is in /etc/hccn.conf: asking the others would write it
    gateways: Fact[dict[int, Fact[Gateway]]]
    netdetects: Fact[dict[int, Fact[str]]]
    speeds: Fact[dict[int, Fact[Speed]]]
    mtus: Fact[dict[int, Fact[int]]]  # the largest packet
    optical: Fact[dict[int, Fact[Optical]]]
    neighbours: Fact[dict[int, Fact[str]]]  # the switch port at the other end
    link_changes: Fact[dict[int, Fact[LinkChanges]]]  # how often each link came up
    counters: Fact[dict[int, Fact[dict[str, int]]]]
    pings: Fact[dict[int, Fact[Ping]]]  # each card to another one of its subnet
    ports: Fact[dict[int, Fact[DevInfo]]]  # 950 alone
    ports_off: Fact[dict[int, tuple[int, ...]]]  # 950: the ports that are down because they are switched off


def collect(ask: Asker, npu: NpuFacts) -> HccnFacts:
    """Asks for all of them, one command after the other: hccn_tool refuses to run twice at a time."""
    conf, where = ask(hccn_conf), ask(hccn_tool)
    asked, rest = _asked(ask, npu, conf, where)
    facts = {**dict.fromkeys((field.name for field in dataclasses.fields(HccnFacts)), rest), **asked}
    facts.update(conf=conf, tool=where, rank_table=ask(ranks))
    return HccnFacts(**facts)


def _asked(
    ask: Asker, npu: NpuFacts, conf: Fact[HccnConf], where: Fact[Tool]
) -> tuple[dict[str, Fact[Any]], Fact[Any]]:
    """What the tool answered, by the name of the field, and the fact for every other field."""
    if ask.level < USE_LEVEL:
        return {}, not_asked(USE_LEVEL)
    if where.value is None:
        return {}, Fact(where.state, None, where.evidence)
    from npuenv.facts.hccn.asked import card_ids, survey_cards  # its parsers are needed from level 2 on

    cards = card_ids(npu.nodes)
    if cards.value is None:
        return {}, Fact(cards.state, None, cards.evidence)
    layout = npu.smi.value.layout if npu.smi.value else None
    return survey_cards(ask.host, where.value.path, cards.value, conf, layout)
