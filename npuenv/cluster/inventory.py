"""The nodes of a cluster from a text file, and their names and numbers as ranges: `node[01-03,07]`, `3,5-7`.

A line names nodes and what is special about them; `*` stands for all nodes of the file:

    # the two racks
    *             user=root cards=8
    head          address=10.0.0.1
    node[01-64]   jump=bastion
    big[1,3-5]    cards=16 port=2222 jump=none
    data          cards=0

The lists of DeepSpeed (`node01 slots=8`) and simple ones of Ansible (`node01 ansible_host=10.0.0.1`, headings in
brackets, ranges like `node[01:64]`) are read as well. Whatever a line does not say is left to the user's ssh
configuration; `cards=0` is a node that takes part without cards; `jump=none` leads straight to a node, also where `*`
or that configuration names a jump host. An inventory reads what `fold` writes.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import itertools
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence


NO_JUMP = "none"  # as in ssh's own configuration

MOST_NODES = 4096
_MOST_BYTES = 4 << 20
_MOST_LETTERS = 253  # of a name in DNS; no other value is longer either
_SHOWN = 80  # letters of a line that is refused
_SSH_PORT = 22
_KEYS = ("user", "port", "jump", "cards", "address", "python")
_ALIASES = {
    **{"slots": "cards", "npus": "cards", "proxyjump": "jump", "hostname": "address", "host": "address"},
    **{"ansible_host": "address", "ansible_user": "user", "ansible_port": "port"},
    "ansible_python_interpreter": "python",
}
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.\\+-]*\$?"
_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HOP = rf"(?:{_USER}@)?{_HOST}(?::\d+)?"
_SHAPES = {
    "name": re.compile(rf"{_HOST}|[0-9A-Fa-f:]*::?[0-9A-Fa-f:.]+(?:%\w+)?"),  # an address of version 6 as well
    "user": re.compile(_USER),
    "jump": re.compile(rf"{_HOP}(?:,{_HOP})*"),
    "python": re.compile(r"[A-Za-z0-9_/~][^\x00-\x1f]*"),
}
_BOUNDS = {"port": (1, 65535), "cards": (0, 1024)}
# A name in brackets without anything beside it is no range of names.
_HEADING = re.compile(r"\[(?:(?=[^\]]*[A-Za-z])[^\]:]+|\d+)(?P<kind>:[A-Za-z]\w*)?\]")
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_RUN = re.compile(r"(\d+)(?:[-:](\d+))?")
_PORT = re.compile(rf"({_HOST}|.*\]):(\d+)")
_SIX = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%\w+)?)\]")  # [fd00::1], as in a URL
_FOUR = re.compile(r"\d+(?:\.\d+){3}")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that is reached over ssh. None: as in the user's ssh configuration, or unknown."""

    name: str  # in the inventory, and the host for ssh
    address: str  # equal to the name unless the inventory has another one
    user: str | None = None
    port: int | None = None
    jump: str | None = None  # jump hosts, as for `ssh -J`; NO_JUMP: none, whatever the configuration says
    cards: int | None = None  # the expected number of NPUs; 0: a node without cards
    python: str | None = None  # the remote interpreter; None: python3


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes in the order of the file, no name twice."""

    nodes: tuple[Node, ...]
    source: str  # the file, for sentences


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file."""

    source: str
    number: int
    text: str

    def error(self, name: str, /, **args: object) -> BadInput:
        """The error for this line."""
        where = {"source": self.source, "line": self.number, "text": _short(self.text)}
        why = Message(f"cluster.line-{name}", {key: _short(value) for key, value in args.items()})
        return BadInput(Message("cluster.bad-line", {**where, "why": why}), Message("cluster.bad-line-hint"))


def read(place: str) -> Inventory:
    """The inventory of a file, or of stdin for `-`. Raises BadInput naming the file and, where known, the line."""
    why: object
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if place == "-" else open(place, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            return parse(_decoded(data), place)
        why = Message("cluster.inventory-large", {"most": f"{_MOST_BYTES >> 20} MiB"})
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = Message("cluster.inventory-no-text")
    args = {"path": place, "why": why}
    raise BadInput(Message("cluster.no-inventory", args), Message("cluster.no-inventory-hint", args))


def _decoded(data: bytes) -> str:
    """The text, from UTF-8, or from UTF-16 with a byte order mark, as editors of Windows write it."""
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_wide else "utf-8-sig")


def _short(value: object) -> object:
    """A value for an error message: at most one line, without control characters."""
    if not isinstance(value, str):
        return value
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in shown)


