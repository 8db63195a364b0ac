"""Whole machines from the parts in `machines/`: `machine(name)` gives a description for `SimulatedHost`.

A machine's file names its parts; later parts win, the machine's own tables last. `${name}` and `${name:<14}` stand for
values; `[each.*]` tables are repeated for every card, with that card's values (id, chip, phy, logic, bus, ...).
The card table of npu-smi is put together from the `[table]` of a board, which holds the text of a real one.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from npuenv.core.documents import load_toml
from tests.support.machines.edits import copied

HERE = Path(__file__).parent
LOCKS = HERE.parents[2] / "lockfiles"
SLOT = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")
TREE = ("files", "folders", "devices", "links", "modes", "unreadable")
TABLES = (*TREE, "environ", "commands", "programs", "mounts", "ids")
DRIVER_CHANGED = 1772356518  # when the files of a machine were last written: long before it was started


def names() -> tuple[str, ...]:
    """The names of all healthy machines."""
    return tuple(sorted(path.stem for path in HERE.glob("*.toml") if path.stem != "faults"))


@functools.cache
def faults() -> tuple[dict[str, Any], ...]:
    """The rows of the table of faults."""
    return tuple(load_toml(HERE / "faults.toml")["fault"])


@functools.cache
def _machine(name: str) -> dict[str, Any]:
    own = load_toml(HERE / f"{name}.toml")
    merged: dict[str, Any] = {}
    for part in own["parts"]:
        _merge(merged, _part(part))
    _merge(merged, own)
    values = merged["values"]
    told: dict[str, Any] = {"name": values["hostname"], "framework": merged.get("framework"), "says": own["says"]}
    told.update({"chip_name": values.get("chip_name", ""), "changed": DRIVER_CHANGED})
    told.update({table: dict(merged.get(table, {})) for table in TABLES})
    cards = _cards(merged["cards"], values) if "cards" in merged else []
    for card in cards:
        for table, rows in merged.get("each", {}).items():
            told[table].update(_filled(rows, {**values, **card}))
    if cards:
        told["commands"]["npu-smi info"] = _card_table(merged["table"], cards, values)
        told["commands"]["npu-smi info -t topo"] = _topology(cards, values["topo"])
        for words, text in _lists(merged.get("lists", {}), cards, values).items():
            table = "files" if words.startswith("file ") else "commands"
            told[table][words.removeprefix("file ")] = text
    told = _filled(told, values)
    told.update({key: list(merged.get(key, [])) for key in ("read_only", "writable")})
    told["user"] = _user(merged["user"])
    told["tolerated"] = merged.get("tolerated", {})
    told["python"] = _python(merged["python"], values)
    for path in merged.get("without", []):
        for table in ("files", "folders", "devices", "links", "commands", "environ"):
            told[table].pop(_fill(path, values), None)
    return told


def machine(name: str) -> dict[str, Any]:
    """The description of a machine, the caller's own copy."""
    return dict(copied(_machine(name)))


@functools.cache
def _part(name: str) -> dict[str, Any]:
    return load_toml(HERE / "parts" / f"{name}.toml")


def _merge(into: dict[str, Any], what: dict[str, Any]) -> None:
    for key, value in what.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict) and not {"out", "err", "code"} & set(value):
            _merge(into[key], value)
        elif isinstance(value, list) and key in {"without", "read_only", "writable"}:
            into[key] = [*into.get(key, []), *value]
        else:
            into[key] = copied(value)


def _fill(text: str, values: dict[str, Any]) -> str:
    """The text with its slots filled; values may hold slots themselves."""
    while SLOT.search(text):
        text = SLOT.sub(lambda slot: format(_fill_value(values[slot[1]], values), slot[2] or ""), text)
    return text


def _fill_value(value: Any, values: dict[str, Any]) -> Any:
    return _fill(value, values) if isinstance(value, str) else value


def _filled(item: Any, values: dict[str, Any]) -> Any:
    if isinstance(item, str):
        return _fill(item, values)
    if isinstance(item, dict):
        return {_fill(key, values): _filled(value, values) for key, value in item.items()}
    if isinstance(item, list):
        return [_filled(value, values) for value in item]
    return item


