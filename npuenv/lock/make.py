"""Makes the lock of a stack: uv resolves its Python packages for the stack's platform.

uv runs twice for the same resolution: once for the files and hashes, once (offline) for the dependents of each package.
A pin whose index is unreachable is replaced by an empty stand-in wheel, so that the other packages still resolve. Its
hash is taken from `matrix/wheel_hashes.toml`, which records hashes from public lock files; without such a row the hash
is reported as missing and the lock is partial. An answer of the index takes precedence over these rows. A set that does
not resolve gives a lock without packages that names the smallest set of clashing requirements.
"""

from __future__ import annotations

import functools
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

import npuenv
from npuenv.core.documents import load_toml
from npuenv.core.errors import CannotTell
from npuenv.core.messages import Message, say
from npuenv.lock.conflict import prove, pulled_in_by, unwanted
from npuenv.lock.file import DOES_NOT_RESOLVE, STACK, Lock, LockedPackage, LockedSource, Missing, Proof
from npuenv.lock.inputs import NEWEST, Inputs, ignored_requirements, inputs_of, stand_in_requires
from npuenv.lock.uv import (
    PROJECT,
    Resolver,
    Supply,
    deciding_line,
    is_out_of_reach,
    pip_compile,
    platform_tags,
    probe,
    require_reached,
    undated,
    wheel_fits,
    wheels_in_links,
)
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.tags import Tag

    from npuenv.host import Ran
    from npuenv.matrix.rows import WheelHash
    from npuenv.resolve.types import Pin, Stack


Known = dict[tuple[str, ...], str]  # answers of indexes so far: (label, package, version, platform) -> reason


@dataclass(frozen=True, slots=True)
class Solved:
    """The result of uv for the inputs: packages, or the reason why there are none."""

    packages: tuple[LockedPackage, ...]
    missing: tuple[Missing, ...]
    proof: tuple[Proof, ...] = ()


def make_lock(stack: Stack, resolver: Resolver) -> Lock:
    """The lock of a stack for its platform: complete, or partial with a reason for each missing hash.

    Raises: CannotTell if the default index is unreachable, or does not report the upload dates that the date limit
    needs.
    """
    inputs = inputs_of(stack)
    return as_lock(stack, inputs, solve(stack, inputs, resolver, {}), made_with(resolver))


def solve(stack: Stack, inputs: Inputs, resolver: Resolver, known: Known) -> Solved:
    """The result of uv for the inputs of a stack. `known` caches the answers of indexes over several calls."""
    supply = _supply(stack, resolver, known)
    with tempfile.TemporaryDirectory(prefix="npuenv-lock-") as folder:
        found, ran = _resolve(inputs, supply, resolver, Path(folder))
    if ran is not None:
        return _failure(stack, inputs, supply, resolver, ran)
    packages = _with_labels(found, stack, supply)
    bad = unwanted(packages, inputs)
    if bad:
        what = tuple(f"{package.name} {package.version}" for package in bad)
        missing = Missing("*", "", DOES_NOT_RESOLVE, detail=say(Message("locking.unwanted", {"what": what})))
        return Solved((), (missing, *supply.missing), pulled_in_by(bad, packages, inputs))
    attested = {package.name for package in packages if package.witnesses}
    return Solved(packages, tuple(each for each in supply.missing if each.name not in attested))


def as_lock(stack: Stack, inputs: Inputs, solved: Solved, tools: str) -> Lock:
    """The lock of a stack, made from the result of uv."""
    return Lock(
        stack=stack.name,
        platform=stack.platform.tag,
        made_with=tools,
        packages=solved.packages,
        missing=solved.missing,
        sources=tuple(
            LockedSource(source.name, source.repo, source.ref, source.is_moving, source.how)
            for source in stack.git_sources
        ),
        inputs=inputs.digest,
        newest=inputs.newest,
        proof=solved.proof,
    )


