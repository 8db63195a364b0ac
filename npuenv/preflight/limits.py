"""What no launch is as large as, once aliases, variables and lists are filled in."""

from __future__ import annotations

from typing import Literal

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

LETTERS = 300_000  # of one YAML file; all values of verl's own configuration take 40,000
VALUES = 20_000  # of one YAML file, aliases expanded; verl's own configuration has 600
LEVELS = 60  # far below Python's own limit
DIGITS = 300  # float() of a longer number fails
FILES = 200  # that the `defaults:` of one configuration lead to
WORDS = 10_000  # of one command
SCRIPTS = 20  # that stand in the text of one another
BYTES = 1_000_000  # of one file


class TooLarge(BadInput):
    """It would take minutes or all memory to read it to the end."""

    def __init__(
        self,
        path: str,
        most: int,
        what: Literal["digits", "files", "letters", "levels", "scripts", "values", "words"],
    ) -> None:
        args = {"path": path, "most": most, "what": Message(f"preflight.large-{what}")}
        super().__init__(Message("preflight.too-large", args))