def parse(text: str, source: str) -> Inventory:
    """The inventory of a text; `source` is named in errors. Raises BadInput, for an empty one too."""
    common: dict[str, str] = {}
    found: dict[str, tuple[_Line, dict[str, str]]] = {}
    for line in _lines(text, source):
        patterns, settings = _words(line)
        if patterns == ["*"]:
            if "address" in settings:  # every name would lead to one machine
                raise line.error("address-for-all", value=settings["address"])
            common |= settings
            continue
        for name, own in _expanded(line, patterns, settings):
            if name in found:
                raise line.error("twice", name=name, first=found[name][0].number)
            found[name] = (line, own)
            if len(found) > MOST_NODES:
                raise line.error("too-many", most=MOST_NODES)
    if not found:
        raise BadInput(Message("cluster.no-nodes", {"source": source}), Message("cluster.no-inventory-hint"))
    nodes: dict[tuple[str, int | None, str | None], tuple[_Line, Node]] = {}
    for name, (line, own) in found.items():
        node = _node(line, name, {**common, **own})
        first, other = nodes.setdefault(_endpoint(node), (line, node))
        if other is not node:
            raise line.error("same", name=name, other=other.name, first=first.number)
    return Inventory(tuple(node for _, node in nodes.values()), source)


def _endpoint(node: Node) -> tuple[str, int | None, str | None]:
    """What two names of one machine have in common."""
    return node.address.lower().rstrip("."), node.port, node.jump


def _lines(text: str, source: str) -> Iterator[_Line]:
    """The lines without comments, empty lines and headings."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _Line(source, number, re.sub(r"(^|\s)#.*", "", raw).strip())
        if any(ord(letter) < ord(" ") and letter != "\t" for letter in line.text):
            raise line.error("control")
        heading = _HEADING.fullmatch(line.text)
        if heading and heading["kind"]:
            raise line.error("heading", heading=heading["kind"])
        if line.text and not heading:
            yield line


def _words(line: _Line) -> tuple[list[str], dict[str, str]]:
    """The patterns of a line, and its settings by key."""
    patterns: list[str] = []
    settings: dict[str, str] = {}
    for word in line.text.split():
        key, is_setting, value = word.partition("=")
        if word.startswith("-"):  # an option for ssh
            raise line.error("name", name=word)
        if is_setting:
            key = _known_key(line, key)
            if settings.setdefault(key, value) != value:
                raise line.error("key-twice", key=key)
        elif settings:
            raise line.error("order", word=word)
        elif patterns and word.lower() in (*_KEYS, *_ALIASES):
            raise line.error("key-bare", key=word)
        else:
            patterns += _split(word)
    if not patterns:
        raise line.error("no-name")
    _require_names(line, patterns)
    return patterns, {key: _checked(line, key, value) for key, value in settings.items()}


def _require_names(line: _Line, patterns: Sequence[str]) -> None:
    """Refuses lines of other files that could be taken for names: /etc/hosts, hostfiles with bare numbers of slots."""
    number = next((pattern for pattern in patterns if pattern.isdecimal()), None)
    if number is not None:
        raise line.error("number-name", name=number)
    addresses = [pattern for pattern in patterns if _FOUR.fullmatch(pattern)]
    others = [pattern for pattern in patterns if pattern not in addresses]
    if len(addresses) == 1 and others:
        raise line.error("hosts-file", name=others[0], address=addresses[0])


def _known_key(line: _Line, key: str) -> str:
    lower = key.lower()
    known = _ALIASES.get(lower, lower)
    if known not in _KEYS:
        near = difflib.get_close_matches(lower, [*_KEYS, *_ALIASES], n=1, cutoff=0.5)
        raise line.error("key-near" if near else "key", key=key, near=near[0] if near else "", known=_KEYS)
    return known


def _checked(line: _Line, key: str, value: str) -> str:
    """The value, if the key can have it. An address may have ranges: it is checked once they are expanded."""
    if key in _BOUNDS:
        least, most = _BOUNDS[key]
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
            raise line.error("number", key=key, value=value, least=least, most=most)
    elif len(value) > _MOST_LETTERS and key != "address":
        raise line.error("long", most=_MOST_LETTERS)
    elif key != "address" and not _SHAPES[key].fullmatch(value):
        raise line.error("value", key=key, value=value)
    return NO_JUMP if key == "jump" and value.lower() == NO_JUMP else value


def _expanded(
    line: _Line, patterns: Sequence[str], settings: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every name of the line with its settings."""
    own: list[tuple[str, dict[str, str]]] = []
    for pattern in patterns:
        user, _, rest = pattern.rpartition("@")
        port = _port_of(line, rest)
        more = {"user": _checked(line, "user", user)} if user else {}
        more |= {"port": _checked(line, "port", port[2])} if port else {}
        own += [(name, {**settings, **more}) for name in _names(line, port[1] if port else rest)]
    if "address" in settings:
        addresses = list(_names(line, settings["address"]))
        if len(addresses) != len(own):
            raise line.error("addresses", names=len(own), addresses=len(addresses))
        own = [(name, {**each, "address": address}) for (name, each), address in zip(own, addresses, strict=True)]
    yield from own


