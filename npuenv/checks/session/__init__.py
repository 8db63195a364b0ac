"""Checks of what the session's variables say."""

from __future__ import annotations

from npuenv.checks.session.settings import CHECKS

__all__ = ["CHECKS"]
