"""The checks of the host's own network, each on raw answers of a healthy host with one thing changed.

`TWO` makes the session one of two nodes: MASTER_ADDR is another host of the same subnet, and this is node 1.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npuenv.checks import CHECKS as ALL_CHECKS
from npuenv.checks import check_all
from npuenv.checks.network.host import CHECKS, is_excepted
from npuenv.checks.network.interfaces import hccl_choice, matching
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from npuenv.facts.collect import collect
from npuenv.facts.network.interfaces import Interface
from tests.support.edited_host import EditedHost

Edit = Callable[[EditedHost], None]
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
TCP = "head -n 300 /proc/net/tcp"


def both(*edits: Edit) -> Edit:
    def edit(host: EditedHost) -> None:
        for one in edits:
            one(host)

    return edit


def env(**variables: str) -> Edit:
    return lambda host: host.variables.update(variables)


def listens(port: int, owner: str = "") -> Edit:
    """Something listens on a port of all addresses."""

    def edit(host: EditedHost) -> None:
        row = (
            f"   9: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n"
        )
        host.answer(TCP, host.commands[tuple(TCP.split())]["out"] + row)
        users = f'users:(("{owner}",pid=77,fd=3))' if owner else ""
        host.answer("ss -H -ltnp", f"LISTEN 0      128          0.0.0.0:{port}        0.0.0.0:*    {users}\n")

    return edit


def file(path: str, text: str) -> Edit:
    return lambda host: host.file(path, text)


def says(words: str, out: str = "", *, code: int | None = 0, err: str = "") -> Edit:
    return lambda host: host.answer(words, out, code=code, err=err)


def state(name: str, word: str) -> Edit:
    return file(f"/sys/class/net/{name}/operstate", word + "\n")


def interface(name: str, address: str) -> Edit:
    """One more interface that is up."""

    def edit(host: EditedHost) -> None:
        names = host.paths["/sys/class/net"]["names"]
        host.folder("/sys/class/net", *names, name)
        host.file(f"/sys/class/net/{name}/operstate", "up\n")
        host.file(f"/sys/class/net/{name}/mtu", "1500\n")
        text = host.commands["ip", "-o", "addr"]["out"]
        row = f"9: {name}    inet {address}/24 scope global {name}\\       valid_lft forever preferred_lft forever\n"
        host.answer("ip -o addr", text + row if address else text)

    return edit


def name_is(*addresses: str) -> Edit:
    rows = "".join(f"{item:15} STREAM host1\n" for item in addresses)
    return both(
        file("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{item} host1\n" for item in addresses)),
        says("getent ahosts host1", rows, code=0 if addresses else 2),
    )


TWO = env(NNODES="2", NODE_RANK="1", MASTER_ADDR="192.168.1.11", MASTER_PORT="29500")
HEAD = env(NNODES="2", NODE_RANK="0", MASTER_ADDR="192.168.1.4", MASTER_PORT="29500")
ONLY_SIX = both(
    says(
        "ip -o addr", "1: lo    inet 127.0.0.1/8 scope host lo\\\n2: enp194s0f0    inet6 fd00::12/64 scope global \\\n"
    ),
    name_is("fd00::12"),
    env(MASTER_ADDR="fd00::11"),
)
NO_DEFAULT_ROUTE = file(
    "/proc/net/route",
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "enp194s0f0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
)
NO_INTERFACES = both(lambda host: host.unreadable("/sys/class/net"))
PROXY = env(http_proxy="http://192.168.1.3:3128", https_proxy="http://192.168.1.3:3128")
CASES: list[tuple[str, Edit, Status, str]] = [
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="enp194s0f0"), Status.OK, "enp194s0f0"),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="enp"), Status.OK, "enp194s0f0"),
    (
        "network.hccl-interface",
        both(TWO, interface("enp194s0f1", "10.30.0.12"), env(HCCL_SOCKET_IFNAME="enp")),
        Status.WARN,
        "different subnets",
    ),
    (
        "network.hccl-interface",
        both(TWO, interface("enp194s0f1", "10.30.0.12"), env(HCCL_SOCKET_IFNAME="=enp194s0f0")),
        Status.OK,
        "enp194s0f0",
    ),
    (
        "network.hccl-interface",
        both(TWO, interface("enp194s0f1", "192.168.1.9"), env(HCCL_SOCKET_IFNAME="enp")),
        Status.OK,
        "enp194s0f0",
    ),
    (
        "network.hccl-interface",
        both(interface("enp194s0f1", "10.30.0.12"), env(HCCL_SOCKET_IFNAME="enp")),
        Status.OK,
        "enp194s0f0",
    ),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="^docker,lo"), Status.OK, "enp194s0f0"),
    (
        "network.hccl-interface",
        both(interface("enp0s9", "10.9.0.1"), state("enp0s9", "down"), env(HCCL_SOCKET_IFNAME="enp")),
        Status.OK,
        "enp194s0f0",
    ),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1"), Status.OK, "lo"),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="eth0"), Status.FAIL, "no interface"),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="=enp"), Status.FAIL, "no interface"),
    ("network.hccl-interface", env(HCCL_SOCKET_IFNAME="=docker0"), Status.FAIL, "other nodes"),
    ("network.hccl-interface", both(TWO, env(HCCL_SOCKET_IFNAME="lo")), Status.FAIL, "other nodes"),
    (
        "network.hccl-interface",
        both(interface("enp9s0", "10.9.0.1"), state("enp9s0", "down"), env(HCCL_SOCKET_IFNAME="=enp9s0")),
        Status.FAIL,
        "which is down",
    ),
    (
        "network.hccl-interface",
        both(interface("enp9s0", ""), env(HCCL_SOCKET_IFNAME="=enp9s0")),
        Status.FAIL,
        "has no address",
    ),
    (
        "network.hccl-interface",
        both(env(HCCL_SOCKET_IFNAME="eth0", MASTER_ADDR="127.0.0.1"), NO_INTERFACES),
        Status.UNKNOWN,
        "cannot list",
    ),
    ("network.hccl-address", env(HCCL_IF_IP="192.168.1.4"), Status.OK, "enp194s0f0"),
    ("network.hccl-address", env(HCCL_IF_IP="192.168.1.99"), Status.FAIL, "not an address of this host"),
    ("network.hccl-address", env(HCCL_IF_IP="enp194s0f0"), Status.SKIP, "not an IP address"),
    ("network.hccl-address", env(HCCL_IF_IP="172.17.0.1"), Status.FAIL, "other nodes"),
    (
        "network.hccl-address",
        both(env(HCCL_IF_IP="10.9.0.1"), interface("enp9s0", "10.9.0.1"), state("enp9s0", "down")),
        Status.FAIL,
        "which is down",
    ),
    (
        "network.hccl-address",
        both(env(HCCL_IF_IP="10.9.0.1", MASTER_ADDR="127.0.0.1"), NO_INTERFACES),
        Status.UNKNOWN,
        "cannot list",
    ),
    ("network.hccl-guess", TWO, Status.OK, "enp194s0f0"),
    (
        "network.hccl-guess",
        both(TWO, interface("br-0123456789ab", "172.18.0.1")),
        Status.WARN,
        "enp194s0f0 is the route",
    ),
    ("network.hccl-guess", both(TWO, interface("enp0s1", "192.168.7.4")), Status.WARN, "enp0s1"),
    (
        "network.hccl-guess",
        both(env(NNODES="2"), interface("br-0123456789ab", "172.18.0.1")),
        Status.WARN,
        "not reach other",
    ),
    ("network.gloo-interface", env(GLOO_SOCKET_IFNAME="enp194s0f0", TP_SOCKET_IFNAME="lo"), Status.OK, "lo"),
    ("network.gloo-interface", env(GLOO_SOCKET_IFNAME="enp"), Status.FAIL, "GLOO_SOCKET_IFNAME=enp"),
    ("network.gloo-interface", env(TP_SOCKET_IFNAME="enp194s0f0,eth0"), Status.FAIL, "TP_SOCKET_IFNAME"),
    ("network.gloo-interface", both(TWO, env(GLOO_SOCKET_IFNAME="docker0")), Status.FAIL, "other nodes"),
    ("network.gloo-interface", both(env(GLOO_SOCKET_IFNAME="eth0"), NO_INTERFACES), Status.UNKNOWN, "cannot list"),
    ("network.ip-family", TWO, Status.OK, "available"),
    ("network.ip-family", both(TWO, ONLY_SIX), Status.WARN, "only IPv6"),
    ("network.ip-family", both(TWO, ONLY_SIX, env(HCCL_SOCKET_FAMILY="AF_INET6")), Status.OK, "available"),
    ("network.ip-family", both(TWO, env(HCCL_SOCKET_FAMILY="AF_INET6")), Status.FAIL, "no interface has an IPv6"),
    ("network.hostname", TWO, Status.OK, "192.168.1.4"),
    ("network.hostname", both(TWO, name_is("127.0.1.1")), Status.WARN, "127.0.1.1"),
    ("network.hostname", both(TWO, name_is()), Status.WARN, "not resolve"),
    ("network.hostname", both(TWO, name_is("10.99.0.1")), Status.WARN, "10.99.0.1"),
    (
        "network.hostname",
        both(TWO, file("/etc/hosts", ""), says("getent ahosts host1", code=None)),
        Status.UNKNOWN,
        "not determine",
    ),
    ("network.hostname", name_is("127.0.1.1"), Status.SKIP, "multi-node"),
    ("network.master", TWO, Status.OK, "192.168.1.11"),
    (
        "network.master",
        both(TWO, env(MASTER_ADDR="head"), says("getent ahosts head", code=2)),
        Status.FAIL,
        "not resolve",
    ),
    (
        "network.master",
        both(TWO, env(MASTER_ADDR="head"), says("getent ahosts head", code=None, err="?")),
        Status.UNKNOWN,
        "network.master",
    ),
    ("network.master", both(TWO, env(MASTER_ADDR="127.0.0.1")), Status.FAIL, "loopback"),
    ("network.master", both(TWO, env(NODE_RANK="0")), Status.FAIL, "this is node 0"),
    ("network.master", both(HEAD, env(NODE_RANK="1")), Status.FAIL, "this is node 1"),
    ("network.master", both(TWO, env(MASTER_ADDR="10.99.0.1"), NO_DEFAULT_ROUTE), Status.FAIL, "no route"),
    ("network.master-port", HEAD, Status.OK, "29500"),
    ("network.master-port", both(HEAD, env(MASTER_PORT="http")), Status.FAIL, "not a port"),
    ("network.master-port", both(HEAD, env(MASTER_PORT="70000")), Status.FAIL, "not a port"),
    ("network.master-port", both(HEAD, listens(29500, "nginx")), Status.WARN, "nginx"),
    ("network.master-port", both(HEAD, listens(29500)), Status.WARN, "29500"),  # whose it is cannot be seen
    ("network.master-port", both(HEAD, env(MASTER_PORT="6379"), listens(6379)), Status.OK, "6379"),  # Ray's, it seems
    ("network.master-port", both(HEAD, env(MASTER_PORT="50000")), Status.WARN, "ephemeral"),
    ("network.master-port", both(TWO, env(MASTER_PORT="50000")), Status.OK, "50000"),
    ("network.hccl-ports", listens(60010, "nginx"), Status.WARN, "60010"),
    ("network.hccl-ports", env(HCCL_IF_BASE_PORT="50000"), Status.WARN, "50000 to 50031"),
    (
        "network.hccl-ports",
        both(env(HCCL_IF_BASE_PORT="50000"), file("/proc/sys/net/ipv4/ip_local_reserved_ports", "50000-50031\n")),
        Status.OK,
        "50000",
    ),
    ("network.hccl-ports", both(env(HCCL_IF_BASE_PORT="23456"), listens(23460)), Status.WARN, "23460"),
    ("network.hccl-ports", both(env(HCCL_IF_BASE_PORT="23456"), listens(23456)), Status.WARN, "23456"),
    ("network.hccl-ports", both(env(HCCL_IF_BASE_PORT="23456"), listens(23455)), Status.OK, "23456"),
    (
        "network.hccl-ports",
        both(env(HCCL_IF_BASE_PORT="23456"), says(TCP, code=1, err="head: Permission denied\n")),
        Status.UNKNOWN,
        "cannot list",
    ),
    ("network.ray-ports", HEAD, Status.OK, "another program"),
    ("network.ray-ports", both(HEAD, listens(6379, "redis-server")), Status.WARN, "redis-server"),
    ("network.ray-ports", both(HEAD, listens(6379, "gcs_server")), Status.OK, "another program"),
    ("network.ray-ports", both(TWO, listens(6379, "redis-server")), Status.OK, "another program"),
    (
        "network.ray-ports",
        both(HEAD, says(TCP, code=1, err="head: Permission denied\n")),
        Status.UNKNOWN,
        "cannot list",
    ),
    ("network.no-proxy", both(TWO, PROXY), Status.WARN, "192.168.1.11"),
    ("network.no-proxy", both(TWO, PROXY, env(no_proxy="localhost,192.168.1.0/24")), Status.OK, "excluded"),
    ("network.no-proxy", PROXY, Status.SKIP, "multi-node"),
    ("network.firewall", TWO, Status.OK, "none"),
    ("network.firewall", both(TWO, file("/etc/ufw/ufw.conf", "ENABLED=yes\n")), Status.WARN, "ufw"),
    ("network.firewall", both(TWO, lambda host: host.unreadable("/etc/ufw/ufw.conf")), Status.UNKNOWN, "firewall"),
    ("network.firewall", file("/etc/ufw/ufw.conf", "ENABLED=yes\n"), Status.SKIP, "multi-node"),
    ("network.clock", TWO, Status.OK, "synchronised"),
    (
        "network.clock",
        both(TWO, says("chronyc -n tracking", "Leap status     : Not synchronised\n")),
        Status.WARN,
        "not synchronised",
    ),
    (
        "network.clock",
        both(TWO, says("chronyc -n tracking", "506 Cannot talk to daemon\n", code=1)),
        Status.UNKNOWN,
        "not determine",
    ),
]


OF_NETWORK = tuple(check for check in ALL_CHECKS if check.id.startswith("network."))


def findings(host: EditedHost) -> dict[str, Finding]:
    """What level 1 finds of the network; the proxies are not tried there. No other fact reaches those checks."""
    facts = collect(host, level=1, only=frozenset({"machine", "npu", "hccn", "network"}))
    return {item.check: item for item in check_all(facts, level=1, checks=OF_NETWORK)}


@pytest.mark.parametrize("address", ["ray://user:word@10.0.0.1:10001", "10.0.0.1:6379", "http://***@10.0.0.1:8265"])
def test_the_exception_from_the_proxies_names_the_host_of_ray_alone(address: str) -> None:
    host = EditedHost("a2_healthy")
    both(TWO, PROXY, env(RAY_ADDRESS=address))(host)
    fix = findings(host)["network.no-proxy"].fix
    assert fix is not None
    assert fix.commands == (("export", "no_proxy=192.168.1.11,10.0.0.1,localhost,127.0.0.1"),)


@pytest.mark.parametrize(
    ("check", "edit", "status", "words"), CASES, ids=[f"{case[0]}-{case[2].value}-{case[3]}" for case in CASES]
)
def test_one_fault_gives_the_expected_finding_and_moves_no_other_check(
    check: str, edit: Edit, status: Status, words: str
) -> None:
    host = EditedHost("a2_healthy")
    edit(host)
    found = findings(host)
    finding = found[check]
    assert (finding.status, words in say(finding.says)) == (status, True), (finding.status, say(finding.says))
    assert finding.source and say(finding.says, "zh")
    if status in (Status.FAIL, Status.WARN):
        assert finding.evidence and finding.fix is not None
        assert say(finding.fix.says) != say(finding.fix.says, "zh")
        others = {name: item.status for name, item in found.items() if item.status not in (Status.OK, Status.SKIP)}
        assert others == {check: status}


def test_every_check_of_the_hosts_network_has_a_fault_and_a_good_case() -> None:
    seen: dict[str, set[Status]] = {}
    for name, _, status, _ in CASES:
        seen.setdefault(name, set()).add(status)
    for check in CHECKS:
        assert seen[check.id] & {Status.FAIL, Status.WARN} and Status.OK in seen[check.id], check.id


@pytest.mark.parametrize("name", ["a2_healthy", "a3_healthy", "no_card", "container_8020"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_healthy_single_node_is_silent_at_every_level(name: str, level: int) -> None:
    facts = collect(EditedHost(name), level=level)
    odd = {
        item.check: (item.status, say(item.says))
        for item in check_all(facts, level=level)
        if item.check.startswith("network.") and item.status not in (Status.OK, Status.SKIP)
    }
    assert odd == {}


@pytest.mark.parametrize("edit", [TWO, HEAD], ids=["worker", "head"])
def test_a_healthy_node_of_two_is_silent_too(edit: Edit) -> None:
    host = EditedHost("a2_healthy")
    edit(host)
    odd = {name: say(item.says) for name, item in findings(host).items() if item.status not in (Status.OK, Status.SKIP)}
    assert odd == {}


def test_a_container_says_nothing_of_its_hosts_firewall_and_clock() -> None:
    host = EditedHost("a2_healthy")
    both(TWO, file("/.dockerenv", ""), says("chronyc -n tracking", code=1))(host)
    found = findings(host)
    assert found["network.firewall"].status is found["network.clock"].status is Status.SKIP


def test_on_one_node_no_program_is_asked_about_the_network() -> None:
    host = EditedHost("a2_healthy")
    collect(host, level=1)
    programs = {words.split()[0] for words in host.asked if "getent group" not in words}
    assert programs.isdisjoint({"ip", "ss", "getent", "chronyc", "timedatectl", "nft", "iptables", "systemctl"})


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("eth,enp", ["eth0", "eth1", "enp3s0"]),
        ("enp,eth", ["enp3s0", "eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("^eth", ["docker0", "enp3s0", "lo"]),
        ("^=eth0", ["docker0", "enp3s0", "eth1", "lo"]),
        ("^=eth0,lo", ["docker0", "enp3s0", "eth1"]),
    ],
)
def test_the_four_forms_of_the_interface_variable(setting: str, expected: list[str]) -> None:
    assert matching(setting, ["lo", "eth1", "docker0", "enp3s0", "eth0"]) == expected


def test_hccl_takes_docker_after_all_others_and_the_loopback_last() -> None:
    lo, docker, bond = (Interface(name, "up", 1500, ("1.2.3.4",)) for name in ("lo", "docker0", "bond0"))
    assert hccl_choice([lo, docker, bond]) == bond
    assert hccl_choice([lo, docker]) == docker
    assert hccl_choice([lo]) == lo
    assert hccl_choice([Interface("eth0", "down", 1500, ("1.2.3.4",))]) is None


@pytest.mark.parametrize(
    ("name", "excepted", "expected"),
    [
        ("192.168.1.11", "192.168.1.11", True),
        ("192.168.1.11", "192.168.1.0/24", True),
        ("192.168.1.11", "192.168.2.0/24", False),
        ("192.168.1.11", "*", True),
        ("192.168.1.11", "192.168.1.*", True),
        ("node-b.cluster", ".cluster", True),
        ("node-b.cluster", "cluster", True),
        ("node-b", "cluster, node-c", False),
        ("node-b", "", False),
    ],
)
def test_exceptions_from_a_proxy(name: str, excepted: str, expected: bool) -> None:
    assert is_excepted(name, excepted) is expected


VIRTUAL = ("docker0", "virbr0", "br-0123456789ab", "veth1a2b", "cni0", "flannel.1", "cali1f", "kube-ipvs0")


@pytest.mark.parametrize("name", [*VIRTUAL, "nodelocaldns", "podman0", "lxcbr0"])
def test_a_bridge_of_containers_reaches_no_other_node(name: str) -> None:
    host = EditedHost("a2_healthy")
    both(TWO, interface(name, "172.18.0.1"), env(HCCL_SOCKET_IFNAME=f"={name}"))(host)
    finding = findings(host)["network.hccl-interface"]
    assert (finding.status, finding.says.key) == (Status.FAIL, "check_network.ifname-inner")


def test_a_taken_port_is_shown_with_the_variable_that_names_it() -> None:
    host = EditedHost("a2_healthy")
    both(HEAD, listens(29500, "nginx"))(host)
    lines = [item.line for item in findings(host)["network.master-port"].evidence]
    assert lines[0] == "MASTER_PORT=29500" and len(lines) > 1
