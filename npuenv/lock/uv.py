"""Runs uv as the resolver: its settings, its input files, and the meaning of its errors."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npuenv.core.errors import CannotTell
from npuenv.core.messages import Message
from npuenv.core.toml_input import load_file
from npuenv.facts.pip import INDEX_VARIABLES, PipSettings, for_uv, named_index, without_secrets
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, Inputs, ignored_requirements, stand_in_requires
from npuenv.lock.wheels import uv_platform, write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.host.base import Host, Ran
    from npuenv.lock.file import Missing
    from npuenv.resolve.types import Platform, Stack

RESOLVE_TIMEOUT_S = 600.0
PROJECT = "npuenv-lock"
_CACHE_MISS = "network was disabled"
_OUT_OF_REACH = (
    "dns error",
    "Connect",
    "timed out",
    "Connection refused",
    "Network is unreachable",
    "connection error",
    _CACHE_MISS,
)


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
        return self.host.run(command, timeout_s=RESOLVE_TIMEOUT_S, env={**_PLAIN, **variables, **(env or {})})


@dataclass(frozen=True, slots=True)
class Supply:
    """Where the packages that have an index of their own come from."""

    missing: tuple[Missing, ...] = ()  # unreachable: replaced by an empty stand-in
    on_index: Mapping[str, str] = field(default_factory=dict)  # name -> label; the others are in find-links


def pip_compile(inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path, *output: str) -> Ran:
    """Writes the inputs into an empty folder and runs `uv pip compile` on them; `output` are options of the output."""
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
    return ran, load_file(found).get("packages", []) if ran.code == 0 else []


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
    return (
        *platform_options(inputs.platform),
        *_age_options(inputs),
        *_without_requirements(inputs, folder),
        *bounds,
        *files,
    )


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
