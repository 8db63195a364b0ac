"""How old the sources are that an answer rests on, in one sentence."""

from __future__ import annotations

import datetime

from npuenv.core.messages import Message

OLD = 90  # days after which a source is called old
today = datetime.date.today


def sources_line(oldest: str, youngest: str) -> Message:
    """When the oldest and the youngest deciding source were read (YYYY-MM-DD); a note where the oldest is old."""
    days = (today() - datetime.date.fromisoformat(oldest)).days
    key = "sources-old" if days > OLD else "sources-read" if oldest != youngest else "sources-read-once"
    return Message(f"stack.{key}", {"oldest": oldest, "youngest": youngest, "days": days})