def _port_of(line: _Line, word: str) -> re.Match[str] | None:
    """The match of `node1:2222`. MPI's lists have the number of slots instead of the port: refused."""
    found = _PORT.fullmatch(word)
    if found and len(found[2]) < 3 and int(found[2]) != _SSH_PORT:
        raise line.error("port-or-cards", name=found[1], number=found[2])
    return found


def _names(line: _Line, pattern: str) -> Iterator[str]:
    """The names of a pattern, in order; several ranges are combined, the last one running fastest."""
    six = _SIX.fullmatch(pattern)
    parts = [six[1]] if six else _RANGE.split(pattern)
    choices = [_range(line, part) if at % 2 else [part] for at, part in enumerate(parts)]
    size = 1
    for choice in choices:
        size *= len(choice)
    if size > MOST_NODES:
        raise line.error("too-many", most=MOST_NODES)
    for words in itertools.product(*choices):
        name = "".join(words)
        if len(name) > _MOST_LETTERS:
            raise line.error("long", most=_MOST_LETTERS)
        if not _SHAPES["name"].fullmatch(name):
            raise line.error("name", name=name)
        yield name


def _range(line: _Line, text: str) -> list[str]:
    """The numbers of `01-03,07`; the first number sets the width of its range."""
    numbers: list[str] = []
    for item in text.split(","):
        run = _RUN.fullmatch(item.strip())
        if run is None or not item.isascii() or (run[2] and len(run[2]) > 9):
            raise line.error("range", range=text)
        first, last = int(run[1]), int(run[2] or run[1])
        if last < first:
            raise line.error("backwards", range=text)
        if last - first >= MOST_NODES:
            raise line.error("too-many", most=MOST_NODES)
        numbers += [str(number).zfill(len(run[1])) for number in range(first, last + 1)]
    return numbers


def _split(word: str) -> Iterable[str]:
    """A word at the commas outside of brackets."""
    return filter(None, re.split(r",(?![^\[\]]*\])", word))


def _node(line: _Line, name: str, own: Mapping[str, str]) -> Node:
    """The node. Its address, which ssh gets, must look like one."""
    address = own.get("address", name)
    if not _SHAPES["name"].fullmatch(address):
        raise line.error("value", key="address", value=address)
    return Node(
        name,
        address,
        user=own.get("user"),
        port=int(own["port"]) if "port" in own else None,
        jump=own.get("jump"),
        cards=int(own["cards"]) if "cards" in own else None,
        python=own.get("python"),
    )


K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
_PARTS = re.compile(r"(\d+)")  # splits into texts (even indexes) and numbers (odd indexes)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order. Example: (a, 1), (b, 2), (a, 3) -> {a: [1, 3], b: [2]}."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def fold(names: Iterable[str]) -> str:
    """The names with their numbers as ranges, in natural order, each once; separated by a comma and a blank.

    Names of one shape are folded at the number that leaves the fewest ranges. Leading zeros stay.
    Example: node07, node01, node02, node03, head -> "head, node[01-03,07]"
    """
    split = (_PARTS.split(name) for name in sorted(set(names), key=natural))
    shapes = grouped((tuple(parts[::2]), parts) for parts in split)
    return ", ".join(word for shape in shapes.values() for word in _fold_shape(shape))


def fold_numbers(numbers: Iterable[int]) -> str:
    """The numbers as ranges, in order, each once. Example: 7, 3, 5, 6 -> "3,5-7"."""
    return ",".join(_runs([str(number) for number in sorted(set(numbers))]))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node2 before node10. Example: node2 -> ((0, "node"), (2, "2"), (0, ""))."""
    return tuple((int(part) if at % 2 else 0, part) for at, part in enumerate(_PARTS.split(name)))


def _fold_shape(rows: Sequence[Sequence[str]]) -> list[str]:
    """The folded names of one shape; each row is a name split into texts and numbers."""
    folded = (_fold_at(rows, at) for at in range(len(rows[0]) - 2, 0, -2))  # the last number first
    return min(folded, key=len, default=["".join(row) for row in rows])


def _fold_at(rows: Sequence[Sequence[str]], at: int) -> list[str]:
    around = grouped((("".join(row[:at]), "".join(row[at + 1 :])), row[at]) for row in rows)
    folded = []
    for (head, tail), numbers in around.items():
        runs = _runs(numbers)
        is_single = len(runs) == 1 and "-" not in runs[0]
        folded.append(f"{head}{runs[0] if is_single else '[' + ','.join(runs) + ']'}{tail}")
    return folded


def _runs(numbers: Sequence[str]) -> list[str]:
    """Consecutive numbers as FIRST-LAST; the numbers are sorted and may have leading zeros."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
