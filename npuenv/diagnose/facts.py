"""What a report states: its packages, out of all the ways in which people list them, and the rest from `machine`.

What is only asked for, downloaded or refused does not count: a requirement is no package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.diagnose.machine import read_machine
from npuenv.diagnose.text import Text
from npuenv.diagnose.types import ReportFacts, Sighting
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.host.report import PasteLine
    from npuenv.matrix import Matrix

# Names that are read from loose text too; all others only out of a table that says it is a package list.
KNOWN = frozenset({
    "torch", "torch-npu", "torchvision", "torchaudio", "torchair", "vllm", "vllm-ascend", "triton", "triton-ascend",
    "numpy", "transformers", "ray", "mindspeed", "megatron-core", "flash-attn", "tensordict", "pyarrow", "datasets",
    "accelerate", "deepspeed", "peft", "verl", "sglang", "mindie-turbo", "xgrammar", "opencv-python-headless",
    "tokenizers", "huggingface-hub", "protobuf", "grpcio", "setuptools", "cmake", "decorator", "attrs", "psutil",
    "scipy", "sympy", "cffi", "cloudpickle", "pyyaml", "click", "llamafactory", "lmdeploy", "dlinfer",
})  # fmt: skip
# How prose and banners call them.
_CANONICAL = {
    "pytorch": "torch", "torch npu": "torch-npu", "vllm ascend": "vllm-ascend", "triton ascend": "triton-ascend",
    "torch_npu": "torch-npu", "vllm_ascend": "vllm-ascend", "triton_ascend": "triton-ascend",
}  # fmt: skip
_VERSION = r"v?(\d+(?:\.\w+)+(?:[+.\-]\w+)*|\d+\.\d+\w*)"
_PIP3 = re.compile(r"\[(?:pip3?|conda)\]\s+([A-Za-z][\w.\-]*)(?:==|\s+)" + _VERSION)
_FREEZE = re.compile(r"([A-Za-z][\w.\-]*)==" + _VERSION + r"(?:\s*(?:;|#|--hash).*)?$")
_COLUMNS = re.compile(r"\|?\s*([A-Za-z][\w.\-]*)\s*(?:\s|\|)\s*" + _VERSION + r"(?:\s.*|\s*\|.*)?$")
_KEYED = re.compile(
    r"(?:- |\* )?(PyTorch|vLLM|vLLM Ascend|torch[_ -]npu|torch|transformers|numpy|sglang|triton(?:[_ -]ascend)?|ray)"
    r"(?: version)?\s*[:=|]\s*" + _VERSION + r"(?![\w.])", re.IGNORECASE,
)  # fmt: skip
_PROSE = re.compile(
    r"(?<![\w/.-])(pytorch|torch[_-]npu|torch|vllm[_ -]ascend|vllm|triton[_ -]ascend|transformers|numpy|ray)"
    r"(?: ?version)?(?:==| ?[:=] ?| )" + _VERSION + r"(?![\w.])", re.IGNORECASE,
)  # fmt: skip
_BOTH = re.compile(r"\btorch ?(?:/|&|and) ?torch[_-]npu(?: version)?(?:==| ?[:=] ?| )" + _VERSION, re.IGNORECASE)
_ENGINE = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v(\d[\w.+]*)\)")
_INSTALLED = re.compile(r"Successfully installed (.+)")
_ITEM = re.compile(r"^([A-Za-z][\w.\-]*?)-(\d[\w.+!]*)$")
_NAME = re.compile(r"Name: ([A-Za-z][\w.\-]*)\s*$")
_SHOWN = re.compile(r"Version: (\d[\w.+]*)\s*$")
# `pip check`, and what pip says after an install: both packages are there, whatever was asked for.
_BUT_HAVE = re.compile(
    r"([A-Za-z][\w.\-]*) (\d[\w.+!]*) (?:requires|has requirement) [^\n]{1,160}, but you(?:'ll)? have "
    r"([A-Za-z][\w.\-]*) (\d[\w+!]*(?:\.[\w+!]+)*)"
)
_HEADER = re.compile(r"Package\s+Version\b|#\s*Name\s+Version\b")
# Lines that speak of what should be, not of what is.
_REQUEST = re.compile(
    r"\b(?:pip3? install|uv pip|Collecting|Requirement already|Downloading|Using cached|ERROR: |requires|depends on"
    r"|incompatible|No matching|Could not find|satisfies|conflict|Attempting uninstall|Found existing|uninstalled"
    r"|docker |FROM |image:|Because )", re.IGNORECASE,
)  # fmt: skip
# How people write versions around what programs print: full-width marks, emphasis, and the Chinese words.
_MARKS = str.maketrans({"：": ": ", "，": ", ", "（": " (", "）": ") ", "＝": "=", "`": None, "*": None, "、": ", "})
_WORDS = (
    ("版本号", " version "),
    ("版本", " version "),
    ("驱动", " driver "),
    ("昇腾", " Ascend "),
    ("芯片", " chip "),
)
_HAS_WORDS = re.compile("[：，（）＝`*、\u4e00-\u9fff]")
_IS = re.compile(r"\s*[是为]\s*(?=v?\d)")
_BESIDE = re.compile("(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])")


def read_facts(text: Text, matrix: Matrix) -> ReportFacts:
    """Everything that the report says of the machine."""
    text = Text(tuple(map(_plain, text.lines)))
    packages, machine = _read_packages(text.lines), read_machine(text, matrix)
    versions_of = {**packages.loose, **packages.strong}
    for image in machine["images"]:  # a vllm-ascend image says its version where no list does
        name, _, tag = image.value.rpartition("/")[2].partition(":")
        version = re.match(r"v(\d+\.\d+[\w.]*)", tag)
        if name == "vllm-ascend" and version:
            versions_of.setdefault("vllm-ascend", Sighting(version.group(1), image.line))
    return ReportFacts(packages=versions_of, changed=packages.changed, **machine)


def _plain(line: PasteLine) -> PasteLine:
    """The same line as the readers of facts know it. Example: `CANN版本：8.0.RC3` -> `CANN version: 8.0.RC3`."""
    if not _HAS_WORDS.search(line.text):
        return line
    text = line.text
    for word, other in _WORDS:
        text = text.replace(word, other)
    text = _BESIDE.sub(" ", _IS.sub(": ", text))
    return replace(line, text=re.sub(" +", " ", text.translate(_MARKS)).replace(" :", ":").strip())


@dataclass(slots=True)
class _Packages:
    """What was found so far; `strong` sources win over `loose` ones, the first of equals wins."""

    strong: dict[str, Sighting[str]] = field(default_factory=dict)
    loose: dict[str, Sighting[str]] = field(default_factory=dict)
    changed: dict[str, Sighting[str]] = field(default_factory=dict)  # a second, other version of the same package

    def add(self, name: str, version: str, line: PasteLine) -> None:
        """Takes a version from a list of installed packages; a list that comes later wins."""
        old = self.strong.get(name)
        if old is None:
            self.strong[name] = Sighting(version, line)
        elif old.value != version:
            self.changed[name] = Sighting(version, line)


def _read_packages(lines: Iterable[PasteLine]) -> _Packages:
    found = _Packages()
    is_list, shown = False, ""
    for line in lines:
        text = line.text.strip()
        if _HEADER.match(text) and "grep" not in text:
            is_list = True
            continue
        if is_list and (not text or typed_command(text) is not None):
            is_list = False
        if is_list and not set(text) <= set("- |="):
            is_list = _list_row(found, text, line)
            continue
        shown = _show(found, text, line, shown)
        _line(found, text, line)
    return found


def _list_row(found: _Packages, text: str, line: PasteLine) -> bool:
    match = _COLUMNS.match(text)
    if match is None:
        return False
    found.add(versions.normalised(match.group(1)), match.group(2), line)
    return True


def _show(found: _Packages, text: str, line: PasteLine, shown: str) -> str:
    """`pip show` prints the name on one line and the version on the next."""
    name = _NAME.match(text)
    if name:
        return versions.normalised(name.group(1))
    version = _SHOWN.match(text)
    if version and shown:
        found.add(shown, version.group(1), line)
        return ""
    return shown


def _line(found: _Packages, text: str, line: PasteLine) -> None:
    installed = _INSTALLED.search(text)
    if installed:
        for name, version in _items(installed.group(1)):
            found.add(name, version, line)
            found.strong[name] = Sighting(version, line)
        return
    conflict = _BUT_HAVE.search(text) if ", but you" in text else None
    if conflict:
        for name, version in (conflict.group(1, 2), conflict.group(3, 4)):
            found.loose.setdefault(versions.normalised(name), Sighting(version, line))
        return
    if _REQUEST.search(text) or typed_command(text) is not None:
        return
    for name, version in _in_lists(text):
        found.add(name, version, line)
    for name, version in _in_prose(text):
        found.loose.setdefault(name, Sighting(version, line))


def _items(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        match = _ITEM.match(word)
        if match:
            yield versions.normalised(match.group(1)), match.group(2)


def _in_lists(text: str) -> Iterator[tuple[str, str]]:
    """Forms that only a list of installed packages has."""
    for pattern in (_PIP3, _FREEZE, _COLUMNS):
        match = pattern.match(text)
        if match:
            name = versions.normalised(match.group(1))
            if pattern is not _COLUMNS or name in KNOWN:
                yield name, match.group(2)
            return
    engine = _ENGINE.search(text)
    if engine:
        yield "vllm", engine.group(1)


def _in_prose(text: str) -> Iterator[tuple[str, str]]:
    if len(text) > 400:
        return
    keyed = _KEYED.match(text)
    if keyed:
        yield _canonical(keyed.group(1)), keyed.group(2)
    both = _BOTH.search(text)
    if both:
        yield from (("torch", both.group(1)), ("torch-npu", both.group(1)))
    for match in _PROSE.finditer(text):
        yield _canonical(match.group(1)), match.group(2)


def _canonical(name: str) -> str:
    lower = name.lower()
    return _CANONICAL.get(lower) or versions.normalised(lower)
