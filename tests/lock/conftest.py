"""A package index on the loopback address, for what locks."""

from __future__ import annotations

from tests.support.market import market

__all__ = ["market"]
