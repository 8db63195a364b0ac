"""Complete, hashed locks of the Python packages of a stack."""

from __future__ import annotations

from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing, Proof, parse_lock, read_lock, write_lock

__all__ = ["Lock", "LockedPackage", "LockedSource", "Missing", "Proof", "parse_lock", "read_lock", "write_lock"]
