"""What `npu-smi info -t QUERY` and its fellows print: pure parsers for one card's answers.

`refusal` gives the reason why there is no answer. Each parser reads known labels only, so other lines in between do not
count. As 23.0.5 prints health:

        Health Status                  : OK
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from npuenv.facts.collector import plain_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


N = TypeVar("N", int, float)

HEALTHS = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")  # all that the tool says of a chip
VERSION = re.compile(r"[0-9]+(?:\.[0-9A-Za-z]+)+")  # 25.0.rc1.b010, 7.1.0.11.220
BUS_ID = re.compile(r"[0-9A-Fa-f]{4,}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_CHIP_NAME = re.compile(r"(?:Ascend ?)?[0-9]{3}(?:[A-Za-z0-9_-]*[A-Za-z0-9])?")  # 910, 310P3, Ascend950PR
_REFUSALS = (
    ("unsupported", r"This device does not support querying [\w-]+"),
    ("invalid-card", r"Invalid card id\.|Error parameter of -i"),
    ("failed", r"(?:Failed to execute npu-smi |failed).{0,200}?\bret is (?P<ret>-\d{4,5})\b"),
    ("unsupported", r"Command or option is not found|Error parameter of -t"),
)
_HEAD = ("NPU ID", "Chip Count")
_HEALTH = ("Health Status", "Health", "Error Code", "Error Information", "Chip ID", *_HEAD)
_BITS = (
    "Single Bit Error Count", "Double Bit Error Count", "Single Bit Aggregate Total Err Cnt",
    "Double Bit Aggregate Total Err Cnt", "Single Bit Isolated Pages Count", "Double Bit Isolated Pages Count",
    "Single Bit Next-Isolated Pages Count", "Double Bit Next-Isolated Pages Count",
)  # fmt: skip
_ECC = (*(f"{memory} {name}" for memory in ("DDR", "HBM") for name in _BITS), "Chip ID", *_HEAD)
_BOARD = (
    "Product Name", "NPU Name", "Chip Name", "Chip Type", "Chip Version", "Model", "Software Version",
    "Firmware Version", "Compatibility", "Board ID", "PCIe Bus Info", "PCI Device ID", "Chip ID", *_HEAD,
)  # fmt: skip
_SPOD = ("SDID", "Super Pod Size", "Super Pod ID", "Server Index", "Chassis ID", "Chip ID", *_HEAD)
_EVENT = r"event id=(0x[0-9A-Fa-f]{8}), severity=(\d+)(?:, (.*))?$"
_WORD = re.compile(r"[0-9A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+)*")
_PCI_ID = re.compile(r"0x[0-9A-Fa-f]{4}")
_AFFINITY = r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*"
_COLUMNS = r"\s{2,}|\t+"
_MAPPED = r"Ascend ?[0-9]{3}[A-Za-z0-9_-]*|Mcu|MiniD"
_CHIP = r"(?:NPU|Phy-ID)(\d+)"
_LINKS = frozenset({"X", "HCCS", "HCCS_SW", "SIO", "PHB", "PIX", "PXB", "SYS", "UB", "NA"})


def _whole_lines(text: str) -> list[str]:
    """The same without a last line that has no end: half a number reads like a whole one."""
    lines = plain_lines(text)
    return lines if not lines or text.endswith(("\n", "\r")) else lines[:-1]


def labelled(line: str, labels: re.Pattern[str]) -> tuple[str, str] | None:
    """(label, value) of a line `LABEL : value` that may carry a log's prefix; None where no known label is in it."""
    found = labels.search(line)
    return (found.group("label"), found.group("value").strip()) if found else None


@functools.cache
def _pattern_of(labels: tuple[str, ...]) -> re.Pattern[str]:
    """What finds one of the labels before a colon. A longer label wins over a shorter one that it ends with."""
    words = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    # What ends a log's prefix may stand before it; anything else makes it the end of another label: `Physical Chip ID`.
    return re.compile(rf"(?:^|[0-9|:>\])])\s*(?P<label>{words})\s*:(?P<value>.*)$")


def integer(text: str | None) -> int | None:
    """A whole number; None for anything else, such as NA and `-`."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def number(text: str | None) -> float | None:
    """A number with or without a fraction; None for anything else."""
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) else None


def word(text: str | None) -> str | None:
    """The text; None where the tool has nothing to say."""
    return None if text is None or text.strip() in ("", "-", "NA", "N/A", "xxx", "x.x.x") else text.strip()


def percent(value: N | None) -> N | None:
    """The value; None where it is none between 0 and 100."""
    return value if value is not None and 0 <= value <= 100 else None


def chip_name(text: str | None) -> str | None:
    """The text; None where no chip is called so, as where a document prints `xxx`."""
    return formed(text, _CHIP_NAME)


def formed(text: str | None, form: re.Pattern[str]) -> str | None:
    """The text; None where it has another form: a part of it may be missing."""
    return text if text is not None and form.fullmatch(text.strip()) else None


class QueryRefusal(NamedTuple):
    """Why a query has no answer."""

    kind: str  # unsupported | invalid-card | failed | timeout | absent | not-asked
    line: str
    ret: int | None = None


class Health(NamedTuple):
    """A chip's health with what is wrong with it."""

    npu: int | None  # None: the output does not say; it was asked for one card
    chip: int | None
    status: str  # OK, Warning, Alarm, Critical, UNKNOWN
    codes: tuple[str, ...]  # "8C03A000": event codes of the card's firmware; () when there is none
    information: tuple[str, ...]  # the tool's words for them


