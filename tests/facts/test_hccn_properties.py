"""What holds for every text that hccn_tool could be thought to print: no parser raises, none invents a value."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.fact import Fact, State
from npuenv.facts.hccn.parsers import ITEMS, is_mask
from npuenv.facts.hccn.survey import answer, grammar
from npuenv.facts.hccn.tool import HccnRefusal, is_address, lines_of, refusal, refused
from npuenv.host import Ran

PIECES = (
    "link status: ",
    "UP",
    "DOWN",
    "ipaddr:",
    "netmask:",
    "10.0.0.1",
    "255.255.0.0",
    "Speed: ",
    "100000 Mb/s",
    "Unknown!",
    "dev_id:0, ",
    "tls switch[",
    "0",
    "1",
    "](0:disable, 1:enable)",
    "vnic link status: ",
    "vnic ipaddr: ",
    "vnic netmask: ",
    "3 packets transmitted, ",
    "2 received, ",
    "33.33% packet loss",
    "recv time out seq=0",
    "\n",
    "\r\n",
    "\t",
    " ",
    "| Link Status |",
    "+----+",
    "| UP |",
    "packet statistics:",
    "rx:1",
    "port_id: 0x4",
    "present : not present",
    "\x1b[31m",
    "default gateway:",
    ", Iface:eth0",
    "net health status: ",
    "Success",
    "netdetect addr: ",
    "Ifname: ",
    "busy",
    "\x00",
)
WORDS = st.sampled_from(PIECES)
TEXTS = st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=30).map("".join))


@settings(deadline=None)
@given(TEXTS, st.sampled_from(sorted(ITEMS)), st.integers(0, 255))
def test_no_text_makes_a_parser_raise_and_a_value_comes_only_with_its_words(text: str, item: str, code: int) -> None:
    value = ITEMS[item](text)
    fact: Fact[Any] = answer(Ran(("hccn_tool",), code, text, ""), item, ITEMS[item])
    assert (fact.value is not None) == (fact.state is State.KNOWN) == (value is not None)
    assert fact.evidence
    if item == "link" and value is not None:
        assert f"link status: {value}".lower() in " ".join(text.lower().split()) or "link status:" in text.lower()
    if item == "ip" and value is not None:
        assert value.ip in text and value.netmask in text and is_address(value.ip)
    if item == "stat" and value is not None:
        assert all(name in text and str(number) in text for name, number in value.items())


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_a_refusal_quotes_a_line_of_the_output(out: str, err: str) -> None:
    found = refused(Ran(("hccn_tool",), 1, out, err))
    if found is not None:
        assert found.line in (*lines_of(out), *lines_of(err), "exit 1")
    assert grammar(Ran(("hccn_tool",), 1, out, err)) in ("a2", "950", None)


def test_a_denied_answer_does_not_tell_the_grammar() -> None:
    assert grammar(Ran(("hccn_tool",), 12, "", "permission denied: pls check this cmd run permission.\n")) is None


@settings(deadline=None)
@given(st.text(max_size=40))
def test_addresses_and_masks_are_judged_and_never_raise(text: str) -> None:
    assert is_address(text) in (True, False)
    assert not is_mask(text) or "." in text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hccn_tool is busy, please try again.", HccnRefusal.BUSY),
        ("Traceroute is running, please kill the running process and start a new one.", HccnRefusal.BUSY),
        ("permission denied: pls check this cmd run permission.", HccnRefusal.PERMISSION),
        ("Please specify a valid mode.", HccnRefusal.GRAMMAR),
        ("Get invalid device id.", HccnRefusal.DEVICE),
        ("The command is not supported on this product.", HccnRefusal.UNSUPPORTED),
        ("No certificate found, please set certs firstly!", HccnRefusal.NOT_SET),
        ("Get device health status failed!", HccnRefusal.NO_ANSWER),
        ("bash: hccn_tool: command not found", HccnRefusal.NOT_INSTALLED),
        ("Cmd execute failed!", HccnRefusal.FAILED),
    ],
)
def test_each_failure_text_has_its_meaning_whatever_the_exit_status(text: str, kind: HccnRefusal) -> None:
    for code in (0, 1, 4, 13, 22):
        for ran in (Ran(("t",), code, text + "\n", ""), Ran(("t",), code, "", text + "\n")):
            found = refused(ran)
            assert found is not None and found.kind is kind and found.line == text


def test_a_sentence_without_a_failure_is_none() -> None:
    assert refusal("link status: UP\n") is None


def test_ten_megabytes_of_noise_are_read_in_a_few_seconds() -> None:
    noise = "[ERROR] HCCL(1,python3): wait socket establish timeout, role[1] rank[3]\n" * 140_000
    started = time.process_time()  # whatever else the machine does meanwhile
    assert ITEMS["link"](noise + "link status: DOWN\n" + noise[:1000]) == "DOWN"
    assert ITEMS["tls"](noise) is None
    assert time.process_time() - started < 20
