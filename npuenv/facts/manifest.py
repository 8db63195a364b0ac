"""What an environment that npuenv made says of itself: what it was made from, what was verified when. `describe`.

Three small files make it up. The marker (`npuenv-env.json`) says which lock, and building or complete; the manifest
(`.npuenv/manifest.json`) what the plan knew; `.npuenv/verified.json` is the inspector's word, with the time.
"""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, TomlError, parse_json, parse_toml
from npuenv.core.fact import Evidence, Fact, absent, known
from npuenv.core.seal import is_sealed
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Mapping


MARKER = "npuenv-env.json"
MANIFEST = ".npuenv/manifest.json"
VERIFIED = ".npuenv/verified.json"
LOCK = ".npuenv/lock.toml"
SCHEMA = "npuenv.environment/1"
DAMAGED = "damaged"  # the status of an environment whose marker cannot be read


@dataclass(frozen=True, slots=True)
class LastVerification:
    """The last verification that found everything in place."""

    lock: str
    at: str = ""  # UTC, ISO 8601, whole seconds
    files: int = 0
    packages: int = 0
    tree: str = ""  # over path and sha256 of every file that a distribution owns
    strangers: tuple[str, ...] = ()  # `.pth` files of no package: Python runs them whenever it starts
    # Packages of the lock: each of their files was as recorded. (): verified by a version that did not write them.
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """An environment that npuenv made or began."""

    root: str
    stack: str
    platform: str
    lock: str
    status: str  # building | complete | damaged: the marker cannot be read, the other files say whose it is
    framework: str = ""  # what the stack is for; "": never finished, or by a version that did not write it
    npuenv: str = ""  # the version that finished it; "": never finished
    kind: str = ""  # venv | conda | existing
    origin: str = ""  # indexes | bundle
    steps: tuple[str, ...] = ()
    sources: tuple[Mapping[str, str], ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)  # what was asked for, as the resolver takes it
    verified: LastVerification | None = None
    lost: tuple[str, ...] = ()  # files that belong to no package, below the root, not there or not as they were
    hooks: tuple[str, ...] = ()  # files that Python runs whenever it starts and that came after the verification

    @property
    def is_proven(self) -> bool:
        """True when it is complete and was verified for the lock that it says it has."""
        return self.status == "complete" and self.verified is not None and self.verified.lock == self.lock

    def as_json(self) -> dict[str, Any]:
        """The part of a JSON document that is about this environment."""
        seen = self.verified
        return {
            "root": self.root,
            "stack": self.stack,
            "framework": self.framework,
            "platform": self.platform,
            "lock": self.lock,
            "status": self.status,
            "npuenv": self.npuenv,
            "kind": self.kind,
            "origin": self.origin,
            "steps": list(self.steps),
            "sources": [dict(source) for source in self.sources],
            "request": dict(self.request),
            "lost": list(self.lost),
            "hooks": list(self.hooks),
            "verified": seen and {**asdict(seen), "strangers": list(seen.strangers), "named": list(seen.named)},
        }


def describe(host: Host, root: str) -> Described | None:
    """What the environment at `root` says of itself; None where npuenv made none there. Torn files count as empty.

    Where the marker is there and cannot be read, the manifest speaks for it, or else the lock beside that.
    """
    marker, manifest = (_document(host, posixpath.join(root, name)) for name in (MARKER, MANIFEST))
    if not isinstance(marker.get("stack"), str) or not is_sealed(marker):
        is_there = host.look(posixpath.join(root, MARKER)).state is PathState.FILE
        # The manifest is written last but one: beside it there was a marker.
        marker = {**(_named(manifest) or (_locked(host, root) if is_there else {})), "status": DAMAGED}
        if "stack" not in marker:
            return None
    verified = _document(host, posixpath.join(root, VERIFIED))
    # A manifest of a former lock in the same folder says nothing about the present one.
    own = manifest if manifest.get("lock") == marker.get("lock") else {}
    return Described(
        root=root,
        stack=marker["stack"],
        platform=_text(marker, "platform"),
        lock=_text(marker, "lock"),
        status=_text(marker, "status"),
        framework=_text(own, "framework"),
        npuenv=_text(own, "npuenv"),
        kind=_text(own, "kind") or _text(marker, "kind"),
        origin=_text(own, "origin"),
        steps=_words(own, "steps"),
        sources=_tables(own.get("sources")),
        request=next(iter(_tables([own.get("request")])), {}),
        verified=_verified(verified),
        lost=_lost(host, root, marker, own, verified),
        hooks=_hooks(host, root, verified),
    )


