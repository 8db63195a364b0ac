"""Each fact against recorded answers: one file per case, in a folder named after the fact.

A case says what the host has (environ, files, folders, devices, unreadable, commands) and what is expected: the state,
for known facts the named parts of the value, and a line of the evidence.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.fact import State
from npuenv.facts.collect import plain
from tests.facts.families import FACTS
from tests.support.scripted_host import ScriptedHost

CASES = sorted(path for name in FACTS for path in (Path(__file__).parent / "cases" / name).glob("*.toml"))


def build(case: dict[str, Any]) -> ScriptedHost:
    host = ScriptedHost(variables=dict(case.get("environ", {})))
    for path, text in case.get("files", {}).items():
        host.file(path, text)
    for path, names in case.get("folders", {}).items():
        host.folder(path, *names)
    for path, error in case.get("devices", {}).items():
        host.device(path, error)
    for path, error in case.get("unreadable", {}).items():
        host.unreadable(path, error)
    for words, answer in case.get("commands", {}).items():
        timed_out = answer.get("timed_out", False)
        host.fails(
            words, out=answer.get("out", ""), err=answer.get("err", ""), code=answer.get("code", 0), timed_out=timed_out
        )
    return host


@pytest.mark.parametrize("name", sorted(FACTS))
def test_recorded_answers_read_as_expected(name: str) -> None:
    """Among them are some of which the fact is known, and others."""
    paths = [path for path in CASES if path.parent.name == name]
    states = {_reads_as_expected(path) for path in paths}
    assert "known" in states and len(states) > 1


def _reads_as_expected(path: Path) -> str:
    case = load_toml(path)
    expected = case["expected"]
    fact = FACTS[path.parent.name](build(case))
    assert fact.state.value == expected["state"], (path.stem, fact)
    if fact.state is State.KNOWN:
        value = plain(fact.value)
        if isinstance(expected["value"], dict):
            value = {key: value[key] for key in expected["value"]}
        assert value == expected["value"], path.stem
    else:
        assert fact.value is None, path.stem
    lines = [f"{item.command}: {item.line}" for item in fact.evidence]
    assert fact.evidence and any(expected.get("line", "") in line for line in lines), (path.stem, lines)
    return fact.state.value


@pytest.mark.parametrize("count", [12, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_broken_answers_never_raise_and_never_turn_into_another_kind_of_value(name: str, count: int) -> None:
    for path in (path for path in CASES if path.parent.name == name):
        _break(path, count)


def _break(path: Path, count: int) -> None:
    case = load_toml(path)
    chance = random.Random(path.stem)
    for _ in range(count):
        host = build(case)
        for place, looked in list(host.paths.items()):
            if looked.text:
                host.file(place, _broken(looked.text, chance))
        for words, answer in list(host.commands.items()):
            assert not isinstance(answer, str)
            host.fails(words, out=_broken(answer.out, chance), err=answer.err, code=answer.code or 0)
        fact = FACTS[path.parent.name](host)
        assert (fact.value is not None) == (fact.state is State.KNOWN)


def _broken(text: str, chance: random.Random) -> str:
    way = chance.randrange(5)
    if not text or way == 0:
        return text[: chance.randrange(len(text) + 1)]
    if way == 1:
        return text.replace("\n", "\r\n")
    if way == 2:
        return f"\x1b[31m{text}\x1b[0m"
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(("�", "\x00", "=", "[", '"', "\n\n")) + text[at:]
