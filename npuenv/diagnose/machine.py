"""What a report says of the machine and the session, that is of all but its packages.

Machine: chip, driver, CANN, Python, images. Session: the container's start, error codes.

Sources are ranked: a version file beats a path, a path prose, prose an image tag.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.diagnose.types import DockerRun, Sighting
from npuenv.facts.npu.smi import Layout, SmiTable, parse_info
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npuenv.diagnose.text import Text
    from npuenv.host.report import PasteLine
    from npuenv.matrix import Matrix


_CANN_NUMBER = r"(\d{1,2}\.\d(?:\.?(?:RC|T)\d+|\.\d+)?(?:[.\-](?:alpha|beta|rc|T|B|SPC)\.?\d+)*)"
# The better source first; the last number of a match counts.
_CANN = (
    re.compile(r"^version=" + _CANN_NUMBER + r"\s*$", re.IGNORECASE),
    re.compile(r"^CANN[^\n:]{0,20}: ?[\d.]+:" + _CANN_NUMBER, re.IGNORECASE),
    re.compile(r"ascend-toolkit_" + _CANN_NUMBER + r"_linux", re.IGNORECASE),
    re.compile(r"(?:ascend-toolkit|Ascend)/(?:cann-)?" + _CANN_NUMBER + r"(?:/|\s|$|:)", re.IGNORECASE),
    re.compile(r"\bcann[_-]" + _CANN_NUMBER + r"(?![\w])", re.IGNORECASE),
    re.compile(r"\bCANN(?:[ _-]?(?:toolkit|version|ver))?\s*(?:is|:|=|==|：)?\s*v?" + _CANN_NUMBER, re.IGNORECASE),
    re.compile(r"Cann-toolkit\D{0,12}" + _CANN_NUMBER, re.IGNORECASE),
)
_CANN_TAG = re.compile(r"cann" + _CANN_NUMBER, re.IGNORECASE)
_CANN_IMAGE = re.compile(r"\bascend/cann:" + _CANN_NUMBER, re.IGNORECASE)
_DRIVER_NUMBER = r"(\d{2}\.\d(?:\.(?:RC)?\d+)*)"
_DRIVER = (
    re.compile(r"npu-smi \S+\s+Version: " + _DRIVER_NUMBER, re.IGNORECASE),
    re.compile(r"^Version=(?=2)" + _DRIVER_NUMBER + r"\s*$", re.IGNORECASE),  # CANN: at most 12
    re.compile(
        r"\b(?:Ascend )?(?:NPU )?(?:driver|HDK)(?:[ _]version)?\s*(?:is|:|=|：)?\s*v?" + _DRIVER_NUMBER, re.IGNORECASE
    ),
    re.compile(r"Ascend-hdk-\S{0,40}?_" + _DRIVER_NUMBER, re.IGNORECASE),
)
_CHIP = re.compile(
    r"(?<![\w./-])(?:Ascend[ _-]?)?(310P[1-7]?|310B\d?|910B[1-4](?:-\d|C)?|910_93\d\d|910C|910Pro[AB]|910PremiumA|910A"
    r"|950PR|950DT)(?![\w])(?!\S*\.(?:run|deb|rpm))", re.IGNORECASE,
)  # fmt: skip
_CHIP_FAMILY = re.compile(
    r"\b(?:Atlas (?:\d{3}\w? )?(?:\w+ )?|NPU:? ?)(A2|A3|300I)\b|\b(A3) (?:machine|server|node)"
    r"|(?<![A-Za-z\d])v\d+\.\d+\.\d+(?:rc\d+)?-(a3|310)p?(?![A-Za-z\d])",
    re.IGNORECASE,
)
# Boards that are sold by another name than that of their chip.
_BOARD_310B = re.compile(r"orange ?pi ?ai ?pro\b(?! ?20T)|香橙派 ?ai ?pro|\bAtlas 200I (?:DK )?A2\b", re.IGNORECASE)
# The first generation: its number on the PCI bus, and the servers and cards that were sold with it.
_FIRST_910 = re.compile(r"19e5[: ]+d801\b|\bAtlas \d{3}T? ?\(?(?:Model|型号)[:： ]*90[01]0\b", re.IGNORECASE)
_SOC_NUMBER = re.compile(r"soc_version: ?(\d{3})\b")
_PYTHON = (
    re.compile(r"^Python(?: version)?:? (3\.\d+)(?:\.\d+)?(?!\S)"),
    re.compile(r"lib(?:64)?/python(3\.\d+)/(?:site|dist)-packages"),
    re.compile(r"\bpython(?: ?version)? ?[:=]? ?(3\.\d+)(?:\.\d+)?\b", re.IGNORECASE),
)
_VLLM_VERSION = re.compile(r"\bVLLM_VERSION(?:=|: )[\"']?v?([\w.+]+)")
_GCC = re.compile(
    r"(?:^GCC version: |^(?:gcc|g\+\+|c\+\+)(?:-\d+)? )(?:\([^)]*(?:\([^)]*\))?[^)]*\) ?|version )(\d+(?:\.\d+)+)"
)
_IMAGE_NAMES = ("cann", "verl", "roll", "sglang", "mindie", "ascend", "lmdeploy", "slime", "llamafactory")
_IMAGE = re.compile(
    r"(?<![\w@.-])((?:[\w.-]+(?::\d+)?/)*(?:vllm-ascend|cann|verl|roll|sglang|mindie|vllm_ascend|ascend-[\w-]+|lmdeploy|slime|llamafactory)"
    r":[\w][\w.+-]{1,100})(?![\w/])", re.IGNORECASE,
)  # fmt: skip
_DOCKER_IMAGES = re.compile(
    r"^(\S*(?:vllm-ascend|cann|verl|roll|sglang|mindie|ascend)\S*)\s{2,}(\S+)(?:\s|$)", re.IGNORECASE
)


def read_machine(text: Text, matrix: Matrix) -> dict[str, Any]:
    """All fields of `ReportFacts` that do not speak of packages; what the report does not say can be missing."""
    images = _images(text.with_any(_IMAGE_NAMES))
    return {
        "images": images,
        "codes": _codes(text),
        "docker": _docker_run(text.lines),
        "cann": _ranked(text.with_any(("cann", "ascend", "version=")), _CANN, _cann) or _cann_of_images(images),
        "driver": _ranked(text.with_any(("version", "driver", "hdk")), _DRIVER, _driver),
        "python": _ranked(text.with_any(("python",)), _PYTHON, str),
        "vllm_version": _ranked(text.with_any(("vllm_version",)), (_VLLM_VERSION,), str),
        "gcc": _ranked(text.with_any(("gcc", "g++", "c++")), (_GCC,), str),
        **_table(text, matrix),
    }


def _table(text: Text, matrix: Matrix) -> dict[str, Any]:
    """The table of npu-smi and what it says; the chip out of loose text where no table names it."""
    rows = [line for line in text.lines if "|" in line.text or line.text.lstrip().startswith("+")]
    table = parse_info("\n".join(line.text for line in rows))
    if not isinstance(table, SmiTable):
        return _chip(text, matrix)
    found: dict[str, Any] = {"table": table}
    by_text = {line.text.strip(): line for line in rows}
    title = by_text.get(table.title)
    if table.driver and title:
        found["driver"] = Sighting(table.driver, title)
    card = next((card for card in table.cards if card.name), None)
    line = by_text.get(card.line) if card else None
    if card is None or card.name is None or line is None:
        return {**found, **_chip(text, matrix)}
    row = matrix.hardware_of_chip(card.name)
    generation = "a3" if table.layout is Layout.A3 else row.id if row else None
    return {**found, **_named(line, card.name, generation)}


def _named(line: PasteLine, chip: str | None, generation: str | None) -> dict[str, Any]:
    return {key: Sighting(value, line) for key, value in (("chip", chip), ("generation", generation)) if value}


def _chip(text: Text, matrix: Matrix) -> dict[str, Any]:
    """Chip names in loose text. There `910B` means an A2 chip; only a table can tell the old 910B apart."""
    for line in filter(lambda line: _FIRST_910.search(line.text), text.with_any(("19e5", "atlas"))):
        return _named(line, "910A", "910")
    for line in text.with_any(("310", "910", "950")):
        match = _CHIP.search(line.text[:600])
        if match is None or _is_path_or_pip(line.text):
            continue
        name = match.group(1)
        row = matrix.hardware_of_chip(name) or matrix.hardware_of_chip(name[:4])
        return _named(line, name, row.id if row else "310p" if name.upper().startswith("310P") else None)
    for line in filter(lambda line: _BOARD_310B.search(line.text), text.with_any(("orange", "香橙派", "atlas 200i"))):
        return _named(line, "310B", None)
    for line in text.with_any(("a2", "a3", "300i", "310", "soc_version")):
        match = _CHIP_FAMILY.search(line.text[:300])
        if match:
            word = next(filter(None, match.groups())).lower()
            return _named(line, None, "310p" if word in ("300i", "310") else word)
        number = _SOC_NUMBER.search(line.text[:600])
        if number:
            return _named(line, None, _generation_of(int(number.group(1))))
    return {}


def _generation_of(number: int) -> str:
    """torch_npu's own numbering of chips. Source: vllm-ascend utils: 220-225 A2, 250-255 A3, 200-205 310P, 260 950."""
    ranges = ((100, 199, "910"), (200, 209, "310p"), (220, 229, "a2"), (250, 259, "a3"), (260, 269, "950"))
    return next((name for low, high, name in ranges if low <= number <= high), "other")


