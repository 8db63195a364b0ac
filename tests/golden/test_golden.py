"""The sentences of each command, as a user reads them, in both languages: one file per command and language.

`python -m pytest tests/golden --regenerate` writes them anew; `git diff tests/golden` then shows what became of them.
"""

from __future__ import annotations

import datetime
import difflib
import os
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

import npuenv
from npuenv.cli import main
from npuenv.cli.app import npuenv as npuenv_command
from npuenv.core.documents import load_toml
from tests.support.own_signals import restored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Program: TypeAlias = Callable[[list[str]], int]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = ROOT / "tests/diagnose/cases"
RUNS: dict[str, dict[str, Any]] = load_toml(HERE / "runs.toml")
LOCALE = {"en": "C", "zh": "zh_CN.UTF-8"}
FILES = [
    pytest.param(name, lang, marks=() if lang == "en" else pytest.mark.slow)
    for name in RUNS
    for lang in LOCALE
    if (name, lang) != ("trainer", "zh")
]
# Where packages and images lie is no sentence, and stands in the matrix alone.
_ADDRESS = re.compile(r"https?://[^\s\"'`;,)]+|\b[\w-]+(\.[\w-]+)*\.(com|cn|io)/[^\s\"'`;,)]+")
LONGEST = 120  # lines of a run's output; more says nothing new about sentences


def lines_of(command: str) -> Iterator[str]:
    """The command lines of a file."""
    yield from RUNS[command]["runs"]
    if count := RUNS[command].get("reports"):
        for name in load_toml(HERE / "documents.toml")["reports"][:count]:
            yield f"doctor --from-report {{reports}}/{name}.log"


def run(
    program: Callable[[list[str]], int], line: str, places: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> str:
    """A command line as a shell shows it: the line, what it printed, its exit code."""
    argv = [word.format(**places) for word in shlex.split(line)]
    for word in argv:
        if word.startswith(str(places["reports"])):
            Path(word).write_text(load_toml(CASES / f"{Path(word).stem}.toml")["report"], encoding="utf-8")
    capfd.readouterr()
    code = program(argv)
    out, err = capfd.readouterr()
    shown = f"$ {line}\n{cut(plain(out, places))}"
    if err:
        shown += f"stderr:\n{cut(plain(err, places))}"
    return f"{shown}exit: {code}\n"


def forget_help_options(command: click.Command) -> None:
    """click keeps an option `--help` from a command's first use; a test that used one alone had it without `-h`."""
    command._help_option = None
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            forget_help_options(found)


def trainer_program() -> Program:
    pytest.importorskip("torch", reason="the trainer needs torch, which comes with a stack")
    from trainer.__main__ import main as train
    from trainer.launch import Interrupt

    return lambda argv: train(argv, interrupt=Interrupt())  # not installed: the signals stay as they are


def plain(text: str, places: dict[str, Path]) -> str:
    """Without what differs from machine to machine."""
    for name, path in sorted(places.items(), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(path), f"<{name}>")
    text = text.replace(sys.executable, "<python>").replace(sys.prefix, "<venv>").replace(str(ROOT), "<checkout>")
    text = text.replace(npuenv.__version__, "<version>")
    text = re.sub(r"\S*/bin/uv\b( pip \w+ .*)?", "<uv>", text)  # arguments are cut where the path makes them too long
    text = _ADDRESS.sub("<address>", text)
    text = re.sub(r"\b\d+(\.\d+)? (s|ms|GiB|MiB)\b", r"<n> \2", text)
    text = re.sub(r"\b\d+ (rows in|行均)", r"<n> \1", text)  # of the tables, which grow
    return "\n".join(each.rstrip() for each in text.split("\n"))


def cut(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= LONGEST:
        return text
    return "\n".join([*lines[:LONGEST], f"[{len(lines) - LONGEST} more lines]", ""])


@pytest.mark.parametrize(("command", "lang"), FILES)
def test_what_a_command_says_is_what_its_golden_file_holds(
    command: str,
    lang: str,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("LANG", LOCALE[lang])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr("npuenv.report.lines.today", lambda: datetime.date(2026, 11, 30))
    places = {"hosts": ROOT / "tests/support/hosts", "scripts": HERE / "scripts", "work": work, "home": home}
    places["reports"] = tmp_path / "reports"
    forget_help_options(npuenv_command)
    program = trainer_program() if command == "trainer" else main
    with restored():
        shown = "\n".join(run(program, line, places, capfd) for line in lines_of(command))
    path = HERE / f"{command}.{lang}.txt"
    if request.config.getoption("--regenerate"):
        path.write_text(shown, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8")
    diff = difflib.unified_diff(kept.split("\n"), shown.split("\n"), path.name, "now", lineterm="", n=1)
    assert shown == kept, os.linesep.join(["--regenerate writes this:", *diff])
