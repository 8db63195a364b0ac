"""What must agree between nodes, at its edges: one side has nothing, a card is down, something only looks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.consistency import check_consistency
from npuenv.cluster.consistency.findings import (
    EVIDENCE_AT_MOST,
    ClockOffset,
    NodeIdentity,
    NodeValues,
    Value,
    ValueKey,
    group_values,
)
from npuenv.core.fact import Evidence, known, unknown
from npuenv.core.finding import Status
from npuenv.facts.hccn.parsers import Speed
from npuenv.facts.machine.hardware import MountRow
from npuenv.facts.network import Clock
from npuenv.facts.network.interfaces import HostName, Interface, Route
from npuenv.facts.npu.driver import Nodes
from npuenv.facts.npu.queries import Spod
from tests.cluster.test_consistency import of_kernel
from tests.cluster.uniform import cluster
from tests.cluster.voting import LINE, NAMES, USUAL, changed, differing, find, met, odd, same, told, words
from tests.support.changes import both, cards, gone, lost, packages, part, put, variables

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts
    from tests.support.changes import Change

pytestmark = pytest.mark.slow

WELL = ("ok", "skip")
NO_DEVICES = Nodes((), (), ())


def on_all(count: int, change: Change, more: dict[int, Change] | None = None) -> dict[str, Facts]:
    """A cluster with one change on all of its nodes, and more on some."""
    own = more or {}
    return changed(count, {at: both(change, own[at]) if at in own else change for at in range(1, count + 1)})


def cards_of(name: str, **values: Any) -> Change:
    """What hccn_tool says of some cards, given as `card3=...`, changed; None: that card could not be asked."""

    def change(facts: Facts) -> Facts:
        found = dict(getattr(facts.hccn, name).value or {})
        for key, value in values.items():
            found[int(key.removeprefix("card"))] = unknown(LINE) if value is None else known(value, LINE)
        return put(**{f"hccn.{name}": found})(facts)

    return change


def keys_of(card: int, **values: str) -> Change:
    """Keys of one card in /etc/hccn.conf."""

    def change(facts: Facts) -> Facts:
        assert facts.hccn.conf.value is not None
        by_device = facts.hccn.conf.value.by_device
        return part("conf", by_device={**by_device, card: {**by_device.get(card, {}), **values}})(facts)

    return change


# What a difference means.


@pytest.mark.parametrize(("without_ray", "status"), [((), "fail"), ((1, 2), "fail"), ((1, 2, 3), "warn")])
def test_another_python_breaks_the_run_where_any_node_has_ray(without_ray: tuple[int, ...], status: str) -> None:
    own = {at: packages(ray=None) for at in without_ray}
    nodes = changed(3, {**own, 2: both(own.get(2, put()), part("interpreter", version="3.11.1"))})
    assert told("python", nodes)[0] == status


def test_cards_are_compared_where_only_npu_smi_shows_them() -> None:
    nodes = on_all(3, put(nodes=NO_DEVICES), {2: cards(name="910B4")})
    assert told("chip", nodes) == ("fail", odd("node02 cards 0: 910B4", 23, "910B3"))


def test_a_check_that_breaks_is_unknown_and_costs_no_other() -> None:
    nodes = changed(3, {2: put(hostname="not what it is")})
    finding = find("hostname", nodes)
    assert finding.status is Status.UNKNOWN
    assert finding.evidence[0].line.startswith("AttributeError: ")
    assert find("machines", nodes).status is find("links", nodes).status is Status.OK


def test_other_names_for_the_interface_are_told_where_their_networks_cannot_be_compared() -> None:
    def renamed(facts: Facts) -> Facts:
        found = facts.network.interfaces.value or ()
        name = facts.environment.value["HCCL_SOCKET_IFNAME"] if facts.environment.value else ""
        others = tuple(item._replace(name="eth0") if item.name == name else item for item in found)
        return both(put(interfaces=others), variables(HCCL_SOCKET_IFNAME="eth0"))(facts)

    assert told("hccl-interface", changed(3, {2: renamed}))[0] == "ok"
    usual = (cluster(USUAL, 1)["node01"].environment.value or {})["HCCL_SOCKET_IFNAME"]
    nodes = on_all(3, put(routes=()), {2: renamed})
    assert told("hccl-interface", nodes) == ("warn", odd("node02: eth0", 2, usual))


# Cards.


def test_a_card_that_says_no_mtu_to_the_tool_has_no_default_of_the_file() -> None:
    def without_last(facts: Facts) -> Facts:
        found = facts.hccn.mtus.value or {}
        return put(mtus={card: fact for card, fact in found.items() if card != 7})(facts)

    assert told("card-mtu", changed(3, {2: without_last}))[0] == "ok"


def test_the_speed_of_a_link_that_is_down_is_not_compared() -> None:
    slow = cards_of("speeds", card3=Speed(10000))
    assert told("speed", changed(3, {2: slow}))[0] == "warn"
    assert told("speed", changed(3, {2: both(slow, cards_of("links", card3="DOWN"))}))[0] == "ok"


def test_what_an_unused_card_watches_is_not_compared() -> None:
    vain = cards_of("net_health", card3="unreachable")
    assert told("watch", changed(3, {2: vain}))[0] == "fail"
    unused = both(cards_of("links", card3="DOWN"), cards_of("addresses", card3=None), keys_of(3, address=""))
    nodes = on_all(3, unused, {2: vain})
    assert (told("links", nodes)[0], told("watch", nodes)[0]) == ("ok", "ok")


def test_the_file_speaks_for_cards_whose_device_nodes_are_not_seen() -> None:
    unseen = both(put(nodes=NO_DEVICES), gone("hccn.tls", Evidence("hccn_tool", "not found")))
    assert told("tls", on_all(3, unseen, {2: keys_of(1, tls_enable="1")})) == (
        "fail",
        odd(f"node02 cards 1: {words('word-tls-on')}", 23, words("word-tls-off")),
    )


def test_what_bonds_a_card_is_its_own_and_other_keys_are_compared() -> None:
    assert told("card-settings", changed(3, {2: keys_of(1, bond_mode="4")}))[0] in WELL
    assert told("card-settings", changed(3, {2: keys_of(1, roce_port="4790")}))[0] == "warn"


# Clashes.


def test_the_kernels_number_alone_does_not_make_two_nodes_one_machine() -> None:
    """Containers of one machine share it, and may be nodes of their own."""
    usual = met(*NAMES)
    same = {name: differing(each, boot="one", addresses=()) for name, each in usual.items()}
    assert told("machines", cluster(USUAL, 3), same) == ("ok", words("machines-ok", count=3))


@pytest.mark.parametrize(("size", "status"), [(2, "skip"), (3, "fail"), (None, "skip")])
def test_numbers_of_a_super_pod_clash_where_it_is_larger_than_a_server(size: int | None, status: str) -> None:
    pods = tuple(Spod(0, chip, 100 + chip, size, 1, 0) for chip in (0, 1))
    assert told("super-devices", on_all(2, put(spods=pods)))[0] == status


def test_a_card_whose_health_is_not_said_is_not_ill() -> None:
    assert told("health", changed(3, {2: cards(health=None)}))[0] == "ok"
    blind = told("health", changed(3, {1: cards(health="Alarm"), 2: lost("smi")}))[1]
    assert odd("node01 cards 0: Alarm", 15, "OK") in blind
    assert told("health", changed(3, {2: cards(health="Alarm")}))[1] == odd("node02 cards 0: Alarm", 23, "OK")


def test_of_cards_that_could_not_be_asked_nobody_says_that_they_are_well() -> None:
    nodes = changed(3, {1: cards_of("links", card3="DOWN"), 2: cards_of("links", card3=None)})
    assert told("links", nodes) == (
        "fail",
        words("and-blind", says=odd("node01 cards 3: DOWN", 22, "UP"), who="node02 cards 3"),
    )


def test_links_that_are_down_everywhere_are_a_fault_where_the_cards_have_addresses() -> None:
    assert told("links", on_all(3, cards_of("links", card0="DOWN"))) == (
        "fail",
        odd("node[01-03] cards 0: DOWN", 21, "UP"),
    )


def test_a_network_of_cards_that_is_not_in_use_is_unknown_where_a_node_could_not_tell() -> None:
    def unused(facts: Facts) -> Facts:
        return both(put(links={card: known("DOWN", LINE) for card in range(8)}), put(addresses={}), put(conf=None))(
            facts
        )

    assert told("links", on_all(3, unused, {2: lost("links")})) == ("unknown", words("blind", who="node02"))


def hosts_name(resolved: tuple[str, ...] | None, in_hosts: tuple[str, ...] | None = None) -> Change:
    return lambda facts: put(hostname=HostName("node02", in_hosts, resolved))(facts)


@pytest.mark.parametrize(
    ("resolved", "in_hosts", "status"),
    [
        (("127.0.1.1", "10.20.0.13"), None, "ok"),
        (("127.0.1.1",), ("10.20.0.13",), "warn"),
        (("203.0.113.1",), None, "ok"),
        (("10.99.0.1",), None, "warn"),
        ((), None, "warn"),
        (None, (), "ok"),
        (None, ("127.0.1.1",), "warn"),
    ],
)
def test_a_name_leads_astray_when_nothing_of_it_leads_to_the_host(
    resolved: tuple[str, ...] | None, in_hosts: tuple[str, ...] | None, status: str
) -> None:
    assert told("hostname", changed(3, {2: hosts_name(resolved, in_hosts)}))[0] == status


def test_an_address_that_two_cards_of_one_node_have_is_left_to_that_node() -> None:
    def twice(facts: Facts) -> Facts:
        found = facts.hccn.addresses.value or {}
        return put(addresses={**found, 1: found[0]})(facts)

    assert told("card-addresses", changed(3, {2: twice}))[0] == "ok"


def clocks(**seconds: float) -> dict[str, NodeIdentity]:
    usual = met(*(f"node{number:02}" for number in range(1, 6)))
    return {
        name: differing(each, offset=ClockOffset(seconds.get(name, 0.0), 0.3, "asked")) for name, each in usual.items()
    }


def test_of_several_wrong_clocks_the_worst_is_told_first_and_decides() -> None:
    apart = clocks(node02=90.0, node04=3600.0)
    assert told("clock", cluster(USUAL, 5), apart) == (
        "fail",
        words("clock-apart", said="node04: +3600.0 s ± 0.3 s, node02: +90.0 s ± 0.3 s", count=3),
    )


@pytest.mark.parametrize(("seconds", "status"), [(1.2, "ok"), (1.4, "warn"), (300.2, "warn"), (300.4, "fail")])
def test_a_clock_breaks_what_needs_tickets_from_five_minutes_on(seconds: float, status: str) -> None:
    assert told("clock", cluster(USUAL, 5), clocks(node03=seconds))[0] == status


def test_of_an_even_number_of_clocks_the_wrong_half_does_not_decide() -> None:
    usual = met(*(f"node{number:02}" for number in range(1, 5)))
    seconds = {"node03": 50.0, "node04": 50.0}
    apart = {
        name: differing(each, offset=ClockOffset(seconds.get(name, 0.0), 0.3, "a")) for name, each in usual.items()
    }
    wrong = words("clock-apart", said="node04: +50.0 s ± 0.3 s", count=2)
    assert told("clock", cluster(USUAL, 4), apart)[1].endswith(wrong)


# The session and the host.


@pytest.mark.parametrize(
    ("version", "mode", "status"),
    [("2.59.0", None, "warn"), ("2.60.1", None, "warn"), ("2.58.9", None, "skip"), ("2.59.0", "Disabled", "skip")],
)
def test_the_token_file_counts_for_a_ray_that_reads_one(version: str, mode: str | None, status: str) -> None:
    session = both(packages(ray=version), variables(RAY_AUTH_MODE=mode), put(token="there"))
    assert told("ray-token", on_all(3, session, {2: put(token=None)}))[0] == status


def mounted(place: str, *options: str) -> Change:
    return put(mounts=(MountRow("/", "ext4", ("rw",)), MountRow(place, "nfs4", options)))


def test_network_mounts_are_compared_by_whether_they_can_be_written() -> None:
    nodes = on_all(3, mounted("/data", "rw", "hard"), {2: mounted("/data", "ro", "hard")})
    assert told("mounts", nodes) == ("warn", "/data: " + odd("node02: nfs4 ro", 2, "nfs4 rw"))


def test_the_volumes_of_what_runs_there_are_a_node_s_own() -> None:
    pods = mounted("/var/lib/kubelet/pods/7d1/volumes/nfs", "rw")
    assert told("mounts", changed(3, {2: both(put(mounts=()), pods)}))[0] in WELL
    assert told("mounts", on_all(3, put(mounts=()), {2: pods}))[0] in WELL
    assert told("mounts", on_all(3, put(mounts=()), {2: mounted("/data", "rw")}))[0] == "warn"


def test_a_node_that_keeps_no_time_itself_says_nothing_of_its_clock() -> None:
    kept = put(**{"network.clock": Clock(True, None)})
    assert told("clock-kept", on_all(3, kept, {2: put(**{"network.clock": None})}))[0] == "ok"
    assert told("clock-kept", on_all(3, kept, {2: put(**{"network.clock": Clock(False, None)})}))[0] == "warn"


def host(*found: Interface) -> Change:
    return put(interfaces=found)


ETH0, ETH1 = Interface("eth0", "up", 1500, ("10.20.0.12",)), Interface("eth1", "up", 9000, ("10.30.0.12",))


def test_hccl_takes_the_first_interface_of_a_prefix_that_is_up_and_has_an_address() -> None:
    down, bare = ETH0._replace(state="down"), ETH0._replace(addresses=())
    session = variables(HCCL_SOCKET_IFNAME="eth", HCCL_IF_IP=None)
    nodes = changed(3, {at: both(session, host(first, ETH1)) for at, first in ((1, ETH0), (2, down), (3, bare))})
    assert told("hccl-interface", nodes)[1] == odd("node01: eth0", 2, "eth1")


def test_the_preferred_one_of_two_default_gateways_is_compared() -> None:
    def ways(preferred: int, other: int) -> Change:
        both_ways = (Route("eth1", 0, 0, other, 200), Route("eth0", 0, 0, preferred, 100))
        return put(routes=both_ways)

    nodes = on_all(3, ways(0x0A140001, 0x0A1E0001), {2: ways(0x0A140001, 0x0A1E0002)})
    assert told("gateway-of-hosts", nodes) == ("ok", same("10.20.0.1", 3))


def test_the_packets_of_the_interface_for_hccl_are_told_once() -> None:
    session = variables(HCCL_SOCKET_IFNAME="eth0", HCCL_IF_IP=None)
    large = ETH0._replace(mtu=9000)
    nodes = on_all(3, both(session, host(ETH0, ETH1)), {2: host(large, ETH1)})
    assert told("host-mtu", nodes) == ("fail", odd("node02: 9000", 2, "1500"))


# How it is said.


def test_the_evidence_is_the_first_few_lines() -> None:
    kernels = {number: of_kernel(f"6.{number}") for number in range(1, 9)}
    finding = find("kernel", changed(8, kernels))
    assert [line.command for line in finding.evidence] == [f"node{number:02}: question" for number in range(1, 7)]
    assert len(finding.evidence) == EVIDENCE_AT_MOST


def test_of_each_odd_value_two_nodes_are_shown_and_one_of_the_others() -> None:
    nodes = changed(9, {number: of_kernel("6.6" if number < 5 else "5.10") for number in range(1, 10)})
    shown = [line.command.partition(":")[0] for line in find("kernel", nodes).evidence]
    assert shown == ["node01", "node02", "node05"]


def versions(number: int, count: int) -> Change:
    return packages(**{f"tool{at}": f"{number}.{at}" for at in range(count)})


def test_one_sentence_names_six_topics_and_counts_the_rest() -> None:
    assert told("packages", changed(2, {1: versions(1, 6), 2: versions(2, 6)}))[1].count("tool") == 6
    says = told("packages", changed(2, {1: versions(1, 8), 2: versions(2, 8)}))[1]
    assert (says.count("tool"), says.endswith(words("more", count=2))) == (6, True)


def test_a_topic_on_which_two_nodes_differ_each_in_its_way_names_both() -> None:
    usual = packages(one="1", two="1")
    own = {2: both(usual, packages(one="2", two="2")), 3: packages(one="3")}
    says = told("packages", on_all(5, usual, own))[1]
    assert "two: " + odd("node02: 2", 4, "1") in says
    assert "one: " + odd("node02: 2, node03: 3", 3, "1") in says


# Votes.


def numbers(*values: float) -> dict[str, NodeValues]:
    return {
        f"n{at}": NodeValues({ValueKey(): Value(f"{value:g}", LINE, float(value))})
        for at, value in enumerate(values, start=1)
    }


def test_numbers_near_to_each_other_make_no_chain() -> None:
    (split,) = group_values(numbers(100, 109, 118), tolerance=0.1)
    assert {text: len(whose) for text, whose in split.holders.items()} == {"100": 2, "118": 1}
    (split,) = group_values(numbers(110, 100), tolerance=0.1)
    assert {text: len(whose) for text, whose in split.holders.items()} == {"100": 2}


def test_cards_that_differ_by_design_are_unknown_where_one_of_them_could_not_be_asked() -> None:
    mixed = cards_of("speeds", card0=Speed(100000))
    assert told("speed", on_all(3, mixed))[0] == "ok"
    assert told("speed", on_all(3, both(mixed, cards_of("speeds", card7=None))))[0] != "ok"


def test_a_node_that_is_to_have_no_cards_is_not_compared_in_what_is_about_cards() -> None:
    """A head of Ray, or a node that only prepares data: driver, CANN and the number of cards say nothing there."""
    nodes = {"head": cluster("cpu-debian", 1, level=2)["node01"], **cluster("a2-b3-host-roll", 3, level=2)}

    def bad(**options: Any) -> set[str]:
        return {each.check for each in check_consistency(nodes, **options) if each.status is Status.FAIL}

    of_cards = {"agree.cards", "agree.driver", "agree.cann"}
    assert of_cards <= bad()
    assert not of_cards & bad(cardless={"head"})
    assert bad() - bad(cardless={"head"}) == of_cards
    alone = check_consistency({name: nodes[name] for name in ("head", "node01")}, cardless={"head"})
    told = {each.check: each for each in alone}
    assert (told["agree.driver"].status, told["agree.driver"].says.key) == (Status.SKIP, "agree.skip-one-carded")
