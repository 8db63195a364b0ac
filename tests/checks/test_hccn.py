"""The checks of the cards' network, each on raw answers of healthy hosts with one thing changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npuenv.checks import CHECKS as ALL_CHECKS
from npuenv.checks import check_all
from npuenv.checks.network.hccn import CHECKS
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from npuenv.facts.collect import collect
from npuenv.report.doctor import grouped
from tests.support.edited_host import EditedHost
from tests.support.sentences import outcomes

TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
Edit = Callable[[EditedHost], None]


def ask(card: int, item: str, out: str = "", *, code: int = 0, err: str = "", timed_out: bool = False) -> Edit:
    """hccn_tool answers so about a card."""
    words = f"{TOOL} -i {card} -{item} -g"
    return lambda host: host.answer(words, out, code=None if timed_out else code, err=err, timed_out=timed_out)


def every(item: str, out: str = "", *, cards: int = 8, code: int = 0, err: str = "") -> Edit:
    """hccn_tool answers so about every card; `{card}` stands for its number."""
    return every_of(ask(card, item, out.replace("{card}", str(card)), code=code, err=err) for card in range(cards))


def every_of(edits: object) -> Edit:
    chosen = list(edits)  # type: ignore[call-overload]

    def edit(host: EditedHost) -> None:
        for one in chosen:
            one(host)

    return edit


def conf(**keys: str) -> Edit:
    """/etc/hccn.conf with these keys for all eight cards; `{card}` stands for the card's number."""
    lines = [f"{key}_{card}={value.replace('{card}', str(card))}" for card in range(8) for key, value in keys.items()]
    return lambda host: host.file("/etc/hccn.conf", "\n".join(lines) + "\n")


def line(old: str, new: str) -> Edit:
    """A change in /etc/hccn.conf."""

    def edit(host: EditedHost) -> None:
        text = host.paths["/etc/hccn.conf"]["text"]
        assert old in text
        host.file("/etc/hccn.conf", text.replace(old, new))

    return edit


def switch(card: int, value: str, rest: str = "") -> Edit:
    text = f"dev_id:{card}, tls switch[{value}](0:disable, 1:enable), tls alarm time threshold[60]days\n"
    return ask(card, "tls", text + rest)


def block(expiry: int, name: str = "pub cert") -> str:
    return (
        f"dev_id:0, [{name}] info:\n         start_time[Sat Jan 31 03:10:27 2026 GMT]\n"
        f"         end_time[Mon Mar  2 03:10:27 2026 GMT]\n"
        f"         tls expiration status[{expiry}](0:normal, 1:near expiration, 2:has expired)\n"
    )


PLAN = conf(address="10.12.165.8{card}", netmask="255.255.255.0", gateway="10.12.165.1", tls_enable="0")
NO_TOOL = every_of(
    [lambda host: host.gone("/usr/local/Ascend/driver/tools"), lambda host: host.gone("/usr/bin/hccn_tool")]
)
UNLINKED: Edit = lambda host: host.answer("readlink /usr/bin/hccn_tool", code=1)  # noqa: E731
PING0 = f"{TOOL} -i 0 -ping -g address 10.12.165.81"
UNCABLED = every_of(
    [
        every("link", "link status: DOWN\n"),
        every("ip", code=13, err="Get ipconf failed, because no ip was preset there!\n"),
    ]
)
PING_LOSS = "device 0 PING 10.12.165.81\nrecv time out seq=0\n3 packets transmitted, 2 received, 33.33% packet loss\n"
PING_DEAD = "device 0 PING 10.12.165.81\nDestination Host Unreachable\n"


