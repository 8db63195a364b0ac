"""Declared checks over facts: what is wrong, why, and what mends it. Start from `check_all`."""

from npuenv.checks.base import Check, Context, Finding, Fix, Status, Verdict, title
from npuenv.checks.run import by_severity, check_all, exit_code

__all__ = ["Check", "Context", "Finding", "Fix", "Status", "Verdict", "by_severity", "check_all", "exit_code", "title"]
