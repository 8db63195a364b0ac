"""The machine below everything: system, limits, memory, disks, container, processes."""

from __future__ import annotations

from npuenv.facts.machine.hardware import HardwareFacts, StorageFacts
from npuenv.facts.machine.system import SessionFacts, SystemFacts


class MachineFacts(SessionFacts, HardwareFacts, StorageFacts, SystemFacts):
    """What is true of the machine or container itself."""