def a5(host: EditedHost) -> None:
    """The tool speaks the grammar of 950; every card has three ports, all up."""
    table = (
        "+---------+---------+---------------------+-----------+-------------+------------+\n"
        "| UDie ID | Port ID | Speed Ability(Gbps) | Port Type | Link Status | Media Type |\n"
        "+---------+---------+---------------------+-----------+-------------+------------+\n"
        "| 0       | 4       | 400                 | UB        | UP          | Electrical |\n"
        "| 0       | 5       | 400                 | UB        | UP          | Electrical |\n"
        "+---------+---------+---------------------+-----------+-------------+------------+\n"
    )
    host.answer(f"{TOOL} -i 0 -link -g", code=2, err="Please specify a valid mode.\n")
    for card in range(8):
        host.answer(f"{TOOL} -g -dev_info -i {card}", table)
        host.answer(
            f"{TOOL} -g -vnic -i {card}",
            f"vnic link status: UP\nvnic ipaddr: 192.168.2.{199 - card}\nvnic netmask: 255.255.255.0\n",
        )


def port(state: str, enable: str) -> Edit:
    """Port 5 of card 3 is in this state, and switched on or off."""

    def edit(host: EditedHost) -> None:
        table = host.commands[tuple(f"{TOOL} -g -dev_info -i 3".split())]["out"]
        host.answer(
            f"{TOOL} -g -dev_info -i 3",
            table.replace(
                "| 5       | 400                 | UB        | UP  ",
                f"| 5       | 400                 | UB        | {state}",
            ),
        )
        host.answer(f"{TOOL} -g -port_info -i 3 -u 0 -p 5", f"port_id: 0x5\nport_enable: {enable}\nport_link: unlink\n")

    return edit


def both(*edits: Edit) -> Edit:
    return every_of(edits)


def ranks(old: str = "", new: str = "") -> Edit:
    """RANK_TABLE_FILE names a table of this host and another one, with a change."""
    rows = ", ".join(
        f'{{"device_id": "{card}", "device_ip": "10.12.165.{80 + card}", "rank_id": "{card}"}}' for card in range(8)
    )
    other = '{"device_id": "0", "device_ip": "10.12.166.80", "rank_id": "8"}'
    text = (
        '{"status": "completed", "version": "1.0", "server_count": "2", "server_list": ['
        f'{{"server_id": "node_0", "device": [{rows}]}}, {{"server_id": "node_1", "device": [{other}]}}]}}'
    )
    assert old in text

    def edit(host: EditedHost) -> None:
        host.variables["RANK_TABLE_FILE"] = "/job/ranks.json"
        host.file("/job/ranks.json", text.replace(old, new) if old else text)

    return edit


SICK = "Get device health status failed!\n"


def changes(card: int, count: int, *downs: str) -> Edit:
    """The link of a card came up so often, and went down at these times of the second of September."""
    rows = "".join(f"[devid {card}]    Wed Sep  2 {time} 2026    LINK DOWN\n" for time in downs)
    head = (
        f"[devid {card}]current time        : Wed Sep  2 20:00:00 2026\n[devid {card}]link up count       : {count}\n"
    )
    return ask(card, "link_stat", f"{head}[devid {card}]link change records :\n{rows}")


