"""Imports the module named in argv and prints one marked JSON line: its version, or the chain of errors."""

from __future__ import annotations

import importlib
import json
import os
import sys

ERRORS_AT_MOST = 8


def chain(error: BaseException | None) -> list[str]:
    """One line per exception, outermost first; the one that started it comes last."""
    lines: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(lines) < ERRORS_AT_MOST:
        seen.add(id(error))
        text = str(error).strip().split("\n")[0]
        lines.append(f"{type(error).__name__}: {text}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def answer(name: str) -> dict[str, object]:
    try:
        module = importlib.import_module(name)
        if getattr(module, "__file__", None) is None:
            raise ImportError(f"{name} is an empty shell: its __init__.py is missing ({list(module.__path__)})")
    except BaseException as error:  # a module may raise anything, SystemExit included, and all of it is the answer
        return {"ok": False, "version": "", "errors": chain(error)}
    return {"ok": True, "version": str(getattr(module, "__version__", "")), "errors": []}


sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(answer(sys.argv[-1])) + "\n")
sys.stdout.flush()
os._exit(0)  # teardown of half-loaded native libraries may crash after the answer
