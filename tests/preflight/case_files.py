"""The cases of tests/preflight/cases: a right configuration, edited so that one thing is wrong, and its rule."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import LaunchText, ReadOptions
from npuenv.preflight.launch import LaunchFinding, Machine
from npuenv.preflight.reading import read_text
from npuenv.preflight.rules import examine

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """One configuration. `edits` replace a text that stands exactly once; `adds` are further words of a command."""

    id: str
    base: str  # a file below cases
    release: str
    rule: str = ""  # "": nothing may be found
    edits: tuple[tuple[str, str], ...] = ()
    adds: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)


def cases_of(name: str) -> list[Case]:
    """The cases of one file, each checked against the fields of Case."""
    rows = load_toml(CASES / f"{name}.toml")["case"]
    return [
        Case(**{**row, "edits": tuple(map(tuple, row.get("edits", ()))), "adds": tuple(row.get("adds", ()))})
        for row in rows
    ]


def text_of(case: Case) -> str:
    """The configuration as the user would have it. An edit that finds its text not once is a mistake in the case."""
    text = (CASES / case.base).read_text(encoding="utf-8")
    for old, new in case.edits:
        assert text.count(old) == 1, (case.id, old, text.count(old))
        text = text.replace(old, new)
    return text.rstrip("\n") + "".join(f" \\\n    {word}" for word in case.adds) + "\n"


def asked(case: Case) -> ReadOptions:
    """What is known besides the text."""
    return ReadOptions(
        defaults_of=defaults_of,
        release=case.release or None,
        machine=Machine(**case.machine),
        environ={"HOME": "/home/user"},
        folder=(CASES / case.base).parent,
    )


_READ: dict[str, LaunchText] = {}
_ALARMS: dict[str, list[LaunchFinding]] = {}


def read(case: Case) -> LaunchText:
    """The case as preflight reads it, as if it lay beside its base; each case is read once."""
    if case.id not in _READ:
        _READ[case.id] = read_text(text_of(case), CASES / case.base, asked(case))
    return _READ[case.id]


def bash_takes(text: str) -> bool:
    """Whether bash finds nothing wrong with the form of a script; skips where there is no bash to ask."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode == 0


def alarms(case: Case) -> list[LaunchFinding]:
    """Errors and warnings, each case examined once; what is a note disturbs nobody."""
    if case.id not in _ALARMS:
        _ALARMS[case.id] = _examined(case)
    return _ALARMS[case.id]


def _examined(case: Case) -> list[LaunchFinding]:
    reading = read(case)
    return [found for found in examine(reading.launch, refused=reading.refused) if found.severity != "note"]
