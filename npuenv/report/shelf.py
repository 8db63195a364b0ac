"""Locks as a shelf: what each published stack has, and what became of what the locks name.

`shelf_page` is the README beside the locks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.lock.checking import LOST, Availability, why_impossible, why_missing
from npuenv.lock.file import COMPLETE, IMPOSSIBLE, PARTIAL, STATUSES
from npuenv.resolve.types import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from npuenv.lock.checking import VerifiedPackage
    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.maintain.lock_all import GridRow
    from npuenv.resolve.types import Conflict, Request

Checked = tuple["Lock", "Sequence[VerifiedPackage]"]
ABSENT = "absent"  # published and possible, but nobody has locked it yet


@dataclass(frozen=True, slots=True)
class ShelfRow:
    """One published stack on one architecture. `hardware` is empty for CPU stacks."""

    stack: str
    platform: str  # a lock's platform tag; only the architecture where there can be no lock
    hardware: tuple[str, ...]
    status: str  # complete | partial | impossible | absent
    num_packages: int
    why: tuple[Message, ...]  # what lacks, or the proof; for a complete lock the hashes that no index gave


def shelf_rows(
    published: Iterable[tuple[Request, Stack | Conflict]], locks: Iterable[Lock], grid: Iterable[GridRow] = ()
) -> tuple[ShelfRow, ...]:
    """A row for every published stack and platform, and one for every lock that belongs to none of them.

    `grid` knows the stacks that were proved impossible: they have no lock. Hardware that shares a lock shares a row; so
    does hardware with the same conflict.
    """
    by_place = {(lock.stack, lock.platform): lock for lock in locks}
    impossible = {(row.stack, row.platform): row for row in grid if row.status == IMPOSSIBLE}
    hardware: dict[tuple[object, ...], tuple[ShelfRow, list[str]]] = {}
    for request, result in published:
        if isinstance(result, Stack):
            place = (result.name, result.platform.tag)
            row = _row(place, by_place.get(place), impossible.get(place))
        else:
            why = tuple(clash.says for clash in result.clashes if clash.rule != "request")
            row = ShelfRow(request.stack or "", request.arch or "", (), IMPOSSIBLE, 0, why)
        names = hardware.setdefault(_key(row), (row, []))[1]
        names += [request.hardware] if request.hardware else []
    rows = [replace(row, hardware=tuple(names)) for row, names in hardware.values()]
    told = {(row.stack, row.platform) for row in rows}
    rows += [_row(place, lock, None) for place, lock in by_place.items() if place not in told]
    return tuple(sorted(rows, key=lambda row: (row.stack, row.platform, row.hardware)))


def lacks(lock: Lock) -> tuple[Message, ...]:
    """What keeps a lock from being complete: its proof where it has one, else each row of `missing`.

    For a complete one, the packages whose hashes no index gave.
    """
    if lock.status == IMPOSSIBLE:
        return why_impossible(lock.proof, lock.missing[0].detail)
    if lock.is_complete:
        return witnessed(lock)
    return tuple(
        Message(f"lock.lacks-{missing.reason}", {
            "name": missing.name, "version": missing.version, "index": missing.index or "", "detail": missing.detail,
        })
        for missing in lock.missing
    )  # fmt: skip


def witnessed(lock: Lock) -> tuple[Message, ...]:
    """The packages whose hashes rest on public lock files of others, each with their number."""
    return tuple(
        Message("lock.witnessed", {"name": p.name, "version": p.version, "count": p.witnesses})
        for p in lock.packages
        if p.witnesses
    )


def gaps(lock: Lock, resolver: Resolver) -> tuple[Message, ...]:
    """What a lock lacks, and the proof of one that is impossible."""
    missing = tuple(why_missing(each, resolver) for each in lock.missing)
    proof = why_impossible(lock.proof, "") if lock.proof else ()
    return tuple(Message("cli.lock-gap", {"why": why}) for why in (*missing, *proof))


def shelf_page(rows: Sequence[ShelfRow], lang: str = "en") -> str:
    """The rows as a Markdown page: numbers first, then one table per status."""
    count = Counter(row.status for row in rows)
    args = {status: count[status] for status in (*STATUSES, ABSENT)}
    parts = [say(Message("lock.page-head", {"all": len(rows), **args}), lang)]
    for status in (*STATUSES, ABSENT):
        chosen = [row for row in rows if row.status == status]
        if chosen:
            head = say(Message(f"lock.page-{status}", {"count": len(chosen)}), lang)
            parts.append("\n".join([head, "", *_table(chosen, status, lang)]))
    return "\n\n".join(parts) + "\n"


def show_shelf(rows: Sequence[ShelfRow], console: Console, lang: str) -> None:
    """The rows as a table on a terminal, numbers last."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for key in _COLUMNS:
        table.add_column(say(Message(f"lock.column-{key}"), lang), overflow="fold")
    for row in rows:
        table.add_row(*_cells(row, lang))
    console.print(table)
    count = Counter(row.status for row in rows)
    args = {status: count[status] for status in (*STATUSES, ABSENT)}
    console.print(say(Message("lock.shelf-count", {"all": len(rows), **args}), lang), markup=False)


