"""What the last step of an installation writes about it. Read back by `npuenv.facts.manifest`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.facts.manifest import SCHEMA, text_hash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.lock.file import Lock
    from npuenv.resolve.types import Stack


def manifest_text(
    stack: Stack,
    lock: Lock,
    *,
    kind: str,
    origin: str,
    steps: Sequence[str],
    request: Mapping[str, Any],
    supplied: Mapping[str, str],
    files: Mapping[str, str],
) -> str:
    """The manifest that the last step writes. The same plan gives the same text: no clock, no host.

    `files`: path below the environment -> text of what the plan itself writes there and puts back when it is lost.
    `supplied`: by name, what a source is that came from no repository: `sha256:HEX`, `tree:HEX` or `folder PATH`.
    """
    sources = [{"name": each.name, "ref": each.ref, "how": each.how} for each in stack.git_sources]
    document = {
        "schema": SCHEMA,
        "npuenv": __version__,
        "stack": stack.name,
        "framework": stack.framework,
        "platform": lock.platform,
        "lock": lock.hash,
        "kind": kind,
        "origin": origin,
        "steps": list(steps),
        "sources": [{**each, "from": supplied[each["name"]]} if each["name"] in supplied else each for each in sources],
        "request": dict(request),
        "files": {path: text_hash(text) for path, text in files.items()},
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
