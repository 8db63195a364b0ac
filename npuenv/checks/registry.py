"""All checks, in the order in which a person would check: machine, cards, driver, CANN, Python, session, network."""

from __future__ import annotations

from npuenv.checks import machine, ray, stack
from npuenv.checks.cann import toolkit
from npuenv.checks.network import hccn, host
from npuenv.checks.npu import boards, cards, devices, driver
from npuenv.checks.python import CHECKS as PYTHON
from npuenv.checks.session import settings

NPU = (*cards.CHECKS, *boards.CHECKS, *devices.CHECKS, *driver.CHECKS)
NETWORK = (*hccn.CHECKS, *host.CHECKS)
CHECKS = (*machine.CHECKS, *NPU, *toolkit.CHECKS, *PYTHON, *stack.CHECKS, *settings.CHECKS, *NETWORK, *ray.CHECKS)
