"""Completes a request with facts of a host: architecture, hardware, system, driver, CANN.

`generation` reads the cards only. Values that the user gave stay. Values that the host does not show stay open and are
reported, never guessed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import CannotTell
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from npuenv.core.fact import Evidence, Fact
    from npuenv.facts.collect import Facts
    from npuenv.facts.npu.smi import SmiTable
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Request


def filled(
    request: Request, facts: Facts, matrix: Matrix, *, only: Collection[str] | None = None
) -> tuple[Request, tuple[Message, ...]]:
    """The request with its open fields filled from a host's facts, and notes about those that stay open.

    `only`: the fields that may be filled; None: all of them.
    `origins` records the line each value was read from, so that a conflict can show it.
    Raises: CannotTell for a host with cards of several generations, unless the request names one.
    """
    is_for_cpu = (request.framework or "").startswith("cpu")
    notes: list[Message] = []
    for field, read in _READ.items():
        if only is not None and field not in only:
            continue
        if getattr(request, field) is not None or (is_for_cpu and field != "arch"):
            continue
        value, evidence = read(facts, matrix)
        if value is None:
            notes.append(
                Message("resolve.host-untold", {"what": Message(f"resolve.what-{field}"), "line": _line(evidence)})
            )
            continue
        changes: dict[str, Any] = {field: value, "origins": {**request.origins, field: _line(evidence)}}
        request = replace(request, **changes)
    return request, tuple(notes)


_Found = tuple["str | None", "tuple[Evidence, ...]"]  # a value (None: unknown) and where it was read


def generation(request: Request, smi: Fact[SmiTable], matrix: Matrix) -> Request:
    """The request with the generation of a host's cards as its hardware; unchanged if no card could be read.

    Raises: CannotTell for cards of several generations.
    """
    value, evidence = _of_cards(smi, matrix)
    if value is None:
        return request
    return replace(request, hardware=value, origins={**request.origins, "hardware": _line(evidence)})


def _arch(facts: Facts, matrix: Matrix) -> _Found:
    return facts.machine.arch.value, facts.machine.arch.evidence


def _system(facts: Facts, matrix: Matrix) -> _Found:
    system = facts.machine.system.value
    name = f"{system.id}{system.version.split()[0]}".lower() if system and system.version else ""
    return name if matrix.system_row(name) else None, facts.machine.system.evidence


def _driver(facts: Facts, matrix: Matrix) -> _Found:
    if facts.npu.driver.value is None and facts.npu.smi.value and facts.npu.smi.value.driver:
        return facts.npu.smi.value.driver, facts.npu.smi.evidence
    return facts.npu.driver.value.version if facts.npu.driver.value else None, facts.npu.driver.evidence


def _cann(facts: Facts, matrix: Matrix) -> _Found:
    cann = facts.cann.toolkit.value.version if facts.cann.toolkit.value else None
    is_listed = cann is not None and versions.is_cann(cann) and matrix.cann_row(cann) is not None
    return cann if is_listed else None, facts.cann.toolkit.evidence


def _hardware(facts: Facts, matrix: Matrix) -> _Found:
    return _of_cards(facts.npu.smi, matrix)


def _of_cards(smi: Fact[SmiTable], matrix: Matrix) -> _Found:
    """The generation of the host's cards; None if no card could be read."""
    names = {card.name for card in smi.value.cards if card.name} if smi.value else set()
    rows = {name: matrix.hardware_of_chip(name) for name in sorted(names)}
    found = {row.id for row in rows.values() if row is not None}
    if len(found) > 1:
        raise CannotTell(
            Message("resolve.host-mixed", {"names": tuple(sorted(names))}), Message("resolve.name-hardware")
        )
    return found.pop() if found else None, smi.evidence


_READ: dict[str, Callable[[Facts, Matrix], _Found]] = {
    "arch": _arch,
    "hardware": _hardware,
    "os": _system,
    "driver": _driver,
    "cann": _cann,
}


def _line(evidence: tuple[Evidence, ...]) -> str:
    return f"{evidence[0].command}: {evidence[0].line}" if evidence else "-"