CASES: list[tuple[str, Edit, Status, str]] = [
    ("network.addresses-agree", PLAN, Status.OK, "8 cards"),
    (
        "network.addresses-agree",
        both(PLAN, line("_3=10.12.165.83", "_3=10.12.165.93")),
        Status.WARN,
        "93 / 10.12.165.83",
    ),
    ("network.addresses-agree", both(PLAN, line("netmask_3=255.255.255.0", "netmask_3=")), Status.OK, "8 cards"),
    ("network.addresses-agree", both(PLAN, line("address_3=", "bond_num_3=2\naddress_3=")), Status.OK, "7 cards"),
    ("network.addresses-agree", lambda host: None, Status.SKIP, "both"),
    ("network.link-flaps", lambda host: None, Status.OK, "8 links"),
    ("network.link-flaps", changes(5, 61), Status.WARN, "5: 61"),
    ("network.link-flaps", changes(5, 9), Status.OK, "8 links"),
    ("network.link-flaps", every_of([changes(card, 61) for card in range(8)]), Status.OK, "8 links"),
    ("network.link-flaps", changes(5, 4, "19:59:59", "11:00:00", "01:00:00"), Status.WARN, "within a day"),
    ("network.link-flaps", changes(5, 4, "19:59:59", "11:00:00"), Status.OK, "8 links"),
    ("network.link-flaps", every("link_stat", "who knows\n"), Status.UNKNOWN, "cards 0, 1"),
    (
        "network.link-flaps",
        every("link_stat", code=1, err="Get invalid major cmd type.\n"),
        Status.SKIP,
        "not available",
    ),
    ("network.hccn-tool", ask(3, "link", code=3, err=SICK), Status.UNKNOWN, "cards 3"),
    ("network.hccn-tool", ask(0, "link", code=3, err=SICK), Status.UNKNOWN, "cards 0"),
    (
        "network.hccn-tool",
        both(ask(0, "link", code=3, err=SICK), ask(1, "link", code=3, err=SICK)),
        Status.UNKNOWN,
        SICK[:-1],
    ),
    ("network.hccn-tool", ask(3, "link", timed_out=True), Status.UNKNOWN, "cards 3 do not respond to hccn_tool: timed"),
    ("network.hccn-tool", ask(3, "ip", timed_out=True), Status.UNKNOWN, "timed out"),
    ("network.tls-agrees", both(PLAN, line("tls_enable_3=0", "tls_enable_3=1")), Status.FAIL, "on for devices 3"),
    ("network.tls-agrees", both(PLAN, switch(2, "1", block(0))), Status.FAIL, "on for devices 2"),
    ("network.tls-agrees", PLAN, Status.OK, "off for all 8"),
    ("network.tls-agrees", both(PLAN, line("tls_enable_3=0\n", "")), Status.UNKNOWN, "devices 3"),
    ("network.tls-agrees", both(PLAN, line("tls_enable_3=0", "tls_enable_3=")), Status.UNKNOWN, "cannot parse"),
    ("network.tls-agrees", lambda host: host.unreadable("/etc/hccn.conf"), Status.UNKNOWN, "hccn.conf"),
    ("network.hccn-conf", both(PLAN, line("gateway_5=", "gateway five ")), Status.WARN, "gateway five"),
    ("network.hccn-conf", PLAN, Status.OK, "8 devices"),
    ("network.card-addresses", both(PLAN, line("address_6=10.12.165.86\n", "")), Status.WARN, "cards 6"),
    (
        "network.card-addresses",
        ask(4, "ip", code=13, err="Get ipconf failed, because no ip was preset there!\n"),
        Status.WARN,
        "cards 4",
    ),
    ("network.addresses-valid", both(PLAN, line("10.12.165.83", "10.12.165.256")), Status.FAIL, "3: 10.12.165.256"),
    ("network.addresses-valid", both(PLAN, line("10.12.165.83", "0.0.0.0")), Status.FAIL, "3: 0.0.0.0"),
    ("network.addresses-valid", both(PLAN, line("10.12.165.83", "10.12.165.255")), Status.FAIL, "10.12.165.255"),
    (
        "network.addresses-valid",
        both(PLAN, line("netmask_3=255.255.255.0", "netmask_3=255.0.255.0")),
        Status.FAIL,
        "255.0.255.0",
    ),
    (
        "network.addresses-unique",
        ask(5, "ip", "ipaddr:10.12.165.80\nnetmask:255.255.255.0\n"),
        Status.FAIL,
        "cards 0, 5",
    ),
    (
        "network.addresses-unique",
        ask(5, "ip", "ipaddr:192.168.1.4\nnetmask:255.255.255.0\n"),
        Status.FAIL,
        "enp194s0f0",
    ),
    ("network.netmasks-agree", ask(5, "ip", "ipaddr:10.12.165.85\nnetmask:255.255.0.0\n"), Status.FAIL, "cards 5"),
    ("network.card-subnets", ask(5, "ip", "ipaddr:10.13.165.85\nnetmask:255.255.255.0\n"), Status.WARN, "cards 5"),
    ("network.card-gateways", ask(5, "gateway", "default gateway:10.99.0.1, Iface:eth5\n"), Status.FAIL, "10.99.0.1"),
    (
        "network.card-gateways",
        both(PLAN, line("gateway_5=10.12.165.1", "gateway_5=10.12.165.85")),
        Status.FAIL,
        "10.12.165.85",
    ),
    ("network.card-mtu", both(conf(mtu="4200"), line("mtu_2=4200", "mtu_2=1500")), Status.WARN, "2: 1500"),
    ("network.card-mtu", conf(mtu="4200"), Status.OK, "8 cards"),
    ("network.hccn-tool", both(UNLINKED, NO_TOOL, PLAN), Status.UNKNOWN, "hccn_tool is not installed"),
    ("network.hccn-tool", UNLINKED, Status.OK, "not on PATH"),
    (
        "network.hccn-tool",
        ask(0, "link", "hccn_tool is busy, please try again.\n", code=11),
        Status.UNKNOWN,
        "another hccn_tool",
    ),
    (
        "network.hccn-tool",
        every("optical", code=12, err="permission denied: pls check this cmd run permission.\n"),
        Status.UNKNOWN,
        "denies access",
    ),
    (
        "network.hccn-tool",
        ask(0, "link", code=127, err="hccn_tool: error while loading shared libraries: libc_sec.so\n"),
        Status.UNKNOWN,
        "libc_sec.so",
    ),
    (
        "network.hccn-tool",
        every_of(ask(card, "net_health", timed_out=True) for card in (2, 3)),
        Status.UNKNOWN,
        "timed out",
    ),
    ("network.hccn-tool", ask(0, "link", "who knows\n"), Status.OK, "works"),
    ("network.card-links", ask(3, "link", "link status: DOWN\n"), Status.FAIL, "cards 3"),
    (
        "network.card-links",
        both(ask(3, "link", "link status: DOWN\n"), ask(3, "optical", "present : not present\n", code=20)),
        Status.FAIL,
        "no optical module",
    ),
    ("network.card-links", every("link", "link status: DOWN\n"), Status.FAIL, "0, 1, 2"),
    ("network.card-links", UNCABLED, Status.OK, "not in use"),
    ("network.card-links", ask(3, "link", "link status: DO\n"), Status.UNKNOWN, "cards "),
    (
        "network.card-health",
        ask(6, "net_health", "net health status: Receive timeout\n"),
        Status.FAIL,
        "6: receive timeout",
    ),
    ("network.card-health", ask(6, "net_health", "net health status: Socket fail\n"), Status.FAIL, "6: socket fail"),
    (
        "network.card-health",
        both(ask(6, "net_health", "net health status: Unreachable\n"), ask(6, "gateway", code=2)),
        Status.FAIL,
        "no gateway",
    ),
    ("network.card-health", every("net_health", "net health status: Init\n"), Status.OK, "no detection address"),
    ("network.card-health", ask(6, "net_health", "net health status: Init\n"), Status.OK, "7 cards reach"),
    ("network.card-health", ask(6, "net_health", "net health status: Unknown\n"), Status.UNKNOWN, "cards "),
    ("network.card-speeds", ask(1, "speed", "Speed: 100000 Mb/s\n"), Status.WARN, "100 Gb/s"),
    ("network.card-speeds", ask(1, "speed", "Speed: Unknown!\n"), Status.WARN, "speed is unknown"),
    ("network.card-speeds", ask(1, "speed", "Speed: fast\n"), Status.UNKNOWN, "cards "),
    (
        "network.optical",
        ask(7, "optical", "optical info:\npresent              : not present\n", code=20),
        Status.WARN,
        "cards 7",
    ),
    (
        "network.optical",
        ask(7, "optical", "present : present\nRx Power0 : 0.0054 mW\nRxPower Low Thres : 0.1445 mW\n"),
        Status.WARN,
        "0.0054 mW",
    ),
    ("network.optical", ask(7, "optical", "optical info:\n"), Status.UNKNOWN, "cards "),
    ("network.card-ping", lambda host: host.answer(PING0, PING_LOSS), Status.WARN, "2/3"),
    ("network.card-ping", lambda host: host.answer(PING0, PING_DEAD, code=1), Status.FAIL, "unreachable"),
    ("network.card-ping", lambda host: host.answer(PING0, "PI", code=1), Status.UNKNOWN, "cards "),
    (
        "network.tls-certificate",
        both(PLAN, every_of(switch(c, "1", block(2)) for c in range(8))),
        Status.FAIL,
        "has expired",
    ),
    (
        "network.tls-certificate",
        both(PLAN, every_of(switch(c, "1", block(1)) for c in range(8))),
        Status.WARN,
        "expires soon",
    ),
    ("network.tls-certificate", both(PLAN, every_of(switch(c, "1", block(0)) for c in range(8))), Status.OK, "8 cards"),
    ("network.tls-certificate", both(PLAN, every_of(switch(c, "1") for c in range(8))), Status.UNKNOWN, "not report"),
    ("network.tls-certificate", both(PLAN, every_of(switch(c, "0", block(2)) for c in range(8))), Status.SKIP, "off"),
    (
        "network.tls-certificate",
        both(PLAN, every_of(switch(c, "0") for c in range(8)), ask(2, "tls", "dev_id:2, tls swi")),
        Status.UNKNOWN,
        "cards 2",
    ),
    (
        "network.tls-certificate",
        both(PLAN, every_of(switch(c, "1", block(0)) for c in range(8)), ask(2, "tls", "dev_id:2, tls swi")),
        Status.UNKNOWN,
        "cards 2",
    ),
    ("network.card-ports", a5, Status.OK, "8 cards"),
    ("network.card-ports", both(a5, port("DOWN", "on")), Status.FAIL, "3: 5"),
    ("network.card-ports", both(a5, port("DOWN", "off")), Status.OK, "8 cards"),
    ("network.card-ports", both(a5, port("LOST", "on")), Status.UNKNOWN, "cards "),
    ("network.vnic", a5, Status.OK, "8 cards"),
    ("network.rank-table", ranks(), Status.OK, "2 servers"),
    ("network.rank-table", ranks("completed", "initializing"), Status.FAIL, "initializing"),
    ("network.rank-table", ranks('"rank_id": "8"', '"rank_id": "3"'), Status.FAIL, "rank_id"),
    ("network.rank-table", ranks("10.12.166.80", "10.12.165.80"), Status.FAIL, "device_ip 10.12.165.80"),
    ("network.rank-table", ranks('"1.0"', '"1.2"'), Status.FAIL, "super_device_id"),
    ("network.rank-table", ranks('"server_count": "2"', '"server_count": "3"'), Status.FAIL, "server_count 3"),
    ("network.rank-table", ranks("]}]}", "]}"), Status.FAIL, "Expecting"),
    (
        "network.rank-table",
        both(ranks(), lambda host: host.unreadable("/job/ranks.json")),
        Status.UNKNOWN,
        "hccn.rank_table",
    ),
    ("network.rank-table-addresses", ranks(), Status.OK, "8 cards"),
    ("network.rank-table-addresses", ranks("10.12.165.83", "10.12.165.93"), Status.FAIL, "instead of 10.12.165.83"),
]


