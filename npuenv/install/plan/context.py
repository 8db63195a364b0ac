"""What the steps of one installation are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from npuenv.core.plan import Run
from npuenv.facts.pip import UvSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.install.locations import Target
    from npuenv.lock.file import Lock
    from npuenv.resolve.types import GitSource, Stack

LAST = "triton-ascend"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a plan runs with: the base interpreter, uv, how uv links files, and where packages come from."""

    base_python: str
    uv: str
    settings: UvSettings = field(default_factory=UvSettings)
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> address; credentials never reach the plan
    in_links: Mapping[str, str] = field(default_factory=dict)  # name -> find-links folder that holds exactly this wheel
    # A copy shares nothing with uv's cache: a file damaged in the environment stays whole in the cache.
    link_mode: str = "copy"
    wheels: str = ""  # a bundle's folder that holds every wheel; then no index is asked for anything
    given: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> archive or folder instead of git
    digests: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> what `given` holds, as
    # `npuenv.install.plan.local_sources.digests_of` tells it; a name that lacks was not looked at
    # Normalised source name -> what was supplied before and stays, unless `given`: `install.plan.sources.supplied_in`.
    kept: Mapping[str, str] = field(default_factory=dict)
    # Normalised names of what lies in the user's own environment, whole or not; None where nobody looked.
    present: frozenset[str] | None = None
    conda: str = ""  # the program that makes conda environments; needed for a target of that kind

    @property
    def offline(self) -> tuple[str, ...]:
        """What keeps uv from the network where everything is at hand."""
        return ("--offline",) if self.wheels else ()


@dataclass(frozen=True, slots=True)
class Making:
    """A stack, its lock, where it goes and with what."""

    stack: Stack
    lock: Lock
    target: Target
    tools: Tools
    request: Mapping[str, Any] = field(default_factory=dict)  # what was asked for, for the manifest

    @property
    def is_own(self) -> bool:
        """False for an environment that the user had already: what lies there may be meant as it is."""
        return self.target.kind != "existing"

    @property
    def over(self) -> tuple[str, ...]:
        """The inspector's word for the one package that may own files of another: it goes in last, and counts."""
        return ("--over", f"{LAST}=triton") if self.lock.package(LAST) else ()

    def uv(self, *argv: str, env: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()) -> Run:
        """A call of uv."""
        return Run((self.tools.uv, *argv), env or {}, unset)

    def source(self, name: str) -> GitSource:
        """The stack's source of that name. Raises StopIteration for none: the stack's order names what it has."""
        return next(s for s in self.stack.git_sources if canonicalize_name(s.name) == canonicalize_name(name))