def _is_path_or_pip(text: str) -> bool:
    return "site-packages" in text or "/opp/" in text or text.lstrip().startswith(("#include", "File "))


def _ranked(
    lines: Sequence[PasteLine], patterns: Sequence[re.Pattern[str]], clean: Callable[[str], str]
) -> Sighting[str] | None:
    """The first match of the best pattern that matches at all."""
    best: tuple[int, Sighting[str]] | None = None
    for line in lines:
        if best is not None and best[0] == 0:
            break
        for rank, pattern in enumerate(patterns if best is None else patterns[: best[0]]):
            match = pattern.search(line.text[:500])
            value = clean(match.group(match.lastindex or 1)) if match else ""
            if value:
                best = (rank, Sighting(value, line))
                break
    return best[1] if best else None


def _cann(text: str) -> str:
    """A CANN version in its usual form, "" where it is none. Example: `8.1rc1` -> `8.1.RC1`."""
    text = re.sub(r"(?<=\d)\.?rc(?=\d)", ".RC", text, flags=re.IGNORECASE)
    return text if versions.is_cann(text) and 5 <= int(text.split(".")[0]) <= 12 else ""


def _driver(text: str) -> str:
    try:
        return versions.driver(text).text
    except BadInput:
        return ""


def _cann_of_images(images: Sequence[Sighting[str]]) -> Sighting[str] | None:
    for image in images:
        match = _CANN_TAG.search(image.value) or _CANN_IMAGE.search(image.value)
        version = _cann(match.group(1)) if match else ""
        if version:
            return Sighting(version, image.line)
    return None