def _a3_pings(host: EditedHost) -> None:
    """Each chip reaches the next one that is not on its own card."""
    for card in range(14):
        ip = f"10.5.0.{10 + card // 2 * 2 + 2}"
        text = f"device {card} PING {ip}\n3 packets transmitted, 3 received, 0.00% packet loss\n"
        host.answer(f"{TOOL} -i {card} -ping -g address {ip}", text)


CABLED = every_of(
    [
        *(ask(card, "link", "link status: UP\n") for card in range(16)),
        *(ask(card, "speed", "Speed: 200000 Mb/s\n") for card in range(16)),
        *(ask(card, "ip", f"ipaddr:10.5.0.{10 + card}\nnetmask:255.255.0.0\n") for card in range(16)),
        _a3_pings,
    ]
)
A3_CASES: list[tuple[str, Edit, Status, str]] = [
    (
        "network.vnic",
        ask(9, "vnic", "vnic link status: DOWN\nvnic ipaddr: 192.168.2.190\nvnic netmask: 255.255.255.0\n"),
        Status.FAIL,
        "cards 9",
    ),
    ("network.vnic", ask(9, "vnic", "vnic link status: UP\n"), Status.UNKNOWN, "cards "),
    (
        "network.card-links",
        every("ip", "ipaddr:10.5.0.1{card}\nnetmask:255.255.0.0\n", cards=16),
        Status.OK,
        "RoCE plane",
    ),
    (
        "network.card-links",
        both(ask(9, "link", "link status: UP\n"), ask(9, "speed", "Speed: 200000 Mb/s\n")),
        Status.OK,
        "15 chips",
    ),
    ("network.card-links", both(CABLED, ask(9, "link", "link status: DOWN\n")), Status.FAIL, "9 are down (of 16)"),
    ("network.card-speeds", CABLED, Status.OK, "200 Gb/s on 16"),
    ("network.card-ping", CABLED, Status.OK, "14 cards"),
]


