"""Hashes of texts, and the seal of a document that npuenv keeps in an environment; part of the verifier too."""

from __future__ import annotations

import hashlib
import json

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would take the verifier longer than this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def text_hash(text: str) -> str:
    """What the manifest holds of each file that an installation wrote itself."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def seal_of(document: Mapping[str, Any]) -> str:
    """The hash of all of a document but its `seal`."""
    return text_hash(json.dumps({name: document[name] for name in document if name != "seal"}, sort_keys=True))


def is_sealed(document: Mapping[str, Any]) -> bool:
    """Whether a document's seal is right; an older npuenv wrote none."""
    return "seal" not in document or document["seal"] == seal_of(document)
