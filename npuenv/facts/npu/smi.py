"""What `npu-smi info` prints, read by its header words: five table layouts, and the texts of its failures.

Everything goes to stdout there, failures too, and exit codes carry no meaning that can be relied on, so only the text
counts. Line by line, as printed by 25.5.2 on an A2 card:

    | 5     910B4               | OK            | 89.9        39                0    / 0             |
    | 0                         | 0000:41:00.0  | 0           0    / 0          2922 / 32768         |
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from npuenv.facts.collector import plain_lines
from npuenv.facts.npu.failures import SmiTrouble, find_trouble
from npuenv.facts.npu.queries import BUS_ID, HEALTHS, VERSION, chip_name, integer, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

_TITLE = r"npu-smi\s+(\S+)\s+Version:\s*(\S+)"
_BEGINNING = rf"{_TITLE}|\|\s*Health\s*\|"
_PAIR = re.compile(r"[0-9]+\s*/\s*[0-9]+")
_ONE = re.compile(r"[^\s/]+")
_VALUE = rf"{_PAIR.pattern}|\S+"
_COLUMN = r"[A-Za-z][A-Za-z-]*(?: [A-Za-z]+)?\([^)]*\)"  # a name with its unit: `NPU Util(%)`
_VIRTUAL_FROM = 32768  # NPU ids of slices of a card
_IDLE = r"No running processes found in NPU (\d+)$"


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
        return self.npu >= _VIRTUAL_FROM


class NpuProcess(NamedTuple):
    """One row of the process table; at most eight per chip are shown."""

    npu: int
    chip: int | None
    pid: int
    name: str  # "" when seen from inside a container
    memory_mib: int | None
    container_pid: int | None = None  # the fifth column of 26.0; None for a process of the host


class SmiTable(NamedTuple):
    """The table as a whole."""

    layout: Layout | None  # None: the tool said that there is no card
    tool: str | None
    driver: str | None  # the `Version:` word; it can differ from the tool's own
    title: str
    cards: tuple[Card, ...]
    processes: tuple[NpuProcess, ...]
    is_complete: bool  # False: rows are cut or unreadable, or the end is missing, so the cards may be more than listed
    is_install_incomplete: bool  # the warning about a driver package that is not completely installed
    listed: tuple[int, ...] = ()  # the NPUs whose processes are all read, be it that there is none

    @property
    def unlisted(self) -> tuple[int, ...]:
        """The NPUs of which nobody knows whether a process is on them."""
        return tuple(sorted({card.npu for card in self.cards} - set(self.listed)))


def parse_info(text: str) -> SmiTable | SmiTrouble:
    """The table, or what went wrong. Never raises; a text that is neither is SmiFailure.UNREADABLE."""
    lines = plain_lines(text)
    tables = [table for table in _tables(lines) if table.layout is not None and (table.cards or table.is_complete)]
    if tables:
        return next((table for table in tables if table.is_complete), tables[0])
    for line in lines:
        if "There is no NPU card on this server" in line:
            return SmiTable(None, None, None, line.strip(), (), (), True, False)
    return find_trouble(lines)


def _tables(lines: list[str]) -> Iterator[SmiTable]:
    """Each table of a text that holds several: the tool asked twice, or a terminal that showed it again."""
    reader = _TableReader()
    for line in lines:
        if reader.layout is not None and re.search(_BEGINNING, line):  # another one begins
            yield reader.table()
            reader = _TableReader()
        reader.read(line)
    yield reader.table()


class _Row(NamedTuple):
    """A line between bars."""

    line: str
    cells: tuple[str, ...]
    values: str  # the last cell as it was printed, for the places of its columns

    def last(self, count: int) -> _Row:
        return _Row(self.line, self.cells[-count:], self.values)


class _TableReader:
    """Walks the lines of one table; the headers switch what a row means."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.tool: str | None = None
        self.driver: str | None = None
        self.title = ""
        self.cards: dict[tuple[int, int], Card] = {}
        self.processes: list[NpuProcess] = []
        self.listed: set[int] = set()
        self.is_damaged = False
        self.is_install_incomplete = False
        self._heads: dict[str, str] = {}  # the last cell of each header line, for the places of its columns
        self._width = 0  # of the last cell, as the rules draw it
        self._process_width = 0  # cells of the process table; 0: it has not begun
        self._group: set[int] = set()  # the NPUs of the rows since the last rule of the process table
        self._is_group_damaged = False
        self._upper: _Row | None = None  # the upper row of a card that waits for its lower one
        self._loose: _Row | None = None  # an upper row before any header

    def table(self) -> SmiTable:
        """What was read. The process table comes last and speaks of every card: without it cards may be cut off."""
        npus = {card.npu for card in self.cards.values()}
        has_end = self._process_width > 0 and self._upper is None
        return SmiTable(
            self.layout, self.tool, self.driver, self.title, tuple(self.cards.values()), tuple(self.processes),
            has_end and not self.is_damaged and npus >= self.listed, self.is_install_incomplete,
            tuple(sorted(self.listed)),
        )  # fmt: skip

    def read(self, line: str) -> None:
        if "driver package may not be completely installed" in line:
            self.is_install_incomplete = True
        elif line.strip() == "...":
            self._damage()
        elif "+--" in line or "+==" in line:
            self._rule(line)
        elif "|" in line:
            self._row(line)

    def _rule(self, line: str) -> None:
        """Between cards, and after the processes of a card; never inside of either."""
        if "+==" in line:
            self._width = len(line.strip().strip("+").rpartition("+")[2])
        if self._upper is not None:
            self._damage()
        if not self._is_group_damaged:
            self.listed |= self._group
        self._group, self._is_group_damaged = set(), False

    def _damage(self) -> None:
        """A line that is lost or cannot be read: what it would have said is missing."""
        self._upper = None
        if self._process_width:
            self._is_group_damaged = True
        elif self.layout is not None:
            self.is_damaged = True

    def _row(self, line: str) -> None:
        body = line[line.index("|") + 1 :]
        if not body.endswith("|"):
            self._damage()
            return
        raw = body[:-1].split("|")
        row = _Row(line.strip(), tuple(cell.strip() for cell in raw), raw[-1])
        if self._header(row):
            return
        if self.layout is None:
            self._row_before_header(row)
        elif self._process_width:
            self._process(row.cells[-self._process_width :])
        else:
            self._card_row(row)

    def _row_before_header(self, row: _Row) -> None:
        """Of a table whose head was cut off, two rows that can only be a card's say which layout it is."""
        upper, self._loose = self._loose, None
        cells = row.cells
        row = row.last(4 if cells[-4:-2] == ("", "") or (len(cells) > 3 and cells[-4].isdecimal()) else 3)
        if len(row.cells) < 3 or self._process_width or not _PAIR.search(row.cells[-1]):
            return
        if row.cells[-2] in HEALTHS and _upper(row.cells) is not None:
            self._loose = row
        elif upper is not None and len(upper.cells) == len(row.cells) and BUS_ID.fullmatch(row.cells[-2]):
            self.layout = _layout_of(row.cells)
            self.is_damaged = True
            if self.layout is not None:
                self._card_row(upper)
                self._card_row(row)

    def _header(self, row: _Row) -> bool:
        title = re.search(_TITLE, row.line)
        if title:
            self.title = row.line
            self.tool, self.driver = (word if VERSION.fullmatch(word) else None for word in title.groups())
        elif "Process id" in row.cells:
            self._process_width = len(row.cells) - row.cells.index("Process id") + 1
            if self._upper is not None:
                self.is_damaged = True
        elif "Bus-Id" in row.cells:
            self.layout = _layout(row.cells)
            self._heads["Bus-Id"] = row.values
        elif "Health" in row.cells:
            self._heads["Health"] = row.values
        else:
            return False
        return True

    def _card_row(self, row: _Row) -> None:
        width = 4 if self.layout is Layout.A5 else 3
        row = row.last(width)  # a log may put a prefix with a bar before the table
        upper, self._upper = self._upper, None
        # Both rows of a card end in `used / total`, a process row does not.
        if len(row.cells) < width or not _PAIR.search(row.cells[-1]):
            self.is_damaged = True
        # The name cannot decide: "910" and "310" look like the numbers of a lower row.
        elif row.cells[-2] in HEALTHS or (upper is None and not BUS_ID.fullmatch(row.cells[-2])):
            self.is_damaged |= upper is not None
            self._upper = row
        else:
            card = self._card(upper, row) if upper is not None else None
            self.is_damaged |= card is None or self.cards.setdefault((card.npu, card.chip), card) != card

    def _card(self, first: _Row, second: _Row) -> Card | None:
        upper, lower = _upper(first.cells), second.cells
        numbers = lower[0].split() if self.layout is not Layout.A5 else ["0"]
        expected = 1 if self.layout in (Layout.A2, Layout.A5) else 2
        if upper is None or len(numbers) != expected or not all(word.isdecimal() for word in numbers):
            return None
        power, temperature, _ = _values(first.values, self._head("Health"), (_ONE, _ONE, _PAIR))
        shapes = (_ONE, _PAIR) if self.layout is Layout.P310 else (_ONE, _PAIR, _PAIR)
        busy, _, *hbm = _values(second.values, self._head("Bus-Id"), shapes)
        used, total = (integer(word.strip()) for word in hbm[0].split("/")) if hbm and hbm[0] else (None, None)
        if used is None or total is None or used > total:  # nothing where more is used than there is
            used = total = None
        return Card(
            npu=upper[0],
            chip=int(numbers[0]),
            physical=int(numbers[1]) if expected == 2 else None,
            name=upper[1],
            health=first.cells[-2] if first.cells[-2] in HEALTHS else None,
            power_w=number(power),
            temperature_c=integer(temperature),
            bus_id=lower[-2] if BUS_ID.fullmatch(lower[-2]) else None,
            hbm_used_mib=used,
            hbm_total_mib=total,
            busy_percent=percent(integer(busy)),
            line=first.line,
        )

    def _head(self, name: str) -> str:
        """The names of the columns where they stand above the columns; "" where the lines are not of one width."""
        head = self._heads.get(name, "")
        return head if len(head) == self._width else ""

    def _process(self, cells: tuple[str, ...]) -> None:
        idle = re.search(_IDLE, " ".join(cells))
        if idle:
            self.listed.add(int(idle[1]))
            return
        ids = cells[0].split()
        expected = 1 if self.layout is Layout.A5 else 2
        is_row = len(cells) == self._process_width and len(ids) == expected
        if not is_row or not all(word.isdecimal() for word in [*ids, cells[1]]):
            self._is_group_damaged = True
            return
        self._group.add(int(ids[0]))
        chip = int(ids[1]) if len(ids) > 1 else None
        inside = integer(cells[4]) if len(cells) > 4 else None
        self.processes.append(NpuProcess(int(ids[0]), chip, int(cells[1]), cells[2], integer(cells[3]), inside))