NOTHING = "who knows\n"
UNREAD_IP = ask(5, "ip", NOTHING)
ALL_TLS = both(PLAN, every_of(switch(card, "1", block(0)) for card in range(8)))


def own(card: int, ip: str, netmask: str = "255.255.255.0") -> Edit:
    return ask(card, "ip", f"ipaddr:{ip}\nnetmask:{netmask}\n")


def pinged(card: int, out: str) -> Edit:
    """The ping of a card to its neighbour ends so."""
    return lambda host: host.answer(f"{TOOL} -i {card} -ping -g address 10.12.165.8{card + 1}", out, code=1)


def a5_lost(host: EditedHost) -> None:
    """What card 5 says of its ports is cut."""
    host.answer(f"{TOOL} -g -dev_info -i 5", "| UDie ID | Port ID |\n")


# Card 3 is not well, and of card 5 nothing can be read.
MIXED: dict[str, Edit] = {
    "network.tls-agrees": both(PLAN, line("tls_enable_3=0", "tls_enable_3=1"), line("tls_enable_5=0", "tls_enable_5=")),
    "network.card-addresses": both(
        ask(3, "ip", code=13, err="Get ipconf failed, because no ip was preset there!\n"), UNREAD_IP
    ),
    "network.addresses-agree": both(PLAN, line("_3=10.12.165.83", "_3=10.12.165.93"), UNREAD_IP),
    "network.addresses-valid": both(own(3, "0.0.0.0"), UNREAD_IP),
    "network.addresses-unique": both(own(3, "10.12.165.80"), UNREAD_IP),
    "network.netmasks-agree": both(own(3, "10.12.165.83", "255.255.0.0"), UNREAD_IP),
    "network.card-subnets": both(own(3, "10.13.165.83"), UNREAD_IP),
    "network.card-gateways": both(
        ask(3, "gateway", "default gateway:10.99.0.1, Iface:eth3\n"), ask(5, "gateway", NOTHING)
    ),
    "network.card-mtu": both(every("mtu", "mtu:1500\n"), ask(3, "mtu", "mtu:9000\n"), ask(5, "mtu", NOTHING)),
    "network.card-links": both(ask(3, "link", "link status: DOWN\n"), ask(5, "link", NOTHING)),
    "network.link-flaps": both(changes(3, 61), ask(5, "link_stat", NOTHING)),
    "network.card-health": both(
        ask(3, "net_health", "net health status: Receive timeout\n"), ask(5, "net_health", NOTHING)
    ),
    "network.card-speeds": both(ask(3, "speed", "Speed: 100000 Mb/s\n"), ask(5, "speed", NOTHING)),
    "network.optical": both(ask(3, "optical", "present : not present\n", code=20), ask(5, "optical", NOTHING)),
    "network.vnic": both(
        a5,
        lambda host: host.answer(
            f"{TOOL} -g -vnic -i 3", "vnic link status: DOWN\nvnic ipaddr: 192.168.2.1\nvnic netmask: 255.255.255.0\n"
        ),
        lambda host: host.answer(f"{TOOL} -g -vnic -i 5", NOTHING),
    ),
    "network.card-ping": both(pinged(3, PING_DEAD), pinged(5, "PI")),
    "network.tls-certificate": both(ALL_TLS, switch(3, "1", block(2)), ask(5, "tls", NOTHING)),
    "network.card-ports": both(a5, port("DOWN", "on"), a5_lost),
    "network.rank-table-addresses": both(ranks("10.12.165.83", "10.12.165.93"), UNREAD_IP),
}
# About the file, the tool or a table as a whole.
NOT_BY_CARD = {"network.hccn-conf", "network.hccn-tool", "network.rank-table"}


