"""Rows of the published verl runs, and of the names that verl's releases give their keys."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from npuenv.matrix.rows.base import Row


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
