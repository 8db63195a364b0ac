"""What a report says of the session: variables that are set or not, the container's start, and error codes."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from npuenv.diagnose.types import DockerRun, Sighting
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.diagnose.search import Text
    from npuenv.host.report import PasteLine

_OURS = (
    r"(?:ASCEND|HCCL|ACL|ATB|ASDOPS|NPU|CANN|TORCH|PYTORCH|VLLM|VERL|ROLL|RAY|HF|PIP|UV|PYTHON|GLOO|OMP|LD|TASK_QUEUE"
    r"|RANK_TABLE|SOC|COMPILE|CPLUS|MASTER|WORLD|TP_SOCKET|https?|HTTPS?|CUDA|VIRTUAL|CONDA|LCAL|CPU_AFFINITY)"
)
_ASSIGNED = re.compile(
    r"(?:^|[\s;&'\"-])(?:export |declare -x |-e |--env[= ])?[\"']?(" + _OURS + r"\w*)=([^\s;]*|\"[^\"]*\"|'[^']*')"
)
_YAML = re.compile(r"^\s*(?:- )?[\"']?(" + _OURS + r"_?[A-Z_0-9]*)[\"']?: +[\"']?([^\"'#\s]+)[\"']?\s*(?:#.*)?,?$")

_E_CODE = re.compile(r"\b(E[A-Z]\d{4}|E\d{5})\b")
_NUMBER_CODE = re.compile(
    r"(?:error code:? ?(?:is )?|error no is |result ?= ?|errcode[=:]|\bret[ =:is]+|return ?\[)(-?\d{1,6})\b"
)
_NUMBER_WORDS = ("error code", "error no is", "result", "errcode", "ret", "return")
_RET = re.compile(r"drvRetCode=(\d+)")


def read_environ(lines: Sequence[PasteLine]) -> dict[str, Sighting[str]]:
    """Variables that are set, with their values."""
    environ: dict[str, Sighting[str]] = {}
    for line in lines:
        for name, value in _assigned(line.text):
            environ[name] = Sighting(value.strip("\"'"), line)
    return environ


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    if "=" in text and len(text) <= 2000 and "==" not in text[:60]:
        for match in _ASSIGNED.finditer(text):
            yield match.group(1), match.group(2)
    elif ": " in text and len(text) <= 300:
        pair = _YAML.match(text)
        if pair:
            yield pair.group(1), pair.group(2)


def read_docker(lines: Sequence[PasteLine]) -> DockerRun | None:
    """The first `docker run` or `nerdctl run` line; None where there is none."""
    for at, line in enumerate(lines):
        start = re.search(r"\b(?:docker|nerdctl|podman)\s+(?:container )?(?:run|create)\b", line.text)
        if start and "--" + "help" not in line.text:
            text = " ".join(_continued(lines, at, line.text[start.start() :]))
            return _docker(text, line)
    return None


def _continued(lines: Sequence[PasteLine], at: int, first: str) -> Iterator[str]:
    text = first
    for line in lines[at + 1 : at + 80]:
        yield text.rstrip().removesuffix("\\")
        if not text.rstrip().endswith("\\"):
            return
        text = line.text
    yield text.rstrip().removesuffix("\\")


_SWITCHES = frozenset(
    ("rm", "i", "t", "d", "it", "ti", "itd", "dit", "td", "idt", "di", "privileged", "init", "interactive", "tty")
)


def _docker(text: str, line: PasteLine) -> DockerRun:
    words = _words(text)[2:]
    mounts, devices, options, environ, image, at = [], [], {}, {}, "", 0
    while at < len(words):
        name, equals, value = words[at].lstrip("-").partition("=")
        if not words[at].startswith("-"):
            image = words[at]
            break
        is_switch = not equals and name in _SWITCHES
        if not equals and not is_switch and at + 1 < len(words):
            at += 1
            value = words[at]
        at += 1
        if name in ("v", "volume"):
            mounts.append(value.partition(":")[0].rstrip("/"))
        elif name == "mount":
            sources = (part for part in value.split(",") if part.startswith(("source=", "src=")))
            mounts += [part.partition("=")[2].rstrip("/") for part in sources]
        elif name == "device":
            devices.append(value.partition(":")[0])
        elif name in ("e", "env"):
            key, _, content = value.partition("=")
            environ[key] = content
        else:
            options[{"u": "user"}.get(name, name)] = value
    return DockerRun(line, tuple(mounts), tuple(devices), options, environ, image)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed, in a line that was cut
        return text.split()


def read_codes(text: Text) -> dict[str, PasteLine]:
    """Error codes with the first line each stands in."""
    codes: dict[str, PasteLine] = {}
    for line in text.lines:
        for match in _E_CODE.finditer(line.text[:1200]):
            codes.setdefault(match.group(1), line)
    for line in text.with_any(_NUMBER_WORDS):
        for match in _NUMBER_CODE.finditer(line.text[:1200].lower()):
            codes.setdefault(match.group(1), line)
        ret = _RET.search(line.text[:1200])
        if ret:
            codes.setdefault(f"drv{ret.group(1)}", line)
    return {code: line for code, line in codes.items() if typed_command(line.text) is None}
