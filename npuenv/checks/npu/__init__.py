"""Checks of the cards, their device nodes and their driver."""

from __future__ import annotations

from npuenv.checks.npu.boards import CHECKS as BOARDS
from npuenv.checks.npu.cards import CHECKS as CARDS
from npuenv.checks.npu.devices import CHECKS as DEVICES
from npuenv.checks.npu.driver import CHECKS as DRIVER
from npuenv.checks.npu.loader import CHECKS as LOADER

CHECKS = (*CARDS, *BOARDS, *DEVICES, *DRIVER, *LOADER)
