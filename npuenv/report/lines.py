"""Lines that several reports share: indented ones on a console, how old the sources are, and what names a capture."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.core.shell import shell_line

if TYPE_CHECKING:
    from rich.console import Console


class Lines:
    """Writes headings and indented lines, without markup from data."""

    def __init__(self, console: Console, lang: str, catalogue: str) -> None:
        self.console = console
        self.lang = lang
        self._catalogue = catalogue

    def word(self, key: str, /, **args: object) -> str:
        """The text of a key of the catalogue."""
        return say(Message(f"{self._catalogue}.{key}", args), self.lang)

    def say(self, message: Message) -> str:
        """The text of any message."""
        return say(message, self.lang)

    def head(self, text: str) -> None:
        """A heading with a blank line above it."""
        self.console.print()
        self.line(text, style="bold")

    def line(self, text: str, indent: int = 0, style: str | None = None) -> None:
        """One line; a terminal folds it within its indent."""
        from rich.padding import Padding
        from rich.text import Text

        self.console.print(Padding(Text(text, style=style or "", overflow="fold"), (0, 0, 0, indent), expand=False))


OLD = 90  # days after which a source is called old
today = datetime.date.today


def sources_line(oldest: str, youngest: str) -> Message:
    """When the oldest and the youngest deciding source were read (YYYY-MM-DD); a note where the oldest is old."""
    days = (today() - datetime.date.fromisoformat(oldest)).days
    key = "sources-old" if days > OLD else "sources-read" if oldest != youngest else "sources-read-once"
    return Message(f"stack.{key}", {"oldest": oldest, "youngest": youngest, "days": days})


def for_capture(text: str, capture: str) -> str:
    """The text in which `resolve` reads the capture that was examined ("": none): its reader may be elsewhere."""
    if not capture:
        return text
    return text.replace("npuenv resolve --host this ", f"npuenv resolve --host {shell_line((capture,))} ")
