"""Rows of ROLL's launch files: what a release of ROLL takes, and the values of a published sample."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.matrix.rows.base import Row

_FEWEST_DIGITS = 7  # of a shortened commit


@dataclass(frozen=True, slots=True)
class RollRelease(Row):
    """Releases and commits of ROLL whose launch files have one form."""

    versions: str  # a specifier, like ">=0.3.0"
    names: tuple[str, ...]  # commits (a beginning of eight digits) and other names of the same form
    counts_as: str  # the version that stands for the names
    engine: Literal["fsdp2", "deepspeed-zero3"]
    allows_colocated: bool  # training and generation on the same cards
    stack: str  # the published stack of this form, where none is asked for; a row of matrix/frameworks
    defaults: tuple[str, ...] = ()  # files of examples/config that its training strategy needs

    def is_called(self, name: str) -> bool:
        """Whether a name is one of the row's own, or the same commit written shorter or longer."""
        return any(name == each or _is_commit(name, each) for each in self.names)


def _is_commit(wanted: str, known: str) -> bool:
    """Whether one is the beginning of the other, both long enough to be commits."""
    return min(len(wanted), len(known)) >= _FEWEST_DIGITS and (wanted.startswith(known) or known.startswith(wanted))


@dataclass(frozen=True, slots=True)
class RollDeparture:
    """A published value that is not written, or one that is and was not published."""

    key: str  # dotted; in no `values` of the recipe: it is left out
    sample: str  # the sample's YAML text; "": the sample does not have the key
    why: str  # key of a sentence


@dataclass(frozen=True, slots=True)
class RollRecipe(Row):
    """A published sample as dotted keys with their YAML texts, in the order in which they are written.

    Cards, strategy settings and what follows from the sizes are not here: they come from the placement and the job.
    """

    pipeline: Literal["agentic", "rlvr"]
    about: str  # key of a sentence
    shape: str  # the model whose sizes count, a row of matrix/models.toml
    cards_per_node: int
    nodes: int
    hardware: str
    train: str  # global card numbers of the published plan, like "0-3,8-11"
    infer: str
    reference: str
    offloads: bool = False  # parameters and optimizer states wait in the host's memory
    like: str = ""  # another recipe, whose defaults and values come first; "": none
    defaults: tuple[str, ...] = ()  # files of examples/config beside the release's own
    values: Mapping[str, str] = field(default_factory=dict)
    fsdp2: Mapping[str, str] = field(default_factory=dict)  # only for releases that train with FSDP2
    deepspeed: Mapping[str, str] = field(default_factory=dict)  # only for releases that train with DeepSpeed
    departure: tuple[RollDeparture, ...] = ()  # each is named where it is rendered
    local_code: Mapping[str, str] = field(default_factory=dict)  # only where model-written code may run on the nodes
