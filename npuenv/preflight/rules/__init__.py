"""What `npuenv preflight` looks for: RULES, in the order in which a reader wants to hear of them.

A rule is a pure function from a Launch to problems; each module holds the rules of one subject. No rule runs anything,
and only `data` looks at files, where the launch is to run on this machine.
"""

from __future__ import annotations

from npuenv.preflight.rules import (
    batches,
    cards,
    data,
    environment,
    keys,
    lengths,
    memory,
    platform,
    safety,
    started,
    unjudged,
    values,
)
from npuenv.preflight.rules.base import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *unjudged.RULES,
    *started.RULES,
    *keys.RULES,
    *platform.RULES,
    *cards.RULES,
    *batches.RULES,
    *lengths.RULES,
    *values.RULES,
    *environment.RULES,
    *data.RULES,
    *safety.RULES,
    *memory.RULES,
)
