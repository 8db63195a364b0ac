"""Checks of the machine, its disks and its container."""
