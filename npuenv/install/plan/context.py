"""The inputs of the steps of one installation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from npuenv.core.plan import Run
from npuenv.facts.pip import UvSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.install.locations import EnvironmentPlace
    from npuenv.lock.file import Lock
    from npuenv.resolve.types import GitSource, Stack

LAST = "triton-ascend"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a plan: the base interpreter, uv, how uv links files, and where packages come from."""

    base_python: str
    uv: str
    settings: UvSettings = field(default_factory=UvSettings)
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> address; credentials never reach the plan
    in_links: Mapping[str, str] = field(default_factory=dict)  # name -> find-links folder with exactly this wheel
    # A copy shares nothing with uv's cache: damage in the environment does not reach the cache.
    link_mode: str = "copy"
    wheels: str = ""  # a bundle's folder with every wheel; no index is used then
    given: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> archive or folder instead of git
    digests: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> what `given` holds, as
    # `npuenv.install.plan.local_sources.digests_of` tells it; a name that lacks was not looked at
    # Normalised source name -> what was supplied before and stays, unless `given`: `install.plan.sources.supplied_in`.
    supplied_before: Mapping[str, str] = field(default_factory=dict)
    # Normalised names of what lies in the user's own environment, whole or not; None where nobody looked.
    present: frozenset[str] | None = None
    conda: str = ""  # the program that makes conda environments; needed for a target of that kind

    @property
    def offline(self) -> tuple[str, ...]:
        """uv's options to stay off the network if all packages are local."""
        return ("--offline",) if self.wheels else ()


@dataclass(frozen=True, slots=True)
class Making:
    """A stack, its lock, the target and the tools."""

    stack: Stack
    lock: Lock
    target: EnvironmentPlace
    tools: Tools
    request: Mapping[str, Any] = field(default_factory=dict)  # the request, for the manifest

    @property
    def is_own(self) -> bool:
        """False for an environment that the user already had, whose content may be intentional."""
        return self.target.kind != "existing"

    @property
    def over(self) -> tuple[str, ...]:
        """The verifier's option for the package that may own files of another: it is installed last and takes
        precedence.
        """
        return ("--over", f"{LAST}=triton") if self.lock.package(LAST) else ()

    def uv(self, *argv: str, env: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()) -> Run:
        """A command line of uv."""
        return Run((self.tools.uv, *argv), env or {}, unset)

    def source(self, name: str) -> GitSource:
        """The stack's source of that name. Raises: StopIteration without one, which the stack's order rules out."""
        return next(s for s in self.stack.git_sources if canonicalize_name(s.name) == canonicalize_name(name))
