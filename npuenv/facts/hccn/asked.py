"""What is asked of hccn_tool about all cards, in order of weight, in the words of its two grammars.

Without an answer to the first question nothing else is asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.hccn.answers import Refusal, grammar
from npuenv.facts.hccn.items import ITEMS
from npuenv.facts.hccn.peers import peers
from npuenv.facts.hccn.survey import Survey
from npuenv.facts.npu.smi import Layout
from npuenv.host.base import NotRecorded

if TYPE_CHECKING:
    from npuenv.facts.hccn.a5 import DevInfo, Port
    from npuenv.facts.hccn.tls import HccnConf
    from npuenv.facts.npu.driver import Nodes
    from npuenv.host.base import Host

_TIMEOUT_S = 10.0
_ASKED_FOR_GRAMMAR = 2  # cards at most: each silent one may cost the whole timeout
_FOR_INFORMATION = ("-mtu", "-link_stat", "-stat", "-lldp")  # asked last: a refusal there says nothing of the tool
_ABOUT_THE_TOOL = (Refusal.BUSY, Refusal.PERMISSION, Refusal.NOT_INSTALLED, Refusal.NO_ANSWER)


def card_ids(nodes: Fact[Nodes]) -> Fact[list[int]]:
    """The physical ids of the cards here: the numbers of the device nodes, which a container keeps."""
    if nodes.value is None:
        return Fact(nodes.state, None, nodes.evidence)
    numbers = (re.fullmatch(r"/dev/davinci([0-9]+)", node.path) for node in nodes.value.cards)
    found = sorted(int(match[1]) for match in numbers if match)
    return known(found) if found else absent(Evidence("/dev", "no device node of a card"))


def survey_cards(
    host: Host, path: str, cards: list[int], conf: Fact[HccnConf], layout: Layout | None
) -> tuple[dict[str, Fact[Any]], Fact[Any]]:
    """The facts by the name of their field, and the fact for all fields that are not among them."""
    survey = Survey(host, path, _TIMEOUT_S)
    family = _grammar(survey, cards)
    if family.value is None:
        return {"grammar": family, "refused": _first_refusal(survey)}, unknown(*family.evidence)
    if family.value == "950":
        asked = _survey_950(survey, conf, list(range(len(cards))))
    else:
        asked = _survey_a2(survey, conf, cards, is_a3=layout is Layout.A3)
    asked.update(grammar=family, refused=_first_refusal(survey))
    return asked, absent(Evidence(path, "these cards have no such thing"))


def _survey_a2(survey: Survey, conf: Fact[HccnConf], cards: list[int], *, is_a3: bool) -> dict[str, Fact[Any]]:
    def item(name: str) -> Fact[Any]:
        return survey.item(cards, name, ITEMS[name], "-i", "{card}", f"-{name}", "-g")

    asked = {
        "links": item("link"),
        "addresses": item("ip"),
        "net_health": item("net_health"),
    }
    asked["tls"] = _tls(survey, conf, cards, "-i", "{card}", "-tls", "-g")
    if is_a3:
        asked["vnics"] = item("vnic")
    asked["pings"] = _pings(survey, peers(asked["links"], asked["addresses"], is_a3=is_a3))
    for field, name in (
        ("speeds", "speed"),
        ("gateways", "gateway"),
        ("netdetects", "netdetect"),
        ("mtus", "mtu"),
        ("optical", "optical"),
        ("link_changes", "link_stat"),
        ("counters", "stat"),
        ("neighbours", "lldp"),
    ):
        asked[field] = item(name)
    return asked


def _survey_950(survey: Survey, conf: Fact[HccnConf], cards: list[int]) -> dict[str, Fact[Any]]:
    ports = survey.item(cards, "dev_info", ITEMS["dev_info"], "-g", "-dev_info", "-i", "{card}")
    return {
        "ports": ports,
        "ports_off": _ports_off(survey, ports),
        "vnics": survey.item(cards, "vnic", ITEMS["vnic"], "-g", "-vnic", "-i", "{card}"),
        "tls": _tls(survey, conf, cards, "-g", "-tls", "-i", "{card}"),
    }


def _grammar(survey: Survey, cards: list[int]) -> Fact[str]:
    """The tool's family by the answer about the first card; where that one is silent, about the next."""
    for card in cards[:_ASKED_FOR_GRAMMAR]:
        words = ("-i", str(card), "-link", "-g")
        command = " ".join((survey.path, *words))
        try:
            ran = survey.run(words)
        except NotRecorded as error:
            return unknown(Evidence(str(error), "not in the capture"))
        family = grammar(ran) if ran else None
        line = next((failure.line for _, failure in survey.refusals), "answers")
        if family is not None:
            # A refusal in other words only told the family; a card that is silent stays worth a word.
            survey.refusals[:] = [item for item in survey.refusals if item[1].kind is Refusal.NO_ANSWER]
            return known(family, Evidence(command, line))
        if not any(failure.kind is Refusal.NO_ANSWER for _, failure in survey.refusals):
            break
    return unknown(Evidence(command, line))


def _ports_off(survey: Survey, ports: Fact[dict[int, Fact[DevInfo]]]) -> Fact[dict[int, tuple[int, ...]]]:
    """The ports that are down and switched off, which is how unwired ones are told from broken ones."""
    if ports.value is None:
        return Fact(ports.state, None, ports.evidence)
    off: dict[int, tuple[int, ...]] = {}
    lines: list[Evidence] = []
    for card, fact in ports.value.items():
        down = [port for port in fact.value.ports if not port.is_up] if fact.value else []
        found = survey.each({port.number: _port_words(card, port) for port in down}, "port_info", ITEMS["port_info"])
        lines += found.evidence
        states = {number: item.value for number, item in (found.value or {}).items() if item.value}
        off[card] = tuple(number for number, values in states.items() if values.get("port_enable") == "off")
    return known(off, *lines)


def _port_words(card: int, port: Port) -> tuple[str, ...]:
    return ("-g", "-port_info", "-i", str(card), "-u", str(port.die), "-p", str(port.number))


def _tls(survey: Survey, conf: Fact[HccnConf], cards: list[int], *words: str) -> Fact[Any]:
    """The switches. The first question about a card without a key would write one into /etc/hccn.conf."""
    if conf.value is None:
        return Fact(conf.state, None, conf.evidence)
    named = [card for card in cards if "tls_enable" in conf.value.by_device.get(card, {})]
    if not named:
        return absent(Evidence("/etc/hccn.conf", "no tls_enable entry: asking would write one"))
    return survey.item(named, "tls", ITEMS["tls"], *words)


def _pings(survey: Survey, ways: dict[int, str]) -> Fact[Any]:
    if not ways:
        return absent(Evidence(f"{survey.path} -ping", "no two cards that are up share a subnet"))
    words = {card: ("-i", str(card), "-ping", "-g", "address", ip) for card, ip in ways.items()}
    return survey.each(words, "ping", ITEMS["ping"])


def _first_refusal(survey: Survey) -> Fact[Any]:
    for command, failure in survey.refusals:
        if failure.kind in _ABOUT_THE_TOOL and not any(word in _FOR_INFORMATION for word in command.split()):
            return known(failure, Evidence(command, failure.line))
    return absent(Evidence(survey.path, "answers"))
