"""Rows of the published stacks, with the parts that they are made of."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.matrix.rows.base import Row, Strength, VerifiedBy


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
