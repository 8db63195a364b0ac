"""The lock as values and as a file.

A lock names versions, hashes and index labels: no addresses, hosts or clocks, so that it can be committed and compared
byte for byte. A block is the head of the file or one `[[table]]` with its lines. Its last line is `seal = "..."` over
the lines before it. The head also holds a digest of the complete file, because removing or moving a table leaves all
other seals valid. An edited file is refused with the line number. This guards against accidents (a hand edit, a bad
merge, a damaged disk), not against forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import TomlError, parse_toml, read_bytes
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


# 2: each table has a seal. A reader of schema 1 would accept an edited file.
SCHEMA = 2
_MOST_BYTES = 16 * 1024**2  # one of 250 packages with every hash has 0.5 MB
_SEAL_DIGITS = 8  # one accidental change in four thousand million passes a seal, and none the digest
DOES_NOT_RESOLVE = "does-not-resolve"
COMPLETE, PARTIAL, IMPOSSIBLE = STATUSES = ("complete", "partial", "impossible")
STACK = "stack"  # in `why`: the stack itself requires the package
_ENCODER = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One distribution. `sha256` holds every file that fits the platform; empty if no hash is known.

    `witnesses` is 0 for hashes from the index, else the number of independent public lock files that recorded them.
    """

    name: str
    version: str
    sha256: tuple[str, ...]
    index: str | None = None  # label; None: the default index and pip's extra ones
    why: tuple[str, ...] = ()  # "stack", or the packages that need it
    witnesses: int = 0
    ignores: tuple[str, ...] = ()  # its own requirements that the stack ignores


@dataclass(frozen=True, slots=True)
class Missing:
    """What prevents a lock from being complete."""

    name: str  # "*": the complete set
    version: str
    reason: str  # index-out-of-reach | not-on-index | does-not-resolve
    index: str | None = None
    detail: str = ""  # the resolver's own message


@dataclass(frozen=True, slots=True)
class LockedSource:
    """A component built from a repository; `is_moving` if only a branch is published."""

    name: str
    repo: str
    ref: str
    is_moving: bool
    how: str


@dataclass(frozen=True, slots=True)
class Proof:
    """One requirement of the smallest set that cannot be satisfied together."""

    requirement: str  # opencv-python-headless<=4.11.0.86
    source: str  # its origin: vllm-ascend 0.18.0 (Requires-Dist)


