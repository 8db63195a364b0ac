"""What `--help` lists: every option in its section, every command in a whole sentence, none that always fails."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from npuenv.cli import main
from npuenv.cli.app import npuenv
from npuenv.cli.common import SECTIONS, HelpfulCommand, first_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


ALL = dict(commands(npuenv))


@pytest.mark.parametrize("path", ALL, ids="-".join)
def test_each_option_is_listed_once_and_each_command_uncut(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ALL[path]
    assert isinstance(command, HelpfulCommand)
    monkeypatch.setenv("COLUMNS", "110")
    assert main([*path, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for param in command.params:
        if isinstance(param, click.Option):
            assert " ".join((param.help or "").split()) in text
    for name, other in ALL.items():
        if name[:-1] == path and name:
            assert f"{name[-1]} {first_sentence(other)}" in text


def test_no_option_stands_in_two_sections_and_none_is_nobodys() -> None:
    listed = [option for options in SECTIONS.values() for option in options.split()]
    assert len(listed) == len(set(listed))
    known = {name for command in ALL.values() for param in command.params for name in param.opts}
    assert set(listed) - known <= {"--help"}


def test_up_offers_no_document_that_it_does_not_have() -> None:
    assert "as_json" not in {param.name for param in ALL["up",].params}


_HEAVY = ("checks", "cluster", "facts", "install", "lock", "maintain", "matrix", "preflight", "resolve", "smoke")


@pytest.mark.slow
def test_the_help_of_the_commands_of_the_main_path_loads_nothing_that_works() -> None:
    names = ("up", "doctor", "install", "bundle", "render-docker", "render-launch", "preflight", "smoke-train")
    script = (
        "import sys; from npuenv.cli.app import run\n"
        f"codes = {{run([name, '--help']) for name in {(*names, 'resolve', 'lock')!r}}}\n"
        f"heavy = tuple('npuenv.' + name for name in {_HEAVY!r})\n"
        "print(codes, [name for name in sys.modules if name.startswith(heavy)])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "{0} []"