def made_with(resolver: Resolver) -> str:
    """The tools that wrote the lock: `npuenv 0.1.0, uv 0.13.8`. Real output of uv: `uv 0.13.8
    (x86_64-unknown-linux-gnu)`.
    """
    uv = " ".join(resolver.run(("--version",)).out.split()[:2])
    return f"npuenv {npuenv.__version__}, {uv}"


def _supply(stack: Stack, resolver: Resolver, known: Known) -> Supply:
    """The locations of the pins that have an index of their own: find-links, that index, or none."""
    built = {source.name.lower() for source in stack.git_sources}
    labelled = [pin for pin in stack.pins if pin.is_python and pin.index and pin.name not in built]
    in_links = wheels_in_links(resolver, labelled, stack.platform)
    missing, on_index = [], {}
    for pin in (pin for pin in labelled if pin.name not in in_links):
        assert pin.index is not None
        reason = _why_missing(pin, stack, resolver, known)
        if reason:
            is_known = stand_in_requires(pin.name, pin.version) is not None
            detail = "" if is_known else say(Message("locking.stand-in-unknown"))
            missing.append(Missing(pin.name, pin.version, reason, pin.index, detail))
        else:
            on_index[pin.name] = pin.index
    return Supply(tuple(missing), on_index)


def _why_missing(pin: Pin, stack: Stack, resolver: Resolver, known: Known) -> str:
    """The reason why a pin's index does not provide it; "" if it does. An unreachable index is tried once for all its
    pins.
    """
    assert pin.index is not None
    key = (pin.index, pin.name, pin.version, stack.platform.tag)
    if (pin.index,) in known:
        return known[(pin.index,)]
    if key not in known:
        ran = probe(pin.name, pin.version, pin.index, stack, resolver)
        if ran.code != 0 and is_out_of_reach(ran):
            return known.setdefault((pin.index,), "index-out-of-reach")
        known[key] = "" if ran.code == 0 else "not-on-index"
    return known[key]


def _resolve(
    inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path
) -> tuple[list[LockedPackage], Ran | None]:
    """The packages of the set without labels, or none and the failed run of uv."""
    found = folder / "pylock.toml"
    to_file = ("--quiet", "--format", "pylock.toml", "-o", str(found))
    ran = pip_compile(inputs, supply, resolver, folder, *to_file)
    if ran.code != 0:
        return [], ran
    from_cache = replace(resolver, is_offline=True)
    annotated = pip_compile(inputs, supply, from_cache, folder, "--quiet", "--annotation-style", "line")
    if annotated.code != 0:
        return [], annotated
    why, tags = _dependents(annotated.out), platform_tags(inputs.platform)
    rows = load_toml(found)["packages"]
    _warn_of_differences([row for row in rows if row["name"] in supply.on_index], resolver)
    return [
        LockedPackage(row["name"], row["version"], _hashes(row, tags), why=why.get(row["name"], ())) for row in rows
    ], None


def _dependents(text: str) -> dict[str, tuple[str, ...]]:
    """The dependents of each package. A real line (uv 0.13.8): `jinja2==3.1.6  # via npuenv-lock (pyproject.toml),
    torch`.
    """
    needs = {}
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==\S+\s+# via (.*)$", line)
        if match:
            # Replace the resolution's own inputs (project, -c, --override) with the stack.
            who = [STACK if "(" in item or item.startswith(("-", PROJECT)) else item for item in match[2].split(", ")]
            needs[match[1]] = tuple(dict.fromkeys(who))
    return needs


def _hashes(row: Mapping[str, Any], tags: Mapping[Tag, int]) -> tuple[str, ...]:
    """The hashes of the fitting wheels, or of the source archive if there is no such wheel."""
    wheels = [wheel for wheel in row.get("wheels", ()) if wheel_fits(_file_name(wheel), tags)]
    chosen = wheels or [row[kind] for kind in ("sdist", "archive") if kind in row]
    return tuple(sorted(file["hashes"]["sha256"] for file in chosen))