class Ecc(NamedTuple):
    """Error counters of a chip's memory, by the tool's own labels."""

    npu: int | None
    chip: int | None
    counts: Mapping[str, int]


class Board(NamedTuple):
    """A card or one of its chips (`-c`). None stands where the tool prints NA or has no such line."""

    npu: int | None
    chip: int | None
    product: str | None
    chip_type: str | None  # "Ascend"; A2 and 310P have it, A3 has not
    chip_name: str | None  # "910B3", "Ascend910", "Ascend950PR"
    npu_name: str | None  # "9391": what a SoC's name ends with, where it does
    driver: str | None  # Software Version
    firmware: str | None
    compatibility: str | None  # "OK"; users without rights get NOT SUPPORT
    bus_id: str | None
    pci_device: str | None


class Spod(NamedTuple):
    """Where a chip stands in its super pod."""

    npu: int | None
    chip: int | None
    sdid: int | None
    size: int | None
    pod: int | None
    server: int | None


class Mapped(NamedTuple):
    """A row of `-m`. None stands where the tool prints `-` or has no such column."""

    npu: int
    chip: int | None
    logic: int | None
    physical: int | None
    name: str  # "Ascend 910B3", "Mcu"


class Topology(NamedTuple):
    """How the cards reach each other: from -> to -> HCCS, SIO, PHB, PIX, PXB, SYS, UB, NA."""

    links: Mapping[int, Mapping[int, str]]
    affinity: Mapping[int, str]  # card -> its CPUs, "144-167"
    is_complete: bool  # False: rows are missing, cut, or contradict each other


class FaultEvent(NamedTuple):
    """A present fault of a card of the 950 generation."""

    npu: int | None  # None: the output does not say; it was asked for one card
    code: str  # "81AF8000"
    severity: int
    about: str  # the rest of the line


def parse_health(text: str) -> tuple[Health, ...]:
    """One per chip; those without a readable state are left out."""
    found = []
    for head, block in _blocks(_health_lines(text), _pattern_of(_HEALTH)):
        status = next((word for word in block.get("Health Status", block.get("Health", "")).split() if word), "")
        if status in HEALTHS:
            codes = tuple(re.findall(r"\b[0-9A-F]{8}\b", block.get("Error Code", "")))
            information = tuple(line for line in block.get("Error Information", "").split("\n") if word(line))
            found.append(Health(head, integer(block.get("Chip ID")), status, codes, information))
    return tuple(found)


def _health_lines(text: str) -> list[str]:
    """The lines; those that continue the error information with an empty label are joined to it, by line breaks."""
    lines: list[str] = []
    begins = _pattern_of(("Error Information",))
    for line in _whole_lines(text):
        more = re.fullmatch(r"\s*:\s+(\S.*)", line)
        if more and lines and begins.search(lines[-1].split("\n", 1)[0]):
            lines[-1] += "\n" + more[1].strip()
        elif line.strip():
            lines.append(line)
    return lines


def parse_ecc(text: str) -> tuple[Ecc, ...]:
    """One per chip that shows a counter."""
    found = []
    for head, block in _blocks(_whole_lines(text), _pattern_of(_ECC)):
        counts = {label: integer(value) for label, value in block.items() if label != "Chip ID"}
        known = {label: count for label, count in counts.items() if count is not None}
        if known:
            found.append(Ecc(head, integer(block.get("Chip ID")), known))
    return tuple(found)


def parse_board(text: str) -> tuple[Board, ...]:
    """One per card or chip."""
    found = []
    for head, block in _blocks(_whole_lines(text), _pattern_of(_BOARD)):
        said = {label: word(value) for label, value in block.items()}
        if any(value for label, value in said.items() if label != "Chip ID"):
            found.append(
                Board(
                    head, integer(block.get("Chip ID")), said.get("Product Name"), said.get("Chip Type"),
                    chip_name(said.get("Chip Name")), formed(said.get("NPU Name"), _WORD),
                    formed(said.get("Software Version"), VERSION), formed(said.get("Firmware Version"), VERSION),
                    formed(said.get("Compatibility"), _WORDS), formed(said.get("PCIe Bus Info"), BUS_ID),
                    formed(said.get("PCI Device ID"), _PCI_ID),
                )
            )  # fmt: skip
    return tuple(found)


def parse_spod(text: str) -> Spod | None:
    """The place in the super pod; None where the text holds none."""
    for head, block in _blocks(_whole_lines(text), _pattern_of(_SPOD)):
        names = ("SDID", "Super Pod Size", "Super Pod ID", "Server Index")
        values = [integer(block.get(name)) for name in names]
        if any(value is not None for value in values):
            return Spod(head, integer(block.get("Chip ID")), *values)
    return None


