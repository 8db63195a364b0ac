"""Declared checks over facts: what is wrong, why, and what fixes it."""

from npuenv.checks.base import Context, title
from npuenv.checks.run import by_severity, check_all, exit_code
from npuenv.core.finding import Finding, Fix, Status

__all__ = [
    "Context",
    "Finding",
    "Fix",
    "Status",
    "by_severity",
    "check_all",
    "exit_code",
    "title",
]
