"""Finds what will not work in a launch of verl or ROLL, before it is started."""

from __future__ import annotations
