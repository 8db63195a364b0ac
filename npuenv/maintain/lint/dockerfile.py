"""Dockerfiles as stages with what they do in order.

The instructions are cut here and not by a library: lines inside one RUN keep their numbers, an empty line inside a
continuation does not end the instruction (BuildKit warns and goes on; published files have such lines), and a
variable without a value is left undecided.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from npuenv.core import versions
from npuenv.core.documents import JsonError, parse_json
from npuenv.core.finding import Location
from npuenv.core.shellwords import UNKNOWN, LineMap, expand, source_of, tokens
from npuenv.maintain.lint.script import ScriptReader, turns_tls_off
from npuenv.maintain.lint.values import BaseImage, EnvSetting, LintedScript, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTRUCTION = re.compile(
    r"ADD|ARG|CMD|COPY|ENTRYPOINT|ENV|EXPOSE|FROM|HEALTHCHECK"
    r"|LABEL|MAINTAINER|ONBUILD|RUN|SHELL|STOPSIGNAL|USER|VOLUME|WORKDIR"
)
_HEREDOC = re.compile(r"<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?")
_CANN_TAG = re.compile(
    r"(?:^|/)cann:(?P<cann>.+?)-(?P<chip>310p|910b|a3|950|910)-(?P<os>[a-z]+[\d.]+)-py(?P<python>\d+\.\d+)(?:-\w+)?$",
    re.IGNORECASE,
)

_RELEASE_TAG = re.compile(
    r"(?:^|/)vllm-ascend:v?(?P<version>\d[\w.]*)(?:-(?P<chip>310p|a3|a5))?(?P<os>-openeuler)?$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction, its name in upper case, and the text behind it."""

    name: str
    line: int
    source: LineMap


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile: continuations joined, comment lines out, here-documents kept with theirs."""
    lines = text.splitlines()
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(number)
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        start = at
        pieces, at = _joined(lines, at)
        name, _, first = pieces[0][1].lstrip().partition(" ")
        pieces[0] = (pieces[0][0], first)
        body, at = _bodies(lines, ends, at, " ".join(part for _, part in pieces))
        yield Instruction(name.strip().upper(), start + 1, _source(pieces, body if name.upper() == "RUN" else []))


def _joined(lines: list[str], at: int) -> tuple[list[tuple[int, str]], int]:
    """The physical lines of one instruction, without the backslashes, and the index of the line behind it."""
    pieces: list[tuple[int, str]] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        if pieces and (not line.strip() or line.lstrip().startswith("#")):
            continue
        goes_on = line.rstrip().endswith("\\")
        pieces.append((at, line.rstrip()[:-1] if goes_on else line))
        if not goes_on:
            break
    return pieces, at


def _bodies(lines: list[str], ends: dict[str, list[int]], at: int, head: str) -> tuple[list[tuple[int, str]], int]:
    body: list[tuple[int, str]] = []
    for delimiter in _HEREDOC.findall(head):
        hits = ends.get(delimiter, [])
        following = bisect.bisect_left(hits, at)
        if following < len(hits):
            end = hits[following]
            body += [(number + 1, lines[number]) for number in range(at, end)]
            at = end + 1
    return body, at


def _source(pieces: list[tuple[int, str]], body: list[tuple[int, str]]) -> LineMap:
    """Pieces joined by blanks; the body of a here-document, one line each, stands for the command that reads it."""
    joined, starts, numbers = "", [], []
    for number, part in body or pieces:
        starts.append(len(joined))
        numbers.append(number)
        joined += part + ("\n" if body else " ")
    return LineMap(joined, tuple(starts), tuple(numbers))


def read_dockerfile(path: str, text: str) -> tuple[LintedScript, ...]:
    """The stages of a Dockerfile. A stage that builds on another begins with what that one did."""
    reading = _InstructionReading(path)
    for each in instructions(text):
        reading.take(each)
    return reading.done()


class _InstructionReading:
    """The state while the instructions of one file go by."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stages: dict[str, LintedScript] = {}
        self.arguments: dict[str, str] = {}  # of ARG in front of the first FROM
        self.reader = ScriptReader(path)
        self.image: BaseImage | None = None
        self.shell: Literal["bash", "sh", "unset"] = "unset"
        self.copies: list[str] = []
        self.name = self.platform = ""

    def done(self) -> tuple[LintedScript, ...]:
        self._close()
        return tuple(self.stages.values())

    def _close(self) -> None:
        if self.image is not None:
            copies, events = tuple(self.copies), tuple(self.reader.events)
            script = LintedScript(self.path, self.shell, events, self.image, copies, self.platform)
            self.stages[self.name or f"#{len(self.stages)}"] = script

    def take(self, instruction: Instruction) -> None:
        text = instruction.source.text.strip()
        place = Location(self.path, instruction.line)
        if not _INSTRUCTION.fullmatch(instruction.name):
            self.reader.events.append(Remark(place, "instruction", instruction.name))
        elif instruction.name == "FROM":
            self._from(place, text)
        elif instruction.name == "ARG":
            self._arg(text)
        elif instruction.name == "ENV":
            self._env(instruction.source)
        elif instruction.name == "SHELL":
            self.shell = "bash" if "bash" in text else "sh"
        elif instruction.name == "WORKDIR":
            self.reader.folder = self.reader.inside(expand(text, self.reader.env))
        elif instruction.name in ("COPY", "ADD"):
            self._copy(text)
        elif instruction.name == "RUN":
            self._run(instruction)

    def _from(self, place: Location, text: str) -> None:
        self._close()
        words = text.split()
        platform = next((each.partition("=")[2] for each in words if each.startswith("--platform=")), "")
        words = [each for each in words if not each.startswith("--")]
        base = expand(words[0], self.arguments) if words else UNKNOWN
        self.name = words[2] if len(words) > 2 and words[1].lower() == "as" else ""
        self.platform = platform if "$" not in platform else ""
        self.reader, self.shell, self.copies = ScriptReader(self.path), "unset", []
        parent = self.stages.get(base)
        self.image = image_of(place, base)
        if parent:
            self.reader.events = list(parent.events)
            self.reader.env = {each.name: each.value for each in parent.events if isinstance(each, EnvSetting)}
            self.image, self.shell, self.copies = parent.image, parent.shell, list(parent.copies)

    def _arg(self, text: str) -> None:
        name, given, value = text.partition("=")
        target = self.reader.env if self.image else self.arguments
        if given:
            target[name.strip()] = expand(value.strip(), {**self.arguments, **target})
        elif self.image:
            target[name.strip()] = self.arguments.get(name.strip(), UNKNOWN)

    def _env(self, source: LineMap) -> None:
        words = [each for each in tokens(source) if each.is_word]
        if words and "=" not in words[0].text:
            pairs = [(words[0].text, " ".join(each.text for each in words[1:]), words[0].line)]
        else:
            pairs = [(*each.text.split("=", 1), each.line) for each in words if "=" in each.text]  # type: ignore[misc]
        before = dict(self.reader.env)
        for name, value, line in pairs:
            self.reader.env[name] = full = expand(value, before)
            if UNKNOWN not in full:
                place = Location(self.path, line)
                self.reader.events.append(EnvSetting(place, name, full, ""))
                if turns_tls_off(name, full):
                    self.reader.events.append(Remark(place, "tls", f"{name}={full}"))

    def _copy(self, text: str) -> None:
        words = [each for each in text.split() if not each.startswith("--")]
        if "--from" not in text and len(words) == 2 and words[0] in (".", "./"):
            self.copies.append(self.reader.inside(expand(words[1], self.reader.env)))

    def _run(self, instruction: Instruction) -> None:
        """A RUN begins anew: variables and folder of the last one are gone, what it wrote is not."""
        source = _plain_run(instruction.source)
        env, folder = dict(self.reader.env), self.reader.folder
        self.reader.read(source)
        self.reader.env, self.reader.folder = env, folder