@pytest.mark.parametrize("check", [check.id for check in CHECKS if check.id not in NOT_BY_CARD])
def test_a_card_that_is_not_well_hides_no_other_one_that_could_not_be_read(check: str) -> None:
    machine = EditedHost("a2_healthy")
    MIXED[check](machine)
    finding = statuses(machine)[check]
    named = {each.key: str(dict(each.args)) for each in outcomes(finding.says)}
    assert len(named) == 2, named
    assert finding.status in (Status.FAIL, Status.UNKNOWN) and finding.fix is not None
    for card, keys in (("3", named.keys() - UNREAD), ("5", named.keys() & UNREAD)):
        (key,) = keys
        assert card in named[key]


UNREAD = {"checks.cards-unread", "check_network.tls-unreadable"}
OF_ADDRESSES = (
    "card-addresses",
    "addresses-valid",
    "addresses-unique",
    "netmasks-agree",
    "card-subnets",
    "card-gateways",
)


def test_the_address_of_one_card_that_cannot_be_read_makes_all_that_needs_it_unknown_in_one_line() -> None:
    machine = EditedHost("a2_healthy")
    UNREAD_IP(machine)
    found = statuses(machine)
    told = [found[f"network.{name}"] for name in OF_ADDRESSES]
    assert {item.status for item in told} == {Status.UNKNOWN}
    assert [item.says.args for item in told] == [{"cards": (5,)}] * len(told)
    assert len(grouped(told)) == 1


