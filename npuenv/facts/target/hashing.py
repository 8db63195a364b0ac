"""The hash of a file as RECORD writes it. Part of the doctor's `hashes` and of `npuenv.install.env_verifier`."""

from __future__ import annotations

import base64
import hashlib
import os

CHUNK = 1 << 20


def sha256(path: str, size: int = CHUNK) -> str:
    """As RECORD writes it: `sha256=` and urlsafe base64 without padding. `size`: as expected. Raises OSError."""
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One byte more than there is: a short answer is the end, and no second one is asked for.
        chunk = os.read(file, min(size + 1, CHUNK))
        digest.update(chunk)
        is_all = len(chunk) == size < CHUNK
        while not is_all:
            chunk = os.read(file, CHUNK)
            digest.update(chunk)
            is_all = not chunk
    finally:
        os.close(file)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
