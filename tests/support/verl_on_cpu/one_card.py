"""acl as Ray asks it for the number of cards: one."""

from __future__ import annotations


class rt:
    """The runtime's part."""

    @staticmethod
    def get_device_count() -> tuple[int, int]:
        """The count, and the return code."""
        return 1, 0


def get_soc_name() -> str:
    """The chip's name."""
    return "Ascend910B1"
