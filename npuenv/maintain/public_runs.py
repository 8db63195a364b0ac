"""Adds the record of a public run (`npuenv smoke-train --attest`) to the table of runs, as a proposal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from npuenv.core.errors import BadInput
from npuenv.core.json_input import JsonError, load_file
from npuenv.core.messages import Message
from npuenv.maintain.refresh.proposal import Proposal, new_row
from npuenv.matrix.rows.packages import RUN_PACKAGES, RUN_SCHEMA, PublicRun

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.matrix import Matrix

TABLE = "runs.toml"
_LONGEST = 300  # letters of one value
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+!-]*"
_PATTERNS = {
    "chip": r"[0-9A-Za-z_]+",
    "cann": _VERSION,
    "driver": f"({_VERSION})?",
    "date": r"20\d\d-[01]\d-[0-3]\d",
    "what": r"[^\n]+",
    "failed": r"[^\n]*",
}


def run_proposal(path: Path, source: str, seen: str, matrix: Matrix) -> Proposal:
    """The proposed row for the record in a file. `source`: the address where it is public; `seen`: YYYY-MM-DD.

    Raises BadInput for a file that is no such record, an address that is none, a chip that no row names, and an address
    that the table already has.
    """
    record = _record(path)
    address = urlsplit(source)
    if not _fits(source, r"https?://[!-~]+") or not address.hostname:
        raise BadInput(Message("matrix.run-address", {"source": source}), Message("matrix.run-address-hint"))
    if any(run.source == source for run in matrix.runs):
        raise BadInput(Message("matrix.run-known", {"source": source}))
    hardware = matrix.hardware_of_chip(record["chip"])
    if hardware is None:
        raise BadInput(Message("matrix.run-chip", {"chip": record["chip"], "path": str(path)}))
    ending = re.sub(r"[^a-z0-9]+", "-", f"{address.hostname}{address.path}".lower()).strip("-")
    values = {name: record[name] for name in (*_PATTERNS, "cards")}
    packages = {name: record["packages"][name] for name in (*RUN_PACKAGES, "python") if name in record["packages"]}
    row = PublicRun(
        id=f"run.{ending}", source=source, seen=seen, hardware=hardware.id, packages=packages, **values
    )  # fmt: skip
    return new_row(TABLE, row)


def _record(path: Path) -> dict[str, Any]:
    """The record in a file. Raises BadInput for anything that `smoke-train` would not have written."""
    try:
        found = load_file(path)
    except (OSError, JsonError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": reason})) from error
    if not isinstance(found, dict) or found.get("schema") != RUN_SCHEMA:
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": f"schema is not {RUN_SCHEMA}"}))
    wrong = [name for name, pattern in _PATTERNS.items() if not _fits(found.get(name), pattern)]
    cards, packages = found.get("cards"), found.get("packages")
    wrong += ["cards"] if type(cards) is not int or not 0 < cards <= 100_000 else []
    is_good = isinstance(packages, dict) and all(_fits(each, _VERSION) for each in packages.values())
    wrong += [] if is_good else ["packages"]
    if wrong:
        raise BadInput(Message("matrix.run-unreadable", {"path": str(path), "why": ", ".join(wrong)}))
    return found


def _fits(value: object, pattern: str) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and re.fullmatch(pattern, value) is not None
