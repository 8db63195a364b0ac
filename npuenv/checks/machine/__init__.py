"""Checks of the machine, its disks and its container."""

from __future__ import annotations

from npuenv.checks.machine.container import CHECKS as CONTAINER
from npuenv.checks.machine.storage import CHECKS as STORAGE
from npuenv.checks.machine.system import CHECKS as SYSTEM

CHECKS = (*SYSTEM, *STORAGE, *CONTAINER)
