"""What a row of each matrix table holds. One dataclass per table; a field without a default must be in the row.

A row says where it comes from (`source`) and when that was read (`seen`). Texts for people are not here: a field named
`why` or `note` holds the key of a sentence in the message catalogues.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

Strength = Literal[
    "identity", "recommended-pair", "compatible-set", "wheel-exists", "metadata-range", "image-practice", "request"
]
VerifiedBy = Literal["published", "recommended", "compatible", "satisfiable", "measured-here"]


@dataclass(frozen=True, slots=True)
class Row:
    """What every row has."""

    id: str
    source: str
    seen: str  # date on which the source was read, YYYY-MM-DD


@dataclass(frozen=True, slots=True)
class Hardware(Row):
    """One generation of accelerators."""

    title: str
    names: tuple[str, ...]  # chip names as `npu-smi` prints them, compared without case
    socs: tuple[str, ...]  # SOC_VERSION values that build for it, the aliases included
    image_chip: str  # the chip part of a CANN image tag; "" where no image is published
    kernels: tuple[str, ...] = ()  # folders of its compiled operators below an opp, any of which will do
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
    ops_package: str = ""


@dataclass(frozen=True, slots=True)
class System(Row):
    """One operating system as image tags and users name it. `id` is that name, like `openeuler24.03`."""

    glibc: str  # "2.38": wheels with a higher floor do not load there
    python: str  # what its package manager calls `python3`
    packages: Literal["apt", "dnf"]


@dataclass(frozen=True, slots=True)
class TorchNpu(Row):
    """One torch_npu version."""

    version: str
    torch: str
    status: Literal["released", "patch", "beta", "zero-day", "pre-release", "unlisted", "dev", "one-off"]
    cann: str = ""  # recommended pair; "": none stated
    cann_unofficial: tuple[str, ...] = ()  # a pairing that only other projects state
    cann_compatible: tuple[str, ...] = ()  # "8.5.X" stands for the series
    index: str = ""  # "default" or a label of indexes.toml; "": on no index
    python_aarch64: tuple[str, ...] = ()
    python_x86_64: tuple[str, ...] = ()
    requires_aarch64: str = ""
    requires_x86_64: str = ""
    published: str = ""  # the day its wheels were uploaded or its tag was made, YYYY-MM-DD; "": not known

    def pythons(self, arch: str) -> tuple[str, ...]:
        """The Pythons that have a wheel on an architecture."""
        return self.python_aarch64 if arch == "aarch64" else self.python_x86_64

    def torch_requirement(self, arch: str) -> str:
        """The specifier its wheel puts on torch, like `==2.8.0+cpu`; "" where no wheel was read."""
        text = self.requires_aarch64 if arch == "aarch64" else self.requires_x86_64
        return text.removeprefix("torch")


@dataclass(frozen=True, slots=True)
class ReleaseImage:
    """What a release's own Dockerfiles build for some hardware."""

    hardware: tuple[str, ...]
    os: tuple[str, ...]  # the first is the one without a suffix in the tag
    cann: str
    python: str
    torch_npu: str = ""  # where the image installs another one than the metadata asks for
    ray: str = ""  # what the image adds, like ">=2.47.1,<=2.48.0"
    one_off: tuple[str, ...] = ()  # builds it installs that no index carries: their stand-ins are what can be locked


@dataclass(frozen=True, slots=True)
class VllmAscend(Row):
    """One vllm-ascend release."""

    version: str
    vllm: str
    released: str
    cann: str = ""
    torch_npu: str = ""
    in_policy_table: bool = False
    python: str = ""
    cann_image: str = ""
    requires_torch: str = ""
    requires_torch_npu: str = ""
    requires_triton_ascend: str = ""
    requires_numpy: str = ""
    requires_transformers: str = ""
    requires_fastapi: str = ""
    requires_opencv: str = ""
    triton_ascend: str = ""  # what the policy table names
    image: tuple[ReleaseImage, ...] = ()


@dataclass(frozen=True, slots=True)
class TritonAscend(Row):
    """One triton-ascend version."""

    version: str
    cann: tuple[str, ...]  # the CANN versions it was published for
    python: tuple[str, ...]  # the Pythons a wheel is known for
    arch: tuple[str, ...]
    hardware: tuple[str, ...]
    index: str  # "default" or a label of indexes.toml
    published: str = ""  # YYYY-MM-DD; "": not known


