"""Which variables of a session are compared between nodes: the patterns of `variables.toml`. Start from `variables`."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from npuenv.core.files import folder_of
from npuenv.core.toml_input import load_file


@dataclass(frozen=True, slots=True)
class Variables:
    """Which variables of a session are compared."""

    compared: re.Pattern[str]
    own: re.Pattern[str]  # differ from node to node by their meaning
    breaking: re.Pattern[str]  # a difference ends the run

    def is_compared(self, name: str) -> bool:
        return bool(self.compared.fullmatch(name)) and not self.own.fullmatch(name)


@functools.cache
def variables() -> Variables:
    """Which variables are compared, and which of them break a run."""
    rows = load_file(folder_of(__file__) / "variables.toml", is_ours=True)
    return Variables(*(re.compile("|".join(rows[name])) for name in ("compared", "own", "breaking")))
