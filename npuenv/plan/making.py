"""What the steps of one installation are made from. Start from `Making`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.facts.pip import UvSettings
from npuenv.plan.types import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock.file import Lock
    from npuenv.resolve.types import GitSource, Stack
    from npuenv.store.places import Target


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


@dataclass(frozen=True, slots=True)
class Making:
    """A stack, its lock, where it goes and with what."""

    stack: Stack
    lock: Lock
    target: Target
    tools: Tools

    def uv(self, *argv: str, env: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()) -> Run:
        """A call of uv."""
        return Run((self.tools.uv, *argv), env or {}, unset)

    def source(self, name: str) -> GitSource:
        """The stack's source of that name. Raises StopIteration for none: the stack's order names what it has."""
        return next(s for s in self.stack.git_sources if canonicalize_name(s.name) == canonicalize_name(name))