def test_a_card_of_many_without_a_gateway_is_named() -> None:
    machine = EditedHost("a2_healthy")
    ask(3, "gateway", code=13, err="Get gateway failed, because no gateway was preset there!\n")(machine)
    found = statuses(machine)
    finding = found["network.card-gateways"]
    assert (finding.status, finding.says.key) == (Status.WARN, "check_network.gateway-missing")
    assert finding.says.args["cards"] == (3,)
    every("gateway", code=2)(machine)
    assert statuses(machine)["network.card-gateways"].status is Status.SKIP


def test_a_module_that_is_absent_and_gives_readings_is_unknown_and_said_to_contradict_itself() -> None:
    machine = EditedHost("a2_healthy")
    text = "present : not present\nTx Power0 : 1.4035 mW\nRx Power0 : 1.0054 mW\n"
    ask(3, "optical", text)(machine)
    finding = statuses(machine)["network.optical"]
    assert (finding.status, finding.says.key) == (Status.UNKNOWN, "check_network.optical-contradicts")
    assert finding.says.args["cards"] == (3,) and finding.fix is None
    ask(3, "link", "link status: DOWN\n")(machine)
    assert statuses(machine)["network.card-links"].says.key == "check_network.links-down"


def test_an_entry_that_one_card_lacks_is_no_default_that_is_known() -> None:
    machine = EditedHost("a2_healthy")
    both(conf(mtu="4200"), line("mtu_2=4200\n", ""), every("mtu", code=1, err="Get invalid major cmd type.\n"))(machine)
    finding = statuses(machine)["network.card-mtu"]
    assert (finding.status, finding.says.args["cards"]) == (Status.UNKNOWN, (2,))


def test_a_file_that_cannot_be_read_is_not_a_file_without_addresses() -> None:
    machine = EditedHost("a2_healthy")
    both(PLAN, lambda host: host.unreadable("/etc/hccn.conf"))(machine)
    facts = collect(machine, level=1)
    found = {item.check: item for item in check_all(facts, level=1)}
    for name in (*OF_ADDRESSES, "hccn-conf", "card-mtu"):
        assert found[f"network.{name}"].says.key == "check_network.because-conf", name


OF_NETWORK = tuple(check for check in ALL_CHECKS if check.id.startswith("network."))


