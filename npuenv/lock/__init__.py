"""Full, hashed locks of the Python layer. Start from `make_lock`, `read_lock` and `write_lock`."""

from __future__ import annotations

from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing, Proof, parse_lock, read_lock, write_lock

__all__ = ["Lock", "LockedPackage", "LockedSource", "Missing", "Proof", "parse_lock", "read_lock", "write_lock"]
