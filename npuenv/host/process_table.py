"""The table of processes from /proc, as `ps -eo pid,ppid,stat,comm` prints it. Start from `table`."""

from __future__ import annotations

import os

WORDS = ("-eo", "pid,ppid,stat,comm")
_AT_MOST = 5000  # a table is for looking at, not for counting every thread of a farm


def table() -> str:
    """One row per process by number, at most 5000; those that end while it is read are left out."""
    numbers = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    rows = (_row(number) for number in numbers[:_AT_MOST])
    return "    PID    PPID STAT COMMAND\n" + "".join(row for row in rows if row is not None)


def _row(number: int) -> str | None:
    """A row like `    412       1 Sl   raylet`."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None  # it has ended meanwhile
    name, fields = text.partition("(")[2].rpartition(")")[::2]
    words = fields.split()
    if len(words) < 18:
        return None
    return f"{number:>7} {words[1]:>7} {_letters(number, words):<4} {_shown(name, words[0])}\n"


def _letters(number: int, words: list[str]) -> str:
    """`ps`'s STAT: state, < or N for its priority, s session leader, l more than one thread, + in the foreground."""
    nice = int(words[16])
    marks = "<" if nice < 0 else "N" if nice > 0 else ""
    marks += "s" if words[3] == str(number) else ""
    marks += "l" if int(words[17]) > 1 else ""
    marks += "+" if words[2] == words[5] else ""
    return words[0] + marks


def _shown(name: str, state: str) -> str:
    clean = name.replace("\n", "?")
    return f"{clean} <defunct>" if state == "Z" else clean
