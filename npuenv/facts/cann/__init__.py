"""CANN and NNAL on this machine, and the session's paths to them."""

from __future__ import annotations

from npuenv.facts.cann.parts import PartFacts, SurroundingFacts
from npuenv.facts.cann.toolkit import ToolkitFacts


class CannFacts(SurroundingFacts, PartFacts, ToolkitFacts):
    """What is true of CANN and of the packages beside it."""
