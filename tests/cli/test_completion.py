"""Shell completion: the script, and what it asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npuenv.cli import main
from npuenv.cli.app import npuenv
from npuenv.cli.completion import SHELLS, VARIABLE
from tests.support.commands import contexts


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_asks_npuenv(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


def test_commands_and_options_are_completed() -> None:
    for words, at, found in (("npuenv reso", "1", "plain,resolve"), ("npuenv resolve --fo", "2", "plain,--for")):
        ran = subprocess.run(
            [sys.executable, "-m", "npuenv"],
            env={VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": at, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found in ran.stdout.splitlines()


def test_what_is_named_as_a_file_is_completed_as_one() -> None:
    for ctx in contexts(npuenv):
        for param in ctx.command.params:
            if re.search(r"\b(FILE|DIR|PATH|EXE|CAPTURE|BUNDLE)\b", param.make_metavar(ctx)):
                found = [item.type for item in param.shell_complete(ctx, "x")]
                assert found in (["file"], ["dir"]), (ctx.command_path, param.name)


# What a shell is told to run, with its own words for "complete this line"; `at` is the word that is being typed.
_ASKED = {
    "bash": 'eval "$(npuenv completion bash)"; compopt() {{ echo files; }}; COMP_WORDS=({line}); COMP_CWORD={at};'
    ' _npuenv_completion npuenv; echo "${{COMPREPLY[@]}}"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(npuenv completion zsh)";'
    " _describe() {{ print -r -- ${{(P)3}}; }}; _path_files() {{ echo files; }};"
    " words=({line}); CURRENT=$(({at} + 1)); $_comps[npuenv]",
    "fish": "npuenv completion fish | source; complete -C '{line}'",
}
_QUIET = {"bash": ("--norc",), "zsh": ("-f",), "fish": ("--no-config",)}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "run.sh").touch()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for line, found in (
        ("npuenv reso", "resolve"),
        ("npuenv resolve --fo", "--for"),
        ("npuenv preflight ru", "run.sh" if shell == "fish" else "files"),
    ):
        program = _ASKED[shell].format(line=line, at=line.count(" "))
        ran = subprocess.run(
            [shell, *_QUIET[shell], "-c", program],
            env={"PATH": path, "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found in ran.stdout, (line, ran.stderr)
