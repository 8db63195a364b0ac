"""The captures of many nodes in a folder: one file for each, and one that says who was asked. See `Keeper`, `load`.

Each file is a capture like any other, for `npuenv doctor --from FILE`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.cluster.collect import Collected
from npuenv.cluster.types import Inventory, Node, Trouble
from npuenv.core.errors import BadInput
from npuenv.core.json_input import load_file
from npuenv.core.messages import Message
from npuenv.host.recorded import load_capture
from npuenv.host.redact import Redactor
from npuenv.host.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

SCHEMA = "npuenv.nodes/1"
LIST = "nodes.json"
_USER = re.compile(r"(?P<user>[^\s@]+)@(?P<host>[^\s:]+): ")  # "ops@bastion: Permission denied (publickey)."
_APART = "+"  # behind the name of a node whose capture would be called like the list; no name of a host holds it


class Keeper:
    """Writes captures as they come; the list of nodes at the end, interrupted or not."""

    def __init__(self, folder: Path, inventory: Inventory) -> None:
        """Raises BadInput for a folder that cannot be used, before anybody is asked."""
        self._folder, self._inventory = folder, inventory
        self._redactor = Redactor()
        self._got: dict[str, dict[str, Any]] = {}
        self.count = 0
        if folder.exists() and not folder.is_dir():
            raise BadInput(Message("cluster.save-no-folder", {"path": str(folder)}), _hint("save-no-folder"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_empty = not any(folder.iterdir())
        except OSError as error:
            raise _unwritten(folder, error) from error
        if not is_empty:
            raise BadInput(Message("cluster.save-not-empty", {"path": str(folder)}), _hint("save-no-folder"))

    def keep(self, got: Collected) -> None:
        """Writes what one node gave. Raises BadInput where it cannot be written."""
        trouble = got.trouble.value if got.trouble else None
        line, at = self._without_names(got)
        self._got[got.node.name] = {"trouble": trouble, "line": line, "at": at, "seconds": got.seconds}
        if got.host is not None:
            self._write(_file_of(got.node.name), got.text)
            self.count += 1

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asked = [node for node in self._inventory.nodes if node.name in self._got]
        nodes = [{**self._kept(node), **self._got[node.name]} for node in asked]
        source = self._redactor.text(self._inventory.source)
        document = {"schema": SCHEMA, "npuenv": __version__, "source": source, "nodes": nodes}
        self._write(LIST, json.dumps(document, ensure_ascii=False, indent=1) + "\n")

    def _kept(self, node: Node) -> dict[str, Any]:
        """What judging again needs of a node: neither who logs in there, nor by which way."""
        address = node.address
        if address != node.name:  # by itself it could be a version for all that the redactor knows
            address = self._redactor.text(f"addr {address}").removeprefix("addr ")
        return {"name": node.name, "address": address, "port": node.port, "cards": node.cards}

    def _without_names(self, got: Collected) -> tuple[str, str]:
        """What ssh said of a node, and the host on the way to it, with stand-ins for users and jump hosts."""
        said = _USER.match(got.line)
        for user in (got.node.user, said["user"] if said else None):
            self._redactor.learn_user(user or "")
        if got.at:
            self._redactor.learn_host(got.at)
        return self._redactor.text(got.line), self._redactor.text(got.at)

    def _write(self, name: str, text: str) -> None:
        try:
            write_whole(str(self._folder / name), text)
        except OSError as error:
            raise _unwritten(self._folder / name, error) from error


def load(folder: Path) -> tuple[Inventory, Iterator[Collected]]:
    """The nodes of a folder and what each gave; without a list of nodes, those whose captures lie there.

    Raises BadInput for a folder without captures and, as they are read, for a file that is none.
    """
    listed = folder / LIST
    if listed.is_file():
        rows = _rows(listed)
    else:
        names = sorted(path.stem.removesuffix(_APART) for path in folder.glob("*.json"))
        rows = [{"name": name, "address": name} for name in names]
    if not rows:
        raise BadInput(
            Message("cluster.no-captures", {"path": str(folder)}),
            Message("cluster.no-captures-hint", {"path": str(folder)}),
        )
    told = [(_node(row), row) for row in rows]
    return Inventory(tuple(node for node, _ in told), str(folder)), (_again(folder, *each) for each in told)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        document = load_file(path)
        rows = document["nodes"] if document["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        rows = None
    is_sound = isinstance(rows, list) and all(isinstance(row, dict) and _is_name(row.get("name")) for row in rows)
    if not is_sound:
        why = Message("host.wrong-schema", {"found": path.name, "expected": SCHEMA})
        args = {"file": str(path), "why": why}
        raise BadInput(Message("host.bad-capture", args), Message("host.bad-capture-hint"))
    assert isinstance(rows, list)
    return rows


def _is_name(value: object) -> bool:
    """Whether it is a name, and leads nowhere else."""
    return isinstance(value, str) and bool(value) and "/" not in value and not value.startswith(".")


def _node(row: dict[str, Any]) -> Node:
    """The node of a row; what has another type than it should have is left out."""
    texts = {key: row[key] for key in ("user", "jump", "python") if isinstance(row.get(key), str)}
    numbers = {key: row[key] for key in ("port", "cards") if isinstance(row.get(key), int)}
    return Node(row["name"], str(row.get("address") or row["name"]), **texts, **numbers)


def _again(folder: Path, node: Node, row: dict[str, Any]) -> Collected:
    seconds = float(row["seconds"]) if isinstance(row.get("seconds"), (int, float)) else 0.0
    kind = row.get("trouble")
    if kind is not None:
        known = {trouble.value: trouble for trouble in Trouble}
        line, at = (str(row.get(key) or "") for key in ("line", "at"))
        return Collected(node, seconds, trouble=known.get(str(kind), Trouble.BROKEN), line=line, at=at)
    return Collected(node, seconds, host=load_capture(folder / _file_of(node.name)))


def _file_of(name: str) -> str:
    return f"{name}{_APART}.json" if f"{name}.json" == LIST else f"{name}.json"


def _hint(name: str) -> Message:
    return Message(f"cluster.{name}-hint")


def _unwritten(path: Path, error: OSError) -> BadInput:
    args = {"path": str(path), "reason": error.strerror or str(error)}
    return BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint"))
