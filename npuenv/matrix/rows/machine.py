"""Rows about machines: hardware, CANN, systems, images, indexes, settings and event codes."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.matrix.load import Row


@dataclass(frozen=True, slots=True)
class Hardware(Row):
    """One generation of accelerators."""

    title: str
    names: tuple[str, ...]  # chip names as `npu-smi` prints them, compared without case
    socs: tuple[str, ...]  # SOC_VERSION values that build for it, the aliases included
    image_chip: str  # the chip part of a CANN image tag; "" where no image is published
    kernels: tuple[str, ...] = ()  # folders of its compiled operators below an opp, any of which will do
    called: tuple[str, ...] = ()  # what guides and people call it, products and short names; never read from a machine
    torch_npu: str = ""  # the versions that know its chips, where others are known to refuse them; "": no such version
    accepted: bool = True  # False: known, so that it can be named, but no stack runs on it


@dataclass(frozen=True, slots=True)
class Cann(Row):
    """One CANN version. The table's order is by version."""

    version: str
    layout: Literal[
        "toolkit", "cann"
    ]  # the folder under /usr/local/Ascend: ascend-toolkit/<version>, or cann-<version>
    root: str
    set_env: str
    driver_since: str = ""  # the oldest driver series it works with; "": no official line
    driver_until: str = ""  # the newest series its notes name; a newer driver is a remark, not a conflict
    driver_named: tuple[str, ...] = ()  # drivers its notes name as the match
    numpy: str = ""  # what this era asks of numpy; "": nothing


@dataclass(frozen=True, slots=True)
class System(Row):
    """One operating system as image tags and users name it. `id` is that name, like `openeuler24.03`."""

    glibc: str  # "2.38": wheels with a higher floor do not load there
    python: str  # what its package manager calls `python3`
    packages: Literal["apt", "dnf"]


@dataclass(frozen=True, slots=True)
class SystemPackage(Row):
    """A system package: its other names, and what images of vllm-ascend do with it. `id` is its Debian name."""

    dnf: tuple[str, ...]  # what it is called where dnf or yum installs it
    since: str = ""  # the first vllm-ascend release whose own images have it; "": only stacks that name it
    hardware: tuple[str, ...] = ()  # on which they have it
    why: str = ""  # message key: what it is for
    preload: str = ""  # the library in it that every process of an image loads first
    alternatives: Mapping[str, str] = field(default_factory=dict)  # program -> the one with a version that stands in


@dataclass(frozen=True, slots=True)
class CannFile(Row):
    """A file of CANN that a public source gives the sha256 of. `id` is the file's name."""

    sha256: str
    size: int = 0  # in bytes; 0: the source does not say


@dataclass(frozen=True, slots=True)
class Probe(Row):
    """A module whose import must work without a card wherever its distribution is installed."""

    module: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Image(Row):
    """Base images that published Dockerfiles build on."""

    repository: str
    cann: str
    tag: str
    hardware: tuple[str, ...]
    os: tuple[str, ...]
    python: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class ImageDigest(Row):
    """The digest that others saw a published image have. `id` is the image with its tag, as far as they name one."""

    digest: str  # sha256:...
    date: str = ""  # the day on which it was seen, YYYY-MM-DD; "": the source does not say


@dataclass(frozen=True, slots=True)
class Index(Row):
    """A package source. The default index has no row: it is whatever the user's installer is set up with."""

    label: str
    url: str
    kind: Literal["simple", "direct"]
    carries: tuple[str, ...]  # distribution names that are to be taken from it
    argument: str  # the build argument a rendered file offers to replace the address


@dataclass(frozen=True, slots=True)
class Setting(Row):
    """An environment setting for one role of a framework's processes."""

    name: str
    value: str
    # run: every process of a run that is started from a shell; multi-node: such a run on several nodes
    role: Literal["all", "train", "rollout", "build", "run", "multi-node"]
    frameworks: tuple[str, ...]
    why: str
    since: str = ""  # vllm-ascend version from which the variable is read; "": always
    until: str = ""  # first vllm-ascend version that no longer reads it


@dataclass(frozen=True, slots=True)
class NpuFault(Row):
    """Event codes of a card's firmware that are handled alike."""

    # none: does not disturb work | request: repeat the request | work: start the job again | free: reset the card when
    # it is free | reset: reset the card | separate: a reset does not help, leave the card out
    action: Literal["none", "request", "work", "free", "reset", "separate"]
    codes: tuple[str, ...]  # eight hexadecimal digits, as npu-smi prints them


@dataclass(frozen=True, slots=True)
class Variable(Row):
    """An environment variable: who reads it, and which values it takes."""

    name: str
    kind: Literal["number", "decimal", "choice", "ports", "address", "pattern", "any"]
    reader: Literal["hccl", "torch_npu", "cann", "docker", "ray", "vllm", "vllm-ascend"]
    least: int = 0
    most: int = 0
    multiple: int = 1  # values are multiples of it
    unit: str = ""
    values: tuple[str, ...] = ()  # of a choice; the case does not matter
    pattern: str = ""  # a regular expression for the whole value
    example: str = ""  # a value that matches the pattern
    since: str = ""  # the reader's release from which on it is read; "": always
    until: str = ""  # the first release of the reader that no longer reads it
