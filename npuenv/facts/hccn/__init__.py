"""The cards' own network: /etc/hccn.conf and what hccn_tool answers.

hccn_tool runs from level 2 on, one command after the other. A question about all cards is one fact, whose value has a
fact for each card by its physical id (on 950: its logical one). The order of the questions and their words are in
`npuenv.facts.hccn.survey`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Fact, known
from npuenv.facts.collector import USE_LEVEL, Collector, fact
from npuenv.facts.hccn.tool import ConfFacts, RefusedAnswer

if TYPE_CHECKING:
    from npuenv.facts.hccn.parsers import Address, DevInfo, Gateway, LinkChanges, Optical, Ping, Speed, Tls, Vnic


def _answers(host: Collector) -> Fact[dict[str, Fact[Any]]]:
    """What the tool answered, by the name of the fact; of one that it was not asked for, why."""
    from npuenv.facts.hccn.survey import card_ids, survey_cards  # its parsers are needed from level 2 on

    tool, cards = host.get("hccn.tool"), card_ids(host.get("npu.nodes"))
    if tool.value is None or cards.value is None:
        needed = tool if tool.value is None else cards
        return Fact(needed.state, None, needed.evidence)
    table = host.get("npu.smi").value
    layout = table.layout if table else None
    return known(survey_cards(host, tool.value.path, cards.value, host.get("hccn.conf"), layout))


def _answer(name: str) -> Any:
    """Declares the fact of one of these answers."""

    def read(host: Collector) -> Fact[Any]:
        answers = host.shared(_answers)
        return Fact(answers.state, None, answers.evidence) if answers.value is None else answers.value[name]

    return fact(read, level=USE_LEVEL)


class HccnFacts(ConfFacts):
    grammar: Fact[str] = _answer("grammar")  # a2 (also A3) or 950
    # The first refusal that is about the tool or its caller, not about what was asked.
    refused: Fact[RefusedAnswer] = _answer("refused")
    links: Fact[dict[int, Fact[str]]] = _answer("links")  # UP, DOWN
    addresses: Fact[dict[int, Fact[Address]]] = _answer("addresses")
    net_health: Fact[dict[int, Fact[str]]] = _answer("net_health")
    vnics: Fact[dict[int, Fact[Vnic]]] = _answer("vnics")
    # Of the cards whose key is in /etc/hccn.conf: asking the others would write it.
    tls: Fact[dict[int, Fact[Tls]]] = _answer("tls")
    gateways: Fact[dict[int, Fact[Gateway]]] = _answer("gateways")
    netdetects: Fact[dict[int, Fact[str]]] = _answer("netdetects")
    speeds: Fact[dict[int, Fact[Speed]]] = _answer("speeds")
    mtus: Fact[dict[int, Fact[int]]] = _answer("mtus")  # the largest packet
    optical: Fact[dict[int, Fact[Optical]]] = _answer("optical")
    neighbours: Fact[dict[int, Fact[str]]] = _answer("neighbours")  # the switch port at the other end
    link_changes: Fact[dict[int, Fact[LinkChanges]]] = _answer("link_changes")  # how often each link came up
    counters: Fact[dict[int, Fact[dict[str, int]]]] = _answer("counters")
    pings: Fact[dict[int, Fact[Ping]]] = _answer("pings")  # each card to another one of its subnet
    ports: Fact[dict[int, Fact[DevInfo]]] = _answer("ports")  # 950 alone
    # 950: the ports that are down because they are switched off.
    ports_off: Fact[dict[int, tuple[int, ...]]] = _answer("ports_off")