def statuses(host: EditedHost) -> dict[str, Finding]:
    """What the checks of the network find. Nothing else is collected or judged: no other fact reaches them."""
    facts = collect(host, level=2, only=frozenset({"machine", "npu", "hccn", "network"}))
    return {item.check: item for item in check_all(facts, level=2, checks=OF_NETWORK)}


@pytest.mark.parametrize(
    ("host", "check", "edit", "status", "words"),
    [("a2_healthy", *case) for case in CASES] + [("a3_healthy", *case) for case in A3_CASES],
    ids=[f"{c[0]}-{c[2].value}-{c[3]}" for c in CASES + A3_CASES],
)
@pytest.mark.one_in(2)
def test_one_fault_gives_the_expected_finding_and_moves_no_other_check(
    host: str, check: str, edit: Edit, status: Status, words: str
) -> None:
    machine = EditedHost(host)
    edit(machine)
    found = statuses(machine)
    finding = found[check]
    assert (finding.status, words in say(finding.says)) == (status, True), (finding.status, say(finding.says))
    assert say(finding.says, "zh") and finding.source
    if status in (Status.FAIL, Status.WARN):
        assert finding.evidence and all(item.line for item in finding.evidence)
        assert finding.fix is not None and say(finding.fix.says) != say(finding.fix.says, "zh")
        others = {name: item.status for name, item in found.items() if item.status not in (Status.OK, Status.SKIP)}
        assert others == {check: status}


def test_every_check_of_the_cards_network_has_a_fault_an_unknown_and_a_good_case() -> None:
    seen: dict[str, set[Status]] = {}
    for name, _, status, _ in CASES + A3_CASES:
        seen.setdefault(name, set()).add(status)
    for host in ("a2_healthy", "a3_healthy"):
        for name, finding in statuses(EditedHost(host)).items():
            seen.setdefault(name, set()).add(finding.status)
    for check in CHECKS:
        assert seen[check.id] & {Status.FAIL, Status.WARN, Status.UNKNOWN}, check.id
        assert Status.OK in seen[check.id], check.id


def test_a_machine_without_hccn_tool_is_silent_where_nothing_speaks_of_several_nodes() -> None:
    machine = EditedHost("a2_healthy")
    UNLINKED(machine)
    NO_TOOL(machine)
    found = statuses(machine)
    assert {item.status for item in found.values()} <= {Status.OK, Status.SKIP}


def test_below_level_two_the_tool_is_never_run() -> None:
    machine = EditedHost("a2_healthy")
    PLAN(machine)
    for level in (0, 1):
        collect(machine, level=level)
    assert not [words for words in machine.asked if TOOL in words]


def test_tls_is_asked_only_of_cards_whose_key_is_in_the_file_already() -> None:
    machine = EditedHost("a2_healthy")
    machine.file("/etc/hccn.conf", "tls_enable_2=0\n")
    collect(machine, level=2)
    assert [words for words in machine.asked if "-tls" in words] == [f"{TOOL} -i 2 -tls -g"]


def test_a_busy_tool_is_asked_once_and_then_left_alone() -> None:
    machine = EditedHost("a2_healthy")
    ask(0, "link", "hccn_tool is busy, please try again.\n", code=11)(machine)
    collect(machine, level=2)
    assert [words for words in machine.asked if TOOL in words] == [f"{TOOL} -i 0 -link -g"]


def test_an_item_that_needs_root_is_asked_of_the_first_card_alone() -> None:
    machine = EditedHost("a2_healthy")
    every("optical", code=12, err="permission denied: pls check this cmd run permission.\n")(machine)
    collect(machine, level=2)
    assert [words for words in machine.asked if "-optical" in words] == [f"{TOOL} -i 0 -optical -g"]


def test_a_switch_that_sends_no_lldp_is_no_reason_to_doubt_the_tool() -> None:
    machine = EditedHost("a2_healthy")
    every_of(ask(card, "lldp", timed_out=True) for card in range(8))(machine)
    assert {item.status for item in statuses(machine).values()} <= {Status.OK, Status.SKIP}
