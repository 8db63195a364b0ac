"""From a stack to its lock: uv resolves the Python layer for the stack's platform.

uv is asked twice for the same resolution: once for the files and hashes, once (from its cache) for who needs what.
A pin whose index cannot be reached is replaced by an empty stand-in, so that the rest still resolves. Its hash is taken
from `matrix/wheel_hashes.toml`, which has what public lock files of others record; without such a row the pin is listed
as missing its hash, and the lock is partial. What an index answers wins over those rows. A set that does not resolve
gives a lock without packages that names the smallest clashing requirements.
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
from npuenv.core.errors import CannotTell
from npuenv.core.messages import Message, say
from npuenv.core.toml_input import load_file
from npuenv.facts.pip import named_index
from npuenv.lock.conflict import prove, single_overrides
from npuenv.lock.file import STACK, Lock, LockedPackage, LockedSource, Missing, Proof
from npuenv.lock.inputs import NEWEST, REQUIRE, Inputs, ignored_requirements, inputs_of, stand_in_requires
from npuenv.lock.uv import (
    PROJECT,
    Resolver,
    Supply,
    deciding_line,
    environ,
    is_out_of_reach,
    platform_options,
    undated,
    write_question,
)
from npuenv.lock.wheels import fits, platform_tags, wheels_in_links
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.host.base import Ran
    from npuenv.matrix.rows import WheelHash
    from npuenv.resolve.types import Pin, Stack

_CUDA = re.compile(r"nvidia-.+|cuda-.+|cupy|cupy-cuda.+|.+-cu1[1-9]\d*")
# Bindings in pure Python to a library that comes with the NVIDIA driver; monitoring tools ask for them everywhere.
_HARMLESS = frozenset({"nvidia-ml-py"})


def unwanted(packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[LockedPackage, ...]:
    """The packages of a set that no NPU environment may hold; () for a clean set.

    What the stack's own recipe names is left alone: that is a published choice (nvidia-modelopt, pure Python), not
    something a dependency dragged along.
    """
    own = {line.name for line in inputs.lines if line.kind == REQUIRE and not line.is_dependency}
    bad = [each for each in packages if _CUDA.fullmatch(each.name) and each.name not in own | _HARMLESS]
    if any(each.name == "triton-ascend" for each in packages):
        bad += [each for each in packages if each.name == "triton"]
    return tuple(bad)


def pulled_in_by(bad: Sequence[LockedPackage], packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[Proof, ...]:
    """For each package or line that pulls unwanted ones in, the first of those. CUDA packages need each other: those
    are left out.
    """
    versions = {package.name: package.version for package in packages}
    proofs: dict[str, Proof] = {}
    for each in bad:
        who = [
            f"{name}=={versions[name]} (Requires-Dist)" for name in each.why if name in versions.keys() - _names(bad)
        ]
        if STACK in each.why:
            who += [line.source for line in inputs.lines if line.kind == REQUIRE and line.name == each.name]
        for source in who:
            proofs.setdefault(source, Proof(f"{each.name}=={each.version}", source))
    return tuple(proofs.values())


def _names(packages: Sequence[LockedPackage]) -> set[str]:
    return {package.name for package in packages}


__all__ = [
    "Resolver",
    "Solved",
    "as_lock",
    "deciding_line",
    "find_uv",
    "is_out_of_reach",
    "make_lock",
    "probe",
    "solve",
    "ways_out",
]

Known = dict[tuple[str, ...], str]  # what indexes were found to carry: (label, package, version, platform) -> reason


@dataclass(frozen=True, slots=True)
class Solved:
    """What uv made of the inputs: packages, or the reason why there are none."""

    packages: tuple[LockedPackage, ...]
    missing: tuple[Missing, ...]
    proof: tuple[Proof, ...] = ()


def find_uv() -> str:
    """The path of the uv program that belongs to this installation."""
    import uv

    return str(uv.find_uv_bin())


def make_lock(stack: Stack, resolver: Resolver) -> Lock:
    """The full lock of a stack for its platform: complete, or partial with a reason for each pin without a hash.

    Raises CannotTell when the default index is out of reach, or does not tell the age that the stack's day asks for.
    """
    inputs = inputs_of(stack)
    return as_lock(stack, inputs, solve(stack, inputs, resolver, {}), made_with(resolver))


def solve(stack: Stack, inputs: Inputs, resolver: Resolver, known: Known) -> Solved:
    """What uv makes of the inputs of a stack. `known` remembers over several calls what an index was found to carry."""
    supply = _supply(stack, resolver, known)
    with tempfile.TemporaryDirectory(prefix="npuenv-lock-") as folder:
        found, ran = _resolve(inputs, supply, resolver, Path(folder))
    if ran is not None:
        return _failure(stack, inputs, supply, resolver, ran)
    packages = _with_labels(found, stack, supply)
    bad = unwanted(packages, inputs)
    if bad:
        what = tuple(f"{package.name} {package.version}" for package in bad)
        missing = Missing("*", "", "does-not-resolve", detail=say(Message("locking.unwanted", {"what": what})))
        return Solved((), (missing, *supply.missing), pulled_in_by(bad, packages, inputs))
    attested = {package.name for package in packages if package.witnesses}
    return Solved(packages, tuple(each for each in supply.missing if each.name not in attested))


def ways_out(stack: Stack, lock: Lock, resolver: Resolver) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Requirements of which each alone would let an impossible set resolve, and whose word it would overrule.

    Each was resolved before it is given; empty for a lock without a proof.
    """
    if not lock.proof:
        return ()
    return single_overrides(inputs_of(stack), _supply(stack, resolver, {}), resolver, lock.proof)


