"""Every answer of hccn_tool in a file: one file per output, in `cases/hccn`.

A file names the item that was asked (link, ip, tls, ...), what the tool answered for each card (out, err, code,
timed_out, absent), and what has to be read from it: the state, for known facts the named parts of the value ("none"
stands for None), and a part of the evidence's line.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.fact import Fact, State
from npuenv.facts.collect import plain
from npuenv.facts.hccn.parsers import ITEMS
from npuenv.facts.hccn.survey import answer
from npuenv.host import Ran

HERE = Path(__file__).parent
CASES = {path.stem: load_toml(path) for path in sorted((HERE / "cases" / "hccn").glob("*.toml"))}
ASKED = sorted({case["item"] for case in CASES.values()})
TRANSCRIPTS = HERE.parents[2] / "shared" / "transcripts" / "hccn_tool"


def _ran(item: str, said: dict[str, Any]) -> Ran:
    code = None if said.get("timed_out") or said.get("absent") else said.get("code", 0)
    argv = ("hccn_tool", "-i", "0", f"-{item}", "-g")
    return Ran(argv, code, said.get("out", ""), said.get("err", ""), said.get("timed_out", False))


def _named(value: Any, parts: Any) -> Any:
    """The parts of a value that a case names; None as the word that TOML can hold."""
    if isinstance(value, dict) and isinstance(parts, dict):
        return {key: _named(value.get(key), part) for key, part in parts.items()}
    if isinstance(value, list) and isinstance(parts, list) and len(value) == len(parts):
        return [_named(item, part) for item, part in zip(value, parts, strict=True)]
    return "none" if value is None else value


def _asked(item: str) -> list[tuple[str, dict[str, Any]]]:
    return [(name, case) for name, case in CASES.items() if case["item"] == item]


@pytest.mark.parametrize("item", ASKED)
def test_an_answer_of_the_tool_reads_as_expected(item: str) -> None:
    for name, case in _asked(item):
        assert set(case["answers"]) == set(case["expected"]), name
        for card, expected in case["expected"].items():
            fact: Fact[Any] = answer(_ran(item, case["answers"][card]), item, ITEMS[item])
            assert fact.state.value == expected["state"], (name, fact)
            if fact.state is State.KNOWN:
                assert _named(plain(fact.value), expected["value"]) == expected["value"], name
            assert any(expected.get("line", "") in line.line for line in fact.evidence), (name, fact.evidence)


# Of lists of single values, what is left of a cut answer is true.
LISTS = ("tls", "optical", "stat", "link_stat", "port_info", "dev_info")


@pytest.mark.parametrize("item", [item for item in ASKED if item not in LISTS])
def test_an_answer_that_lacks_its_last_lines_is_unreadable_or_the_same(item: str) -> None:
    parse = ITEMS[item]
    for name, said in ((name, said) for name, case in _asked(item) for said in case["answers"].values()):
        lines = said.get("out", "").splitlines(keepends=True)
        whole = parse("".join(lines))
        for kept in range(len(lines)):
            cut = parse("".join(lines[:kept]))
            is_less = whole is None or "recv time out" in said["out"]  # two answers, or a ping without its last line
            assert cut is None or cut == whole or is_less, (name, kept, cut)


@pytest.mark.parametrize("item", ASKED)
def test_a_damaged_answer_never_raises(item: str) -> None:
    chance = random.Random(item)
    for name, said in ((name, said) for name, case in _asked(item) for said in case["answers"].values()):
        text = said.get("out", "") or said.get("err", "")
        for _ in range(40):
            at = chance.randrange(len(text) + 1)
            broken = (
                text[:at] + chance.choice(("", "\x00", "[", "|", "\x1b[", "\ufffd")) + text[at + chance.randrange(3) :]
            )
            fact: Fact[Any] = answer(_ran(item, {**said, "out": broken}), item, ITEMS[item])
            assert (fact.value is not None) == (fact.state is State.KNOWN), name


def test_a_cut_table_of_ports_is_unreadable_as_long_as_ports_may_be_missing() -> None:
    lines = load_toml(HERE / "cases" / "hccn" / "a5_dev_info.toml")["answers"]["0"]["out"].splitlines(keepends=True)
    for kept in range(7):
        assert ITEMS["dev_info"]("".join(lines[:kept])) is None
    found = ITEMS["dev_info"]("".join(lines[:7]))
    assert found is not None and [port.number for port in found.ports] == [4, 5, 6]


def test_every_item_has_a_known_answer_and_one_that_is_not() -> None:
    states: dict[str, set[str]] = {}
    for case in CASES.values():
        states.setdefault(case["item"], set()).update(item["state"] for item in case["expected"].values())
    always_known = {"lldp", "link_stat", "hccs_ping", "ub_ping", "netdetect", "port_info"}
    assert set(states) == set(ITEMS)
    assert {item for item, seen in states.items() if "known" not in seen} == set()
    assert {item for item, seen in states.items() if seen == {"known"}} <= always_known


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the shared transcripts are not here")
def test_every_transcript_of_the_tool_is_a_case_with_its_very_text() -> None:
    unread = {"bandwidth", "fec_rs"}  # answers to what the doctor does not ask
    for transcript in sorted(path for path in TRANSCRIPTS.glob("*.txt") if path.stem not in unread):
        answers = CASES[transcript.stem]["answers"]
        said = "".join(item.get("out", "") + item.get("err", "") for item in answers.values())
        assert said == transcript.read_text(encoding="utf-8"), transcript.name
