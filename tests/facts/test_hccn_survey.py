"""How many cards are asked about, in which order, and when the asking stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, State, known, unknown
from npuenv.facts.hccn.parsers import Address, optical
from npuenv.facts.hccn.survey import HccnSurvey, card_ids, network, peers, survey_cards
from npuenv.facts.npu.driver import DeviceNode, Nodes
from npuenv.host import NotRecorded, Ran
from tests.support.scripted_host import ScriptedHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.facts.hccn.tool import HccnConf

TOOL = "hccn_tool"
NO_CONF: Fact[HccnConf] = Fact(State.ABSENT, None, (Evidence("/etc/hccn.conf", "absent"),))


def _links(
    host: ScriptedHost, cards: Sequence[int], *, budget_s: float = 60.0
) -> tuple[Fact[dict[int, Fact[str]]], HccnSurvey]:
    survey = HccnSurvey(host, TOOL, 1.0, budget_s)
    return survey.item(cards, "link", "-i", "{card}", "-link", "-g"), survey


def test_each_card_has_an_answer_of_its_own() -> None:
    host = ScriptedHost()
    for card, state in ((0, "UP"), (3, "DOWN")):
        host.commands[f"{TOOL} -i {card} -link -g"] = f"link status: {state}\n"
    host.fails(f"{TOOL} -i 5 -link -g", err="Get invalid device id.\n", code=4)
    fact, survey = _links(host, [0, 3, 5])
    assert fact.value is not None
    assert {card: item.value for card, item in fact.value.items()} == {0: "UP", 3: "DOWN", 5: None}
    assert fact.value[5].evidence[0].line == "Get invalid device id."
    assert [failure.line for _, failure in survey.refusals] == ["Get invalid device id."]


def test_no_answer_at_all_is_unknown_with_every_reason() -> None:
    host = ScriptedHost()
    for card in (0, 1):
        host.fails(f"{TOOL} -i {card} -link -g", out="", code=0)
    fact, _ = _links(host, [0, 1])
    assert fact.state is State.UNKNOWN and fact.value is None
    assert {item.command for item in fact.evidence} == {f"{TOOL} -i 0 -link -g", f"{TOOL} -i 1 -link -g"}


def test_what_no_card_of_this_product_has_is_absent_and_asked_once() -> None:
    host = ScriptedHost()
    host.fails(f"{TOOL} -i 0 -link -g", out="The command is not supported on this product.\n", code=13)
    fact, _ = _links(host, range(16))
    assert fact.state is State.ABSENT and len(host.asked) == 1


def test_three_lost_commands_end_the_survey() -> None:
    host = ScriptedHost()
    for card in range(8):
        host.fails(f"{TOOL} -i {card} -link -g", timed_out=True)
    fact, _ = _links(host, range(8))
    assert len(host.asked) == 3
    assert fact.state is State.UNKNOWN and fact.evidence[-1].line == "not asked after: timed out"


def test_a_survey_without_time_asks_nothing_and_says_so() -> None:
    fact, _ = _links(ScriptedHost(), [0], budget_s=-1.0)
    assert fact.state is State.UNKNOWN and "s are over" in fact.evidence[0].line


def test_a_question_that_a_capture_does_not_hold_is_unknown_for_that_card_alone() -> None:
    class Partly(ScriptedHost):
        def run(self, argv: Sequence[str], **_: object) -> Ran:
            if argv[2] == "1":
                raise NotRecorded(" ".join(argv))
            return Ran(tuple(argv), 0, "link status: UP\n", "")

    fact, _ = _links(Partly(), [0, 1, 2])
    assert fact.value is not None
    assert [item.state for item in fact.value.values()] == [State.KNOWN, State.UNKNOWN, State.KNOWN]
    assert fact.value[1].evidence[0].line == "not in the capture"


def test_the_ids_of_cards_are_those_of_the_device_nodes() -> None:
    nodes = Nodes(tuple(DeviceNode(f"/dev/davinci{number}", True, "") for number in (4, 7, 10)), (), ())
    assert card_ids(known(nodes)).value == [4, 7, 10]
    assert card_ids(known(Nodes((), (), ()))).state is State.ABSENT
    assert card_ids(unknown(Evidence("/dev", "?"))).state is State.UNKNOWN


def test_a_tool_that_cannot_be_read_leaves_everything_unknown_and_is_asked_once() -> None:
    host = ScriptedHost()
    host.fails(f"{TOOL} -i 0 -link -g", err="Cmd execute failed!\n", code=1)
    asked = survey_cards(host, TOOL, [0, 1], NO_CONF, None)
    assert asked["grammar"].state is State.UNKNOWN and asked["links"].state is State.UNKNOWN
    assert len(host.asked) == 1


def test_the_other_family_is_recognised_by_its_refusal_and_asked_in_its_own_words() -> None:
    host = ScriptedHost()
    host.fails(f"{TOOL} -i 4 -link -g", err="Please specify a valid mode.\n", code=2)
    asked = survey_cards(host, TOOL, [4, 5], NO_CONF, None)
    assert asked["grammar"].value == "950" and asked["links"].state is State.ABSENT
    assert f"{TOOL} -g -dev_info -i 0" in host.asked and f"{TOOL} -g -vnic -i 1" in host.asked
    assert not [words for words in host.asked if "-tls" in words]


def test_a_chain_of_pings_leaves_out_ways_whose_end_is_down_and_pairs_no_chips_of_one_card() -> None:
    addresses = known({card: known(Address(f"10.0.0.{10 + card}", "255.255.255.0")) for card in range(4)})
    up = known({card: known("UP") for card in range(4)})
    assert peers(up, addresses, is_a3=False) == {0: "10.0.0.11", 1: "10.0.0.12", 2: "10.0.0.13"}
    assert peers(up, addresses, is_a3=True) == {0: "10.0.0.12", 1: "10.0.0.12"}
    down = known({card: known("DOWN" if card == 1 else "UP") for card in range(4)})
    assert peers(down, addresses, is_a3=False) == {2: "10.0.0.13"}


def test_cards_of_four_subnets_reach_the_other_one_of_their_own() -> None:
    ips = {card: f"192.168.{(card % 4 + 1) * 10}.{21 + card // 4}" for card in range(8)}
    addresses = known({card: known(Address(ip, "255.255.255.0")) for card, ip in ips.items()})
    up = known({card: known("UP") for card in ips})
    assert peers(up, addresses, is_a3=False) == {card: ips[card + 4] for card in range(4)}
    assert network(Address("192.168.10.21", "255.255.255.0")) == "192.168.10.0/24"


def test_a_value_that_an_optical_module_leaves_empty_is_left_out() -> None:
    found = optical("optical info:\npresent  : present\nVendor SN :\n : 3\nVcc      : 3241.80 mV\n")
    assert found is not None and found.values == {"present": "present", "Vcc": "3241.80 mV"}