@dataclass(frozen=True, slots=True)
class Lock:
    """The contents of one environment, sorted by name. A package without hash is in `missing`."""

    stack: str
    platform: str  # Platform.tag
    made_with: str
    packages: tuple[LockedPackage, ...]
    missing: tuple[Missing, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    inputs: str = ""  # sha256 over all inputs of the resolver; same inputs, same lock
    newest: str = ""  # the upload date limit: no package is younger than this day
    proof: tuple[Proof, ...] = ()  # only if the set does not resolve

    @property
    def is_complete(self) -> bool:
        """True if every package has a hash and the complete set resolves."""
        return not self.missing

    @property
    def is_from_indexes(self) -> bool:
        """True if it is complete and an index gave every hash."""
        return self.is_complete and not any(package.witnesses for package in self.packages)

    @property
    def status(self) -> str:
        """complete; impossible if the set does not resolve; else partial: it resolves, but hashes are missing."""
        if any(missing.reason == DOES_NOT_RESOLVE for missing in self.missing):
            return IMPOSSIBLE
        return PARTIAL if self.missing else COMPLETE

    @property
    def hash(self) -> str:
        """Twelve hex digits that change with any version, hash or source.

        They do not depend on the tool that wrote the lock, on the inputs or on the origin of a hash: the same set is
        the same environment.
        """
        packages = tuple(replace(package, witnesses=0, ignores=()) for package in self.packages)
        bare = replace(self, made_with="", inputs="", newest="", packages=packages)
        lines = (line for block in (_head(bare)[2:], *_tables(bare)) for line in block)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    @property
    def file_name(self) -> str:
        return f"{self.stack}.{self.platform}.toml"

    def package(self, name: str) -> LockedPackage | None:
        """The row of a distribution, or None."""
        return next((package for package in self.packages if package.name == name), None)


def platform_parts(tag: str) -> tuple[str, str, str]:
    """Architecture, Python and glibc of a lock's platform. Example: x86_64-cp311-glibc2.28 -> x86_64, 3.11, 2.28."""
    arch, python, glibc = tag.split("-")
    return arch, f"{python[2]}.{python[3:]}", glibc.removeprefix("glibc")


def write_lock(lock: Lock) -> str:
    """The lock as TOML text, the same for the same lock, with a seal on each block and the digest in the head."""
    head, tables = _head(lock), [_with_seal(lines) for lines in _tables(lock)]
    digest = _hex(_joined([head, *tables]))
    return _joined([_with_seal([*head, f'digest = "{digest}"']), *tables])


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises: BadInput if the file is missing, not a lock of this schema, or edited by hand."""
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadInput(Message("lock.unreadable", {"path": str(path), "why": why})) from error
    return parse_lock(text, str(path))


def parse_lock(text: str, path: str = "lock") -> Lock:
    """The lock in a text; `path` is for messages. Raises: BadInput with the line of the error.

    For a file that does not parse that is the parser's line, else the first line of the table whose seal does not
    match. The content is checked only after the seals.
    """
    try:
        table = parse_toml(text)
    except TomlError as error:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match[1]) if match else text.count("\n")
        raise _edited(path, line, Message("lock.no-toml", {"why": str(error)})) from error
    if table.get("schema") == 1 and "seal" not in table:
        raise BadInput(Message("lock.older-form", {"path": path}), Message("lock.renew", _stack_of(table)))
    if (flaw := _first_flaw(text)) is not None:
        raise _edited(path, *flaw, _stack_of(table))
    if table.get("schema") != SCHEMA:
        args = {"path": path, "schema": str(table.get("schema")), "known": SCHEMA}
        raise BadInput(Message("lock.other-schema", args))
    try:
        lock = _lock(table)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # sealed, by a tool that is not this one
        raise _edited(path, 1, Message("lock.bad-value", {"key": "lock", "value": str(error)})) from error
    explained = {missing.name for missing in lock.missing}
    bare = next((each.name for each in lock.packages if not each.sha256 and each.name not in explained), None)
    if bare is not None:
        raise _edited(path, 1, Message("lock.no-hash", {"name": bare}), _stack_of(table))
    return lock


def _edited(path: str, line: int, what: Message, stack: Mapping[str, str] | None = None) -> BadInput:
    return BadInput(
        Message("lock.edited", {"path": path, "line": line, "what": what}),
        Message("lock.renew", stack or {"stack": ""}),
    )


def _stack_of(table: Mapping[str, Any]) -> dict[str, str]:
    stack = table.get("stack")
    return {"stack": stack if isinstance(stack, str) else ""}


def _lock(table: Mapping[str, Any]) -> Lock:
    return Lock(
        stack=table["stack"],
        platform=table["platform"],
        made_with=table["made_with"],
        packages=tuple(_package(row) for row in table.get("package", ())),
        missing=tuple(Missing(**_unsealed(row)) for row in table.get("missing", ())),
        sources=tuple(LockedSource(**_unsealed(row)) for row in table.get("source", ())),
        inputs=table.get("inputs", ""),
        newest=table.get("newest", ""),
        proof=tuple(Proof(**_unsealed(row)) for row in table.get("proof", ())),
    )


def _package(row: Mapping[str, Any]) -> LockedPackage:
    return LockedPackage(
        row["name"],
        row["version"],
        tuple(row["sha256"]),
        row.get("index"),
        tuple(row.get("why", ())),
        row.get("witnesses", 0),
        tuple(row.get("ignores", ())),
    )


def _unsealed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seal"}


def _head(lock: Lock) -> list[str]:
    given = {
        "stack": lock.stack,
        "platform": lock.platform,
        "made_with": lock.made_with,
        "inputs": lock.inputs or None,
        "newest": lock.newest or None,
        "status": lock.status,
    }
    return [
        "# What goes into this environment, with hashes. Generated by `npuenv lock`; an edited file is refused.",
        "",
        f"schema = {SCHEMA}",
        *_lines(given),
    ]


def _tables(lock: Lock) -> list[list[str]]:
    """Each table's lines, without seals."""
    tables = [
        _table("missing", name=missing.name, version=missing.version, reason=missing.reason,
               index=missing.index, detail=missing.detail or None)
        for missing in lock.missing
    ]  # fmt: skip
    tables += [_table("proof", requirement=proof.requirement, source=proof.source) for proof in lock.proof]
    tables += [
        _table("source", name=source.name, repo=source.repo, ref=source.ref,
               is_moving=source.is_moving, how=source.how)
        for source in lock.sources
    ]  # fmt: skip
    tables += [
        _table("package", name=package.name, version=package.version, sha256=package.sha256,
               witnesses=package.witnesses or None, index=package.index, why=package.why,
               ignores=package.ignores or None)
        for package in lock.packages
    ]  # fmt: skip
    return tables


def _table(kind: str, **values: str | int | Sequence[str] | None) -> list[str]:
    return [f"[[{kind}]]", *_lines(values)]


def _lines(values: Mapping[str, str | int | Sequence[str] | None]) -> list[str]:
    # JSON writes these values as TOML does, but for the one control character that TOML forbids and JSON leaves alone.
    texts = {name: _ENCODER.encode(value) for name, value in values.items() if value is not None}
    return [f"{name} = {text}".replace("\x7f", "\\u007f") for name, text in texts.items()]


def _first_flaw(text: str) -> tuple[int, Message] | None:
    """The first line of the first block of a file that was edited, and what was; None if the file is as it was written.

    If only the digest of the file does not match, tables were moved or taken away, and the line is the first one.
    """
    lines = text.split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if number and line.lstrip().startswith("[["))]
    blocks = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    for start, block in zip(starts, blocks, strict=True):
        if block != [*_with_seal(block[:-2]), ""]:
            kind = re.match(r"\s*\[\[(.*?)\]\]", block[0])
            name = re.search(r'^(?:name|requirement) = "(.*)"$', "\n".join(block), re.MULTILINE)
            args = {"kind": kind[1] if kind else "", "name": name[1] if name else ""}
            return start + 1, Message("lock.table-changed", args) if args["kind"] else Message("lock.head-changed")
    head, *tables = (block[:-1] for block in blocks)
    content = _joined([[line for line in head[:-1] if not line.startswith("digest = ")], *tables])
    return None if f'digest = "{_hex(content)}"' in head else (1, Message("lock.tables-moved"))


def _with_seal(lines: Sequence[str]) -> list[str]:
    return [*lines, f'seal = "{_hex(_joined([lines]))[:_SEAL_DIGITS]}"']


def _joined(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _hex(text: str) -> str:
    # A lone surrogate cannot come from a file read as UTF-8, but may come from a resolver's message.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