def _images(lines: Sequence[PasteLine]) -> list[Sighting[str]]:
    found = []
    for line in lines:
        if ":" in line.text:
            found += [Sighting(match.group(1), line) for match in _IMAGE.finditer(line.text[:800])]
        listed = _DOCKER_IMAGES.match(line.text)
        if listed and listed.group(2)[0] != "=":
            found.append(Sighting(f"{listed.group(1)}:{listed.group(2)}", line))
    return found[:20]


_E_CODE = re.compile(r"\b(E[A-Z]\d{4}|E\d{5})\b")
_NUMBER_CODE = re.compile(
    r"(?:error code:? ?(?:is )?|error no is |result ?= ?|errcode[=:]|\bret[ =:is]+|return ?\[)(-?\d{1,6})\b"
)
_NUMBER_WORDS = ("error code", "error no is", "result", "errcode", "ret", "return")
_RET = re.compile(r"drvRetCode=(\d+)")


def _docker_run(lines: Sequence[PasteLine]) -> DockerRun | None:
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
    mounts, devices, options, environ, at = [], [], {}, {}, 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
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
    return DockerRun(line, tuple(mounts), tuple(devices), options, environ)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed, in a line that was cut
        return text.split()


def _codes(text: Text) -> dict[str, PasteLine]:
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
