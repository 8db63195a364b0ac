"""All checks, in the order in which a person would check: machine, cards, driver, CANN, Python, session, network."""

from __future__ import annotations

from npuenv.checks.cann import CHECKS as CANN
from npuenv.checks.machine import CHECKS as MACHINE
from npuenv.checks.network import CHECKS as NETWORK
from npuenv.checks.npu import CHECKS as NPU
from npuenv.checks.python import CHECKS as PYTHON
from npuenv.checks.ray import CHECKS as RAY
from npuenv.checks.session import CHECKS as SESSION
from npuenv.checks.stack import CHECKS as STACK

CHECKS = (*MACHINE, *NPU, *CANN, *PYTHON, *STACK, *SESSION, *NETWORK, *RAY)
