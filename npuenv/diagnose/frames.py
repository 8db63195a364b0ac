"""Signs from Python tracebacks: through which packages a failure went, and whether it began in the user's own code.

Start from `frames`. A report without frames gives no sign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.diagnose.search import Text
    from npuenv.host.report import Line

_FRAME = re.compile(r'^\s*(?:E\s+)?File "([^"]+)", line \d+')
_RAISED = re.compile(r"^\s*(?:E\s+)?(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt))\b(?::|\s*$)")
_INSTALLED = re.compile(r"(?:site|dist)-packages/([A-Za-z_]\w*)")
_SOURCE_TREE = re.compile(
    r"/(vllm_ascend|vllm|verl|torch_npu|torch|transformers|ray|triton|mindspeed|megatron|sglang|tbe|te_fusion|roll"
    r"|lmdeploy|diffusers|accelerate|llamafactory)/"
)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
# Names that projects give to their own folders.
_OWN_NAMES = frozenset((
    "utils", "util", "src", "lib", "libs", "core", "common", "config", "configs", "models", "model", "modules", "data",
    "dataset", "tools", "scripts", "test", "tests", "main", "app", "train", "trainer", "engine", "helpers", "examples",
))  # fmt: skip
_STANDARD = re.compile(r"/lib(?:64)?/python3[\d.]*/\w|^<frozen")
# Mistakes of the code that raises them; an import, a library that does not load, a changed call are none.
_MISTAKES = frozenset((
    "TypeError", "KeyError", "IndexError", "ValueError", "NameError", "UnboundLocalError", "ZeroDivisionError",
    "AssertionError", "RecursionError", "FileNotFoundError", "NotImplementedError",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception of a report."""

    kind: str  # the name of its class
    package: str  # of its innermost frame; "": the user's own file, "?": no frame stands before it
    line: Line


def frames(text: Text, failures: Iterable[Line]) -> dict[str, Line]:
    """`frame-<package>` for every package in a traceback, and `failed-in-code` where nothing else failed.

    failures: the lines of the report that say that something failed
    """
    signs: dict[str, Line] = {}
    for line in text.with_any(('file "',)):
        package = _package(line.text)
        if package:
            signs.setdefault(f"frame-{package}", line)
    for line in text.all("No module named '"):
        match = _NO_MODULE.search(line.text)
        if match and match.group(1).split(".")[0] in _OWN_NAMES:
            signs.setdefault("own-module-missing", line)
        elif match and "." in match.group(1):
            signs.setdefault("submodule-missing", line)
    raised = {each.line.number: each for each in _raised(text.lines)}
    others = [line for line in failures if not line.text.lstrip().startswith("Traceback")]
    if others and all(_is_mistake(raised.get(line.number)) for line in others):
        signs["failed-in-code"] = others[0]
    return signs


def _is_mistake(raised: Raised | None) -> bool:
    if raised is None or raised.package:
        return False
    if raised.kind == "AttributeError":
        return "object has no attribute" in raised.line.text
    return raised.kind in _MISTAKES and "argument" not in raised.line.text  # a call that a release takes differently


def _raised(lines: Iterable[Line]) -> Iterator[Raised]:
    package = "?"
    for line in lines:
        found = _package(line.text) if 'File "' in line.text else None
        if found is not None:
            package = found
            continue
        match = _RAISED.match(line.text) if "E" in line.text else None
        if match:
            yield Raised(match.group(1), package, line)
            package = "?"


def _package(text: str) -> str | None:
    """The package of a frame's file, "" for the user's own; None where the line is no frame."""
    match = _FRAME.match(text)
    if match is None:
        return None
    path = match.group(1)
    installed = _INSTALLED.search(path) or _SOURCE_TREE.search(path)
    if installed:
        return installed.group(1)
    return "python" if _STANDARD.search(path) else ""
