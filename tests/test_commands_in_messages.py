"""Every command of npuenv that a message names exists, with the options that the message gives it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from npuenv.cli import app
from npuenv.core.documents import load_toml
from tests.support.sentences import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(app.__file__).parents[2]
NAMED = re.compile(r"(`?)(?<![\w./-])npuenv ([a-z-][^`\n;；，。、\u4e00-\u9fff]*)")
# What follows the name in a sentence. A command goes between backticks, or this test takes its first word for one.
PROSE = frozenset((
    "and", "along", "can", "cannot", "chooses", "did", "does", "has", "here", "is", "itself", "keeps", "knows",
    "launch", "leaves", "looks", "made", "needs", "put", "removes", "started", "takes", "to", "would", "writes",
))  # fmt: skip


def named(text: str) -> Iterator[list[str]]:
    """The words of each command in a message; where nothing marks its end, up to the first word of the sentence."""
    for mark, words in NAMED.findall(text):
        split = [word.strip("'\",.:)(“”、") for word in words.split()]
        if mark or split[0] not in PROSE:
            yield split if mark else split[: _length(split)]


def _length(words: list[str]) -> int:
    """How many words belong to the command: names of commands, then options and what is no plain word."""
    for at, word in enumerate(words):
        is_option = word.startswith("-") or words[at - 1].startswith("-")
        if at > 1 and not is_option and word.isalpha() and word.islower():
            return at
    return len(words)


def mistake(words: list[str]) -> str | None:
    """What is wrong with a command of npuenv; None: nothing, as far as names go."""
    command: click.Command = app.npuenv
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest.pop(0))
        if found is None:
            return f"{' '.join(words)}: no such command"
        command = found
    known = {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}
    options = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    unknown = [option for option in options if option not in known]
    return f"{' '.join(words)}: no {', '.join(unknown)}" if unknown else None


def mistakes(text: str) -> list[str]:
    return [wrong for words in named(text) if (wrong := mistake(words)) is not None]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_command_that_a_message_names_exists(lang: str) -> None:
    assert [wrong for texts in catalogue().values() for wrong in mistakes(texts[lang])] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_every_command_that_a_readme_shows_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    code = [part for each in (*lines, *spans) for part in re.split(r" && | \| |\\\|", each)]
    commands = [found[1] for each in code if (found := re.match(r"(?:\S*/)?npuenv ([a-z].*)", each))]
    assert len(commands) > 40
    assert [wrong for each in commands if (wrong := mistake(each.split())) is not None] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("read it; npuenv diagnose finds the cause", "diagnose finds: no such command"),
        ("`npuenv doctor --cure`", "doctor --cure: no --cure"),
        ("npuenv lock {stack} --arch {arch} writes it again", None),
        ("`npuenv matrix nothing`", "matrix nothing: no such command"),
        ("what npuenv made --here", None),
    ],
)
def test_the_search_finds_what_does_not_exist(text: str, wrong: str | None) -> None:
    assert mistakes(text) == ([wrong] if wrong else [])


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_says_how_each_extra_is_installed(name: str) -> None:
    extras = set(load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"])
    installed = re.findall(r"pip install[^`\n]*'\.\[([\w,-]+)\]'", (ROOT / name).read_text(encoding="utf-8"))
    assert extras == {extra for group in installed for extra in group.split(",")}