def _file_name(file: Mapping[str, Any]) -> str:
    location = file.get("name") or file.get("url") or file.get("path") or ""
    return unquote(urlsplit(location).path).rpartition("/")[2]


def _warn_of_differences(rows: Iterable[Mapping[str, Any]], resolver: Resolver) -> None:
    """Reports each wheel whose hash on its index differs from the one that public lock files record."""
    for row in rows:
        recorded = {each.id: each for each in wheel_hashes(row["name"], row["version"])}
        for wheel in row.get("wheels", ()):
            known = recorded.get(_file_name(wheel))
            if known is not None and known.sha256 != wheel["hashes"]["sha256"]:
                args = {"file": known.id, "index": wheel["hashes"]["sha256"], "recorded": known.sha256}
                resolver.warn(Message("locking.hash-differs", {**args, "count": known.independent}))


def _with_labels(found: list[LockedPackage], stack: Stack, supply: Supply) -> tuple[LockedPackage, ...]:
    """The packages by name, with the label of their index. A stand-in's hash is not recorded."""
    labels = {pin.name: pin.index for pin in stack.pins}
    gone = {missing.name: missing for missing in supply.missing}
    tags = platform_tags(stack.platform)
    labelled = (
        replace(each, index=labels.get(each.name), ignores=ignored_requirements(each.name, each.version))
        for each in found
    )
    packages = (_attested(each, gone[each.name], tags) if each.name in gone else each for each in labelled)
    return tuple(sorted(packages, key=lambda package: package.name))


def _attested(package: LockedPackage, missing: Missing, tags: Mapping[Tag, int]) -> LockedPackage:
    """A package whose index is unreachable, with the hashes that public lock files record, if any.

    None if the index answered that it does not have the version, or if the requirements of the package are unknown: it
    could need more than is locked.
    """
    is_open = missing.reason == "index-out-of-reach" and not missing.detail
    wheels = [row for row in wheel_hashes(package.name, package.version) if is_open and wheel_fits(row.id, tags)]
    hashes = tuple(sorted({row.sha256 for row in wheels}))
    return replace(package, sha256=hashes, witnesses=min((row.independent for row in wheels), default=0))


def wheel_hashes(name: str, version: str) -> tuple[WheelHash, ...]:
    """The wheels of a version whose hashes public lock files record, for every platform."""
    return _recorded_wheels().get((canonicalize_name(name), Version(version)), ())


@functools.cache
def _recorded_wheels() -> dict[tuple[str, Version], tuple[WheelHash, ...]]:
    found: dict[tuple[str, Version], tuple[WheelHash, ...]] = {}
    for row in load_matrix().wheel_hashes:
        name, version = parse_wheel_filename(row.id)[:2]
        found[name, version] = (*found.get((name, version), ()), row)
    return found


def _failure(stack: Stack, inputs: Inputs, supply: Supply, resolver: Resolver, ran: Ran) -> Solved:
    """The reason why the set does not resolve, with the smallest clashing set. Raises: CannotTell if no index was
    reachable.
    """
    why = deciding_line(ran.err)
    require_reached(ran)
    if "No solution found" not in ran.err:
        # Interrupted, or a source distribution does not build here: this says nothing about the versions.
        is_about_files = any(words in ran.err for words in ("os error 13", "os error 28", "os error 30"))
        hint = Message("locking.look-at-disk" if is_about_files else "locking.run-again")
        raise CannotTell(Message("locking.uv-stopped", {"stack": stack.name, "why": why}), hint)
    proof = prove(inputs, supply, resolver, ran.err)
    names = undated(ran.err)
    if names and any(line.kind == NEWEST and line.proof in proof for line in inputs.lines):
        args = {"stack": stack.name, "date": inputs.newest, "packages": names}
        raise CannotTell(Message("locking.no-upload-times", args), Message("locking.other-index"))
    detail = why.replace(PROJECT, stack.name)
    return Solved((), (Missing("*", "", DOES_NOT_RESOLVE, detail=detail), *supply.missing), proof)