def _cards(told: dict[str, Any], values: dict[str, Any]) -> list[dict[str, Any]]:
    """One row of values for each chip: lists give one value a chip and are taken round, other values hold for all."""
    npus, chips = told["npus"], told.get("chips", 1)
    rows = []
    for place, npu in enumerate(npus):
        for chip in range(chips):
            index = place * chips + chip
            phy = told.get("phys", {}).get(str(index), npu * chips + chip)
            row = {"id": npu, "chip": chip, "logic": index, "phy": phy}
            for key, value in told.items():
                if key not in {"npus", "chips", "phys"}:
                    row[key] = value[index % len(value)] if isinstance(value, list) else value
            row["ip"] = f"{told.get('net', '10.12.165')}.{told.get('first_ip', 80) + index}"
            row["vnic"] = f"192.168.2.{199 - index}"
            rows.append({**values, **row})
    return rows


def _card_table(table: dict[str, str], cards: list[dict[str, Any]], values: dict[str, Any]) -> str:
    out = _fill(table["head"], values)
    npus = sorted({card["id"] for card in cards})
    for place, card in enumerate(cards):
        is_first = card["chip"] == 0
        is_last = place + 1 == len(cards) or cards[place + 1]["id"] != card["id"]
        out += _fill(table["card"] if is_first else table.get("other", table["card"]), card)
        out += table["after"] if is_last else table["between"]
    if "process_head" in table:
        out += table["process_head"]
        line = table["idle"] + table.get("after_idle", table["after"])
        out += "".join(_fill(line, {**values, "id": npu}) for npu in npus)
    return out


def _topology(cards: list[dict[str, Any]], link: str) -> str:
    """The matrix of `info -t topo` (transcript topo_910B3_24.1.rc1)."""
    ids = [card["logic"] for card in cards]
    head = "\t   " + "".join(f"NPU{number:<8}" for number in ids) + "CPU Affinity\n"
    out = head
    for row in ids:
        links = "".join(f"{'X' if row == column else link:<11}" for column in ids)
        out += f"NPU{row:<8}{links}{row // 2 * 24}-{row // 2 * 24 + 23}\n"
    return out + "\nLegend:\n\n  X    = Self\n  HCCS = Connection traversing HCCS.\n"


def _lists(lists: dict[str, dict[str, str]], cards: list[dict[str, Any]], values: dict[str, Any]) -> dict[str, str]:
    """Commands that print something for every card: a head, a row for each chip or NPU, an end."""
    answers = {}
    for words, told in lists.items():
        rows = [card for card in cards if told.get("rows") == "chips" or card["chip"] == 0]
        counted = {**values, "num_npus": len({card["id"] for card in cards}), "num_chips": len(cards)}
        body = "".join(_fill(told["row"], {**card, **{"num_npus": counted["num_npus"]}}) for card in rows)
        answers[words] = _fill(told.get("head", ""), counted) + body + _fill(told.get("end", ""), counted)
    return answers


def _user(told: dict[str, Any]) -> dict[str, Any]:
    groups = {int(number): name for number, name in told["groups"].items()}
    return {**told, "groups": groups}


def _python(told: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    told = _filled(told, values)
    packages = _locked(told["lock"]) if "lock" in told else {}
    packages.update(told.get("packages", {}))
    for name in told.get("not_installed", []):
        packages.pop(name, None)
    usual = {
        "installed_twice": {},
        "shared_files": [],
        "triton_backends": ["ascend"] if "triton-ascend" in packages else [],
        "imports": {},
        "is_conda": False,
    }
    return {**usual, **told, "packages": dict(sorted(packages.items()))}


@functools.cache
def _lock_rows(name: str) -> tuple[tuple[str, str], ...]:
    """Names and versions of a lock, read by lines: parsing the hashes would take longer than all the rest."""
    rows, package = [], ""
    for line in (LOCKS / f"{name}.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            package = "" if line != "[[package]]" else "?"
        elif package and line.startswith("name = "):
            package = line.split('"')[1]
        elif package and line.startswith("version = "):
            rows.append((package, line.split('"')[1]))
    return tuple(rows)


def _locked(name: str) -> dict[str, str]:
    return dict(_lock_rows(name))
