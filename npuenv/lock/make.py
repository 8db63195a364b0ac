"""From a stack to its lock: uv resolves the Python layer for the stack's platform. Start from `make_lock`.

uv is asked twice for the same resolution: once for the files and hashes, once (from its cache) for who needs what.
A pin whose index cannot be reached is replaced by an empty stand-in, so that the rest still resolves, and is listed as
missing its hash: the lock then is partial and says so.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import npuenv
from npuenv._toml import load_file
from npuenv.errors import CannotTell
from npuenv.facts.pip import PipSettings, for_uv, named_index, without_secrets
from npuenv.lock.file import STACK, Lock, LockedPackage, LockedSource, Missing
from npuenv.lock.wheels import GLIBC_MINOR, fits, platform_tags, wheels_in_links, write_wheel
from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host.base import Host, Ran
    from npuenv.resolve.types import Pin, Stack

RESOLVE_TIMEOUT_S = 600.0
_OUT_OF_REACH = (
    "dns error",
    "Connect",
    "timed out",
    "Connection refused",
    "Network is unreachable",
    "connection error",
)


@dataclass(frozen=True, slots=True)
class Resolver:
    """What a resolution runs with: the host, uv's path, pip's settings and the index addresses by label."""

    host: Host
    uv: str
    settings: PipSettings
    indexes: Mapping[str, str]

    def run(self, argv: tuple[str, ...], *, env: Mapping[str, str] | None = None, is_cut_off: bool = False) -> Ran:
        """uv with the settings in force. `is_cut_off` drops every index of the settings: only `env` names some."""
        uv_settings = for_uv(self.settings)
        kept = {
            name: value for name, value in uv_settings.environ.items() if not (is_cut_off and name in _INDEX_VARIABLES)
        }
        stale = [name for name in self.host.environ() if name.startswith("UV_") and name != "UV_CACHE_DIR"]
        unset = tuple(word for name in stale for word in ("-u", name))
        options = () if is_cut_off else uv_settings.options
        return self.host.run(
            ("env", *unset, self.uv, *argv, *options), timeout_s=RESOLVE_TIMEOUT_S, env={**kept, **(env or {})}
        )


_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")


def find_uv() -> str:
    """The path of the uv program that belongs to this installation."""
    import uv

    return str(uv.find_uv_bin())


def make_lock(stack: Stack, resolver: Resolver) -> Lock:
    """The full lock of a stack for its platform: complete, or partial with a reason for each pin without a hash.

    Raises CannotTell when the default index is out of reach.
    """
    built = {canonicalize_name(source.name) for source in stack.git_sources}
    labelled = [pin for pin in stack.pins if pin.is_python and pin.index and pin.name not in built]
    in_links = wheels_in_links(
        resolver.host, resolver.settings, [(pin.name, pin.version) for pin in labelled], stack.platform
    )
    missing = [item for pin in labelled if pin.name not in in_links and (item := _why_missing(pin, stack, resolver))]
    gone = {item.name for item in missing}
    on_index = {pin.name: pin.index for pin in labelled if pin.index and pin.name not in gone | in_links.keys()}
    with tempfile.TemporaryDirectory(prefix="npuenv-lock-") as folder:
        _write_inputs(Path(folder), stack, missing, on_index)
        _write_project(Path(folder), stack, resolver, on_index)
        packages, failed = _resolve(Path(folder), stack, resolver, gone)
    return Lock(
        stack=stack.name,
        platform=stack.platform.tag,
        made_with=f"npuenv {npuenv.__version__}, {_version(resolver)}",
        packages=packages,
        missing=(*failed, *missing),
        sources=tuple(
            LockedSource(source.name, source.repo, source.ref, source.is_moving, source.how)
            for source in stack.git_sources
        ),
    )


def probe(name: str, version: str, label: str, stack: Stack, resolver: Resolver) -> Ran:
    """uv's answer to: does the index `label` carry this version for the stack's platform? Only that index is asked."""
    secret: dict[str, str] = {}
    index = named_index(label, resolver.indexes[label], secret)
    with tempfile.TemporaryDirectory(prefix="npuenv-probe-") as folder:
        wanted = Path(folder) / "wanted.in"
        wanted.write_text(f"{name}=={version}\n", encoding="utf-8")
        argv = ("pip", "compile", "--no-deps", "--no-header", *_platform_options(stack), str(wanted))
        env = {"UV_DEFAULT_INDEX": index, "UV_HTTP_RETRIES": "0", **secret}
        return resolver.run(argv, env=env, is_cut_off=True)


def deciding_line(text: str) -> str:
    """The one line of uv's complaint that says why, without addresses' secrets.

    Real output (uv 0.13.8): "error: No solution found when resolving dependencies" then "  cause: Because there is no
    version of torch==2.8.0+cpu and you require torch==2.8.0+cpu, we can conclude that ...".
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("warning:")]
    because = [line for line in lines if "Because" in line]
    causes = [line for line in lines if line.startswith(("cause:", "Caused by:"))]
    chosen = (because or causes[-1:] or lines[-1:] or [""])[0]
    return without_secrets(re.sub(r"^(error|cause|Caused by): ", "", chosen))


