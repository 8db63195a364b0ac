"""Tries what argv says, and prints one marked JSON line.

imports MODULE       its version, or the chain of errors
listens HOST PORT    whether something accepts connections there
"""

from __future__ import annotations

import importlib
import json
import os
import sys

ERRORS_AT_MOST = 8
TIMEOUT_S = 3.0


def chain(error: BaseException | None) -> list[str]:
    """One line per exception, outermost first; the one that started it comes last."""
    lines: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(lines) < ERRORS_AT_MOST:
        seen.add(id(error))
        lines.append(f"{type(error).__name__}: {first_line(error)}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def first_line(error: BaseException) -> str:
    try:
        return str(error).strip().split("\n")[0]
    except BaseException:  # its own words fail as well: its name has to do
        return "(says nothing)"


def imports(name: str) -> dict[str, object]:
    try:
        module = importlib.import_module(name)
        if getattr(module, "__file__", None) is None:
            raise ImportError(f"{name} is an empty shell: its __init__.py is missing ({list(module.__path__)})")
    except BaseException as error:  # a module may raise anything, SystemExit included, and all of it is the answer
        return {"ok": False, "version": "", "errors": chain(error)}
    return {"ok": True, "version": str(getattr(module, "__version__", "")), "errors": []}


def listens(name: str, port: str) -> dict[str, object]:
    import socket  # not where a module is tried, which may bring its own trouble

    try:
        socket.create_connection((name, int(port)), timeout=TIMEOUT_S).close()
    except socket.gaierror as error:
        return {"listens": False, "why": f"no such name: {error.args[-1]}"}
    except OSError as error:
        return {"listens": False, "why": error.strerror or str(error)}
    return {"listens": True, "why": "accepted"}


# What a module prints, or does with its standard output, must not touch the answer.
kept = os.dup(1)
os.dup2(2, 1)
words = sys.argv[2:]
answer = imports(*words) if sys.argv[1] == "imports" else listens(*words)
text = "\nNPUENV-ANSWER " + json.dumps(answer) + "\n"
os.write(kept, text.encode("ascii"))
os._exit(0)  # teardown of half-loaded native libraries may crash after the answer