def _plain_run(source: LineMap) -> LineMap:
    """A RUN without its options; the list form as a command line."""
    text = re.sub(r"^\s*(?:--\w+=\S+\s+)+", lambda found: " " * len(found[0]), source.text)
    if text.lstrip().startswith("["):
        try:
            words = parse_json(text)
        except JsonError:
            return replace(source, text=text)
        if isinstance(words, list) and all(isinstance(each, str) for each in words):
            inner = words[2] if words[1:2] == ["-c"] and len(words) == 3 else " ".join(f"'{each}'" for each in words)
            return LineMap(inner, source.starts[:1], source.lines[:1])
    return replace(source, text=text)


def image_of(place: Location, text: str) -> BaseImage:
    """What a base image's name says. Example: `cann:8.5.1-910b-ubuntu22.04-py3.11` is CANN 8.5.1 for the chip 910b."""
    shown = text.replace(UNKNOWN, "?")
    released = _RELEASE_TAG.search(text) if UNKNOWN not in text else None
    if released:
        chip = (released["chip"] or "910b").lower()
        system = "openeuler24.03" if released["os"] else "ubuntu22.04"
        return BaseImage(place, shown, "", {"a5": "950"}.get(chip, chip), system, "", released["version"])
    found = _CANN_TAG.search(text) if UNKNOWN not in text else None
    if found is None or not versions.is_cann(found["cann"]):
        return BaseImage(place, shown)
    return BaseImage(place, shown, found["cann"], found["chip"].lower(), found["os"].lower(), found["python"])


def read_shell_script(path: str, text: str) -> LintedScript:
    """A shell script as one stage without an image."""
    reader = ScriptReader(path)
    reader.read(source_of(text))
    first = text.split("\n", 1)[0]
    is_sh = first.startswith("#!") and re.search(r"/(?:env )?(?:sh|dash)\s*$", first.strip()) is not None
    return LintedScript(path, "sh" if is_sh else "bash", tuple(reader.events))