def _lost(
    host: Host, root: str, marker: Mapping[str, Any], manifest: Mapping[str, Any], verified: Mapping[str, Any]
) -> tuple[str, ...]:
    """The marker or the manifest, else those of the files that manifest and verification name, and what is a link.

    What an older npuenv wrote names fewer.
    """
    if marker["status"] == DAMAGED:
        return (MARKER,)
    if marker["status"] != "complete":
        return ()
    if not manifest or not _is_as(host, posixpath.join(root, MANIFEST), _text(marker, "manifest")):
        return (MANIFEST,)
    wanted = {MARKER: "", VERIFIED: "", **_hashes(manifest, "files")}
    if manifest.get("kind") == "venv":
        wanted |= _hashes(verified, "venv")
    return tuple(name for name, digest in wanted.items() if not _is_as(host, posixpath.join(root, name), digest))


def _hashes(document: Mapping[str, Any], key: str) -> dict[str, str]:
    found = document.get(key)
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def _is_as(host: Host, path: str, digest: str) -> bool:
    """Whether a file is no link and has this content; "": any. The host hashes it: what it shows may be redacted."""
    if host.run(("readlink", path)).code == 0:
        return False
    return not digest or host.run(("sha256sum", path)).out.partition(" ")[0] == digest


def _hooks(host: Host, root: str, verified: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of no package that were not there when the environment was verified; () where none were listed then."""
    site, known = _text(verified, "site"), _words(verified, "hooks")
    names = host.look(posixpath.join(root, site)).names if site else ()
    new = [name for name in names if _is_hook(name) and name not in known]
    records = [posixpath.join(root, site, name, "RECORD") for name in names if name.endswith(".dist-info") and new]
    owned = {line.partition(",")[0] for path in records for line in host.look(path).text.splitlines()}
    return tuple(posixpath.join(site, name) for name in new if name not in owned)


def _is_hook(name: str) -> bool:
    """Whether Python runs a file of this name among the packages whenever it starts."""
    return name.endswith(".pth") or name in ("sitecustomize.py", "usercustomize.py")


def described(host: Host, root: str) -> Fact[Described]:
    """The same as a fact, with the marker as its evidence."""
    place = posixpath.join(root, MARKER)
    found = describe(host, root)
    if found is None:
        return absent(Evidence(place, "npuenv did not make this environment"))
    return known(found, Evidence(place, f"{found.stack} {found.lock} {found.status}"))


def _named(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a marker would say, from a manifest; empty where that says it is none."""
    values = {name: manifest.get(name) for name in ("stack", "platform", "lock", "kind")}
    is_whole = manifest.get("schema") == SCHEMA and all(isinstance(value, str) for value in values.values())
    return values if is_whole else {}


def _locked(host: Host, root: str) -> dict[str, Any]:
    """The same from the lock that an installation keeps; which one it is, by its hash, it does not say."""
    looked = host.look(posixpath.join(root, LOCK))
    try:
        table = parse_toml(looked.text) if looked.state is PathState.FILE else {}
    except TomlError:
        return {}
    values = {name: table.get(name) for name in ("stack", "platform")}
    return values if "seal" in table and all(isinstance(value, str) for value in values.values()) else {}


def _verified(found: Mapping[str, Any]) -> LastVerification | None:
    is_verification = isinstance(found.get("lock"), str) and bool(_text(found, "at"))
    if not is_verification or not is_sealed(found):
        return None
    counts = {name: value for name in ("files", "packages") if isinstance(value := found.get(name), int)}
    at, tree = _text(found, "at"), _text(found, "tree")
    strangers, named = _words(found, "strangers"), _words(found, "named")
    return LastVerification(found["lock"], at, tree=tree, strangers=strangers, named=named, **counts)


def _document(host: Host, path: str) -> dict[str, Any]:
    looked = host.look(path)
    try:
        value = parse_json(looked.text) if looked.state is PathState.FILE else None
    except JsonError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name, "")
    return value if isinstance(value, str) else ""


def _tables(value: object) -> tuple[dict[str, Any], ...]:
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()


def _words(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = document.get(name)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
