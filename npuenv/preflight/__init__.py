"""What will not work in a launch of verl or ROLL, said before hours are lost. Start from `examine`."""

from __future__ import annotations
