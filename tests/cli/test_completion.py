"""Shell completion: the script, and what it asks for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from npuenv.cli import main
from npuenv.cli.completion import SHELLS, VARIABLE


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
