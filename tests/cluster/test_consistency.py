"""What must agree between nodes: majorities and ties, what could not be told, and what only looks like a difference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.consistency import _without_consequences, check_consistency, rules, title
from npuenv.cluster.consistency.findings import ClockOffset
from npuenv.core.fact import Evidence, known
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message, say
from npuenv.facts.collector import not_asked
from npuenv.facts.network.interfaces import Interface
from tests.cluster.uniform import cluster, name_of
from tests.cluster.voting import BAD, LINE, NAMES, USUAL, changed, differing, find, met, odd, same, tied, told, words
from tests.support.changes import both, lost, part, put, variables
from tests.support.sentences import catalogue, says, sentence

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts
    from tests.support.changes import Change

PACKAGE = Path(__file__).parents[2] / "npuenv"


def of_kernel(text: str) -> Change:
    return put(**{"machine.kernel": text})


def test_one_node_has_nothing_to_agree_with() -> None:
    assert check_consistency(cluster(USUAL, 1)) == []
    assert check_consistency({}) == []


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ({2: "6.6"}, odd("node02: 6.6", 4, "5.10")),
        ({2: "6.6", 4: "6.6"}, odd("node[02,04]: 6.6", 3, "5.10")),
        ({2: "6.6", 4: "6.1"}, odd("node02: 6.6, node04: 6.1", 3, "5.10")),
        ({1: "6.6", 2: "6.6", 3: "6.6"}, odd("node[04-05]: 5.10", 3, "6.6")),
        ({1: "6.6", 2: "6.6", 3: "6.1"}, tied("node[01-02]: 6.6, node[04-05]: 5.10, node03: 6.1")),
    ],
)
def test_the_majority_is_more_than_half_and_the_others_are_named(kernels: dict[int, str], expected: str) -> None:
    usual = {number: of_kernel("5.10") for number in range(1, 6)}
    nodes = changed(5, {**usual, **{number: of_kernel(text) for number, text in kernels.items()}})
    assert told("kernel", nodes) == ("warn", expected)


@pytest.mark.parametrize("count", [2, 4])
def test_a_tie_is_said_to_be_one(count: int) -> None:
    half = count // 2
    nodes = changed(count, {number: of_kernel("6.6" if number <= half else "5.10") for number in range(1, count + 1)})
    groups = "node01: 6.6, node02: 5.10" if count == 2 else "node[01-02]: 6.6, node[03-04]: 5.10"
    assert told("kernel", nodes) == ("warn", tied(groups))


def test_a_whole_cluster_is_named_in_one_short_sentence() -> None:
    facts = cluster(USUAL, 1)["node01"]
    cards = facts.hccn.tls.value
    assert cards is not None
    switched = {card: known(_switched(fact.value), LINE) if card in (3, 5) else fact for card, fact in cards.items()}
    nodes = {f"node{number:02}": facts for number in range(1, 17)}
    nodes["node07"] = put(tls=switched)(facts)
    assert told("tls", nodes) == (
        "fail",
        odd(f"node07 cards 3,5: {words('word-tls-on')}", 126, words("word-tls-off")),
    )


def _switched(tls: Any) -> Any:
    return tls._replace(is_on=True)


def test_a_node_that_could_not_tell_is_unknown_and_never_fine() -> None:
    finding = find("kernel", changed(4, {3: lost("machine.kernel")}))
    assert (finding.status, say(finding.says)) == (
        Status.UNKNOWN,
        words("blind-some", who="node03", says=same("5.10.0-216.0.0.115.oe2203sp4.aarch64", 3)),
    )
    assert [line.command for line in finding.evidence] == ["node03: question"]
    assert finding.fix is None


def test_a_difference_is_told_although_another_node_could_not_tell() -> None:
    nodes = changed(4, {3: lost("toolkit"), 1: part("toolkit", version="8.2.RC1")})
    assert told("cann", nodes) == ("fail", words("and-blind", says=odd("node01: 8.2.RC1", 2, "8.3.RC1"), who="node03"))


def test_nobody_could_tell() -> None:
    nodes = changed(2, {1: lost("machine.kernel"), 2: lost("machine.kernel")})
    assert told("kernel", nodes) == ("unknown", words("blind-all", count=2))


def test_what_the_level_leaves_out_is_skipped_and_on_some_nodes_it_is_unknown() -> None:
    lower = cluster(USUAL, 3, level=1)
    assert told("soc", lower) == ("skip", words("skip-level", level=2))
    mixed = {**cluster(USUAL, 3), "node02": lower["node02"]}
    assert told("soc", mixed) == ("unknown", words("blind-some", who="node02", says=same("910B3", 16)))


def test_a_card_without_an_entry_for_tls_is_unknown() -> None:
    nodes = changed(3, {2: _without_tls})
    assert told("tls", nodes) == (
        "unknown",
        words("blind-some", who="node02 cards 0-7", says=same(words("word-tls-off"), 16)),
    )


def _without_tls(facts: Facts) -> Facts:
    conf = facts.hccn.conf.value
    assert conf is not None
    rest = {card: {k: v for k, v in keys.items() if k != "tls_enable"} for card, keys in conf.by_device.items()}
    from tests.support.changes import gone

    return both(part("conf", by_device=rest), gone("hccn.tls", Evidence("/etc/hccn.conf", "no entry")))(facts)


def test_something_that_no_node_has_is_skipped() -> None:
    assert told("rank-table", cluster(USUAL, 3)) == ("skip", words("skip-nothing"))


@pytest.mark.parametrize(
    ("name", "cause", "change"),
    [
        ("cann-build", "cann", part("toolkit", version="8.2.RC1", inner_version="V100R001C22SPC001B231")),
        ("driver-in-use", "driver", both(part("npu.driver", version="24.1.0"), part("smi", driver="24.1.0"))),
    ],
)
def test_what_follows_from_another_difference_steps_back(name: str, cause: str, change: Change) -> None:
    nodes = changed(3, {2: change})
    assert find(cause, nodes).status is Status.FAIL
    assert told(name, nodes) == ("skip", words("because", cause=title(f"agree.{cause}")))


@pytest.mark.parametrize(("one", "other"), [("host1", "host2"), ("host2", "10.20.0.12")])
def test_stand_ins_of_a_capture_are_not_compared(one: str, other: str) -> None:
    """Each capture numbers the names that it hides by itself."""
    nodes = changed(3, {1: variables(MASTER_ADDR=one), 2: variables(MASTER_ADDR=other)})
    assert find("variables", nodes).status is Status.OK


def test_a_value_that_is_a_stand_in_is_unknown_where_others_have_told_theirs() -> None:
    usual = told("python-place", cluster(USUAL, 2))[1]

    def at(place: str) -> Change:
        return part("interpreter", prefix=place)

    assert told("python-place", changed(3, {2: at("/home/user1/env")})) == (
        "unknown",
        words("blind-some", who="node02", says=usual),
    )
    hidden = changed(2, {1: at("/home/user1/env"), 2: at("/home/user2/env")})
    assert told("python-place", hidden) == ("skip", words("skip-hidden", who="node[01-02]"))


def test_a_failure_does_not_step_back_behind_a_warning() -> None:
    def kept(cause: Status, follows: Status) -> Status:
        found = [
            Finding(f"agree.{name}", status, Message("agree.skip-nothing"), (), "test", None)
            for name, status in (("gateways", cause), ("watch", follows))
        ]
        return _without_consequences(found)[1].status

    assert kept(Status.WARN, Status.FAIL) is Status.FAIL
    assert kept(Status.FAIL, Status.FAIL) is kept(Status.WARN, Status.WARN) is kept(Status.FAIL, Status.WARN)
    assert kept(Status.FAIL, Status.FAIL) is Status.SKIP


def test_nodes_that_were_asked_and_said_nothing_are_unknown() -> None:
    nodes, usual = cluster(USUAL, 3), met(*NAMES)
    assert [told(name, nodes)[1] for name in ("names", "clock")] == [words("skip-unmet")] * 2
    for name in ("names", "clock"):
        assert told(name, nodes, {}) == ("unknown", words("blind", who="node[01-03]"))
        status, text = told(name, nodes, {name: usual[name] for name in NAMES[:2]})
        assert (status, says(text, "agree.blind", who="node03")) == ("unknown", True)


def test_public_addresses_of_cards_are_stand_ins_and_no_clash() -> None:
    def hidden(facts: Facts) -> Facts:

        found = facts.hccn.addresses.value or {}
        shown = {
            card: known(fact.value._replace(ip=f"203.0.113.{card + 1}"), LINE)
            for card, fact in found.items()
            if fact.value
        }
        return put(addresses=shown)(facts)

    nodes = changed(2, {1: hidden, 2: hidden})
    assert told("card-addresses", nodes) == ("unknown", words("blind", who="node[01-02] cards 0-7"))


def test_bridges_and_link_local_addresses_are_the_same_everywhere_and_no_clash() -> None:
    def bridged(facts: Facts) -> Facts:
        found = facts.network.interfaces.value or ()
        more = (
            Interface("docker0", "up", 1500, ("172.17.0.1",)),
            Interface("usb0", "up", 1500, ("169.254.3.1",)),
            Interface("virbr0", "up", 1500, ("192.168.122.1",)),
        )
        return put(interfaces=(*found, *more))(facts)

    nodes = changed(3, dict.fromkeys((1, 2, 3), bridged))
    assert told("host-addresses", nodes) == ("ok", words("unique", count=3))
    assert find("host-mtu", nodes).status is Status.OK


def test_numbers_that_differ_by_little_are_one() -> None:
    from npuenv.facts.machine import Space

    sizes = {1: 792723456, 2: 792723460, 3: 760000000}
    nodes = changed(3, {number: put(shared_memory=Space(size, size)) for number, size in sizes.items()})
    assert find("shared-memory", nodes).status is Status.OK
    nodes = changed(3, {1: put(shared_memory=Space(65536, 65536))})
    assert told("shared-memory", nodes) == ("warn", odd("node01: 0.1 GiB", 2, "756.0 GiB"))


def test_a_network_of_cards_that_is_not_in_use_is_no_alarm() -> None:
    def unused(facts: Facts) -> Facts:
        down = {card: known("DOWN", LINE) for card in range(8)}
        return both(put(links=down), put(addresses={}), put(conf=None))(facts)

    nodes = changed(3, dict.fromkeys((1, 2, 3), unused))
    assert told("links", nodes) == ("ok", words("links-unused", count=24))


def test_one_subnet_for_each_node_is_a_layout_and_no_fault() -> None:
    from npuenv.facts.hccn.parsers import Address

    def routed(number: int) -> Change:
        cards = {card: known(Address(f"10.12.{number}.{card + 1}", "255.255.255.0"), LINE) for card in range(8)}
        gateways = {card: known(_gateway(f"10.12.{number}.254"), LINE) for card in range(8)}
        return both(put(addresses=cards), put(gateways=gateways))

    nodes = changed(4, {number: routed(number) for number in range(1, 5)})
    found = {name: find(name, nodes).status for name in ("card-subnets", "gateways", "netmasks", "card-addresses")}
    assert set(found.values()) == {Status.OK}


def _gateway(ip: str) -> Any:
    from npuenv.facts.hccn.parsers import Gateway

    return Gateway(ip, "eth0")


def test_nodes_that_were_met_and_are_well_give_no_alarm() -> None:
    found = {item.check: item for item in check_consistency(cluster(USUAL, 3), identities=met(*NAMES))}
    assert [name for name, item in found.items() if item.status in (*BAD, Status.UNKNOWN)] == []
    assert say(found["agree.names"].says) == words("names-ok", count=3)
    assert say(found["agree.clock"].says) == words("clock-ok", count=3, spread="0.00", within="0.30")


def test_two_hosts_of_one_name_are_named() -> None:
    usual = met(*NAMES)
    both_named = {**usual, "node03": differing(usual["node03"], hostname="node01")}
    assert told("names", cluster(USUAL, 3), both_named) == (
        "fail",
        words("names-twice", groups="node[01,03]: node01"),
    )


def test_a_hosts_file_that_disagrees_is_named_with_what_it_says() -> None:
    usual = met(*NAMES)
    wrong = {**usual["node02"].resolved, "node01": ("10.99.0.1",)}
    views = {**usual, "node02": differing(usual["node02"], resolved=wrong)}
    view = words("view", nodes="node02", name="node01", found="10.99.0.1")
    assert told("names", cluster(USUAL, 3), views) == ("warn", words("names-astray", views=view))


def test_a_name_that_only_some_know_is_named() -> None:
    usual = met(*NAMES)
    less = {**usual["node03"].resolved, "node01": ()}
    views = {**usual, "node03": differing(usual["node03"], resolved=less)}
    assert told("names", cluster(USUAL, 3), views)[1].endswith(words("view-none", nodes="node03", name="node01"))


def test_names_that_nobody_knows_are_no_fault() -> None:
    blind = {name: differing(each, resolved=dict.fromkeys(NAMES, ())) for name, each in met(*NAMES).items()}
    assert find("names", cluster(USUAL, 3), blind).status is Status.SKIP


def test_two_names_for_one_machine_are_told_by_its_start_and_addresses() -> None:
    usual = met(*NAMES)
    same = {**usual, "node03": differing(usual["node03"], boot="boot-node01", addresses=usual["node01"].addresses)}
    assert told("machines", cluster(USUAL, 3), same) == (
        "fail",
        words("machines-one", groups="node[01,03]"),
    )
    containers = {**usual, "node03": differing(usual["node03"], boot="boot-node01")}
    assert find("machines", cluster(USUAL, 3), containers).status is Status.OK


@pytest.mark.parametrize(
    ("seconds", "within", "expected"),
    [
        (0.9, 0.3, ("ok", words("clock-ok", count=3, spread="0.80", within="0.30"))),
        (90.0, 0.4, ("warn", words("clock-apart", said="node02: +89.9 s ± 0.4 s", count=2))),
        (-90.0, 0.4, ("warn", words("clock-apart", said="node02: -90.1 s ± 0.4 s", count=2))),
        (3600.0, 0.4, ("fail", words("clock-apart", said="node02: +3599.9 s ± 0.4 s", count=2))),
        (1.5, 20.0, ("unknown", words("clock-unsure", who="node02", within="20.0"))),
    ],
)
def test_a_clock_is_judged_by_what_is_sure(seconds: float, within: float, expected: tuple[str, str]) -> None:
    usual = met(*NAMES)
    apart = {**usual, "node02": differing(usual["node02"], offset=ClockOffset(seconds, within, "asked"))}
    assert told("clock", cluster(USUAL, 3), apart) == expected


def test_of_two_clocks_that_differ_the_sentence_takes_no_side() -> None:
    usual = met("node01", "node02")
    apart = {**usual, "node02": differing(usual["node02"], offset=ClockOffset(90.1, 0.3, "asked"))}
    assert told("clock", cluster(USUAL, 2), apart) == ("warn", words("clock-two", said="node02: +90.0 s ± 0.3 s"))


@pytest.mark.slow
def test_of_many_different_values_three_are_named_and_the_others_counted() -> None:
    (usual,) = cluster(USUAL, 1).values()

    def having(count: int, odd_ones: int) -> dict[str, Facts]:
        changes = [part("toolkit", version=f"8.3.{at}") if at <= odd_ones else put() for at in range(1, count + 1)]
        return {name_of(at): change(usual) for at, change in enumerate(changes, start=1)}

    three = "node01: 8.3.1, node02: 8.3.2, node03: 8.3.3"
    more = words("more-on", count=61, who="node[04-64]")
    assert told("cann", having(64, 64))[1] == tied(f"{three}, {more}")
    more = words("more-on", count=2, who="node[04-05]")
    assert told("cann", having(11, 5))[1] == odd(f"{three}, {more}", 6, "8.3.RC1")


def test_a_reader_that_breaks_costs_its_own_row_only() -> None:
    """A fact of a shape that nobody thought of is that node's unknown, and the others are compared."""
    nodes = changed(3, {2: put(toolkit="not what it is")})
    assert find("cann", nodes).status is Status.UNKNOWN
    assert "node02" in say(find("cann", nodes).says)
    assert find("driver", nodes).status is Status.OK


