"""All checks, in the order in which a person would look: the machine, its cards, the driver, CANN, Python, the session."""

from __future__ import annotations

from npuenv.checks import cann, cards, driver, machine, packages

_ALL = (
    *machine.CHECKS[:6],
    *cards.CHECKS[:-1],
    *driver.CHECKS,
    *cann.CHECKS,
    *packages.CHECKS,
    cards.CHECKS[-1],
    *machine.CHECKS[6:],
)
CHECKS = _ALL