def is_out_of_reach(text: str) -> bool:
    """True when uv's complaint is about the network, not about packages."""
    return any(mark in text for mark in _OUT_OF_REACH)


def _why_missing(pin: Pin, stack: Stack, resolver: Resolver) -> Missing | None:
    assert pin.index is not None
    ran = probe(pin.name, pin.version, pin.index, stack, resolver)
    if ran.code == 0:
        return None
    reason = "index-out-of-reach" if ran.timed_out or is_out_of_reach(ran.err) else "not-on-index"
    return Missing(pin.name, pin.version, reason, pin.index)


def _write_inputs(folder: Path, stack: Stack, missing: list[Missing], on_index: Mapping[str, str]) -> None:
    """The files uv reads: constraints, overrides, excludes, and stand-ins for pins that cannot be had."""
    pinned = {pin.name: pin.version for pin in stack.pins if pin.is_python}
    by_kind: dict[str, list[str]] = {"constrain": [], "replace": [], "exclude": []}
    floors = [Requirement(row["requirement"]) for row in _table("floors.toml")["floor"]]
    by_kind["constrain"] += [str(floor) for floor in floors if canonicalize_name(floor.name) not in pinned]
    for override in stack.overrides:
        by_kind[override.does].append(override.requirement)
    # A component's own list asks for other versions of what the stack pins (vllm-ascend: torch==2.8.0, not +cpu).
    local_pins = [f"{name}=={version}" for name, version in pinned.items() if "+" in version]
    by_kind["replace"] += local_pins
    # uv looks for an override on the default index only: where a package has an index of its own, its exact pin has to
    # do (`==2.8.0` accepts 2.8.0+cpu).
    by_kind["replace"] = [
        line for line in by_kind["replace"] if canonicalize_name(Requirement(line).name) not in on_index
    ]
    for kind, lines in by_kind.items():
        (folder / f"{kind}.txt").write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)), encoding="utf-8")
    stand_ins = {row["name"]: row["requires"] for row in _table("stand_ins.toml")["stand_in"]}
    (folder / "links").mkdir()
    for gone in missing:
        write_wheel(folder / "links", gone.name, gone.version, requires=stand_ins.get(gone.name, ()))


def _write_project(folder: Path, stack: Stack, resolver: Resolver, on_index: Mapping[str, str]) -> None:
    """A project file: the one form in which uv takes an index for a single package."""
    built = {canonicalize_name(source.name) for source in stack.git_sources}
    excluded = {canonicalize_name(o.requirement) for o in stack.overrides if o.does == "exclude"}
    pinned = {pin.name for pin in stack.pins if pin.is_python}
    lines = [f"{pin.name}=={pin.version}" for pin in stack.pins if pin.is_python and pin.name not in built]
    lines += stack.requirements
    for line in (line for source in stack.git_sources for line in source.requires):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name in excluded or name in built:
            continue
        # The stack's pin stands for the component's own bound; extras still count.
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        lines.append(f"{requirement.name}{extras}" if name in pinned else line)
    text = ["[project]", 'name = "npuenv-lock"', 'version = "0"', f'requires-python = ">={stack.platform.python}"']
    text += [f"dependencies = [{', '.join(_toml(line) for line in dict.fromkeys(lines))}]", "", "[tool.uv.sources]"]
    text += [f"{name} = {{ index = {_toml(label)} }}" for name, label in on_index.items()]
    for label in sorted(set(on_index.values())):
        text += ["", "[[tool.uv.index]]", f"name = {_toml(label)}", f"url = {_toml(_bare(resolver, label))}"]
        text += ["explicit = true"]
    (folder / "pyproject.toml").write_text("\n".join(text) + "\n", encoding="utf-8")