def test_every_row_has_a_title_and_a_cure_in_both_languages() -> None:
    for aspect in rules():
        for lang in ("en", "zh"):
            assert catalogue()[f"agree.title-{aspect.id}"][lang]
            assert catalogue()[f"agree.fix-{aspect.fix}"][lang]


def test_every_word_and_sentence_that_is_named_exists() -> None:
    sources = [*(PACKAGE / "cluster" / "consistency").glob("*.py"), *(PACKAGE / "cluster" / "probing").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    sentences = set(re.findall(r'message\(\s*"([a-z-]+)"', text))
    words = {f"word-{name}" for name in re.findall(r'":([a-z-]+)"', text)}
    assert len(sentences) > 20
    assert len(words) > 10
    assert {name for name in sentences | words if f"agree.{name}" not in catalogue()} == set()


def test_all_is_said_in_chinese_too() -> None:
    nodes = changed(3, {2: both(part("toolkit", version="8.2.RC1"), lost("machine.kernel"))})
    said = {item.check: say(item.says, "zh") for item in check_consistency(nodes, identities=met(*NAMES))}
    one = sentence("agree.said", "zh", who="node02", value="8.2.RC1")
    assert said["agree.cann"] == sentence("agree.odd", "zh", odd=one, count=2, common="8.3.RC1")
    assert says(said["agree.kernel"], "agree.blind-some", "zh", who="node02")


def test_a_level_that_was_not_asked_anywhere_is_named() -> None:
    left_out = {number: put_fact("soc") for number in (1, 2)}
    assert told("soc", changed(2, left_out)) == ("skip", words("skip-level", level=2))


def put_fact(_: str) -> Change:
    import dataclasses

    return lambda facts: dataclasses.replace(facts, npu=dataclasses.replace(facts.npu, chips=not_asked(2)))


def test_of_what_all_agree_on_the_first_line_is_shown() -> None:
    finding = find("packages", cluster(USUAL, 3))
    assert finding.status is Status.OK
    assert [(line.command.partition(":")[0], line.line) for line in finding.evidence] == [
        ("node01", "accelerate 0.34.2")
    ]
