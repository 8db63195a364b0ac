"""All checks, in the order in which a person would check: machine, cards, driver, CANN, Python, session, network."""

from __future__ import annotations

from npuenv.checks import ray, stack
from npuenv.checks.cann import toolkit
from npuenv.checks.machine import storage, system
from npuenv.checks.network import hccn, host
from npuenv.checks.npu import boards, cards, devices, driver
from npuenv.checks.python import CHECKS as PYTHON
from npuenv.checks.session import settings

MACHINE = (*system.CHECKS, *storage.CHECKS)
NPU = (*cards.CHECKS, *boards.CHECKS, *devices.CHECKS, *driver.CHECKS)
NETWORK = (*hccn.CHECKS, *host.CHECKS)
CHECKS = (*MACHINE, *NPU, *toolkit.CHECKS, *PYTHON, *stack.CHECKS, *settings.CHECKS, *NETWORK, *ray.CHECKS)