def _resolve(
    folder: Path, stack: Stack, resolver: Resolver, bare: set[str]
) -> tuple[tuple[LockedPackage, ...], list[Missing]]:
    """The packages of the set, or none and the resolver's reason. `bare`: names whose hash must not be recorded."""
    secret: dict[str, str] = {}
    for label, url in resolver.indexes.items():
        named_index(label, url, secret)
    links = [for_uv(resolver.settings).environ.get("UV_FIND_LINKS"), str(folder / "links")]
    env = {**secret, "UV_FIND_LINKS": ",".join(filter(None, links))}
    options = (
        "--no-header",
        *_platform_options(stack),
        "-c",
        str(folder / "constrain.txt"),
        "--overrides",
        str(folder / "replace.txt"),
    )
    options += ("--excludes", str(folder / "exclude.txt"), str(folder / "pyproject.toml"))
    found = folder / "pylock.toml"
    ran = resolver.run(("pip", "compile", "--format", "pylock.toml", "-o", str(found), *options), env=env)
    if ran.code != 0:
        if ran.timed_out or is_out_of_reach(ran.err):
            raise CannotTell(
                Message("lock.index-out-of-reach", {"why": deciding_line(ran.err)}), Message("lock.check-network")
            )
        why_not = deciding_line(ran.err).replace("npuenv-lock", stack.name)
        return (), [Missing("*", "", "does-not-resolve", detail=why_not)]
    told = resolver.run(
        ("pip", "compile", "--annotation-style", "line", "--offline", *options), env={**env, "NO_COLOR": "1"}
    )
    why = _who_needs(told.out)
    labels = {pin.name: pin.index for pin in stack.pins}
    tags = platform_tags(stack.platform)
    rows = load_file(found)["packages"]
    packages = [
        LockedPackage(
            row["name"],
            row["version"],
            () if row["name"] in bare else _hashes(row, tags),
            labels.get(row["name"]),
            why.get(row["name"], ()),
        )
        for row in rows
    ]
    return tuple(sorted(packages, key=lambda package: package.name)), []


def _who_needs(text: str) -> dict[str, tuple[str, ...]]:
    """Who needs each package. A real line (uv 0.13.8): `jinja2==3.1.6  # via npuenv-lock (pyproject.toml), torch`."""
    needs = {}
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==\S+\s+# via (.*)$", line)
        if match:
            # The resolution's own inputs (project, -c, --override) stand for the stack.
            who = [
                STACK if "(" in item or item.startswith(("-", "npuenv-lock")) else item for item in match[2].split(", ")
            ]
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


def _platform_options(stack: Stack) -> tuple[str, ...]:
    platform = f"{stack.platform.arch}-manylinux_2_{GLIBC_MINOR}"
    return ("--python-platform", platform, "--python-version", stack.platform.python)


def _bare(resolver: Resolver, label: str) -> str:
    return named_index(label, resolver.indexes[label], {}).partition("=")[2]


def _version(resolver: Resolver) -> str:
    """Like `uv 0.13.8`. Real output: `uv 0.13.8 (x86_64-unknown-linux-gnu)`."""
    return " ".join(resolver.run(("--version",)).out.split()[:2])


def _table(name: str) -> dict[str, Any]:
    return load_file(Path(__file__).with_name(name))


def _toml(text: str) -> str:
    import json

    return json.dumps(text)
