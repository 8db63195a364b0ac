"""The cards and their driver as the host shows them."""

from __future__ import annotations

from npuenv.facts.npu.cards import CardFacts, HolderFacts
from npuenv.facts.npu.driver import DriverFacts


class NpuFacts(CardFacts, HolderFacts, DriverFacts):
    """What is true of cards and driver."""
