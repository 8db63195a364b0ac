"""Faults as edits of a machine's description: `edited(description, edits)` gives a changed copy.

An edit changes the raw text of a file or of a command's output, a variable, a path or an installed package, never what
was read from them.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Description = dict[str, Any]
TREE_KINDS = ("files", "folders", "devices", "links", "unreadable")


def edited(description: Description, edits: Sequence[Mapping[str, Any]]) -> Description:
    """A copy of the description with the edits made in it. Raises AssertionError where an edit changes nothing."""
    changed: Description = copied(description)
    for edit in edits:
        before = copied(changed)
        _edit(changed, dict(edit))
        assert changed != before, f"this edit changes nothing: {edit}"
    return changed


def copied(item: Any) -> Any:
    """A copy whose tables and lists are its own; ten times faster than a general deep copy."""
    if isinstance(item, dict):
        return {key: copied(value) if isinstance(value, (dict, list)) else value for key, value in item.items()}
    return [copied(value) for value in item] if isinstance(item, list) else item


def _edit(told: Description, edit: dict[str, Any]) -> None:
    if "file" in edit:
        told["files"][edit["file"]] = _text(told["files"].get(edit["file"], ""), edit)
    elif "command" in edit:
        _edit_command(told, edit)
    elif "set" in edit:
        told["environ"][edit["set"]] = _text(told["environ"].get(edit["set"], ""), edit)
    elif "drop" in edit:
        del told["environ"][edit["drop"]]
    elif "remove" in edit:
        _remove(told, edit["remove"])
    elif "package" in edit:
        _edit_package(told["python"], edit)
    elif "import" in edit:
        told["python"]["imports"][edit["import"]] = edit["error"]
    elif "python" in edit:
        told["python"][edit["python"]] = edit["value"]
    elif "copy" in edit:
        _copy(told, edit)
    elif "replace_all" in edit:
        _replace_all(told, edit)
    elif "mount" in edit:
        told["mounts"][edit["mount"]].update({key: edit[key] for key in edit if key != "mount"})
    elif "user" in edit:
        told["user"] = edit["user"]
    else:
        _edit_tree(told, edit)


def _copy(told: Description, edit: dict[str, Any]) -> None:
    """Copies a folder with all that is in it, with a text replaced on the way."""
    start, end = edit["copy"], edit["to"]
    for kind in ("files", "folders", "links"):
        for path in [path for path in told[kind] if is_under(path, start)]:
            value = told[kind][path]
            if isinstance(value, str):
                value = value.replace(edit["replace"], edit["by"])
            told[kind][end + path[len(start) :]] = copied(value)


def _replace_all(told: Description, edit: dict[str, Any]) -> None:
    """Replaces a text in all files and command outputs whose path or words begin as `among` says."""
    for kind in ("files", "commands"):
        for key, value in told[kind].items():
            if isinstance(value, str) and key.startswith(tuple(edit["among"])):
                told[kind][key] = value.replace(edit["replace_all"], edit["by"])


def _edit_tree(told: Description, edit: dict[str, Any]) -> None:
    if "folder" in edit:
        told["folders"][edit["folder"]] = edit.get("names", [])
    elif "device" in edit:
        told["devices"][edit["device"]] = edit.get("error", "")
    elif "unreadable" in edit:
        told["unreadable"][edit["unreadable"]] = edit.get("error", "Permission denied")
    elif "link" in edit:
        told["links"][edit["link"]] = edit["to"]
    elif "mode" in edit:
        told["modes"][edit["mode"]] = edit["to"]
    elif "read_only" in edit:
        told["read_only"].append(edit["read_only"])
    else:
        raise AssertionError(f"an edit of no known kind: {edit}")


def _edit_command(told: Description, edit: dict[str, Any]) -> None:
    """`command` names one command, or with `*` at its end all that begin so; `absent` takes the program away."""
    commands, words = told["commands"], edit["command"]
    if edit.get("absent"):
        for key in [key for key in commands if key.split(" ")[0] == words]:
            del commands[key]
        told["programs"].pop(words, None)
        return
    keys = [key for key in commands if key.startswith(words[:-1])] if words.endswith("*") else [words]
    for key in keys:
        value = commands.get(key, "")
        whole = {"out": value} if isinstance(value, str) else dict(value)
        if {"text", "replace", "append", "prepend"} & set(edit):
            whole["out"] = _text(whole.get("out", ""), edit)
        whole.update({name: edit[name] for name in ("out", "err", "code", "timed_out") if name in edit})
        commands[key] = whole


def _edit_package(python: dict[str, Any], edit: dict[str, Any]) -> None:
    packages = python["packages"]
    if edit.get("absent"):
        del packages[edit["package"]]
    else:
        packages[edit["package"]] = edit["version"]


def _text(text: str, edit: Mapping[str, Any]) -> str:
    if "replace" in edit:
        assert edit["replace"] in text, f"not there to be replaced: {edit['replace']!r}"
        count = -1 if edit.get("everywhere") else 1
        return text.replace(edit["replace"], edit["by"], count)
    if "append" in edit:
        return text + str(edit["append"])
    if "prepend" in edit:
        return str(edit["prepend"]) + text
    return str(edit.get("text", edit.get("value", text)))


def _remove(told: Description, path: str) -> None:
    """Takes a path away with all that is under it, and its name from the folder that lists it."""
    for kind in TREE_KINDS:
        for known in [known for known in told[kind] if is_under(known, path)]:
            del told[kind][known]
    above = told["folders"].get(posixpath.dirname(path))
    if above and posixpath.basename(path) in above:
        above.remove(posixpath.basename(path))
    for name, folders in list(told["programs"].items()):
        told["programs"][name] = [folder for folder in folders if not is_under(f"{folder}/{name}", path)]


def is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
