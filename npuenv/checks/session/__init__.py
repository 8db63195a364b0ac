"""Checks of the session's environment variables."""

from __future__ import annotations

from npuenv.checks.session.settings import CHECKS

__all__ = ["CHECKS"]
