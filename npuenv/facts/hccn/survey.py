"""Asks hccn_tool about all cards, one command after the other, in order of weight, and knows when to stop.

The tool refuses to run twice at a time and can take seconds for a card that does not answer, so a survey has a budget:
it stops an item on all cards after the first refusal that holds for all of them, and stops for good when the tool is
busy or missing, when several commands were lost, or when its time is over. What was not asked is unknown and says why.
Without an answer to the first question nothing else is asked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import made_of
from npuenv.facts.hccn.parsers import ITEMS, Address, DevInfo
from npuenv.facts.hccn.tool import NOT_ASKED, HccnConf, HccnRefusal, RefusedAnswer, lines_of, refused
from npuenv.facts.npu.smi import Layout
from npuenv.host import Host, NotRecorded, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.facts.npu.driver import Nodes

T = TypeVar("T")
_BUDGET_S = 60.0  # for all questions together; level 2 has two minutes for everything
_FOR_GOOD = (HccnRefusal.BUSY, HccnRefusal.NOT_INSTALLED)
_FOR_ALL_CARDS = (HccnRefusal.PERMISSION, HccnRefusal.UNSUPPORTED, HccnRefusal.GRAMMAR)
_LOST_AT_MOST = 3
_ABSENT = (HccnRefusal.NOT_SET, HccnRefusal.UNSUPPORTED)
_TIMEOUT_S = 10.0
_ASKED_FOR_GRAMMAR = 2  # cards at most: each silent one may cost the whole timeout
_FOR_INFORMATION = ("-mtu", "-link_stat", "-stat", "-lldp")  # asked last: a refusal there says nothing of the tool
_ABOUT_THE_TOOL = (HccnRefusal.BUSY, HccnRefusal.PERMISSION, HccnRefusal.NOT_INSTALLED, HccnRefusal.NO_ANSWER)
# Fact -> what is asked for, in this order.
_ASKED_LAST = {
    "speeds": "speed", "gateways": "gateway", "netdetects": "netdetect", "mtus": "mtu", "optical": "optical",
    "link_changes": "link_stat", "counters": "stat", "neighbours": "lldp",
}  # fmt: skip


@dataclass(slots=True)
class HccnSurvey:
    """One run through the cards. Mutable: it remembers refusals, so that the next question may be left out."""

    host: Host
    path: str
    timeout_s: float
    budget_s: float = _BUDGET_S
    refusals: list[tuple[str, RefusedAnswer]] = field(default_factory=list)  # command and refusal, in order
    _why_stopped: str = ""
    _lost: int = 0
    _has_answered: bool = False
    _started_s: float = field(default_factory=time.monotonic)

    def item(self, cards: Sequence[int], name: str, *words: str) -> Fact[Any]:
        """The answers by card. `words` are the tool's arguments, in which `{card}` stands for the card."""
        return self.each({card: tuple(word.format(card=card) for word in words) for card in cards}, name)

    def each(self, questions: Mapping[int, tuple[str, ...]], name: str) -> Fact[Any]:
        """The answers to one question per card; unknown where no card gave one, absent where none has such a thing."""
        answers: dict[int, Fact[Any]] = {}
        same: Fact[Any] | None = None
        for card, words in questions.items():
            if same is None:
                answers[card], holds_for_all = self._ask(words, name)
                same = Fact(answers[card].state, None, answers[card].evidence) if holds_for_all else None
            else:
                answers[card] = same
        return _sum_up(answers)

    def run(self, words: Sequence[str]) -> Ran | None:
        """What the tool did; None when the survey is over."""
        if not self._why_stopped and time.monotonic() - self._started_s > self.budget_s:
            self._why_stopped = f"{self.budget_s:.0f} s are over"
        if self._why_stopped:
            return None
        ran = self.host.run((self.path, *words), timeout_s=self.timeout_s)
        failure = refused(ran)
        self._has_answered = self._has_answered or failure is None or failure.kind is not HccnRefusal.NOT_INSTALLED
        # A tool that answered before is there: what a shell or the loader says then is about one command alone.
        is_there = self._has_answered and failure is not None and failure.kind is HccnRefusal.NOT_INSTALLED
        if failure is not None and not is_there:
            self.refusals.append((" ".join(ran.argv), failure))
            self._lost += failure.kind is HccnRefusal.NO_ANSWER
            if failure.kind in _FOR_GOOD or self._lost >= _LOST_AT_MOST:
                self._why_stopped = failure.line
        return ran

    def _ask(self, words: tuple[str, ...], name: str) -> tuple[Fact[Any], bool]:
        command = " ".join((self.path, *words))
        try:
            ran = self.run(words)
        except NotRecorded:
            return unknown(Evidence(command, "not in the capture")), False
        if ran is None:
            return unknown(Evidence(command, f"{NOT_ASKED}: {self._why_stopped}")), True
        failure = refused(ran, name)
        return answer(ran, name, ITEMS[name]), failure is not None and failure.kind in _FOR_ALL_CARDS


