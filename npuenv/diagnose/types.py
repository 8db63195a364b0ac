"""What a diagnosis is made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.core.errors import ExitCode
    from npuenv.facts.npu.smi import SmiTable
    from npuenv.host.report import PasteLine

T = TypeVar("T")
Sign = tuple[str, "PasteLine"]  # its name, and the line that shows it


class Verdict(enum.Enum):
    """What can be said of a report as a whole."""

    CAUSE = "cause"  # something in the environment explains it
    NOT_ENVIRONMENT = "not-environment"  # it works, or what failed is code, a model, or a question
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True, slots=True)
class Sighting(Generic[T]):
    """A value and the line that gave it."""

    value: T
    line: PasteLine


@dataclass(frozen=True, slots=True)
class DockerRun:
    """One `docker run` line, continuation lines joined."""

    line: PasteLine
    mounts: tuple[str, ...]  # host paths
    devices: tuple[str, ...]
    options: Mapping[str, str]  # long option without dashes -> value, "" for a switch
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """What a report says of the machine and its software. None or empty: it does not say."""

    packages: Mapping[str, Sighting[str]]  # normalised name -> version as written
    changed: Mapping[str, Sighting[str]]  # packages of which two lists in the report name two versions: the later one
    images: Sequence[Sighting[str]]  # container images with their tags
    codes: Mapping[str, PasteLine]  # error codes, each with its first line: EI0006, 507033, -8005
    docker: DockerRun | None
    cann: Sighting[str] | None
    python: Sighting[str] | None  # "3.11"
    vllm_version: Sighting[str] | None  # what the variable VLLM_VERSION says
    gcc: Sighting[str] | None
    driver: Sighting[str] | None = None
    generation: Sighting[str] | None = None  # id of a row of the hardware table
    chip: Sighting[str] | None = None  # its name as written
    table: SmiTable | None = None


@dataclass(frozen=True, slots=True)
class Discriminator:
    """The one command that tells two causes apart, or that shows whether it is the one."""

    command: str
    expect: Mapping[str, str]  # what it shows, by language
    other: str  # the cause it is told apart from; "": from everything else


@dataclass(frozen=True, slots=True)
class Cause:
    """One candidate, with the line that speaks for it most."""

    id: str
    confidence: float
    line: PasteLine
    rules: tuple[str, ...]  # ids of the rows that found it, the strongest first
    commands: tuple[tuple[str, ...], ...] = ()  # what mends it with the versions of this report; empty: see its row
    separate_by: Discriminator | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that looks like trouble and is none, or is not what failed."""

    id: str
    line: PasteLine


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a report shows. Causes are the strongest first; without a verdict CAUSE they are only possible ones."""

    verdict: Verdict
    causes: tuple[Cause, ...]
    observations: tuple[Observation, ...]
    because: Observation | None  # what a verdict other than CAUSE rests on, where something shows it
    missing: tuple[str, ...]  # ids of what would tell more
    facts: ReportFacts
    exit_code: ExitCode
