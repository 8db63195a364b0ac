"""Networks that differ from node to node: a plan or a fault; and addresses that each host has inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.core.fact import absent, known, unknown
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.hccn.parsers import Address, Gateway
from npuenv.facts.network.interfaces import Interface, Route, number_of
from tests.cluster.voting import BAD, LINE, changed, find, odd, same, tied, told, words
from tests.support.changes import both, gone, put, variables

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts
    from tests.support.changes import Change

pytestmark = pytest.mark.slow

_MASK = 0xFFFFFF00


def hosted(subnet: int, host: int, interface: str = "enp189s0f0") -> Change:
    """A host in the network 10.30.SUBNET.0/24, with the gateway of that network."""
    network = number_of(f"10.30.{subnet}.0")
    assert network is not None
    rows = (Route(interface, network, _MASK, 0, 0), Route(interface, 0, 0, network + 254, 100))
    item = Interface(interface, "up", 1500, (f"10.30.{subnet}.{host}",))
    return both(put(interfaces=(item,), routes=rows), variables(HCCL_SOCKET_IFNAME=interface))


def spread(*subnets: int, interface: str = "enp189s0f0") -> dict[str, Facts]:
    """A node for each of these networks."""
    changes = {at: hosted(subnet, at, interface) for at, subnet in enumerate(subnets, start=1)}
    return changed(len(subnets), changes)


@pytest.mark.parametrize("subnets", [(1, 2), (1, 1, 2, 2)])
def test_two_networks_that_are_equally_frequent_are_told_and_their_gateways_follow(subnets: tuple[int, ...]) -> None:
    one, two = ("node01", "node02") if len(subnets) == 2 else ("node[01-02]", "node[03-04]")
    assert told("host-subnet", spread(*subnets)) == ("warn", tied(f"{one}: 10.30.1.0/24, {two}: 10.30.2.0/24"))
    because = words("because", cause=words("title-host-subnet"))
    assert told("gateway-of-hosts", spread(*subnets)) == ("skip", because)


@pytest.mark.parametrize("subnets", [(1, 2, 3), (1, 1, 2, 2, 3, 3)])
def test_three_networks_and_more_are_a_plan(subnets: tuple[int, ...]) -> None:
    found = {name: find(name, spread(*subnets)) for name in ("host-subnet", "gateway-of-hosts")}
    assert {item.status for item in found.values()} == {Status.OK}
    assert say(found["host-subnet"].says) == words("layout", count=3)


def test_each_pod_has_a_network_of_its_own() -> None:
    pods = {name: put(container="kubernetes")(facts) for name, facts in spread(1, 2, interface="eth0").items()}
    assert [find(name, pods).status for name in ("host-subnet", "gateway-of-hosts")] == [Status.OK] * 2
    on_hosts = {name: put(container="kubernetes")(facts) for name, facts in spread(1, 2).items()}
    assert find("host-subnet", on_hosts).status is Status.WARN, (
        "a pod with the network of its host has no plan of its own"
    )


def test_gateways_of_one_network_are_never_a_plan() -> None:
    other = put(routes=(Route("enp189s0f0", 0x0A140000, _MASK, 0, 0), Route("enp189s0f0", 0, 0, 0x0A1400FE, 0)))
    assert told("gateway-of-hosts", changed(2, {2: other})) == (
        "warn",
        tied("node01: 10.20.0.1, node02: 10.20.0.254"),
    )


def test_other_interface_names_in_several_networks_are_not_excused_by_one() -> None:
    nodes = {
        **spread(1, 2, 3),
        "node03": hosted(3, 3, "enp2s0")(spread(1, 2, 3)["node03"]),
    }
    assert told("hccl-interface", nodes) == ("warn", odd("node03: enp2s0", 2, "enp189s0f0"))


def of_cards(number: int, *, has_gateways: bool) -> Change:
    """A node whose cards are a network of their own."""
    addresses = {card: known(Address(f"10.12.{number}.{card + 1}", "255.255.255.0"), LINE) for card in range(8)}
    gateways = {card: known(Gateway(f"10.12.{number}.254", "eth0"), LINE) for card in range(8)}
    changes = [put(addresses=addresses), put(gateways=gateways if has_gateways else {})]
    return both(*changes, *([] if has_gateways else [put(conf=None)]))


def test_a_network_of_cards_for_each_of_two_nodes_is_a_plan_where_gateways_lead_out_of_it() -> None:
    routed = changed(2, {number: of_cards(number, has_gateways=True) for number in (1, 2)})
    assert [find(name, routed).status for name in ("card-subnets", "gateways")] == [Status.OK] * 2
    shut = changed(2, {number: of_cards(number, has_gateways=False) for number in (1, 2)})
    status, says = told("card-subnets", shut)
    assert status == "warn"
    assert says.startswith("NPU 0: " + tied("node01: 10.12.1.0/24, node02: 10.12.2.0/24"))


@pytest.mark.parametrize("lacking", [1, 3])
def test_a_card_without_a_gateway_is_named_and_its_routed_network_stays_a_plan(lacking: int) -> None:
    changes = {number: of_cards(number, has_gateways=True) for number in (1, 2, 3)}
    nodes = changed(3, changes)
    answers = dict(nodes["node02"].hccn.gateways.value or {})
    answers.update(dict.fromkeys(range(lacking), absent(LINE)))
    nodes["node02"] = put(gateways=answers)(nodes["node02"])
    assert [find(name, nodes).status for name in ("card-subnets", "gateways")] == [Status.OK] * 2
    who = "node02 cards " + ("0" if lacking == 1 else "0-2")
    not_set = f"{who}: {words('word-not-set')}"
    assert told("card-gatewayed", nodes) == ("warn", odd(not_set, 24 - lacking, words("word-set")))


def test_a_gateway_that_cannot_be_read_is_not_one_that_is_not_set() -> None:
    nodes = changed(2, {number: of_cards(number, has_gateways=True) for number in (1, 2)})
    answers = {**(nodes["node02"].hccn.gateways.value or {}), 3: unknown(LINE)}
    nodes["node02"] = both(put(conf=None), put(gateways=answers))(nodes["node02"])
    assert find("card-gatewayed", nodes).status is Status.UNKNOWN
    nodes["node02"] = put(gateways={**answers, 3: absent(LINE)})(nodes["node02"])
    assert find("card-gatewayed", nodes).status is Status.WARN


def with_interface(name: str, address: str) -> Change:
    def change(facts: Facts) -> Facts:
        found = facts.network.interfaces.value or ()
        return put(interfaces=(*found, Interface(name, "up", 1500, (address,))))(facts)

    return both(change, variables(HCCL_SOCKET_IFNAME=None))


def shared(who: str) -> str:
    return words("shared", value="192.168.1.100", who=who)


@pytest.mark.parametrize(
    "name",
    [
        "endvnic",
        "nerdctl0",
        "lxdbr0",
        "incusbr0",
        "isulad",
        "usb0",
        "cilium_host",
        "antrea-gw0",
        "weave",
        "ovs-system",
        "ovn-k8s-mp0",
        "dummy0",
    ],
)
@pytest.mark.parametrize("on", [(1, 2, 3), (1, 2)])
def test_what_each_host_has_inside_is_no_clash_and_not_what_hccl_takes(name: str, on: tuple[int, ...]) -> None:
    nodes = changed(3, {number: with_interface(name, "192.168.1.100") for number in on})
    assert told("host-addresses", nodes) == ("ok", words("unique", count=3))
    assert told("hccl-interface", nodes)[1] == same("enp189s0f0", 3)
    assert find("host-mtu", nodes).status is Status.OK


def test_an_address_that_all_have_by_one_unknown_name_is_inside() -> None:
    nodes = changed(3, {number: with_interface("vendor7", "192.168.1.100") for number in (1, 2, 3)})
    assert told("host-addresses", nodes) == ("ok", words("unique", count=3))
    some = changed(3, {number: with_interface("vendor7", "192.168.1.100") for number in (1, 2)})
    assert told("host-addresses", some) == ("fail", words("clash", groups=shared("node[01-02]")))


@pytest.mark.parametrize("name", ["enp3s0", "eth0", "bond1", "ib0", "br0"])
@pytest.mark.parametrize("count", [2, 4])
def test_an_address_that_all_have_where_a_cable_is_plugged_in_is_a_clash(name: str, count: int) -> None:
    """Such as that of an image which all were made from."""
    nodes = changed(count, dict.fromkeys(range(1, count + 1), with_interface(name, "192.168.1.100")))
    assert told("host-addresses", nodes) == ("fail", words("clash", groups=shared(f"node[01-0{count}]")))


def test_hosts_without_any_address_are_not_called_different() -> None:
    nodes = changed(2, dict.fromkeys((1, 2), put(interfaces=())))
    assert find("host-addresses", nodes).status is Status.SKIP
    lost = changed(2, dict.fromkeys((1, 2), gone("network.interfaces", LINE)))
    assert find("host-addresses", lost).status not in (*BAD, Status.OK)
