"""Rows about what runs are started with: published runs of verl and ROLL, their keys, and what a container gets.

The rows about keys say which values one takes or not, under which name a release has it, and where one went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.matrix.load import Row


@dataclass(frozen=True, slots=True)
class LaunchRecipe(Row):
    """One published run of verl: on what it ran, and what it writes over verl's own configuration."""

    algorithm: Literal["grpo", "dapo", "ppo", "sft"]
    model: str
    strategy: Literal["fsdp", "fsdp2", "megatron"]
    rollout: Literal["vllm", "sglang", "none"]
    script: str  # the upstream file, or the guide
    hardware: tuple[str, ...]  # ids in hardware.toml
    cards_per_node: int
    nodes: int
    since: str  # first release of verl that it is rendered for
    until: str = ""  # first release that it is no longer rendered for
    # Dotted keys as the newest releases name them, values as Hydra reads them. Paths are not here.
    values: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # variables that the source sets and that HCCL reads
    base: str = ""  # id of the recipe whose values hold where this one says nothing
    entry: Literal["main", "one-step-off", "sft"] = "main"
    infer_cards_per_node: int = 0  # cards of a node that only generate; 0: all cards do both
    refused: str = ""  # key of the sentence why no files are rendered
    notes: tuple[str, ...] = ()  # keys of sentences for the head of the files


@dataclass(frozen=True, slots=True)
class LaunchKey(Row):
    """Under which name, and since when, a release of verl has a key that the recipes write."""

    key: str  # as the recipes write it; with a dot at the end: everything below it
    since: str = ""  # first release that has it, or that reads it, under this name; "": all
    before: str = ""  # its name in older releases; "": it had none, and is left out there
    until: str = ""  # first release that refuses it; "": none
    is_open: bool = False  # verl's own configuration does not list it: on a command line Hydra must be told to add it
    note: str = ""  # key of the sentence that says what leaving it out means

    def covers(self, key: str) -> bool:
        """Whether the row is about a key, given as the recipes write it."""
        return _covers(self.key, key)

    def adds(self, key: str) -> bool:
        """Whether verl's configuration does not list a key, given under any of its names, although verl reads it."""
        return self.is_open and (_covers(self.key, key) or _covers(self.before, key))


def _covers(pattern: str, key: str) -> bool:
    return bool(pattern) and (key.startswith(pattern) if pattern.endswith(".") else key == pattern)


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


@dataclass(frozen=True, slots=True)
class Choice(Row):
    """The words that a key takes. `key` may hold `*` for any number of parts."""

    framework: Literal["verl", "roll"]
    key: str
    values: tuple[str, ...]
    since: str = ""  # the framework's release from which on this list holds; "": from the first
    until: str = ""  # the first release for which it holds no more
    is_open: bool = False  # users may add words of their own: one outside of the list is doubtful, no more


@dataclass(frozen=True, slots=True)
class Bound(Row):
    """The numbers that a key takes. `key` may hold `*` for any number of parts."""

    framework: Literal["verl", "roll"]
    key: str
    kind: Literal["whole", "decimal"]
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf  # as `least`, itself left out
    also: tuple[float, ...] = ()  # values outside of the range that mean something: -1 for all
    unless: tuple[str, ...] = ()  # KEY=VALUE: where one is in force, the range is another


@dataclass(frozen=True, slots=True)
class RefusedValue(Row):
    """Values of keys or variables that a launch is warned of. Without `values` and `pattern` it is any value."""

    rule: str  # of preflight, without its prefix; several rows may share it, and the first one that holds speaks
    frameworks: tuple[Literal["verl", "roll"], ...]
    keys: tuple[str, ...] = ()  # `*` for any number of parts
    variables: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression for the whole value
    since: str = ""  # the framework's release from which on the row holds; "": from the first
    until: str = ""  # the first release for which it holds no more
    not_on: tuple[str, ...] = ()  # hardware on which the value works
    severity: Literal["error", "warning", "note"] = "error"
    says: str = ""  # the sentence; "": that of the rule
    fix: str = ""  # the value to write instead, as in YAML
    removes: bool = False  # instead: take the setting out


@dataclass(frozen=True, slots=True)
class MovedKey(Row):
    """A key, or the beginning of several, that has another name from a release on."""

    framework: Literal["verl", "roll"]
    old: str
    new: str  # "": gone, and nothing stands in its place
    since: str


@dataclass(frozen=True, slots=True)
class ContainerPlace(Row):
    """A device node, folder or file of the host that a container gets under the same path."""

    path: str
    kind: Literal["device", "directory", "file"]
    hardware: tuple[str, ...]  # ids of generations
    # always: nothing works without it | several-nodes: needed there, else taken where it exists | if-there: taken where
    # it exists | asked: only on request, then taken where it exists
    need: Literal["always", "several-nodes", "if-there", "asked"]
    why: str = ""  # what to do where it is missing


@dataclass(frozen=True, slots=True)
class ContainerCards(Row):
    """The cards of a node of one generation, counted as /dev/davinciN counts them."""

    hardware: str
    usual: int  # cards of a usual node; 0: nodes differ too much to take one for usual
    most: int  # no node has more
    resource: str  # what the device plugin of Kubernetes calls such a card
    label: str = ""  # value of the label ring-controller.atlas; "": no source names one
    # Label accelerator-type of a node with up to `usual` cards, and of one with more; "": Volcano's plugin needs none.
    node_type: str = ""
    large_node_type: str = ""
