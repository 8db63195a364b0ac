"""The files that start a training run, and whether it fits: as a document and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.preflight.memory.types import written_cards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.render.launch.generate import LaunchFiles
    from npuenv.render.writing import WrittenFiles


def document(made: LaunchFiles, written: WrittenFiles, lang: str, code: int) -> dict[str, object]:
    """The `npuenv.launch/1` document."""
    found = made.estimate
    return {
        "schema": "npuenv.launch/1",
        "exit": code,
        "framework": made.stack.framework,
        "recipe": made.options.recipe,
        "release": made.options.release,
        "stack": made.stack.name,
        "cards": {"per_node": made.job.cards.per_node, "nodes": made.job.cards.nodes, "because": made.because.key},
        "placement": {
            "layout": made.placement.layout,
            "train": list(made.placement.train),
            "infer": list(made.placement.infer),
            "reference": list(made.placement.reference),
        },
        "estimate": {
            "verdict": found.verdict,
            "peak_gib": round(found.peak_gib, 1),
            "memory_gib": found.memory_gib,
            "shares": [{"role": each.role, "what": each.what, "gib": round(each.gib, 2)} for each in found.shares],
            "says": [say(each, lang) for each in found.says],
            "advice": [say(each, lang) for each in found.advice],
        },
        "notes": [say(each, lang) for each in made.notes],
        "files": sorted(made.files),
        "written": sorted(written.files),
        "removed": sorted(written.removed),
    }


def head(made: LaunchFiles) -> Iterator[Message]:
    """What the run is made of, where it goes, and what to know about it."""
    placed = made.placement
    cards = {
        "train": written_cards(placed.train),
        "infer": written_cards(placed.infer) or "-",
        "reference": written_cards(placed.reference) or "-",
    }
    took = {"framework": made.stack.framework, "stack": made.stack.name}
    took |= {"recipe": made.options.recipe, "release": made.options.release}
    yield Message("launch_roll.took", took)
    yield made.because
    yield Message("launch_roll.placed", cards)
    yield from made.notes


def estimate(made: LaunchFiles, *, is_whole: bool) -> Iterator[Message]:
    """Whether the run fits into memory and what would help; `is_whole`: with all that the estimate rests on."""
    yield from made.estimate.says if is_whole else made.estimate.says[:1]
    for message in made.estimate.advice:
        yield Message("launch_roll.advice", {"what": message})
