"""Runs uv as the resolver: its settings, its input files, and the meaning of its errors.

Also the wheel files around it: which fit a platform, which are in a find-links folder, and empty stand-ins for those
whose index is unreachable.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from npuenv.core.documents import load_toml
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.facts.pip import INDEX_VARIABLES, PipSettings, for_uv, local_folder, named_index, without_secrets
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, Inputs, ignored_requirements, stand_in_requires

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npuenv.host import Host, Ran
    from npuenv.lock.file import LockedPackage, Missing
    from npuenv.resolve.types import Pin, Platform, Stack


PROJECT = "npuenv-lock"
_RESOLVE_TIMEOUT_S = 600.0
# uv wraps its messages at the width of COLUMNS; they are parsed line by line.
_PLAIN = {"COLUMNS": "100000", "NO_COLOR": "1"}


def find_uv() -> str:
    """The path of the uv program that belongs to this installation."""
    import uv

    return str(uv.find_uv_bin())


@dataclass(frozen=True, slots=True)
class Resolver:
    """The settings of a resolution: the host, uv's path, pip's settings and the index addresses by label."""

    host: Host
    uv: str
    settings: PipSettings
    indexes: Mapping[str, str]
    is_offline: bool = False  # use uv's cache only
    warn: Callable[[Message], None] = lambda _: None  # called with warnings, which do not end a resolution

    def run(self, argv: tuple[str, ...], *, env: Mapping[str, str] | None = None, is_cut_off: bool = False) -> Ran:
        """Runs uv with pip's settings. `is_cut_off` drops every index of the settings: only those in `env` are used."""
        uv_settings = for_uv(self.settings)
        variables = {
            name: value for name, value in uv_settings.environ.items() if not (is_cut_off and name in INDEX_VARIABLES)
        }
        stale = [name for name in self.host.environ() if name.startswith("UV_") and name != "UV_CACHE_DIR"]
        unset = tuple(option for name in stale for option in ("-u", name))
        options = (*(() if is_cut_off else uv_settings.options), *(("--offline",) if self.is_offline else ()))
        command = ("env", *unset, self.uv, *argv, *options)
        return self.host.run(command, timeout_s=_RESOLVE_TIMEOUT_S, env={**_PLAIN, **variables, **(env or {})})


@dataclass(frozen=True, slots=True)
class Supply:
    """Where the packages that have an index of their own come from."""

    missing: tuple[Missing, ...] = ()  # unreachable: replaced by an empty stand-in
    on_index: Mapping[str, str] = field(default_factory=dict)  # name -> label; the others are in find-links


def pip_compile(inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path, *output: str) -> Ran:
    """Writes the inputs into a folder and runs `uv pip compile` on them; `output` are options of the output."""
    return resolver.run(
        ("pip", "compile", "--no-header", *output, *write_inputs(inputs, supply, resolver, folder)),
        env=environ(resolver, folder),
    )


def list_exact(
    requirements: Sequence[str],
    platform: Platform,
    resolver: Resolver,
    folder: Path,
    *,
    label: str = "",
    options: Sequence[str] = ("--no-deps",),
    env: Mapping[str, str] | None = None,
) -> tuple[Ran, list[dict[str, Any]]]:
    """uv's choice for requirements as they are: its run, and the rows of `pylock.toml`, written to an empty folder.

    `label`: only the index of that label; "": those of pip's settings.
    """
    wanted, found = folder / "wanted.in", folder / "pylock.toml"
    wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    form = ("--no-header", "--format", "pylock.toml", "-o", str(found))
    argv = ("pip", "compile", *form, *platform_options(platform), *options, str(wanted))
    variables = dict(env or {})
    if label:
        variables["UV_DEFAULT_INDEX"] = named_index(label, resolver.indexes[label], variables)
    ran = resolver.run(argv, env=variables, is_cut_off=bool(label))
    return ran, load_toml(found).get("packages", []) if ran.code == 0 else []


def probe(name: str, version: str, label: str, stack: Stack, resolver: Resolver) -> Ran:
    """Runs uv with the index `label` only; it succeeds if the index has this version for the stack's platform."""
    env = {"UV_HTTP_RETRIES": "0"}
    with tempfile.TemporaryDirectory(prefix="npuenv-probe-") as folder:
        return list_exact([f"{name}=={version}"], stack.platform, resolver, Path(folder), label=label, env=env)[0]


