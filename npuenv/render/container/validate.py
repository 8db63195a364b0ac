"""Values of the user that go into run files: each is checked once, so that forms of file need not escape it (but for
blanks in pyxis' list of mounts).

What is refused would end or change a word in at least one of: shell, YAML with compose's and Kubernetes' own variables,
Docker's and pyxis' lists of mounts.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.render.words import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_LISTED = re.compile(r"[,:]")  # they part the words of a list of mounts
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_USER = re.compile(r"\d+(?::\d+)?", re.ASCII)


def plain_words(words: Sequence[str], what: str) -> tuple[str, ...]:
    """The words themselves, each plain. Raises BadInput for one that is not, and for none at all."""
    if not words or not words[0]:
        raise BadInput(Message("container.no-words", {"what": what}), Message("container.no-words-hint"))
    return tuple(plain(word, what) for word in words)


def absolute_path(path: str, what: str) -> str:
    """The path without trailing slashes or `..`. Raises BadInput for a relative one, and for what a list would part."""
    if not plain(path, what).startswith("/"):
        raise BadInput(
            Message("container.relative", {"what": what, "path": path}),
            Message("container.relative-hint", {"what": what, "path": path.removeprefix("./")}),
        )
    found = _LISTED.search(path)
    if found:
        args = {"what": what, "value": repr(path), "character": repr(found.group())}
        raise BadInput(Message("render.unsafe-value", args), Message("container.unsafe-path-hint"))
    clean = "/" + posixpath.normpath(path).lstrip("/")
    if clean == "/":
        raise BadInput(Message("container.whole-root", {"what": what}), Message("container.whole-root-hint"))
    return clean


def object_name(name: str) -> str:
    """The name itself, when Kubernetes takes it and what is derived from it. Raises BadInput.

    Volcano makes a Service of that name, so it begins with a letter. Source: Kubernetes, object names (RFC 1035).
    """
    if not _NAME.fullmatch(name):
        near = near_name(name)
        raise BadInput(Message("container.bad-name", {"name": repr(name)}), Message("container.use", {"near": near}))
    return name


def near_name(words: str) -> str:
    """The nearest that `object_name` takes. Example: "7B_grpo" -> "npuenv-7b-grpo"."""
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return (name if name[:1].isalpha() else f"npuenv-{name}")[:40].strip("-")


def image_name(name: str) -> str:
    """The reference itself, when it is one of an image. Raises BadInput."""
    if not _IMAGE.fullmatch(name):
        raise BadInput(Message("container.bad-image", {"image": repr(name)}), Message("container.bad-image-hint"))
    return name


def user_ids(user: str) -> str:
    """The ids themselves: UID or UID:GID in digits, which every engine understands. Raises BadInput."""
    if not _USER.fullmatch(user):
        raise BadInput(Message("container.bad-user", {"user": repr(user)}), Message("container.bad-user-hint"))
    return user


def has_registry(image: str) -> bool:
    """Whether the reference names a registry: as for Docker, a first part with a dot or a port.

    `localhost` alone is none: podman and buildah call their own images so.
    """
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first)


def is_of_podman(image: str) -> bool:
    """Whether the reference is what podman and buildah call an image of their own, `localhost/...`."""
    return image.startswith("localhost/")