def _layout(head: tuple[str, ...]) -> Layout | None:
    """The layout by the cells of the second header line; None where they are none that is known."""
    layouts = {("Chip", True): Layout.A2, ("Chip Phy-ID", True): Layout.A3, ("Chip Device", False): Layout.P310}
    if len(head) > 2 and not head[-3] and head[-1].startswith("NPU Util"):
        return Layout.A5
    return layouts.get((" ".join(head[-3].split()), "HBM-Usage" in head[-1])) if len(head) > 2 else None


def _layout_of(lower: tuple[str, ...]) -> Layout | None:
    """The layout that a card's lower row alone shows; None for a row that no layout has."""
    numbers, pairs = lower[0].split(), len(_PAIR.findall(lower[-1]))
    if not all(word.isdecimal() for word in numbers):
        return None
    if len(lower) == 4:
        return Layout.A5 if not numbers and pairs == 2 else None
    return {(1, 2): Layout.A2, (2, 2): Layout.A3, (2, 1): Layout.P310}.get((len(numbers), pairs))


def _values(cell: str, head: str, shapes: tuple[re.Pattern[str], ...]) -> list[str | None]:
    """The values of a cell, one for each column: by their order where none is missing, else by their places below the
    column's names. None where it is blank or of another shape; all are where the cell is not as wide as its head.
    """
    items = list(re.finditer(_VALUE, cell))
    if len(items) == len(shapes) and all(map(_fits, shapes, items)):
        return [item.group() for item in items]
    starts = [name.start() for name in re.finditer(_COLUMN, head)]
    if len(starts) != len(shapes) or len(cell) != len(head):
        return [None] * len(shapes)
    columns: list[list[re.Match[str]]] = [[] for _ in shapes]
    for item in items:
        columns[max(bisect_right(starts, item.start()) - 1, 0)].append(item)
    pairs = zip(shapes, columns)
    return [found[0].group() if len(found) == 1 and _fits(shape, found[0]) else None for shape, found in pairs]


def _fits(shape: re.Pattern[str], item: re.Match[str]) -> bool:
    return shape.fullmatch(item.group()) is not None


def _upper(cells: tuple[str, ...]) -> tuple[int, str | None] | None:
    """(NPU id, name) of a card's upper row; None when it does not read so."""
    words = cells[0].split() if len(cells) == 3 else cells[:2]
    if len(words) != 2 or not words[0].isdecimal() or not words[1]:
        return None
    return int(words[0]), chip_name(words[1])
