"""A tool's output that is cut or damaged says what the whole one says, or nothing: never another definite value.

Each recorded output is cut after each line and at places between, loses single columns, or has them made unreadable.
What a reader states then is compared with what it states of the whole: a list counts as a statement only where the
reader says that it is complete.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.facts import ray as ray_status
from npuenv.facts.npu import queries
from npuenv.facts.npu.failures import SmiFailure
from npuenv.facts.npu.smi import SmiTable, parse_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent / "cases"
Stated = dict[tuple[Any, ...], Any]
_CARD = (
    "physical", "name", "health", "power_w", "temperature_c", "bus_id", "hbm_used_mib", "hbm_total_mib", "busy_percent",
)  # fmt: skip
_RANDOM_CUTS = 20
_COLUMN = re.compile(r"(?<=\|)[^|\n]*\S[^|\n]*(?=\|)|\S+")


def of_table(text: str) -> Stated:
    read = parse_info(text)
    if not isinstance(read, SmiTable):
        found = {("trouble",): read.kind, ("ret",): read.ret, ("library",): read.library}
        return {} if read.kind is SmiFailure.UNREADABLE else found
    said: Stated = {("tool",): read.tool, ("driver",): read.driver, ("layout",): read.layout}
    for card in read.cards:
        said |= {(card.npu, card.chip, name): getattr(card, name) for name in _CARD}
    for npu in read.listed:
        said[("processes", npu)] = {(item.pid, item.chip) for item in read.processes if item.npu == npu}
    if read.is_complete:
        said[("cards",)] = {(card.npu, card.chip) for card in read.cards}
    return said


def of_status(text: str) -> Stated:
    read = ray_status.parse_status(text)
    if read is None:
        return {}
    said: Stated = {("nodes",): read.nodes}
    said |= {("total", name): read.total(name) for name in ("CPU", "NPU", "GPU", "memory", "other")}
    said |= {("demand", each.bundles, each.how): each.waiting for each in read.demands}
    return said | ({("no demands",): True} if read.has_all_demands and not read.demands else {})


def of_topology(text: str) -> Stated:
    read = queries.parse_topology(text)
    if read is None:
        return {}
    said: Stated = {(one, other): link for one, row in read.links.items() for other, link in row.items()}
    said |= {("cpus", card): word for card, word in read.affinity.items()}
    return said | ({("cards",): set(read.links)} if read.is_complete else {})


def of_boards(text: str) -> Stated:
    names = ("npu", "chip", "chip_name", "npu_name", "driver", "firmware", "bus_id", "pci_device")
    return {
        (number, name): getattr(item, name) for number, item in enumerate(queries.parse_board(text)) for name in names
    }


def of_health(text: str) -> Stated:
    return {(number,): item.status for number, item in enumerate(queries.parse_health(text))}


def of_counts(text: str) -> Stated:
    return {
        (row, name): count for row, item in enumerate(queries.parse_ecc(text)) for name, count in item.counts.items()
    }


def of_map(text: str) -> Stated:
    names = ("logic", "physical", "name")
    rows = [item for item in queries.parse_map(text) if item.chip is not None]
    return {(item.npu, item.chip, name): getattr(item, name) for item in rows for name in names}


def of_pod(text: str) -> Stated:
    read = queries.parse_spod(text)
    return {(name,): getattr(read, name) for name in ("sdid", "size", "pod", "server")} if read else {}


def of_events(text: str) -> Stated:
    from npuenv.facts.npu.details import _faults

    read = _faults(text)
    return {} if read is None else {("events",): [(item.code, item.severity) for item in read]}


READERS: dict[str, Callable[[str], Stated]] = {
    "smi": of_table,
    "ray_status": of_status,
    "npu_topology": of_topology,
    "npu_board": of_boards,
    "npu_health": of_health,
    "npu_ecc": of_counts,
    "npu_map": of_map,
    "npu_spod": of_pod,
    "npu_events": of_events,
}


def _text(path: Path) -> str:
    case = load_toml(path)
    return str(
        case["output"] if "output" in case else next(iter(case.get("commands", {"": {}}).values())).get("out", "")
    )


TEXTS = {
    f"{folder}-{path.stem}": (read, text)
    for folder, read in READERS.items()
    for path in sorted((HERE / folder).glob("*.toml"))
    if (text := _text(path)).strip()
}


def cut(text: str, chance: random.Random) -> Iterator[str]:
    lines = text.splitlines(keepends=True)
    for number in range(len(lines)):
        yield "".join(lines[:number])
        yield "".join(lines[number:])  # the head scrolled away
    for _ in range(_RANDOM_CUTS):
        yield text[: chance.randrange(len(text))]


def damaged(text: str, chance: random.Random) -> Iterator[str]:
    for found in _COLUMN.finditer(text):
        if found[0] == "...":  # somebody left lines out: without the mark nobody can tell
            continue
        words = [
            found.span(),
            *((found.start() + each.start(), found.start() + each.end()) for each in _words(found[0])),
        ]
        for start, end in dict.fromkeys(words):
            part = text[start:end]
            at = chance.randrange(len(part))
            for other in (
                " " * len(part),
                "",
                "?" * len(part),
                f"{part[:at]}?{part[at + 1 :]}",
                f"{part}.",
                *_short(part),
            ):
                yield text[:start] + other + text[end:]


def _short(part: str) -> tuple[str, ...]:
    """Its first letter; not of a number, which would still be one."""
    return () if any(char.isdigit() for char in part) else (part[:1],)


def _words(text: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"\S+", text)


def contradictions(read: Callable[[str], Stated], whole: Stated, variant: str) -> Stated:
    """What is said of a variant and not of the whole output."""
    return {key: value for key, value in read(variant).items() if value is not None and whole.get(key) != value}


@pytest.mark.parametrize("name", TEXTS)
def test_of_a_cut_output_nothing_else_is_said(name: str) -> None:
    read, text = TEXTS[name]
    whole = read(text)
    for variant in cut(text, random.Random(name)):
        assert contradictions(read, whole, variant) == {}, variant


LARGEST = sorted(TEXTS, key=lambda name: len(TEXTS[name][1]))[-6:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.long) if each in LARGEST else each for each in TEXTS]
)
def test_of_an_output_with_a_damaged_column_nothing_else_is_said(name: str) -> None:
    read, text = TEXTS[name]
    whole = read(text)
    for variant in damaged(text, random.Random(name)):
        assert contradictions(read, whole, variant) == {}, variant


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith(("smi", "npu_topology"))])
def test_of_a_matrix_without_one_of_its_lines_nothing_else_is_said(name: str) -> None:
    read, text = TEXTS[name]
    whole, lines = read(text), text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        found = contradictions(read, whole, "".join([*lines[:number], *lines[number + 1 :]]))
        # A process that is left out whole leaves no gap.
        assert line.strip() == "..." or not {key for key in found if key[0] != "processes"}, line


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith(("smi", "npu_topology", "ray_status"))])
def test_what_is_printed_twice_is_read_once(name: str) -> None:
    read, text = TEXTS[name]
    assert read(text.rstrip("\n") + "\n" + text) == read(text)
