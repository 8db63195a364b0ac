"""What `npu-smi info` prints, read by its header words: five table layouts, and the texts of its failures.

Start from `parse_info`. Everything goes to stdout there, failures too, and exit codes carry no meaning that can be
relied on, so only the text counts. Line by line, as printed by 25.5.2 on an A2 card:

    | 5     910B4               | OK            | 89.9        39                0    / 0             |
    | 0                         | 0000:41:00.0  | 0           0    / 0          2922 / 32768         |
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from npuenv.facts.npu.text import plain_lines

_TITLE = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_USED = re.compile(r"(\d+)\s*/\s*(\d+)")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
VIRTUAL_FROM = 32768  # NPU ids of slices of a card
_IDLE = re.compile(r"No running processes found in NPU (\d+)$")
_HEALTHS = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")
_VERSION = re.compile(r"[0-9]+(\.[0-9A-Za-z]+)+")


class Layout(enum.Enum):
    """Which table it is; decided by words of the second header line."""

    A2 = "a2"  # also 910A and the wide table of 26.0
    A3 = "a3"  # `Chip  Phy-ID`: two chips per NPU
    P310 = "310p"  # `Chip    Device`, no HBM column
    A5 = "950"  # `NPU ID | Name` in two columns, no chip number


@dataclass(frozen=True, slots=True)
class Card:
    """One chip row. None stands where the tool prints `-`, `NA` or `xxx`."""

    npu: int  # as npu-smi numbers it; not 0..n-1 in general
    chip: int
    physical: int | None  # the Phy-ID or Device column
    name: str | None  # 910B3, Ascend910 (= A3), 310P3, Ascend950PR, ...
    health: str | None  # OK, Warning, Alarm, Critical, UNKNOWN
    power_w: float | None
    temperature_c: int | None
    bus_id: str | None
    hbm_used_mib: int | None
    hbm_total_mib: int | None
    busy_percent: int | None  # AICore(%), on the 950 NPU Util(%)
    line: str = field(compare=False, default="")  # the row that carries the health

    @property
    def is_virtual(self) -> bool:
        """True for a slice of a card, as it shows inside a container or virtual machine."""
        return self.npu >= VIRTUAL_FROM


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table; at most eight per chip are shown."""

    npu: int
    chip: int | None
    pid: int
    name: str  # "" when seen from inside a container
    memory_mib: int | None
    container_pid: int | None = None  # the fifth column of 26.0; None for a process of the host


@dataclass(frozen=True, slots=True)
class SmiTable:
    """The table as a whole."""

    layout: Layout | None  # None: the tool said that there is no card
    tool: str | None
    driver: str | None  # the `Version:` word; it can differ from the tool's own
    title: str
    cards: tuple[Card, ...]
    processes: tuple[Process, ...]
    is_complete: bool  # False: rows are cut or unreadable, so the cards may be more than listed
    is_install_incomplete: bool  # the warning about a driver package that is not completely installed
    listed: tuple[int, ...] = ()  # the NPUs of which the process table speaks, be it to say that there is no process


class Trouble(enum.Enum):
    """Ways in which npu-smi fails. One text can have several causes; those are for the checks to weigh."""

    LIBRARY = "library"  # the loader misses a driver library
    INIT = "init"  # `dcmi module initialize failed`
    IN_USE = "in-use"  # `because the device is used`: another container holds the cards
    NOT_FOUND = "not-found"  # the shell's words for a missing program
    UNEXECUTABLE = "unexecutable"  # no right to run it, or a program for another processor
    TIMEOUT = "timeout"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SmiTrouble:
    """A failure with the line that shows it."""

    kind: Trouble
    line: str
    ret: int | None = None  # the tool's negative code, where it prints one
    library: str | None = None

    @property
    def is_in_use(self) -> bool:
        """True where somebody else holds the device."""
        return self.kind is Trouble.IN_USE


_TROUBLES = (
    (Trouble.LIBRARY, re.compile(r"error while loading shared libraries: (?P<library>[^:\s]+)")),
    (Trouble.IN_USE, re.compile(r"because the device is used\. ret is (?P<ret>-\d+)")),
    (Trouble.INIT, re.compile(r"dcmi mod\w+ initializ\w+ failed.{0,200}?ret is (?P<ret>-\d+)")),
    (Trouble.UNEXECUTABLE, re.compile(r"npu-smi: (?:cannot execute|Permission denied|Exec format error)")),
    (Trouble.NOT_FOUND, re.compile(r"npu-smi: (?:command )?not found|npu-smi: No such file")),
)