def write_inputs(inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path) -> tuple[str, ...]:
    """Writes the files that uv reads into `folder`; the options that name them."""
    for kind in (CONSTRAIN, REPLACE, EXCLUDE):
        lines = inputs.of(kind)
        if kind == REPLACE:
            # uv looks up an override on the default index only. For a package with an index of its own the exact pin
            # has to suffice (`==2.8.0` accepts 2.8.0+cpu).
            lines = [line for line in lines if canonicalize_name(Requirement(line).name) not in supply.on_index]
        (folder / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "links").mkdir(exist_ok=True)
    for missing in supply.missing:
        requires = stand_in_requires(missing.name, missing.version) or ()
        write_wheel(folder / "links", missing.name, missing.version, requires=requires)
    (folder / "pyproject.toml").write_text(_project(inputs, supply, resolver), encoding="utf-8")
    bounds = ("-c", str(folder / "constrain.txt"), "--overrides", str(folder / "replace.txt"))
    files = ("--excludes", str(folder / "exclude.txt"), str(folder / "pyproject.toml"))
    of_inputs = (*_age_options(inputs), *_without_requirements(inputs, folder))
    return (*platform_options(inputs.platform), *of_inputs, *bounds, *files)


def _age_options(inputs: Inputs) -> tuple[str, ...]:
    """uv's option for the date limit: files uploaded before the midnight after it. Chosen versions have no limit."""
    if not inputs.newest:
        return ()
    free = tuple(option for name in inputs.any_age for option in ("--exclude-newer-package", f"{name}=false"))
    return ("--exclude-newer", f"{inputs.first_day_out}T00:00:00Z", *free)


def _without_requirements(inputs: Inputs, folder: Path) -> tuple[str, ...]:
    """The option for packages without requirements, which uv reads from its own settings only."""
    text = ""
    for requirement in map(Requirement, inputs.of(REQUIRE)):
        version = str(requirement.specifier).removeprefix("==")
        if ignored_requirements(requirement.name, version):
            text += f'[[dependency-metadata]]\nname = "{requirement.name}"\nversion = "{version}"\nrequires-dist = []\n'
    (folder / "uv.toml").write_text(text, encoding="utf-8")
    return ("--config-file", str(folder / "uv.toml")) if text else ()


def _project(inputs: Inputs, supply: Supply, resolver: Resolver) -> str:
    """A project file, because uv accepts an index for a single package only there."""
    lines = inputs.of(REQUIRE)
    required = {canonicalize_name(Requirement(line).name) for line in lines}
    on_index = {name: label for name, label in supply.on_index.items() if name in required}
    text = ["[project]", f'name = "{PROJECT}"', 'version = "0"', f'requires-python = ">={inputs.platform.python}"']
    text += [f"dependencies = [{', '.join(json.dumps(line) for line in lines)}]", "", "[tool.uv.sources]"]
    return "\n".join([*text, *index_tables(on_index, resolver)]) + "\n"


def index_tables(on_index: Mapping[str, str], resolver: Resolver) -> list[str]:
    """The lines after `[tool.uv.sources]` for packages that come from an index of their own: name -> label."""
    lines = [f"{name} = {{ index = {json.dumps(label)} }}" for name, label in on_index.items()]
    for label in sorted(set(on_index.values())):
        bare = named_index(label, resolver.indexes[label], {}).partition("=")[2]
        lines += ["", "[[tool.uv.index]]", f"name = {json.dumps(label)}", f"url = {json.dumps(bare)}"]
        lines += ["explicit = true"]
    return lines


def environ(resolver: Resolver, folder: Path) -> dict[str, str]:
    """The environment variables of a resolution: stand-ins beside the user's links, and credentials of the indexes."""
    secret: dict[str, str] = {}
    for label, url in resolver.indexes.items():
        named_index(label, url, secret)
    links = [for_uv(resolver.settings).environ.get("UV_FIND_LINKS"), str(folder / "links")]
    return {**secret, "UV_FIND_LINKS": ",".join(filter(None, links)), "NO_COLOR": "1"}


def platform_options(platform: Platform) -> tuple[str, ...]:
    """uv's options for a platform other than this machine's.

    To find a Python of that version, uv starts each on PATH, and those of pyenv are slow scripts (measured: 0.2 s of a
    core instead of 0.02). If this Python has that version, it is named.
    """
    options = ("--python-platform", uv_platform(platform), "--python-version", platform.python)
    is_this = platform.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (*options, "--python", sys.executable) if is_this and sys.executable else options


_CACHE_MISS = "network was disabled"
_OUT_OF_REACH = ("dns error", "Connect", "timed out", "Network is unreachable", "connection error", _CACHE_MISS)


