"""Rows about containers: what of a host belongs into one, and how many cards a node has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npuenv.matrix.rows.base import Row


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
