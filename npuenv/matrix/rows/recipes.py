"""Rows of what others publish: stacks with the parts that they are made of, models, and Dockerfiles."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.core import versions
from npuenv.matrix.load import Row, Strength, VerifiedBy


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

    @property
    def packages(self) -> set[str]:
        """The distribution names in it: pinned, required, or built."""
        names = {pin.name for pin in self.pin} | {git.name for git in self.git}
        return names | {versions.requirement_name(text) for text in self.requirements}

    @property
    def is_release_candidate(self) -> bool:
        """Whether it is of a vllm-ascend release candidate."""
        return self.framework == "vllm-ascend" and versions.python_version(self.release).is_prerelease


@dataclass(frozen=True, slots=True)
class ModelShape(Row):
    """The shape of a published decoder, as its config.json has it. `id` is the name on the hub."""

    parameters: float  # parameters as the publisher counts them, a vision tower and tied layers counted once
    layers: int
    hidden: int
    intermediate: int  # of a dense layer
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    is_tied: bool  # the output layer shares the embedding's weights
    also: tuple[str, ...] = ()  # other names with the same shape
    has_bias: bool = False  # on the query, key and value projections
    has_head_norm: bool = False  # queries and keys are normalized head by head
    experts: int = 0  # routed experts of a sparse layer; 0: a dense model
    experts_active: int = 0  # of them, for one token
    expert_intermediate: int = 0
    experts_shared: int = 0  # which every token passes
    dense_layers: int = 0  # first layers of a mixture that have no experts
    query_rank: int = 0  # latent attention: rank of the query's projection
    latent_rank: int = 0  # latent attention: rank of what the cache keeps of a token
    rope_dim: int = 0  # latent attention: the part of a head with positions, kept beside the latent
    value_dim: int = 0  # latent attention: of a head
    vision: float = 0.0  # parameters of the vision tower


@dataclass(frozen=True, slots=True)
class ModelType(Row):
    """A family of models and the first release of transformers that can load it."""

    family: str  # as its publisher writes it
    pattern: str  # found in names of its models, and of stacks for them
    since: str  # of transformers


@dataclass(frozen=True, slots=True)
class Upstream(Row):
    """One published Dockerfile at one reference."""

    framework: str
    hardware: str
    os: str
    stacks: tuple[str, ...]  # those made from it
    base: str
    cann: str
    python: str
    system_packages: tuple[str, ...]
    packages: Mapping[str, str]  # name -> specifier; "": the version is left open
    sources: Mapping[str, str]  # name -> tag, branch or commit; HEAD: the default branch, or the tree that is built
    moving: tuple[str, ...]  # sources that follow a branch
    order: tuple[str, ...]  # components in the order of their installation; `-triton`: it is removed
    env: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()  # edits of installed files
