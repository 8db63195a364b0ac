"""What the records of a run advise, as messages. The trainer finds it; its sentences are in the catalogue `advice`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A trainer of another version may know more; what has no sentence here is left out.
IDS = ("memory-full", "micro-batch", "memory-fraction", "length-clipped", "length-unused", "generation-slow")


def advice(records: Sequence[Mapping[str, Any]]) -> list[Message]:
    """One message for each advice record that has a sentence, in the order of the records."""
    found = [record for record in records if record.get("kind") == "advice" and record.get("id") in IDS]
    return [Message(f"advice.{record['id']}", dict(record.get("args") or {})) for record in found]