def _sum_up(answers: dict[int, Fact[T]]) -> Fact[dict[int, Fact[T]]]:
    lines: list[Evidence] = [item for fact in answers.values() for item in fact.evidence]
    states = {fact.state for fact in answers.values()}
    if State.KNOWN in states or len(states) > 1:
        return known(answers, *lines)
    made: Callable[..., Fact[Any]] = unknown if State.UNKNOWN in states else absent
    return made(*dict.fromkeys(lines))


def card_ids(nodes: Fact[Nodes]) -> Fact[list[int]]:
    """The physical ids of the cards here: the numbers of the device nodes, which a container keeps."""
    none = Evidence("/dev", "no device node of a card")
    return made_of(nodes, lambda found: known(found.numbers) if found.numbers else absent(none))


def survey_cards(
    host: Host, path: str, cards: list[int], conf: Fact[HccnConf], layout: Layout | None
) -> dict[str, Fact[Any]]:
    """The facts by name; any other name has the fact that says why there is no such one."""
    survey = HccnSurvey(host, path, _TIMEOUT_S)
    family = _grammar(survey, cards)
    if family.value is None:
        unread: Fact[Any] = unknown(*family.evidence)
        return defaultdict(lambda: unread, grammar=family, refused=_first_refusal(survey))
    if family.value == "950":
        asked = _survey_950(survey, conf, list(range(len(cards))))
    else:
        asked = _survey_a2(survey, conf, cards, is_a3=layout is Layout.A3)
    asked.update(grammar=family, refused=_first_refusal(survey))
    return defaultdict(lambda: absent(Evidence(path, "these cards have no such thing")), asked)


def _survey_a2(survey: HccnSurvey, conf: Fact[HccnConf], cards: list[int], *, is_a3: bool) -> dict[str, Fact[Any]]:
    def item(name: str) -> Fact[Any]:
        return survey.item(cards, name, "-i", "{card}", f"-{name}", "-g")

    asked = {"links": item("link"), "addresses": item("ip"), "net_health": item("net_health")}
    asked["tls"] = _tls(survey, conf, cards, "-i", "{card}", "-tls", "-g")
    if is_a3:
        asked["vnics"] = item("vnic")
    asked["pings"] = _pings(survey, peers(asked["links"], asked["addresses"], is_a3=is_a3))
    return asked | {name: item(word) for name, word in _ASKED_LAST.items()}


def _survey_950(survey: HccnSurvey, conf: Fact[HccnConf], cards: list[int]) -> dict[str, Fact[Any]]:
    ports = survey.item(cards, "dev_info", "-g", "-dev_info", "-i", "{card}")
    return {
        "ports": ports,
        "ports_off": _ports_off(survey, ports),
        "vnics": survey.item(cards, "vnic", "-g", "-vnic", "-i", "{card}"),
        "tls": _tls(survey, conf, cards, "-g", "-tls", "-i", "{card}"),
    }


def _grammar(survey: HccnSurvey, cards: list[int]) -> Fact[str]:
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
            survey.refusals[:] = [item for item in survey.refusals if item[1].kind is HccnRefusal.NO_ANSWER]
            return known(family, Evidence(command, line))
        if not any(failure.kind is HccnRefusal.NO_ANSWER for _, failure in survey.refusals):
            break
    return unknown(Evidence(command, line))


