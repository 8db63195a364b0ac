"""All checks, in the order in which a person would look: machine, cards, driver, CANN, Python, session."""

from __future__ import annotations

from npuenv.checks.cann import CHECKS as CANN
from npuenv.checks.cards import CHECKS as CARDS
from npuenv.checks.driver import CHECKS as DRIVER
from npuenv.checks.machine import CHECKS as MACHINE
from npuenv.checks.packages import CHECKS as PACKAGES
from npuenv.checks.session import CHECKS as SESSION

CHECKS = (*MACHINE, *CARDS, *DRIVER, *CANN, *PACKAGES, *SESSION)
