"""What a vllm-ascend sdist says about releases: the table of its versioning policy, and what its Dockerfiles build.

Both functions take texts and return values with the names of the matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.matrix.rows import Image, ReleaseImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.matrix.rows import Hardware

POLICY = "docs/source/community/versioning_policy.md"
# In the order in which the matrix names the hardware of an image.
DOCKERFILES = ("Dockerfile", "Dockerfile.a3", "Dockerfile.a5", "Dockerfile.310p")
WANTED = ("PKG-INFO", "requirements.txt", POLICY, "Dockerfile*")

_FIRST_COLUMN = "vllm ascend"
_COLUMNS = {
    "vllm": "vllm",
    "python": "python",
    "stable cann": "cann",
    "pytorch/torch_npu": "torch_npu",
    "triton ascend": "triton_ascend",
}
_TAG = re.compile(
    r"/cann:(?P<cann>[^\s]+?)-(?P<chip>910b|a3|310p|950|[a-z0-9]+)-(?P<os>(?:ubuntu|openeuler)[\d.]+)-py(?P<python>[\d.]+)"
)
_ARG = re.compile(r"^ARG\s+(\w+)=[\"']?([^\"'\s]*)[\"']?", re.MULTILINE)
_FROM = re.compile(r"^FROM\s+(\S+)", re.MULTILINE)
_RAY = re.compile(r"(?<![\w.-])ray(?:\[[\w,]+\])?([<>=!~][^\s'\"\\&]*)")
_TORCH_NPU = re.compile(r"torch[-_]npu==([\w.+]+)")


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One line of the table, in the words of the matrix; "" stands for N/A and for a column that is not there."""

    version: str
    vllm: str = ""
    python: str = ""
    cann: str = ""
    torch_npu: str = ""
    triton_ascend: str = ""


def policy_rows(text: str) -> dict[str, PolicyRow]:
    """The release compatibility matrix of versioning_policy.md, by version; the line of the main branch is left out.

    Example: "| v0.23.0 | v0.23.0 | >= 3.10, < 3.13 | 9.1.0 | 2.10.0 / 2.10.0.post4 | 3.2.2 | v0.3.11.post1 |"
    """
    found: dict[str, PolicyRow] = {}
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.lstrip().startswith("|") else []
        if not cells:
            header = []
        elif cells[0].casefold() == _FIRST_COLUMN:
            header = [_COLUMNS.get(cell.casefold(), "") for cell in cells]
        elif header and (version := _version(cells[0])):
            values = {key: _cell(key, cell) for key, cell in zip(header, cells, strict=False) if key}
            found.setdefault(version, PolicyRow(version, **values))
    return found


def built_images(texts: Mapping[str, str], hardware: Iterable[Hardware]) -> tuple[ReleaseImage, ...]:
    """What the Dockerfiles of a release build, those of the same content as one.

    A file whose base image is no CANN image is left out. The operating system of the file without a suffix is first.
    """
    chips = {row.image_chip: row.id for row in hardware if row.image_chip}
    singles = [image for name in _in_order(texts) if (image := _image(texts[name], chips)) is not None]
    by_hardware: dict[tuple[str, ...], ReleaseImage] = {}
    others: list[ReleaseImage] = []
    for image in singles:
        first = by_hardware.setdefault(image.hardware, image)
        if first is not image and replace(first, os=()) == replace(image, os=()):
            by_hardware[image.hardware] = replace(first, os=tuple(dict.fromkeys([*first.os, *image.os])))
        elif first is not image:
            others.append(image)
    return tuple(_merged([*by_hardware.values(), *others]))


def base_image(dockerfile: str, chips: Mapping[str, str]) -> Image | None:
    """The CANN image that a Dockerfile builds on, for one chip and system; None for another base.

    `chips`: the name of a chip in tags -> that of its hardware. The row has no source yet.
    """
    base = _FROM.search(dockerfile)
    text = _filled(base[1], dict(_ARG.findall(dockerfile))) if base else ""
    tag = _TAG.search(text)
    if tag is None or tag["chip"] not in chips:
        return None
    repository, suffix = f"{text[: tag.start()]}/cann", text[tag.end() :].partition("@")[0]
    registry = text.partition(".")[0]  # quay, swr
    return Image(
        id=f"image.{registry}.{tag['cann']}.py{tag['python']}{suffix}",
        source="",
        seen="",
        repository=repository,
        cann=cann_name(tag["cann"]),
        tag=tag["cann"],
        hardware=(chips[tag["chip"]],),
        os=(tag["os"],),
        python=tag["python"],
        suffix=suffix,
    )


def vllm_tag(dockerfile: str) -> str:
    """The vllm version that a Dockerfile builds from a tag; "" where it names none."""
    return _version(dict(_ARG.findall(dockerfile)).get("VLLM_TAG", ""))


def _in_order(texts: Mapping[str, str]) -> Iterator[str]:
    for name in DOCKERFILES:
        yield from (each for each in (name, f"{name}.openEuler") if each in texts)


def _image(text: str, chips: Mapping[str, str]) -> ReleaseImage | None:
    base = base_image(text, chips)
    if base is None:
        return None
    commands = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    ray, torch_npu = _RAY.search(commands), _TORCH_NPU.search(commands)
    return ReleaseImage(
        hardware=base.hardware,
        os=base.os,
        cann=base.cann,
        python=base.python,
        torch_npu=torch_npu[1] if torch_npu else "",
        ray=ray[1] if ray else "",
    )


def cann_name(text: str) -> str:
    """A CANN version as the matrix writes it: `8.3.rc1` of an image tag is `8.3.RC1`."""
    return re.sub(r"\.rc(?=\d)", ".RC", text)


def _filled(text: str, arguments: Mapping[str, str]) -> str:
    """A text with the build arguments put in, such as `${CANN_VERSION}`."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: arguments.get(found[1], found[0]), text)


def _merged(images: Iterable[ReleaseImage]) -> Iterator[ReleaseImage]:
    """Images that differ only in their hardware as one."""
    groups: dict[ReleaseImage, list[str]] = {}
    for image in images:
        groups.setdefault(replace(image, hardware=()), []).extend(image.hardware)
    for image, names in groups.items():
        yield replace(image, hardware=tuple(names))


def _version(text: str) -> str:
    """A release tag as a version: `v0.10.1/v0.10.1.1` is `0.10.1`; "" for what is none, as `main`."""
    try:
        return str(Version(text.split("/")[0].strip().removeprefix("v")))
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return ""


def _cell(key: str, text: str) -> str:
    if text.casefold() in ("", "n/a", "-"):
        return ""
    if key == "vllm":
        return _version(text)
    if key == "python":
        return re.sub(r"\s+", "", text)
    if key == "torch_npu":
        return text.rpartition("/")[2].strip()
    if key == "cann":
        return cann_name(text)
    return text
