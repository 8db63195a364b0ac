"""What `npuenv preflight` looks for. Each module holds the rules of one subject.

A rule is a pure function from a Launch to problems. No rule runs anything, and only `data` looks at files, where the
launch is to run on this machine.
"""

from __future__ import annotations

from npuenv.preflight.rules import (  # noqa: F401 - each adds its rules to RULES
    cards,
    data,
    keys,
    memory,
    platform,
    sizes,
    values,
)
from npuenv.preflight.rules.base import RULES, Rule

__all__ = ["RULES", "Rule"]
