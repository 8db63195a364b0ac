"""What holds for every text of the host's network files and programs: no parser raises, none invents a value."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.fact import State
from npuenv.facts import network
from npuenv.facts.network import interfaces

PIECES = (
    "|-- 10.0.0.1",
    "/32 host LOCAL",
    "\n",
    " ",
    "\t",
    "2: eth0    inet 10.0.0.1/24 ",
    "inet6 fe80::1/64 ",
    "00000000",
    "0A",
    "0100007F:18EB",
    "Iface",
    "eth0",
    "nameserver",
    "127.0.1.1",
    "node-a",
    "#",
    "STREAM",
    "Leap status     : Normal",
    "NTPSynchronized=yes",
    "type filter hook input priority filter; policy drop;",
    "-P INPUT DROP",
    "FFFFFF00",
    "0001",
    'users:(("a",pid=1,fd=2))',
    "\x1b[31m",
    "\r\n",
    "\x00",
    "9" * 30,
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))


@settings(deadline=None)
@given(TEXTS)
def test_no_text_makes_a_parser_raise_and_every_address_stands_in_the_text(text: str) -> None:
    assert all(address in text for address in interfaces.local_addresses(text))
    assert all(address in text for _, address in interfaces.addresses_of_program(text))
    assert all(ipaddress.ip_address(address) for _, address in interfaces.inet6_addresses(text))
    assert all(0 <= route.network < 1 << 32 for route in interfaces.routes(text))
    assert all(0 <= port < 65536 and ipaddress.ip_address(address) for address, port in interfaces.listening(text))
    assert all(port < 100_000 for port in interfaces.owners_of(text))
    assert all(address in text for found in interfaces.hosts_entries(text).values() for address in found)
    assert all(address in text for address in interfaces.addresses_of(text))
    assert network.drops_input(text) is None or "policy" in text
    assert network.input_policy(text) is None or "INPUT" in text
    assert network.of_chrony(text) is None or "Leap status" in text
    assert network.of_timedatectl(text) is None or "NTPSynchronized=" in text


@settings(deadline=None)
@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_an_address_is_found_behind_the_narrowest_route(address: ipaddress.IPv4Address, length: int) -> None:
    net = ipaddress.ip_network(f"{address}/{length}", strict=False)
    table = [
        interfaces.Route("wide", 0, 0, 1, 0),
        interfaces.Route("narrow", int(net.network_address), int(net.netmask), 0, 5),
    ]
    assert interfaces.way_to(table, str(address)) == ("narrow" if length else "wide")
    assert interfaces.number_of(str(address)) == int(address)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:6379", "10.0.0.1"),
        ("ray://head:10001", "head"),
        ("ray://user:pass@10.0.0.1:10001", "10.0.0.1"),
        ("ray://***@10.0.0.1:10001", "10.0.0.1"),
        ("user:p:w@head:6379", "head"),
        ("http://[fd00::1]:8265/path", "fd00::1"),
        ("[fd00::1]:6379", "fd00::1"),
        ("ray://head", "head"),
        (" head:6379 ", "head"),
        ("auto", ""),
        ("local", ""),
        ("", ""),
        ("head:port", ""),
        ("ray://[fd00::1", ""),
    ],
)
def test_the_host_of_an_address_of_ray(address: str, host: str) -> None:
    assert network.host_of(address) == host


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "8", "RANK": "3", "LOCAL_RANK": "3"}, None),
        ({"MASTER_ADDR": "127.0.0.1", "HCCL_SOCKET_IFNAME": "eth0"}, None),
        ({"HCCL_SOCKET_IFNAME": "lo"}, None),
        ({"RAY_ADDRESS": "auto"}, None),
        ({"RAY_ADDRESS": "127.0.0.1:6379"}, None),
        ({"NNODES": "1"}, None),
        ({"NNODES": "two"}, None),
        ({"NNODES": "2"}, ("NNODES",)),
        ({"PET_NNODES": "2:4"}, ("PET_NNODES",)),
        ({"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "2", "RANK": "0"}, ("WORLD_SIZE",)),
        ({"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "1"}, ("NODE_RANK",)),
        ({"HCCL_IF_IP": "10.0.0.1"}, ("HCCL_IF_IP",)),
        ({"RAY_ADDRESS": "ray://10.0.0.1:10001"}, ("RAY_ADDRESS",)),
        ({"RAY_ADDRESS": "ray://user:word@10.0.0.1:10001"}, ("RAY_ADDRESS",)),
        ({"RAY_ADDRESS": "ray://user:word@127.0.0.1:10001"}, None),
        ({"RAY_ADDRESS": "local"}, None),
    ],
)
def test_which_variables_speak_of_several_nodes(variables: dict[str, str], expected: tuple[str, ...] | None) -> None:
    fact = network.spans(variables)
    assert fact.value == expected
    assert fact.state is (State.ABSENT if expected is None else State.KNOWN)


def test_a_mapped_address_of_version_4_is_written_alike_on_every_python() -> None:
    line = "   0: 0000000000000000FFFF00000100007F:2711 00000000000000000000000000000000:0000 0A\n"
    assert interfaces.listening(f"  sl  local_address  remote_address  st\n{line}") == [("::ffff:127.0.0.1", 10001)]
