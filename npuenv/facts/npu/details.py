"""What npu-smi says of each card when asked about one thing: facts out of many short queries, one after the other.

A card that hangs makes the tool hang: after two queries without an end nothing more is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import first_line, plain_lines
from npuenv.facts.npu import queries
from npuenv.facts.npu.driver import SMI_PLACES
from npuenv.facts.npu.failures import SmiFailure, find_trouble
from npuenv.facts.npu.queries import QueryRefusal, refusal
from npuenv.facts.npu.smi import Card, Layout, SmiTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.facts.npu.queries import Board, Ecc, FaultEvent, Health, Spod
    from npuenv.host import Host, Ran

T = TypeVar("T")
_TIMEOUTS_AT_MOST = 2
_NO_SUCH_THING = ("unsupported", "absent")
_ILL_AT_MOST = 4  # the level that promises an answer soon asks no more cards than this for their reasons


class Questions:
    """The queries about the cards of a table. It remembers which had no answer, for the fact `silent`.

    `is_brief`: few questions, about cards that are not OK.
    """

    def __init__(self, table: SmiTable, *, timeout_s: float, is_brief: bool) -> None:
        self._timeout_s = timeout_s
        self._places: tuple[str, ...] = SMI_PLACES
        self._num_asked = 0
        self._num_ended = 0
        self._silent: dict[str, QueryRefusal] = {}
        self._unread: dict[str, dict[str, Evidence]] = {}
        chips = [card for card in table.cards if not card.is_virtual]
        cards = list({card.npu: card for card in reversed(chips)}.values())[::-1]  # the first chip of each
        ill = [card for card in chips if card.health not in ("OK", None)][:_ILL_AT_MOST]
        is_a5 = table.layout is Layout.A5
        self._is_alone = len(cards) < 2 and table.is_complete  # there is no other card to reach
        # Fact -> whom it is asked of, and whether each chip of a card.
        self._whom: dict[str, tuple[Sequence[Card], bool]] = {
            "health": (ill if is_brief else chips, not is_a5),
            "ecc": (cards, False),
            "boards": (cards, False),
            "chips": ([] if is_a5 else chips, True),  # the 950 tells them with its boards
            "spods": (chips if table.layout is Layout.A3 else [], True),
            "faults": (cards if is_a5 else [], False),  # the 950 alone tells them one by one
        }

    def ask(self, host: Host, name: str) -> Fact[Any]:
        """The fact of this name; `silent` and `unread` are about the others, and to be asked last."""
        if name in self._whom:
            return self._each(host, name)
        if name == "mapped":
            return self._once(host, ("-m",), lambda text: queries.parse_map(text) or None)
        if name == "topology":
            alone = Evidence("npu-smi info -t topo", "one card")
            return absent(alone) if self._is_alone else self._once(host, ("-t", "topo"), queries.parse_topology)
        if name == "silent":
            return self._silent_ones()
        count = sum(map(len, self._unread.values()))
        return known(self._unread, Evidence("npu-smi info -t", f"{count} cannot be read"))

    def _silent_ones(self) -> Fact[tuple[QueryRefusal, ...]]:
        """Queries about listed cards that ended without an answer."""
        found = {words: item for words, item in self._silent.items() if item.kind in ("timeout", "invalid-card")}
        lines = tuple(Evidence(words, item.line) for words, item in found.items())
        if self._num_ended < self._num_asked:
            return unknown(Evidence("npu-smi info -t", "not in the capture"))
        if not self._num_asked or (all(item.kind == "absent" for item in self._silent.values()) and self._silent):
            return absent(Evidence("npu-smi info -t", "nothing was asked"))
        return known(tuple(found.values()), *(lines or (Evidence("npu-smi info -t", "every card answers"),)))

    def _each(self, host: Host, name: str) -> Fact[tuple[Any, ...]]:
        """What each card says."""
        query, parse, say = _QUERIES[name]
        cards, by_chip = self._whom[name]
        is_none_an_answer = name == "faults"
        found: list[Any] = []
        evidence: list[Evidence] = []
        refused: list[QueryRefusal] = []
        num_read = 0
        for card in cards:
            words = ("-t", query, "-i", str(card.npu), *(("-c", str(card.chip)) if by_chip else ()))
            text = self._text(host, words)
            items = parse(text) if text is not None else None
            num_read += items is not None
            if text is None:
                refused.append(self._silent[_command(words)])
            if items is None or not (items or is_none_an_answer):
                self._leave_out(name, f"{card.npu}.{card.chip}" if by_chip else str(card.npu), words)
            for value in (_placed(item, card) for item in items or ()):
                found.append(value)
                evidence.append(Evidence(_command(words), say(value)))
        command = f"npu-smi info -t {query}"
        if found or (num_read and is_none_an_answer):
            return known(tuple(found), *(evidence or (Evidence(command, "none"),)))
        lines = tuple(Evidence(command, item.line) for item in refused[:4])
        if {item.kind for item in refused} <= {*_NO_SUCH_THING} and (refused or not num_read):
            return absent(*(lines or (Evidence(command, "not for these cards"),)))
        return unknown(*(lines or (Evidence(command, "cannot be read"),)))

    def _leave_out(self, name: str, card: str, words: tuple[str, ...]) -> None:
        """Remembers a card that gave no readable answer, with the query that did not end where that is the reason."""
        why = self._silent.get(_command(words), QueryRefusal("unread", "cannot be read"))
        line = Evidence(_command(words), why.line)
        if why.kind == "not-asked":
            line = next(Evidence(each, item.line) for each, item in self._silent.items() if item.kind == "timeout")
        if why.kind not in _NO_SUCH_THING:
            self._unread.setdefault(name, {})[card] = line

    def _once(self, host: Host, words: tuple[str, ...], parse: Callable[[str], T | None]) -> Fact[T]:
        text = self._text(host, words)
        value = parse(text) if text is not None else None
        if value is not None:
            return known(value, Evidence(_command(words), first_line("\n".join(plain_lines(text or "")))))
        why = self._silent.get(_command(words))
        line = Evidence(_command(words), why.line if why else "cannot be read")
        return absent(line) if why and why.kind in _NO_SUCH_THING else unknown(line)

    def _text(self, host: Host, words: tuple[str, ...]) -> str | None:
        """What the query printed; None, with the reason kept, where that is no answer."""
        command = _command(words)
        if sum(item.kind == "timeout" for item in self._silent.values()) >= _TIMEOUTS_AT_MOST:
            self._silent[command] = QueryRefusal("not-asked", "not asked: earlier queries did not end")
            return None
        self._num_asked += 1
        for place in self._places:
            ran = host.run((place, "info", *words), timeout_s=self._timeout_s)
            if not ran.is_absent:
                self._places = (place,)
                break
        self._num_ended += 1
        refused = _refused(ran)
        if refused is not None:
            self._silent[command] = refused
        return None if refused is not None else ran.out + ("\n" + ran.err if ran.err else "")


def _refused(ran: Ran) -> QueryRefusal | None:
    if ran.timed_out:
        return QueryRefusal("timeout", "did not end")
    if ran.is_absent:
        return QueryRefusal("absent", "not found")
    text = ran.out + "\n" + ran.err
    trouble = find_trouble(plain_lines(text))
    if trouble.kind is not SmiFailure.UNREADABLE:
        return QueryRefusal("failed", trouble.line, trouble.ret)
    return refusal(text)


def _placed(value: Any, card: Card) -> Any:
    """The value with the card that was asked, where the answer does not say it."""
    asked = {"npu": card.npu, "chip": card.chip}
    return value._replace(**{name: asked[name] for name in asked if getattr(value, name, 0) is None})


def _spods(text: str) -> tuple[Spod, ...]:
    found = queries.parse_spod(text)
    return (found,) if found else ()


def _faults(text: str) -> tuple[FaultEvent, ...] | None:
    count, events = queries.parse_events(text)
    return events if count == len(events) else None


def _of_health(item: Health) -> str:
    codes = ("Error Code " + " ".join(item.codes),) if item.codes else ()
    return "; ".join((f"Health {item.status}", *codes, *item.information))


def _of_ecc(item: Ecc) -> str:
    return ", ".join(f"{label}: {count}" for label, count in item.counts.items() if count) or "no error counted"


def _of_board(item: Board) -> str:
    versions = (item.driver and f"software {item.driver}", item.firmware and f"firmware {item.firmware}")
    said = (item.chip_name, item.npu_name, *versions)
    return ", ".join(word for word in said if word) or "-"


def _of_spod(item: Spod) -> str:
    sdid, pod, size, server = ("?" if each is None else each for each in (item.sdid, item.pod, item.size, item.server))
    return f"SDID {sdid}, super pod {pod} of {size}, server {server}"


def _of_fault(item: FaultEvent) -> str:
    return f"event id=0x{item.code}, severity={item.severity}, {item.about}"


def _command(words: tuple[str, ...]) -> str:
    return " ".join(("npu-smi", "info", *words))


# Fact -> the query, its parser (None for a text that is no answer), and a value as evidence.
_QUERIES: dict[str, tuple[str, Callable[[str], tuple[Any, ...] | None], Callable[[Any], str]]] = {
    "health": ("health", queries.parse_health, _of_health),  # with the codes of what is wrong
    "ecc": ("ecc", queries.parse_ecc, _of_ecc),
    "boards": ("board", queries.parse_board, _of_board),  # the driver and firmware versions that they run
    "chips": ("board", queries.parse_board, _of_board),  # with their exact names
    "spods": ("spod-info", _spods, _of_spod),  # where the chips stand in their super pod
    "faults": ("current-fault-event", _faults, _of_fault),
}
