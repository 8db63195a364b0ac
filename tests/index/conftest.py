"""A package index made on the spot, and what is asked of it."""

from __future__ import annotations

from tests.support.package_index import index, matrix, settings, steps

__all__ = ["index", "matrix", "settings", "steps"]
