"""The types of a resolution: Request, Candidate, Stack, Conflict and their parts, and a request as a command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix.rows import ChipWheel, PublicRun, Recipe


@dataclass(frozen=True, slots=True)
class Platform:
    """Where a stack is to run. `os` and `hardware` are None where they make no difference (CPU stacks)."""

    arch: str  # x86_64 | aarch64
    python: str  # "3.11"
    hardware: str | None = None  # 310p | a2 | a3 | 950
    os: str | None = None  # ubuntu22.04 | openeuler24.03 | ...
    glibc: str = "2.28"  # the highest floor a wheel may have

    @property
    def tag(self) -> str:
        """The part of a lock's file name that says what the lock is for, like `x86_64-cp311-glibc2.28`."""
        return f"{self.arch}-cp{self.python.replace('.', '')}-glibc{self.glibc}"


@dataclass(frozen=True, slots=True)
class Request:
    """What the user requested. None and empty mean: not given."""

    stack: str | None = None
    framework: str | None = None  # verl | roll | vllm-ascend | torch-npu | cpu
    hardware: str | None = None
    os: str | None = None
    arch: str | None = None
    python: str | None = None
    cann: str | None = None
    driver: str | None = None
    pins: Mapping[str, str] = field(default_factory=dict)  # distribution name -> version, normalised names
    release: str | None = None  # of the framework, like "0.7.1"; `framework = "verl==0.7.1"` says the same
    as_of: str | None = None  # YYYY-MM-DD: only what was published by that day
    is_newest: bool = False  # the newest CANN and release that fit, rather than the best attested ones
    # Package or field -> where its value stands, like "constraints.txt:3" or "uname -m: aarch64"; absent: the command
    # line.
    origins: Mapping[str, str] = field(default_factory=dict)


# The option of each field of a request.
OPTIONS = {"framework": "--for", "release": "--for", "as_of": "--as-of"}
OPTIONS |= {name: f"--{name}" for name in ("hardware", "os", "arch", "python", "cann", "driver")}


def command_for(request: Request) -> tuple[str, ...]:
    """The command line for a request."""
    args = ["npuenv", "resolve", *((request.stack,) if request.stack else ())]
    for name, option in OPTIONS.items():
        value = getattr(request, name)
        if name == "framework" and request.release is not None:
            value = f"{value}=={request.release}"
        if value is not None and name != "release":
            args += [option, value]
    args += ["--newest"] if request.is_newest else []
    for name, version in sorted(request.pins.items()):
        args += ["--pin", f"{name}=={version}"]
    return tuple(args)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One recipe on one platform. `versions` holds what is pinned, by distribution name."""

    recipe: Recipe
    arch: str
    python: str
    hardware: str | None
    os: str | None
    cann: str | None
    driver: str | None  # None: the driver is not checked
    versions: Mapping[str, str]

    def with_version(self, name: str, version: str) -> Candidate:
        """The same candidate with another version of a package, CANN or Python."""
        if name == "cann":
            return replace(self, cann=version)
        if name == "python":
            return replace(self, python=version)
        return replace(self, versions={**self.versions, name: version})


def same(one: str | None, other: str | None) -> bool:
    """Whether two names or CANN versions are equal."""
    if one is None or other is None:
        return one is other
    if one.casefold() == other.casefold():
        return True
    return versions.is_cann(one) and versions.is_cann(other) and versions.cann(one) == versions.cann(other)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is so: a sentence, the matrix rows it rests on, and where those come from."""

    says: Message
    rules: tuple[str, ...] = ()  # matrix row ids
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pin:
    """One chosen version."""

    name: str  # normalised distribution name, or "cann", "python"
    version: str
    because: Reason
    why_not_newer: Reason
    # identity | recommended-pair | compatible-set | wheel-exists | metadata-range | image-practice | request
    strength: str
    index: str | None = None  # label in matrix/indexes.toml; None: the default index
    is_python: bool = True  # False for CANN and the like, which no Python resolver sees


@dataclass(frozen=True, slots=True)
class Override:
    """A requirement of a package that the stack overrides, reported to the user."""

    package: str  # whose requirement is overruled, or the excluded package itself
    does: str  # replace | exclude | constrain
    requirement: str  # what is used instead; for exclude: the excluded name
    because: Reason


@dataclass(frozen=True, slots=True)
class GitSource:
    """A component that is built from a repository at a fixed tag or commit."""

    name: str
    repo: str
    ref: str  # tag or commit; never a branch where a tag or commit is published
    is_moving: bool  # True if only a branch is published; every rendering says so
    build_env: Mapping[str, str] = field(default_factory=dict)
    how: str = "install"  # install | editable | pythonpath
    requires: tuple[str, ...] = ()  # what the built package itself requires, for the lock; empty: not recorded
    commit: str = ""  # the beginning of the commit that the tag `ref` names; "": not recorded, or `ref` is no tag
    # For the requested hardware and the architecture; with a known hash an installation takes it instead.
    wheel: ChipWheel | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One entry of a stack's install order: what goes in at this point, as the published recipe has it."""

    id: str  # stable: "torch", "vllm", "triton-ascend", ...
    does: str  # pip | requirements | git | uninstall | rest
    what: tuple[str, ...]  # distribution names, or the git source's name
    why: Message


@dataclass(frozen=True, slots=True)
class Stack:
    """A resolved set of versions for one platform: pure data that lock, plan and images are made from."""

    name: str
    framework: str
    platform: Platform
    pins: tuple[Pin, ...]
    requirements: tuple[str, ...]  # further requirements without an exact pin of our own (the lock pins them)
    overrides: tuple[Override, ...]
    git_sources: tuple[GitSource, ...]
    order: tuple[BuildStep, ...]
    env: Mapping[str, str]  # environment settings at run time
    image: str | None  # base image reference, None for CPU stacks
    cann_root: str | None  # where the image and the plan expect CANN, like /usr/local/Ascend/cann-8.5.0
    soc_version: str | None
    system_packages: tuple[str, ...]
    verified_by: str  # published | recommended | compatible | satisfiable | measured-here
    sources: tuple[str, ...]
    notes: tuple[Message, ...] = ()
    date: str = ""  # the lock takes no package that is younger than this day, YYYY-MM-DD; "": no limit
    public_run: PublicRun | None = None  # that comes closest; None: none is known
    sources_read: tuple[str, str] | None = None  # when the oldest and the youngest deciding row were read, YYYY-MM-DD

    def pin(self, name: str) -> Pin | None:
        """The pin of a package, or None."""
        return next((pin for pin in self.pins if pin.name == name), None)


@dataclass(frozen=True, slots=True)
class Clash:
    """One side of a conflict: what it demands, and its source (a matrix row, or the user's request)."""

    rule: str  # matrix row id, or "request"
    says: Message
    source: str


@dataclass(frozen=True, slots=True)
class WayOut:
    """A changed request that was itself resolved before it is offered."""

    says: Message
    request: Request
    command: tuple[str, ...]  # the npuenv command line that asks for it


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing fits: the smallest clashing set (solvable without any one member), and suggestions, nearest first."""

    request: Request
    clashes: tuple[Clash, ...]
    ways_out: tuple[WayOut, ...]


class ConflictError(NothingFits):
    """Nothing fits a request; `conflict` has the clashing demands and the ways out."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(Message("stack.conflict-title"))
        self.conflict = conflict