def deciding_line(text: str) -> str:
    """The line of uv's error that gives the reason, without secrets of addresses.

    Real output (uv 0.13.8): "error: No solution found when resolving dependencies" then "  cause: Because there is no
    version of torch==2.8.0+cpu and you require torch==2.8.0+cpu, we can conclude that ...".
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("warning:")]
    because = [line for line in lines if "Because" in line]
    causes = [line for line in lines if line.startswith(("cause:", "Caused by:"))]
    chosen = (because or causes[-1:] or lines[-1:] or [""])[0]
    return without_secrets(re.sub(r"^(error|cause|Caused by): ", "", chosen))


def is_out_of_reach(ran: Ran) -> bool:
    """Whether uv failed because of the network, not because of packages."""
    return ran.timed_out or any(mark in ran.err for mark in _OUT_OF_REACH)


def require_reached(ran: Ran) -> None:
    """Raises CannotTell if uv failed because of the network."""
    if is_out_of_reach(ran):
        said = {"why": deciding_line(ran.err)}
        raise CannotTell(Message("lock.index-out-of-reach", said), Message("lock.check-network"))


def is_cache_miss(text: str) -> bool:
    """Whether uv ran offline and its cache was insufficient."""
    return _CACHE_MISS in text


def undated(text: str) -> tuple[str, ...]:
    """Packages whose upload date the index does not report, in an error caused by the date limit.

    Real output (uv 0.13.8): "hint: `zz` was filtered by `exclude-newer` to only include packages uploaded before
    2024-01-01T00:00:00Z. The latest version satisfying the requirement is v1.0. Consider using ..."; with a known date
    the sentence ends with ", published at 2026-07-02T08:40:04.659Z".
    """
    pattern = r"`(\S+)` was filtered by `exclude-newer`.*? (?:is|version,) v[^\s,]*[^\s,.]\. "
    return tuple(dict.fromkeys(re.findall(pattern, text)))


# The C libraries of uv's platforms (uv 0.13.8, `--python-platform`).
_UV_GLIBC = (17, 28, *range(31, 41))
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # by the Y of glibc 2.Y


def _glibc_minor(platform: Platform) -> int:
    """The Y of the platform's glibc 2.Y. Raises: BadInput for an invalid version, or one older than any wheel's."""
    major, _, minor = platform.glibc.partition(".")
    if major != "2" or not minor.isdecimal() or int(minor) < _UV_GLIBC[0]:
        raise BadInput(Message("locking.no-glibc", {"glibc": platform.glibc, "least": f"2.{_UV_GLIBC[0]}"}))
    return int(minor)


def uv_platform(platform: Platform) -> str:
    """uv's name of a platform: with the newest C library that uv knows and that is not above the platform's own.

    Example: aarch64, glibc 2.30 -> "aarch64-manylinux_2_28"
    """
    minor = max(known for known in _UV_GLIBC if known <= _glibc_minor(platform))
    return f"{platform.arch}-manylinux_2_{minor}"


def platform_tags(platform: Platform) -> dict[Tag, int]:
    """Every wheel tag that a lock's platform accepts, CPython X.Y with at most the platform's glibc, and its rank.

    The order is pip's: 0 is the best.
    """
    major, minor = (int(part) for part in platform.python.split("."))
    names = []
    for glibc in range(_glibc_minor(platform), 4, -1):
        names.append(f"manylinux_2_{glibc}_{platform.arch}")
        names += [f"{_OLD_NAMES[glibc]}_{platform.arch}"] if glibc in _OLD_NAMES else []
    names.append(f"linux_{platform.arch}")
    own = cpython_tags((major, minor), [f"cp{major}{minor}"], names)
    tags = dict.fromkeys((*own, *compatible_tags((major, minor), f"cp{major}{minor}", names)))
    return {tag: rank for rank, tag in enumerate(tags)}


def wheel_rank(file_name: str, tags: Mapping[Tag, int]) -> int | None:
    """The rank of a wheel by its file name, the lower the better; None if it fits no tag, or is no wheel."""
    try:
        return min((tags[tag] for tag in parse_wheel_filename(file_name)[3] if tag in tags), default=None)
    except ValueError:  # InvalidWheelFilename, InvalidVersion, or a number of thousands of digits
        return None


def wheel_fits(file_name: str, tags: Mapping[Tag, int]) -> bool:
    """Whether a wheel's file name carries one of the tags; False for other names."""
    return wheel_rank(file_name, tags) is not None


def wheels_in_links(resolver: Resolver, packages: Iterable[Pin | LockedPackage], platform: Platform) -> dict[str, str]:
    """Name -> folder, for each of the packages that has a fitting wheel in one of the local find-links folders.

    Locations on the network are ignored. The version must be equal with its local part: 2.13.0 is not 2.13.0+cpu.
    """
    wanted = {(canonicalize_name(each.name), Version(each.version)) for each in packages}
    tags, found = platform_tags(platform), {}
    for item in reversed(resolver.settings.find_links):  # the first folder wins
        folder = local_folder(item.value)
        for file_name in resolver.host.look(folder).names if folder else ():
            if wheel_fits(file_name, tags):
                name, version = parse_wheel_filename(file_name)[:2]
                if (name, version) in wanted:
                    found[str(name)] = str(folder)
    return found


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: dict[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Writes a small valid wheel. Without files it is the stand-in for an unreachable package during a resolution."""
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    content = dict(files or {})
    content[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: npuenv\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = [f"{path},{_record_hash(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def _record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
