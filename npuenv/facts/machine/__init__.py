"""The machine below everything: system, limits, memory, disks, container, processes."""

from __future__ import annotations

from npuenv.facts.machine.hardware import HardwareFacts
from npuenv.facts.machine.session import SessionFacts
from npuenv.facts.machine.storage import StorageFacts
from npuenv.facts.machine.system import SystemFacts


class MachineFacts(SessionFacts, HardwareFacts, StorageFacts, SystemFacts):
    """What is true of the machine or container itself."""