def _blocks(lines: Iterable[str], labels: re.Pattern[str]) -> list[tuple[int | None, dict[str, str]]]:
    """(NPU ID, label -> value) for each chip. A label with two values in one block is in doubt and left out.

    `Chip ID` stands before a chip's values in some answers and after them in others.
    """
    found: list[tuple[int | None, dict[str, str]]] = []
    npu: int | None = None
    block: dict[str, str] = {}
    doubtful: set[str] = set()
    closes = False

    def close() -> None:
        kept = {label: value for label, value in block.items() if label not in doubtful}
        if set(kept) - {"Chip ID"}:
            found.append((npu, kept))
        block.clear()
        doubtful.clear()

    for line in lines:
        first, _, rest = line.partition("\n")
        read = labelled(first, labels)
        if read is None:
            continue
        label, value = read[0], read[1] + ("\n" + rest if rest else "")
        if label in _HEAD:
            if label == "NPU ID":
                close()
                npu, closes = integer(value), False
            continue
        if label == "Chip ID":
            closes = closes or bool(set(block) - {"Chip ID"} and "Chip ID" not in block)
            if not closes:
                close()
        if block.setdefault(label, value) != value:
            doubtful.add(label)
        if label == "Chip ID" and closes:
            close()
    close()
    return found


def parse_map(text: str) -> tuple[Mapped, ...]:
    """The rows of `-m`, by the names of its columns."""
    columns: list[str] = []
    rows = []
    for line in _whole_lines(text):
        cells = [cell for cell in re.split(_COLUMNS, line.strip()) if cell]
        if "NPU ID" in cells and "Chip Name" in cells:
            columns = cells[cells.index("NPU ID") :]
            continue
        cells = cells[-len(columns) :] if columns else []
        row = dict(zip(columns, cells)) if len(cells) == len(columns) else {}
        npu = integer(row.get("NPU ID"))
        if npu is not None and re.fullmatch(_MAPPED, row["Chip Name"]):
            chip, logic, physical = (integer(row.get(name)) for name in ("Chip ID", "Chip Logic ID", "Chip Phy-ID"))
            rows.append(Mapped(npu, chip, logic, physical, row["Chip Name"]))
    return tuple(rows)


def parse_topology(text: str) -> Topology | None:
    """The matrix of `-t topo`; None where there is no header to read it by."""
    columns: list[int] = []
    has_cpus = False
    links: dict[int, dict[int, str]] = {}
    affinity: dict[int, str] = {}
    for line in _whole_lines(text):
        head, title, _ = line.partition("CPU Affinity")
        words = head.split()
        # Without a log's prefix, which ends where the first card's name begins.
        words = words[next((number for number, word in enumerate(words) if re.fullmatch(_CHIP, word)), len(words)) :]
        chips = [int(chip[1]) for word in words if (chip := re.fullmatch(_CHIP, word))]
        if len(chips) == len(set(chips)) == len(words) > 1:
            columns, has_cpus = columns or chips, has_cpus or bool(title)
        elif len(chips) == 1 and chips[0] in columns:
            cells, cpus = words[1 : len(columns) + 1], words[len(columns) + 1 :]
            if len(cpus) == has_cpus and _is_row(cells, columns.index(chips[0])):
                links[chips[0]] = {column: cell for column, cell in zip(columns, cells) if column != chips[0]}
                affinity.update((chips[0], word) for word in cpus if re.fullmatch(_AFFINITY, word))
    if not columns:
        return None
    # A link is the same from both of its ends.
    pairs = [(one, other) for one in columns for other in columns if one < other]
    is_complete = set(links) == set(columns) and all(links[one][other] == links[other][one] for one, other in pairs)
    return Topology(links, affinity, is_complete)


def _is_row(cells: list[str], own: int) -> bool:
    """Whether each cell is a link, and `X` stands for the card itself alone."""
    return [number for number, cell in enumerate(cells) if cell == "X"] == [own] and _LINKS.issuperset(cells)


def parse_events(text: str) -> tuple[int | None, tuple[FaultEvent, ...]]:
    """(the count that it says, the events) of `-t current-fault-event`."""
    count: int | None = None
    events = []
    labels = _pattern_of(("Fault Event Count",))
    for line in _whole_lines(text):
        read = labelled(line, labels)
        if read:
            count = integer(read[1])
        event = re.search(_EVENT, line)
        if event:
            events.append(FaultEvent(None, event[1][2:].upper(), int(event[2]), event[3] or ""))
    return count, tuple(events)


def refusal(text: str) -> QueryRefusal | None:
    """Why a query was refused; None where none of the known words is there."""
    for line in plain_lines(text):
        for kind, pattern in _REFUSALS:
            found = re.search(pattern, line)
            if found:
                numbers = [value for value in found.groupdict().values() if value]
                return QueryRefusal(kind, line.strip(), int(numbers[0]) if numbers else None)
    return None
