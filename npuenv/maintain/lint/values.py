"""What the linter reads out of a checkout: asks for packages, what a script does in order, base images.

Also findings, and whether two version ranges can hold together. Nothing here judges. A text that could not be decided
(an unset variable, the output of a command) is never guessed: a version is None then, a name or a path is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npuenv.core import versions
from npuenv.core.fact import Evidence
from npuenv.core.finding import STATUS_OF, Finding
from npuenv.core.messages import Message
from npuenv.matrix.load import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.specifiers import SpecifierSet

    from npuenv.core.finding import Location, Severity


def finding(
    location: Location,
    rule: str,
    args: Mapping[str, object],
    evidence: Iterable[object],
    severity: Severity,
    *,
    says: str = "",
) -> Finding:
    """A finding of `lint.<rule>`; its sentence is `lint.<says>`, else that of the rule.

    `evidence`: the lines and matrix rows of both sides, as texts or as what was read from them.
    """
    sentence = Message(f"lint.{says or rule}", args)
    lines = tuple(Evidence("", cited(each) if isinstance(each, Row) else str(each)) for each in evidence)
    return Finding(f"lint.{rule}", STATUS_OF[severity], sentence, lines, "", None, location)


def cited(row: Row) -> str:
    """A row of the matrix as findings name it."""
    return f"{row.id} ({row.source})"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement as a file or a command states it."""

    name: str  # normalised
    spec: SpecifierSet | None  # None: the version is not decided by the text
    text: str
    place: Location
    arch: str = ""  # only on this architecture
    indexes: tuple[str, ...] = ()  # addresses in effect beside the default index

    @property
    def exact(self) -> str:
        """The one version it takes, a local part included; "" where it takes more or is not decided."""
        pins = [each for each in self.spec or () if each.operator in ("==", "===") and "*" not in each.version]
        return pins[0].version if len(pins) == 1 else ""

    def on(self, arch: str) -> bool:
        return not self.arch or not arch or self.arch == arch

    def __str__(self) -> str:
        """With its place; one of the matrix has the row's id there and no line."""
        return f"{self.place if self.place.line else self.place.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class RequirementFile:
    """The requirements that one file makes together."""

    path: str
    kind: Literal["requirements", "project", "build", "extra"]
    requirements: tuple[Requirement, ...]
    label: str = ""  # which extra; the project's own name where the kind is "project"


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A base image; "" for what its tag does not say."""

    place: Location
    text: str
    cann: str = ""
    chip: str = ""
    os: str = ""
    python: str = ""
    release: str = ""  # of vllm-ascend, where it is one of its images

    def __str__(self) -> str:
        return f"{self.place}: FROM {self.text}"


@dataclass(frozen=True, slots=True)
class Clone:
    """A repository that a script fetches. `ref` is "" for the default branch, None where it is not decided."""

    place: Location
    repo: str  # the last part of the address, lower case, without .git
    ref: str | None
    folder: str
    certain: bool


@dataclass(frozen=True, slots=True)
class PipInstall:
    """One `pip install`."""

    place: Location
    requirements: tuple[Requirement, ...]
    files: tuple[str, ...]  # requirement files, as absolute paths inside the image
    builds: tuple[str, ...]  # folders that it builds, as absolute paths inside the image
    indexes: tuple[str, ...]
    env: Mapping[str, str]
    no_deps: bool
    arch: str
    certain: bool  # False: depends on something that the text does not decide
    opaque: bool = False  # also installs something that the text does not name


@dataclass(frozen=True, slots=True)
class Uninstall:
    """One `pip uninstall`."""

    place: Location
    names: tuple[str, ...]
    arch: str
    certain: bool


@dataclass(frozen=True, slots=True)
class EnvSetting:
    """An environment variable that is set, in the image or in one command line."""

    place: Location
    name: str
    value: str
    arch: str

    def __str__(self) -> str:
        return f"{self.place}: {self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something else a rule looks for."""

    place: Location
    kind: Literal["source", "tls", "download", "instruction", "cann"]
    text: str
    arch: str = ""
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


Event = Clone | PipInstall | Uninstall | EnvSetting | Remark


@dataclass(frozen=True, slots=True)
class LintedScript:
    """A stage of a Dockerfile or a shell script: what it does, in order."""

    path: str
    shell: Literal["bash", "sh", "unset"]  # "unset": a Dockerfile without SHELL
    events: tuple[Event, ...]
    image: BaseImage | None = None
    copies: tuple[str, ...] = ()  # folders of the image that hold the whole build context
    platform: str = ""  # what `FROM --platform` fixes


@dataclass(frozen=True, slots=True)
class LintedTree:
    """Everything that was read below one of the paths."""

    root: str
    files: tuple[RequirementFile, ...] = ()
    scripts: tuple[LintedScript, ...] = ()
    findings: tuple[Finding, ...] = ()  # what could not be read


_HIGHEST = "99999"


def disjoint(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Whether no version satisfies both."""
    return not versions.overlap(str(one), str(other))


def within(inner: SpecifierSet, outer: SpecifierSet) -> bool:
    """Whether every version that `inner` takes is taken by `outer` (an unbounded `inner` is within nothing bounded)."""
    return "===" not in f"{inner}{outer}" and inner.is_subset(outer)


def takes_newest(spec: SpecifierSet) -> bool:
    """Whether a range has no upper bound."""
    return spec.contains(_HIGHEST, prereleases=True)
