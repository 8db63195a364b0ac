"""Checks of CANN and NNAL."""

from __future__ import annotations

from npuenv.checks.cann.toolkit import CHECKS

__all__ = ["CHECKS"]
