"""Rows of the Dockerfiles that others publish."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field

from npuenv.matrix.rows.base import Row


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