@dataclass(frozen=True, slots=True)
class Companion(Row):
    """The torchvision and torchaudio built for a torch version."""

    torch: str
    torchvision: str
    torchaudio: str


@dataclass(frozen=True, slots=True)
class Built(Row):
    """What a package that is built from a repository asks for."""

    name: str
    version: str
    requires: tuple[str, ...]


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
    role: Literal["all", "train", "rollout", "build", "multi-node"]
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


@dataclass(frozen=True, slots=True)
class Unsupported(Row):
    """Something that does not work on an NPU, who says so, and for how long."""

    what: str
    kind: Literal["package", "backend", "mode", "env", "hardware"]
    frameworks: tuple[str, ...]  # empty: all
    package: str = ""  # distribution name, where it is one
    hardware: tuple[str, ...] = ()
    since: str = ""
    until: str = ""  # when that stopped being true; "": still
    instead: str = ""  # what to use
    believe: bool = True  # False: kept because a document says it, but overruled by `why`
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limit(Row):
    """A requirement that no package metadata holds: where `when` is installed, `needs` must hold."""

    when: str
    needs: str
    why: str
    since: str = ""  # the day the first release that `when` names came out; a lock that ends before it cannot meet it
    python: tuple[str, ...] = ()  # only on these Pythons; empty: on all


@dataclass(frozen=True, slots=True)
class Contradiction(Row):
    """Two sources that contradict each other about rows of the matrix: both, and which one the rows follow."""

    about: str
    rows: tuple[str, ...]  # ids of the rows it touches; empty: none of them hangs on it
    one: str
    one_source: str
    other: str
    other_source: str
    believe: Literal["one", "other", "both", "open"]
    why: str


@dataclass(frozen=True, slots=True)
class RecipePin:
    """A version the recipe fixes."""

    name: str
    version: str
    strength: Strength
    source: str
    why: str = ""
    arch: str = ""  # only on this architecture


@dataclass(frozen=True, slots=True)
class RecipeRange:
    """What the recipe's own requirement files allow for a package."""

    name: str
    spec: str
    source: str


@dataclass(frozen=True, slots=True)
class RecipeOverride:
    """A requirement the recipe overrules."""

    package: str
    does: Literal["replace", "exclude", "constrain"]
    requirement: str
    why: str
    source: str
    arch: str = ""


@dataclass(frozen=True, slots=True)
class RecipeGit:
    """A component built from a repository."""

    name: str
    repo: str
    ref: str
    moving: bool = False
    how: Literal["install", "editable", "pythonpath"] = "install"
    build_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One entry of the install order."""

    id: str
    does: Literal["pip", "requirements", "git", "uninstall", "rest"]
    what: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """Two sources that contradict each other about the recipe: both, and which one it follows."""

    about: str
    one: str
    one_source: str
    other: str
    other_source: str
    believe: Literal["one", "other", "open"]
    why: str


@dataclass(frozen=True, slots=True)
class Recipe(Row):
    """One published stack."""

    framework: str
    release: str
    date: str  # the day it was last known to be built, YYYY-MM-DD: the lock takes nothing that is younger
    python: tuple[str, ...]  # the first is the published one
    arch: tuple[str, ...]
    verified_by: VerifiedBy
    sources: tuple[str, ...]
    pin: tuple[RecipePin, ...]
    step: tuple[RecipeStep, ...]
    cann: str = ""  # "": no NPU
    hardware: tuple[str, ...] = ()
    os: tuple[str, ...] = ()  # the first is the published one
    image_repository: str = ""
    image_suffix: str = ""
    soc: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    system_packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    range: tuple[RecipeRange, ...] = ()
    override: tuple[RecipeOverride, ...] = ()
    git: tuple[RecipeGit, ...] = ()
    dispute: tuple[Dispute, ...] = ()
    notes: tuple[str, ...] = ()
    glibc: str = "2.28"  # the floor its wheels have; a system below it cannot run it
    lacks: tuple[str, ...] = ()  # what the published recipe leaves unsaid, so that it is no stack: "cann", "torch-npu"
