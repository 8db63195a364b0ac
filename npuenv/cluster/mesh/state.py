"""What is done of a mesh, kept in a file so that a run can go on later. Start from `save` and `load`.

The file belongs to a set of devices and a mode: with other ones it is refused. What could not be tried, or gave no
answer that can be read, is not kept as done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh.types import FULL, SAMPLED, Device, Outcome, Results
from npuenv.core.errors import BadInput
from npuenv.core.json_input import load_file
from npuenv.core.messages import Message
from npuenv.host.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

SCHEMA = "npuenv.mesh-state/1"
_MOST_BYTES = 256 << 20
_PENDING = str.maketrans(dict.fromkeys((Outcome.UNTRIED.value, Outcome.SILENT.value), Outcome.PENDING.value))


def save(path: Path, results: Results, mode: str) -> None:
    """Writes the file whole: whoever reads it sees this state or the last one. Raises OSError."""
    document = {
        "schema": SCHEMA,
        "mode": mode,
        "devices": [[each.node, each.card, each.ip, each.netmask, each.board] for each in results.devices],
        "rows": [row.decode("ascii").translate(_PENDING) for row in results.rows],
        "notes": [[*pair, line] for pair, line in results.notes.items() if results.of(pair).is_settled],
        "timed": [results.num_timed, round(results.timed_s, 4), results.num_answered, round(results.answered_s, 4)],
    }
    write_whole(str(path), json.dumps(document, separators=(",", ":")))


def load(path: Path) -> tuple[Results, str]:
    """What was done, and the mode. Raises BadInput for a file that is not there or not such a file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError
        document = load_file(path)
        return _results(document), document["mode"]
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("mesh.no-state", args), Message("mesh.no-state-hint")) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        # Of whatever a foreign file holds, none of these is worth a sentence of its own.
        raise BadInput(Message("mesh.bad-state", {"path": str(path)}), Message("mesh.no-state-hint")) from error


def require_same(kept: Sequence[Device], now: Sequence[Device], nodes: Container[str], path: Path) -> None:
    """Refuses the devices of today where they are not those of the file: another address, another card, no such node.

    A device that gives no address today stays: it may have died since, and others can still ping it. What npu-smi says
    of it is not compared either. `nodes` are those of the inventory. Raises BadInput with the first difference.
    """
    today = {(device.node, device.card): device for device in now}
    for device in kept:
        other = today.pop((device.node, device.card), None)
        if device.node not in nodes or (other is not None and other.ip != device.ip):
            raise _differs(path, device, other)
    if today:
        raise _differs(path, None, next(iter(today.values())))


def _differs(path: Path, kept: Device | None, now: Device | None) -> BadInput:
    device = kept or now
    assert device is not None
    none = Message("mesh.none")
    args = {
        "path": str(path),
        "name": Message("mesh.card", {"node": device.node, "card": device.card}),
        "kept": kept.ip if kept else none,
        "now": now.ip if now else none,
    }
    return BadInput(Message("mesh.other-devices", args), Message("mesh.other-devices-hint"))


def _results(document: dict[str, Any]) -> Results:
    if document["schema"] != SCHEMA or document["mode"] not in (FULL, SAMPLED):
        raise ValueError
    devices = tuple(
        Device(str(node), int(card), str(ip), str(mask), None if board is None else int(board))
        for node, card, ip, mask, board in document["devices"]
    )
    fresh = Results.empty(devices)
    rows = [bytearray(row.translate(_PENDING), "ascii") for row in document["rows"]]
    letters = {ord(outcome.value) for outcome in Outcome if outcome.is_settled or outcome is Outcome.PENDING}
    barred = ord(Outcome.BARRED.value)
    is_sound = len(rows) == len(devices) and all(
        len(row) == len(devices)
        and all(letter == barred if free == barred else letter in letters for letter, free in zip(row, template))
        for row, template in zip(rows, fresh.rows)
    )
    if not is_sound:
        raise ValueError
    notes = {(int(source), int(target)): str(line) for source, target, line in document["notes"]}
    num_timed, timed_s, num_answered, answered_s = document["timed"]
    return Results(devices, rows, notes, int(num_timed), float(timed_s), int(num_answered), float(answered_s))
