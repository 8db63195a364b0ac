"""Checks of the cards' network and of the host's network."""

from __future__ import annotations

from npuenv.checks.network.hccn import CHECKS as HCCN
from npuenv.checks.network.host import CHECKS as HOST

CHECKS = (*HCCN, *HOST)
