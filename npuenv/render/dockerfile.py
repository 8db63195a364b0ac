"""Dockerfiles as trees of instructions: values first, text last.

A tree is a tuple of instructions, each a frozen value. `text` writes it. Every
literal comes through `plain`, which refuses whatever could end the word it stands in; the only things that the build
expands are `Var`s, which the tree names as such. Nothing here knows about stacks (see `npuenv.render.docker`).
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.render.files import identifier, one_word, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Docker's names of the two architectures, in the order in which branches are written.
DOCKER_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
# A comment line that the builder or the linter would obey instead of skipping it.
_DIRECTIVE = re.compile(r"\s*(?:(?:syntax|escape|check)\s*=|hadolint\b|shellcheck\b)", re.IGNORECASE)
_INDENT = "    "
# pip and git both read this file, so one secret opens indexes and repositories. BuildKit and buildah know such mounts.
_NETRC = "--mount=type=secret,id=netrc,target=/root/.netrc"


@dataclass(frozen=True, slots=True)
class Var:
    """A build argument or environment variable that the build expands: `${name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class Joined:
    """One word made of literals and variables."""

    parts: tuple[str | Var, ...]


@dataclass(frozen=True, slots=True)
class Glob:
    """Everything that lies in a folder: its path with `/*`, which the shell expands."""

    folder: str


Word = str | Var | Joined | Glob


@dataclass(frozen=True, slots=True)
class Exec:
    """A program with its arguments; `env` holds for this program alone, `append_to` is a file that takes its output."""

    argv: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    append_to: str | None = None
    is_quiet: bool = False  # True: its output is thrown away, only its exit status counts


@dataclass(frozen=True, slots=True)
class Source:
    """A script read into the shell of this RUN. Written with `.`, which every shell has; dash has no `source`."""

    path: str


@dataclass(frozen=True, slots=True)
class Export:
    """A variable for the rest of this RUN."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class When:
    """Commands that run only if a program succeeds (`is_wanted`) or only if it fails."""

    condition: Exec
    then: tuple[Command, ...]
    is_wanted: bool = True


@dataclass(frozen=True, slots=True)
class ByArch:
    """Commands per architecture (x86_64, aarch64), chosen by TARGETARCH.

    With a `refusal`, any other architecture stops the build with that text; without one it does nothing.
    """

    branches: Mapping[str, tuple[Command, ...]]
    refusal: str | None = None


Command = Exec | Source | Export | When | ByArch


@dataclass(frozen=True, slots=True)
class Comment:
    """Lines for the reader. Long ones are wrapped."""

    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction of one line, or the empty line between groups. Its literals are checked where it is made."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One layer: commands joined by `&&`."""

    commands: tuple[Command, ...]
    # True: root's ~/.netrc is the build's secret `netrc` while it runs, where one is given; nothing of it is kept.
    may_log_in: bool = False


Instruction = Comment | Line | Run


def base_image(image: Word) -> Line:
    return Line(f"FROM {_bare(image, 'FROM')}")


def user(name: Word) -> Line:
    return Line(f"USER {_bare(name, 'USER')}")


def arg(name: str, default: str | None = None) -> Line:
    """A build argument. Default None: not set unless given, which differs from empty."""
    return Line(f"ARG {identifier(name, 'ARG')}" + ("" if default is None else f'="{plain(default, name)}"'))


def env(name: str, value: str | tuple[str | Var, ...]) -> Line:
    """A variable that stays in the image; a tuple is put together from text and build arguments."""
    parts = (value,) if isinstance(value, str) else value
    inner = "".join(_bare(part, "ENV") if isinstance(part, Var) else plain(part, name) for part in parts)
    return Line(f'ENV {identifier(name, "ENV")}="{inner}"')


def label(name: str, value: str) -> Line:
    return Line(f'LABEL {one_word(name, "LABEL")}="{plain(value, name)}"')


def workdir(path: str) -> Line:
    return Line(f'WORKDIR "{plain(path, "WORKDIR")}"')


def listed(keyword: str, *words: str) -> Line:
    """SHELL, COPY, ENTRYPOINT or CMD with its words; a folder that COPY writes to comes last and ends with a slash.

    hadolint forgets SHELL at the next ENV or ARG: write those before.
    """
    return Line(f"{keyword} {json.dumps([plain(word, keyword) for word in words])}")


def healthcheck(argv: Sequence[str], *, interval_s: int, timeout_s: int) -> Line:
    """A program whose exit status says whether the container is well."""
    return Line(f"HEALTHCHECK --interval={interval_s}s --timeout={timeout_s}s {listed('CMD', *argv).text}")


def text(tree: Sequence[Instruction]) -> str:
    """The Dockerfile of a tree, ending with a newline.

    Raises BadInput for a literal of a RUN that could end its word; those of a `Line` were checked where it was made.
    """
    return "".join(f"{line}\n" for instruction in tree for line in _lines(instruction))


def script(run: Run) -> str:
    """What the shell of a RUN gets: the instruction without its keyword."""
    return "\n".join(_joined(run.commands))


def _lines(instruction: Instruction) -> Iterator[str]:
    if isinstance(instruction, Line):
        yield instruction.text
    elif isinstance(instruction, Comment):
        yield from _comment(instruction.text)
    else:
        first, *rest = _joined(instruction.commands)
        if instruction.may_log_in:
            yield f"RUN {_NETRC} \\"
            first = f"{_INDENT}{first}"
        else:
            first = f"RUN {first}"
        yield first
        yield from rest


def _bare(word: Word, what: str) -> str:
    """A word of FROM or USER, which know no quotes."""
    if isinstance(word, Var):
        return f"${{{identifier(word.name, what)}}}"
    assert isinstance(word, str), word
    return one_word(word, what)


def _comment(words: str) -> Iterator[str]:
    """`# ` lines of at most 120 columns, broken at blanks. A line that would be a directive gets a mark before it."""
    for paragraph in words.splitlines() or [""]:
        clean = "".join(letter if letter.isprintable() else " " for letter in paragraph)
        for line in textwrap.wrap(clean, 118, break_long_words=False, break_on_hyphens=False) or [""]:
            yield f"# {'- ' if _DIRECTIVE.match(line) else ''}{line}".rstrip(" \\")


def _joined(commands: Sequence[Command]) -> list[str]:
    """The lines of commands joined by `&&`, all but the last with their continuation."""
    blocks = [_block(command) for command in commands]
    lines = [blocks[0][0], *(f"{_INDENT}{line}" for line in blocks[0][1:])]
    for block in blocks[1:]:
        lines += [f"{_INDENT}&& {block[0]}", *(f"{_INDENT}{line}" for line in block[1:])]
    return [*(line if line.endswith(" \\") else f"{line} \\" for line in lines[:-1]), lines[-1]]


def _block(command: Command) -> list[str]:
    match command:
        case Exec():
            return [_exec(command)]
        case Source(path):
            return [f". {_quoted(path)}"]
        case Export(variable, value):
            return [f"export {identifier(variable, 'export')}={_quoted(value)}"]
        case When(condition, then, is_wanted):
            head = f"if {'' if is_wanted else '! '}{_exec(condition)}; then \\"
            return [head, *_body(then, ";", 1), "fi"]
        case ByArch(branches, refusal):
            return _case(branches, refusal)


def _case(branches: Mapping[str, tuple[Command, ...]], refusal: str | None) -> list[str]:
    lines = ['case "${TARGETARCH}" in \\']
    for arch, docker_arch in DOCKER_ARCH.items():
        commands = branches.get(arch)
        if commands:
            lines += [f"{_INDENT}{docker_arch}) \\", *_body(commands, " ;;", 2)]
        elif commands is not None:
            lines.append(f"{_INDENT}{docker_arch}) ;; \\")
    stop = [f"{_INDENT}*) echo {_quoted(refusal)} >&2; exit 2 ;; \\"] if refusal else []
    return [*lines, *stop, "esac"]


def _body(commands: Sequence[Command], end: str, depth: int) -> list[str]:
    """The lines of a branch, indented."""
    lines = _joined(commands)
    return [f"{_INDENT * depth}{line}" for line in (*lines[:-1], f"{lines[-1]}{end} \\")]


def _exec(command: Exec) -> str:
    settings = [f"{identifier(variable, 'env')}={_quoted(value)}" for variable, value in command.env.items()]
    tail = [f">> {_quoted(command.append_to)}"] if command.append_to else []
    tail += [">/dev/null 2>&1"] if command.is_quiet else []
    return " ".join([*settings, *(_quoted(word) for word in command.argv), *tail])


def _quoted(word: Word) -> str:
    """A word as the shell takes it: literals bare or in single quotes, variables always in double quotes."""
    if isinstance(word, str):
        return shlex.quote(plain(word, "RUN"))
    if isinstance(word, Var):
        return f'"{_part(word)}"'
    if isinstance(word, Glob):
        return f"{shlex.quote(plain(word.folder, 'RUN'))}/*"
    return '"' + "".join(_part(part) for part in word.parts) + '"'


def _part(part: str | Var) -> str:
    return plain(part, "RUN") if isinstance(part, str) else f"${{{identifier(part.name, 'variable')}}}"