def as_lock(stack: Stack, inputs: Inputs, solved: Solved, tools: str) -> Lock:
    """The lock of a stack from what its inputs came to."""
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
    """Like `npuenv 0.1.0, uv 0.13.8`. Real output of uv: `uv 0.13.8 (x86_64-unknown-linux-gnu)`."""
    uv = " ".join(resolver.run(("--version",)).out.split()[:2])
    return f"npuenv {npuenv.__version__}, {uv}"


def probe(name: str, version: str, label: str, stack: Stack, resolver: Resolver) -> Ran:
    """uv's answer to: does the index `label` carry this version for the stack's platform? Only that index is asked."""
    secret: dict[str, str] = {}
    index = named_index(label, resolver.indexes[label], secret)
    with tempfile.TemporaryDirectory(prefix="npuenv-probe-") as folder:
        wanted = Path(folder) / "wanted.in"
        wanted.write_text(f"{name}=={version}\n", encoding="utf-8")
        argv = ("pip", "compile", "--no-deps", "--no-header", *platform_options(stack.platform), str(wanted))
        env = {"UV_DEFAULT_INDEX": index, "UV_HTTP_RETRIES": "0", **secret}
        return resolver.run(argv, env=env, is_cut_off=True)


def _supply(stack: Stack, resolver: Resolver, known: Known) -> Supply:
    """Where the pins with an index of their own can be had: in find-links, on that index, or nowhere."""
    built = {source.name.lower() for source in stack.git_sources}
    labelled = [pin for pin in stack.pins if pin.is_python and pin.index and pin.name not in built]
    in_links = wheels_in_links(
        resolver.host, resolver.settings, [(pin.name, pin.version) for pin in labelled], stack.platform
    )
    missing, on_index = [], {}
    for pin in (pin for pin in labelled if pin.name not in in_links):
        assert pin.index is not None
        reason = _why_missing(pin, stack, resolver, known)
        if reason:
            missing.append(Missing(pin.name, pin.version, reason, pin.index, _unknown_requires(pin)))
        else:
            on_index[pin.name] = pin.index
    return Supply(tuple(missing), on_index)


def _why_missing(pin: Pin, stack: Stack, resolver: Resolver, known: Known) -> str:
    """Why a pin's index does not give it; "" where it does. An index out of reach is asked once for all its pins."""
    assert pin.index is not None
    asked = (pin.index, pin.name, pin.version, stack.platform.tag)
    if (pin.index,) in known:
        return known[(pin.index,)]
    if asked not in known:
        ran = probe(pin.name, pin.version, pin.index, stack, resolver)
        if ran.code != 0 and (ran.timed_out or is_out_of_reach(ran.err)):
            return known.setdefault((pin.index,), "index-out-of-reach")
        known[asked] = "" if ran.code == 0 else "not-on-index"
    return known[asked]


def _unknown_requires(pin: Pin) -> str:
    return "" if stand_in_requires(pin.name, pin.version) is not None else say(Message("locking.stand-in-unknown"))