def shelf_json(rows: Sequence[ShelfRow], lang: str) -> list[dict[str, object]]:
    """The rows as plain data."""
    return [
        {
            "stack": row.stack,
            "platform": row.platform,
            "hardware": list(row.hardware),
            "status": row.status,
            "packages": row.num_packages,
            "why": [say(message, lang) for message in row.why],
        }
        for row in rows
    ]


def show_verified(found: Sequence[Checked], console: Console, lang: str) -> None:
    """One line per lock, one per package that is not as it was, and the numbers of complete and partial locks apart."""
    for lock, rows in found:
        said: dict[str, object] = {"name": lock.file_name, "status": Message(f"lock.status-{lock.status}")}
        said |= {"there": sum(row.offer is Availability.AVAILABLE for row in rows), "all": len(rows)}
        console.print(say(Message("lock.verified", said), lang), markup=False, soft_wrap=True)
        for row in rows:
            if row.offer is not Availability.AVAILABLE:
                of_row = {"name": row.name, "version": row.version, "index": row.index or "-", "detail": row.detail}
                text = say(Message(f"lock.offer-{row.offer.value}", of_row), lang)
                console.print(f"  {text}", markup=False, soft_wrap=True)
    for status in STATUSES:
        chosen = [rows for lock, rows in found if lock.status == status]
        if chosen:
            whole = sum(not is_lost(rows) and not is_unasked(rows) for rows in chosen)
            args = {"status": Message(f"lock.status-{status}"), "count": len(chosen), "whole": whole}
            console.print(say(Message("lock.verified-count", args), lang), markup=False, soft_wrap=True)


def verified_json(found: Sequence[Checked]) -> list[dict[str, object]]:
    """One object per lock: numbers of each outcome, and the packages that are not as they were."""
    return [
        {
            "stack": lock.stack,
            "platform": lock.platform,
            "status": lock.status,
            "counts": {offer.value: sum(row.offer is offer for row in rows) for offer in Availability},
            "packages": [
                {"name": row.name, "version": row.version, "offer": row.offer.value, "index": row.index,
                 "detail": list(row.detail)}
                for row in rows
                if row.offer is not Availability.AVAILABLE
            ],
        }
        for lock, rows in found
    ]  # fmt: skip


def is_lost(rows: Iterable[VerifiedPackage]) -> bool:
    """True when something that a lock names is no longer offered as it was."""
    return any(row.offer in LOST for row in rows)


def is_unasked(rows: Iterable[VerifiedPackage]) -> bool:
    """True when an index could not be asked."""
    return any(row.offer is Availability.OUT_OF_REACH for row in rows)


_COLUMNS = ("stack", "platform", "hardware", "status", "packages", "why")


def _key(row: ShelfRow) -> tuple[object, ...]:
    """What makes two rows the same row, hardware apart."""
    return (row.stack, row.platform, row.status, tuple(map(say, row.why)))


def _row(place: tuple[str, str], lock: Lock | None, refused: GridRow | None) -> ShelfRow:
    """The row of a stack and platform from its lock, or from the proof that there can be none."""
    if refused is not None:
        return ShelfRow(*place, (), IMPOSSIBLE, 0, why_impossible(refused.proof, refused.detail))
    if lock is None:
        return ShelfRow(*place, (), ABSENT, 0, ())
    return ShelfRow(*place, (), lock.status, len(lock.packages), lacks(lock))


def _cells(row: ShelfRow, lang: str) -> tuple[str, ...]:
    return (
        row.stack,
        row.platform,
        ", ".join(row.hardware) or "-",
        say(Message(f"lock.status-{row.status}"), lang),
        str(row.num_packages or "-"),
        "; ".join(say(message, lang) for message in row.why),
    )


def _table(rows: Sequence[ShelfRow], status: str, lang: str) -> list[str]:
    """A Markdown table without the columns that say nothing for this status."""
    useless = {"status", *({"why"} if status == ABSENT else ())}
    useless |= {"packages"} if status not in (COMPLETE, PARTIAL) else set()
    kept = [number for number, key in enumerate(_COLUMNS) if key not in useless]
    columns = ["witnesses" if key == "why" and status == COMPLETE else key for key in _COLUMNS]
    heads = [say(Message(f"lock.column-{columns[number]}"), lang) for number in kept]
    lines = [heads, ["---"] * len(kept)]
    lines += [[cell.replace("|", "\\|") for cell in (_cells(row, lang)[number] for number in kept)] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]
