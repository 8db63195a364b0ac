"""The manual page: everything that --help says, in what man takes."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from npuenv.cli import main
from npuenv.cli.app import npuenv
from tests.support.commands import contexts


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["man"]) == 0
    return capsys.readouterr().out


def test_every_command_has_its_part_with_every_option(page: str) -> None:
    parts = dict(re.findall(r"^\.SH (npuenv.*)\n((?:(?!\.SH ).*\n)*)", page.replace(r"\-", "-"), re.M))
    assert list(parts) == [ctx.command_path for ctx in contexts(npuenv)]
    for ctx in contexts(npuenv):
        for param in ctx.command.params:
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            assert record is None or f".TP\n.B {record[0]}\n".replace("'", r"\(aq") in parts[ctx.command_path]


def test_no_line_of_a_text_is_taken_for_a_request(page: str) -> None:
    requests = {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")}
    assert requests == {".TH", ".nh", ".ad", ".SH", ".SS", ".B", ".PP", ".TP", ".nf", ".fi"}
    assert {found[:2] for found in re.findall(r"\\.{2}", page)} <= {r"\-", r"\(", r"\e", r"\&"}


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_shows_commands_that_can_be_copied(page: str) -> None:
    words = ["man", "--warnings", "-l", "-"]
    env = {"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "LC_ALL": "C.UTF-8"}
    ran = subprocess.run(words, input=page, capture_output=True, text=True, env=env, check=True)
    assert ran.stderr == ""
    for example in ('eval "$(npuenv completion zsh)"', "--train-cards L", "`npuenv up --for cpu --yes`"):
        assert example in re.sub(r".\x08", "", ran.stdout)