def _resolve(
    inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path
) -> tuple[list[LockedPackage], Ran | None]:
    """The packages of the set without labels, or none and uv's complaint."""
    question = write_question(inputs, supply, resolver, folder)
    env, found = environ(resolver, folder), folder / "pylock.toml"
    compile_it = ("pip", "compile", "--no-header", "--quiet")
    ran = resolver.run((*compile_it, "--format", "pylock.toml", "-o", str(found), *question), env=env)
    if ran.code != 0:
        return [], ran
    from_cache = replace(resolver, is_offline=True)
    told = from_cache.run((*compile_it, "--annotation-style", "line", *question), env=env)
    if told.code != 0:
        return [], told
    why, tags = _who_needs(told.out), platform_tags(inputs.platform)
    rows = load_file(found)["packages"]
    _warn_of_differences([row for row in rows if row["name"] in supply.on_index], resolver)
    return [
        LockedPackage(row["name"], row["version"], _hashes(row, tags), why=why.get(row["name"], ())) for row in rows
    ], None


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
    """The packages by name, with the label of their index; a stand-in's hash is none of the real package's."""
    labels = {pin.name: pin.index for pin in stack.pins}
    gone = {missing.name: missing for missing in supply.missing}
    tags = platform_tags(stack.platform)
    labelled = (
        replace(each, index=labels.get(each.name), ignores=ignored_requirements(each.name, each.version))
        for each in found
    )
    packages = (_attested(each, gone[each.name], tags) if each.name in gone else each for each in labelled)
    return tuple(sorted(packages, key=lambda package: package.name))


def _attested(package: LockedPackage, missing: Missing, tags: frozenset[Any]) -> LockedPackage:
    """A package whose index gave nothing, with the hashes that public lock files record; without any, with none.

    None where the index answered that it does not carry the version, and where nobody knows what the package requires:
    it could need more than is locked.
    """
    is_open = missing.reason == "index-out-of-reach" and not missing.detail
    wheels = [row for row in wheel_hashes(package.name, package.version) if is_open and fits(row.id, tags)]
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
    """The reason why nothing fits, with the smallest clashing set. Raises CannotTell where no index could be asked."""
    why = deciding_line(ran.err)
    if ran.timed_out or is_out_of_reach(ran.err):
        raise CannotTell(Message("lock.index-out-of-reach", {"why": why}), Message("lock.check-network"))
    if "No solution found" not in ran.err:
        # Interrupted, or a source distribution that does not build here: no statement about the versions.
        hint = Message("locking.look-at-disk" if _is_about_files(ran.err) else "locking.run-again")
        raise CannotTell(Message("locking.uv-stopped", {"stack": stack.name, "why": why}), hint)
    proof = prove(inputs, supply, resolver, ran.err)
    names = undated(ran.err)
    if names and any(line.kind == NEWEST and line.proof in proof for line in inputs.lines):
        args = {"stack": stack.name, "date": inputs.newest, "packages": names}
        raise CannotTell(Message("locking.no-upload-times", args), Message("locking.other-index"))
    detail = why.replace(PROJECT, stack.name)
    return Solved((), (Missing("*", "", "does-not-resolve", detail=detail), *supply.missing), proof)


def _is_about_files(text: str) -> bool:
    return any(words in text for words in ("os error 13", "os error 28", "os error 30"))  # EACCES, ENOSPC, EROFS


def _who_needs(text: str) -> dict[str, tuple[str, ...]]:
    """Who needs each package. A real line (uv 0.13.8): `jinja2==3.1.6  # via npuenv-lock (pyproject.toml), torch`."""
    needs = {}
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==\S+\s+# via (.*)$", line)
        if match:
            # The resolution's own inputs (project, -c, --override) stand for the stack.
            who = [STACK if "(" in item or item.startswith(("-", PROJECT)) else item for item in match[2].split(", ")]
            needs[match[1]] = tuple(dict.fromkeys(who))
    return needs


def _hashes(row: Mapping[str, Any], tags: frozenset[Any]) -> tuple[str, ...]:
    """The hashes of the fitting wheels, or of the source where there is no such wheel."""
    wheels = [wheel for wheel in row.get("wheels", ()) if fits(_file_name(wheel), tags)]
    chosen = wheels or [row[kind] for kind in ("sdist", "archive") if kind in row]
    return tuple(sorted(file["hashes"]["sha256"] for file in chosen))


def _file_name(file: Mapping[str, Any]) -> str:
    place = file.get("name") or file.get("url") or file.get("path") or ""
    return unquote(urlsplit(place).path).rpartition("/")[2]