def parse_info(text: str) -> SmiTable | SmiTrouble:
    """The table, or what went wrong. Never raises; a text that is neither is Trouble.UNREADABLE."""
    lines = plain_lines(text)
    table = _Reader().read(lines)
    if table.layout is not None:
        return table
    for line in lines:
        if "There is no NPU card on this server" in line:
            return SmiTable(None, None, None, line.strip(), (), (), True, False)
    return find_trouble(lines)


def find_trouble(lines: list[str]) -> SmiTrouble:
    """The first failure text among the lines."""
    for line in lines:
        for kind, pattern in _TROUBLES:
            match = pattern.search(line)
            if match:
                found = match.groupdict()
                ret = int(found["ret"]) if found.get("ret") else None
                return SmiTrouble(kind, line.strip(), ret, found.get("library"))
    first = next((line.strip() for line in lines if line.strip()), "")
    return SmiTrouble(Trouble.UNREADABLE, first)


class _Reader:
    """Walks the lines once; the headers switch what a row means."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.tool: str | None = None
        self.driver: str | None = None
        self.title = ""
        self.cards: list[Card] = []
        self.processes: list[Process] = []
        self.listed: set[int] = set()
        self.is_in_processes = False
        self.is_complete = True
        self.is_install_incomplete = False
        self._first: list[str] | None = None  # the upper row of a card that waits for its lower one
        self._first_line = ""
        self._ends_with_rule = False
        self._loose: tuple[str, list[str]] | None = None  # an upper row before any header

    def read(self, lines: list[str]) -> SmiTable:
        for line in lines:
            self._line(line)
        if self.layout is Layout.A5 and self.is_in_processes and self._ends_with_rule:
            self.listed.update(card.npu for card in self.cards)  # this tool leaves cards without a process out
        whole = self.is_complete and self._first is None and (self.is_in_processes or self._ends_with_rule)
        return SmiTable(
            self.layout, self.tool, self.driver, self.title, tuple(self.cards), tuple(self.processes), whole,
            self.is_install_incomplete, tuple(sorted(self.listed)),
        )  # fmt: skip

    def _line(self, line: str) -> None:
        if "driver package may not be completely installed" in line:
            self.is_install_incomplete = True
        elif line.strip() == "...":
            self.is_complete = False
        elif "+--" in line or "+==" in line:
            self._ends_with_rule = True
        elif "|" in line:
            self._ends_with_rule = False
            self._row(line)

    def _row(self, line: str) -> None:
        body = line[line.index("|") + 1 :]
        if not body.endswith("|"):
            self.is_complete = self.is_complete and self.layout is None
            return
        cells = [cell.strip() for cell in body[:-1].split("|")]
        if self._header(line, cells):
            return
        if self.layout is None:
            self._row_before_header(line, cells)
        elif self.is_in_processes:
            self._process(cells)
        else:
            self._card_row(line, cells)

    def _row_before_header(self, line: str, cells: list[str]) -> None:
        """Of a table whose head was cut off, two rows that can only be a card's say which layout it is."""
        upper, self._loose = self._loose, None
        cells = cells[-4:] if cells[-4:-2] == ["", ""] or (len(cells) > 3 and cells[-4].isdecimal()) else cells[-3:]
        if len(cells) < 3 or self.is_in_processes or not _USED.search(cells[-1]):
            return
        if cells[-2] in _HEALTHS and _upper(cells) is not None:
            self._loose = (line, cells)
        elif upper is not None and len(upper[1]) == len(cells) and _BUS_ID.fullmatch(cells[-2]):
            self.layout = _layout_of(cells)
            self.is_complete = False
            if self.layout is not None:
                self._card_row(*upper)
                self._card_row(line, cells)

    def _header(self, line: str, cells: list[str]) -> bool:
        title = _TITLE.search(line)
        if title:
            self.title = line.strip()
            self.tool, self.driver = (word if _VERSION.fullmatch(word) else None for word in title.groups())
            return True
        if "Process id" in line:
            self.is_in_processes = True
            return True
        if "Bus-Id" in cells:
            self.layout = _layout(line)
            return True
        return "Health" in cells

    def _card_row(self, line: str, cells: list[str]) -> None:
        width = 4 if self.layout is Layout.A5 else 3
        cells = cells[-width:]  # a log may put a prefix with a bar before the table
        if not _USED.search(cells[-1]):  # both rows of a card end in `used / total`, a process row does not
            self.is_complete = False
            return
        if len(cells) == width and not self._is_lower(cells):
            self.is_complete = self.is_complete and self._first is None
            self._first, self._first_line = cells, line.strip()
            return
        card = self._card(cells) if self._first is not None and len(cells) == width else None
        if card is None:
            self.is_complete = False
        else:
            self.cards.append(card)
        self._first = None

    def _is_lower(self, cells: list[str]) -> bool:
        # The name cannot decide: "910" and "310" look like the numbers of a lower row.
        if cells[-2] in _HEALTHS:
            return False
        return _BUS_ID.fullmatch(cells[-2]) is not None or self._first is not None

    def _card(self, lower: list[str]) -> Card | None:
        assert self._first is not None and self.layout is not None
        upper = _upper(self._first)
        numbers = lower[0].split() if self.layout is not Layout.A5 else ["0"]
        expected = 1 if self.layout in (Layout.A2, Layout.A5) else 2
        if upper is None or len(numbers) != expected or not all(word.isdecimal() for word in numbers):
            return None
        used = _USED.findall(lower[-1])
        hbm = used[-1] if self.layout is not Layout.P310 and len(used) == 2 else (None, None)
        values = self._first[-1].split()
        bus = _BUS_ID.fullmatch(lower[-2])
        return Card(
            npu=upper[0],
            chip=int(numbers[0]),
            physical=int(numbers[1]) if expected == 2 else None,
            name=upper[1],
            health=_word(self._first[-2]),
            power_w=_number(values[0]) if values else None,
            temperature_c=_integer(values[1]) if len(values) > 1 else None,
            bus_id=bus.group() if bus else None,
            hbm_used_mib=_integer(hbm[0]),
            hbm_total_mib=_integer(hbm[1]),
            busy_percent=_integer(lower[-1].split()[0]),
            line=self._first_line,
        )

    def _process(self, cells: list[str]) -> None:
        idle = _IDLE.search(" ".join(cells))
        if idle:
            self.listed.add(int(idle[1]))
        ids = cells[0].split()
        if len(cells) < 4 or not ids or not all(word.isdecimal() for word in [*ids, cells[1]]):
            return
        self.listed.add(int(ids[0]))
        chip = int(ids[1]) if len(ids) > 1 else None
        inside = _integer(cells[4]) if len(cells) > 4 else None
        self.processes.append(Process(int(ids[0]), chip, int(cells[1]), cells[2], _integer(cells[3]), inside))


def _layout(line: str) -> Layout:
    if "NPU Util" in line:
        return Layout.A5
    if "Phy-ID" in line:
        return Layout.A3
    return Layout.A2 if "HBM-Usage" in line else Layout.P310


def _layout_of(lower: list[str]) -> Layout | None:
    """The layout that a card's lower row alone shows; None for a row that no layout has."""
    numbers, pairs = lower[0].split(), len(_USED.findall(lower[-1]))
    if not all(word.isdecimal() for word in numbers):
        return None
    if len(lower) == 4:
        return Layout.A5 if not numbers and pairs == 2 else None
    return {(1, 2): Layout.A2, (2, 2): Layout.A3, (2, 1): Layout.P310}.get((len(numbers), pairs))


def _upper(cells: list[str]) -> tuple[int, str | None] | None:
    """(NPU id, name) of a card's upper row; None when it does not read so."""
    words = cells[0].split() if len(cells) == 3 else cells[:2]
    if len(words) != 2 or not words[0].isdecimal() or not words[1]:
        return None
    return int(words[0]), _word(words[1])


def _word(text: str) -> str | None:
    return text if re.fullmatch(r"[A-Za-z0-9_-]*[A-Za-z0-9_]", text) and text not in ("NA", "xxx") else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
