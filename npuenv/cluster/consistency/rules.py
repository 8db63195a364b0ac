"""The rows of `aspects.toml`: what is compared, and what a difference means. Start from `aspects`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency import cards, network, readers
from npuenv.core.files import folder_of
from npuenv.core.toml_input import load_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.cluster.consistency.values import Told
    from npuenv.facts.collect import Facts


@dataclass(frozen=True, slots=True)
class Aspect:
    """One row: something that is to be the same on all nodes."""

    id: str
    read: Callable[[Facts], Told]
    differs: str  # fail, warn, release:N, set, breaking, with-ray; see aspects.toml
    source: str
    fix: str  # the name of its sentence in the catalogue
    tolerance: float  # the share by which numbers may differ
    layout: Callable[[Mapping[str, Facts]], bool] | None  # whether values of which none is common look like a plan
    may_lack: frozenset[str]  # topics that a node may be without: under `release` only a warning
    wanted: tuple[str, ...]  # the right values, the most usual one first; () where there is no such thing
    unwanted: str  # what it means that all agree on another one: warn, or skip where each node's doctor judges it
    is_layout: bool  # cards of one machine may differ, as long as those of the same number do not
    is_about_cards: bool
    is_for_cards: bool  # only nodes that have cards need it
    is_dangerous: bool  # its cure touches security


@functools.cache
def aspects() -> tuple[Aspect, ...]:
    """All rows, in the order in which they are told."""
    rows = load_file(folder_of(__file__) / "aspects.toml", is_ours=True)["aspect"]
    return tuple(
        Aspect(
            id=row["id"],
            read=_named(row["from"]),
            differs=row["differs"],
            source=row["source"],
            fix=row.get("fix", row["id"]),
            tolerance=row.get("tolerance", 0.0),
            layout=_named(row["layout"]) if "layout" in row else None,
            may_lack=frozenset(row.get("may_lack", ())),
            wanted=tuple(row.get("wanted", ())),
            unwanted=row.get("unwanted", "skip"),
            is_layout=row.get("is_layout", False),
            is_about_cards=row.get("is_about_cards", False),
            is_for_cards=row.get("is_for_cards", False) or row.get("is_about_cards", False),
            is_dangerous=row.get("is_dangerous", False),
        )
        for row in rows
    )


def _named(name: str) -> Any:
    """The function that a row names as `module.function`."""
    module, _, function = name.partition(".")
    return getattr({"readers": readers, "cards": cards, "network": network}[module], function)