def _ports_off(survey: HccnSurvey, ports: Fact[dict[int, Fact[DevInfo]]]) -> Fact[dict[int, tuple[int, ...]]]:
    """The ports that are down and switched off, which is how unwired ones are told from broken ones."""
    if ports.value is None:
        return Fact(ports.state, None, ports.evidence)
    off: dict[int, tuple[int, ...]] = {}
    lines: list[Evidence] = []
    for card, fact in ports.value.items():
        down = {port.number: port.die for port in fact.value.ports if not port.is_up} if fact.value else {}
        words = {at: ("-g", "-port_info", *f"-i {card} -u {die} -p {at}".split()) for at, die in down.items()}
        found = survey.each(words, "port_info")
        lines += found.evidence
        states = {number: item.value for number, item in (found.value or {}).items() if item.value}
        off[card] = tuple(number for number, values in states.items() if values.get("port_enable") == "off")
    return known(off, *lines)


def _tls(survey: HccnSurvey, conf: Fact[HccnConf], cards: list[int], *words: str) -> Fact[Any]:
    """The switches. The first question about a card without a key would write one into /etc/hccn.conf."""
    if conf.value is None:
        return Fact(conf.state, None, conf.evidence)
    named = [card for card in cards if "tls_enable" in conf.value.by_device.get(card, {})]
    if not named:
        return absent(Evidence("/etc/hccn.conf", "no tls_enable entry: asking would write one"))
    return survey.item(named, "tls", *words)


def _pings(survey: HccnSurvey, ways: dict[int, str]) -> Fact[Any]:
    if not ways:
        return absent(Evidence(f"{survey.path} -ping", "no two cards that are up share a subnet"))
    words = {card: ("-i", str(card), "-ping", "-g", "address", ip) for card, ip in ways.items()}
    return survey.each(words, "ping")


def _first_refusal(survey: HccnSurvey) -> Fact[Any]:
    for command, failure in survey.refusals:
        if failure.kind in _ABOUT_THE_TOOL and not any(word in _FOR_INFORMATION for word in command.split()):
            return known(failure, Evidence(command, failure.line))
    return absent(Evidence(survey.path, "answers"))


def peers(
    links: Fact[dict[int, Fact[str]]], addresses: Fact[dict[int, Fact[Address]]], *, is_a3: bool
) -> dict[int, str]:
    """Card -> the address of the next card of its subnet; a way of which one end is down is left out.

    The last one of a subnet is reached and asks nobody: its health is what tells whether it can send. The two chips of
    one A3 card cannot reach each other over RoCE and are never paired.
    """
    up = {card for card, fact in (links.value or {}).items() if fact.value == "UP"}
    known = {card: fact.value for card, fact in (addresses.value or {}).items() if fact.value}
    found: dict[int, str] = {}
    for card, address in known.items():
        after = (item for item in sorted(known) if item > card and network(known[item]) == network(address))
        other = next((item for item in after if not (is_a3 and item // 2 == card // 2)), None)
        if other is not None and {card, other} <= up and known[other].ip != address.ip:
            found[card] = known[other].ip
    return found


def network(address: Address) -> str:
    """The subnet that an address says it is in: 10.12.165.80 with 255.255.255.0 -> 10.12.165.0/24."""
    import ipaddress

    try:
        return str(ipaddress.ip_network(f"{address.ip}/{address.netmask}", strict=False))
    except ValueError:  # a netmask of IPv6 as the tool prints it; such an address stands alone
        return address.ip


def answer(ran: Ran, item: str, parse: Callable[[str], T | None]) -> Fact[T]:
    """The fact that a command's output holds. A value counts even where the exit status complains.

    Absent: the tool says that nothing is set, or that this product has no such thing.
    """
    command = " ".join(ran.argv)
    value = parse(ran.out)
    if value is not None and not ran.timed_out:
        return known(value, *(Evidence(command, line) for line in lines_of(ran.out)[:1]))
    failure = refused(ran, item)
    if failure is None:
        return unknown(Evidence(command, (lines_of(ran.out) or [""])[0]))
    evidence = Evidence(command, failure.line)
    return absent(evidence) if failure.kind in _ABSENT else unknown(evidence)


def grammar(ran: Ran) -> str | None:
    """`a2` (also A3 and 910A) or `950`, from the answer to a question in the words of A2; None where it does not tell.

    The tool of 950 answers those with "Please specify a valid mode." and 2.
    """
    failure = refused(ran)
    if failure is None:
        return "a2"
    if failure.kind is HccnRefusal.GRAMMAR:
        return "950" if "valid mode" in failure.line.lower() else None
    return None if failure.kind in (*_ABOUT_THE_TOOL, HccnRefusal.FAILED) else "a2"
