"""The text of a Dockerfile: functions that write instructions, and the commands of a RUN.

Every literal comes through `plain`, which refuses whatever could end the word it stands in, and a command's words are
quoted where they are written; the only things that the build expands are `Var`s. Nothing here knows about stacks (see
`npuenv.render.docker`).
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from npuenv.render.files import identifier, one_word, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Docker's names of the two architectures, in the order in which an image's branches are written.
DOCKER_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
# A comment line that the builder or the linter would obey instead of skipping it.
_DIRECTIVE = re.compile(r"\s*(?:(?:syntax|escape|check)\s*=|hadolint\b|shellcheck\b)", re.IGNORECASE)
_INDENT = "    "
# pip and git both read this file, so one secret opens indexes and repositories. BuildKit and buildah know such mounts.
_NETRC = "--mount=type=secret,id=netrc,target=/root/.netrc"

# Text of a Dockerfile, of one or several lines. The functions below make it; elsewhere only what holds no value is
# made an instruction or a command as it is.
Instruction = NewType("Instruction", str)
Command = NewType("Command", str)

BLANK = Instruction("")  # the empty line between groups


@dataclass(frozen=True, slots=True)
class Var:
    """A build argument or environment variable that the build expands: `${name}`."""

    name: str


# One word of a command or value of a variable; a tuple is put together from text and variables.
Word = str | Var | tuple[str | Var, ...]


def arg(name: str, default: str | None = None) -> Instruction:
    """A build argument. Default None: not set unless given, which differs from empty."""
    return Instruction(f"ARG {identifier(name, 'ARG')}" + ("" if default is None else f'="{plain(default, name)}"'))


def env(name: str, value: Word) -> Instruction:
    """A variable that stays in the image."""
    return Instruction(f'ENV {identifier(name, "ENV")}="{_inside(value, name)}"')


def label(name: str, value: str) -> Instruction:
    return Instruction(f'LABEL {one_word(name, "LABEL")}="{plain(value, name)}"')


def workdir(path: str) -> Instruction:
    return Instruction(f'WORKDIR "{plain(path, "WORKDIR")}"')


def listed(keyword: str, *words: str) -> Instruction:
    """SHELL, COPY, ENTRYPOINT or CMD with its words; a folder that COPY writes to comes last and ends with a slash.

    hadolint forgets SHELL at the next ENV or ARG: write those before.
    """
    return Instruction(f"{keyword} {json.dumps([plain(word, keyword) for word in words])}")


def healthcheck(argv: Sequence[str], *, interval_s: int, timeout_s: int) -> Instruction:
    """A program whose exit status says whether the container is well."""
    return Instruction(f"HEALTHCHECK --interval={interval_s}s --timeout={timeout_s}s {listed('CMD', *argv)}")


def comment(words: str) -> Instruction:
    """Lines for the reader, of at most 120 columns. One that would be a directive gets a mark before it."""
    return Instruction("\n".join(_comment_lines(words)))


def _comment_lines(words: str) -> Iterator[str]:
    for paragraph in words.splitlines() or [""]:
        clean = "".join(letter if letter.isprintable() else " " for letter in paragraph)
        for line in textwrap.wrap(clean, 118, break_long_words=False, break_on_hyphens=False) or [""]:
            yield f"# {'- ' if _DIRECTIVE.match(line) else ''}{line}".rstrip(" \\")


def run(*commands: Command, may_log_in: bool = False) -> Instruction:
    """One layer: commands joined by `&&`.

    `may_log_in`: while it runs, root's ~/.netrc is the build's secret `netrc`, where one is given; nothing is kept.
    """
    head = f"RUN {_NETRC}\n{_INDENT}" if may_log_in else "RUN "
    return Instruction(f"{head}{_joined(commands)}".replace("\n", " \\\n"))


def sh(*words: Word, env: Mapping[str, Word] | None = None) -> Command:
    """A program with its arguments; `env` holds for this program alone."""
    settings = [_setting(name, value) for name, value in (env or {}).items()]
    return Command(" ".join([*settings, *map(_quoted, words)]))


def export(name: str, value: Word) -> Command:
    """A variable for the rest of this RUN."""
    return Command(f"export {_setting(name, value)}")


def when(condition: Command, *then: Command) -> Command:
    """Commands that run only if another one succeeds."""
    return Command(f"if {condition}; then\n{textwrap.indent(_joined(then), _INDENT)};\nfi")


def by_arch(branches: Mapping[str, Sequence[Command]], refusal: str = "") -> Command:
    """Commands per architecture (x86_64, aarch64), chosen by TARGETARCH.

    With a `refusal`, any other architecture stops the build with that text; without one it does nothing.
    """
    lines = ['case "${TARGETARCH}" in']
    for arch, commands in branches.items():
        body = textwrap.indent(f"\n{_joined(commands)}", _INDENT * 2) if commands else ""
        lines.append(f"{_INDENT}{DOCKER_ARCH[arch]}){body} ;;")
    if refusal:
        lines.append(f"{_INDENT}*) echo {_quoted(refusal)} >&2; exit 2 ;;")
    return Command("\n".join([*lines, "esac"]))


def _joined(commands: Sequence[Command]) -> str:
    """Commands joined by `&&`, each on lines of its own. No word holds a line end: `plain` refuses it."""
    return f"\n{_INDENT}&& ".join(command.replace("\n", f"\n{_INDENT}") for command in commands)


def _setting(name: str, value: Word) -> str:
    return f"{identifier(name, 'env')}={_quoted(value)}"


def _quoted(word: Word) -> str:
    """A word as the shell takes it: literals bare or in single quotes, variables always in double quotes."""
    return shlex.quote(plain(word, "RUN")) if isinstance(word, str) else f'"{_inside(word, "RUN")}"'


def _inside(word: Word, what: str) -> str:
    """A word as it stands between double quotes."""
    parts = word if isinstance(word, tuple) else (word,)
    return "".join(
        plain(part, what) if isinstance(part, str) else f"${{{identifier(part.name, 'variable')}}}" for part in parts
    )
