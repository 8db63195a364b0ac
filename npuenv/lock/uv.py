"""Asking uv: the resolver with its settings, the files it reads, and what its complaints mean."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npuenv.facts.pip import PipSettings, for_uv, named_index, without_secrets
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, Inputs, ignored_requirements, stand_in_requires
from npuenv.lock.wheels import uv_platform, write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from npuenv.core.messages import Message
    from npuenv.host.base import Host, Ran
    from npuenv.lock.file import Missing
    from npuenv.resolve.types import Platform

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
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")


# uv breaks its sentences at the width that COLUMNS names; they are read here line by line.
_PLAIN = {"COLUMNS": "100000", "NO_COLOR": "1"}


@dataclass(frozen=True, slots=True)
class Resolver:
    """What a resolution runs with: the host, uv's path, pip's settings and the index addresses by label."""

    host: Host
    uv: str
    settings: PipSettings
    indexes: Mapping[str, str]
    is_offline: bool = False  # answer from uv's cache alone
    warn: Callable[[Message], None] = lambda _: None  # gets what is odd and does not end a resolution

    def run(self, argv: tuple[str, ...], *, env: Mapping[str, str] | None = None, is_cut_off: bool = False) -> Ran:
        """uv with the settings in force. `is_cut_off` drops every index of the settings: only `env` names some."""
        uv_settings = for_uv(self.settings)
        kept = {
            name: value for name, value in uv_settings.environ.items() if not (is_cut_off and name in _INDEX_VARIABLES)
        }
        stale = [name for name in self.host.environ() if name.startswith("UV_") and name != "UV_CACHE_DIR"]
        unset = tuple(word for name in stale for word in ("-u", name))
        options = (*(() if is_cut_off else uv_settings.options), *(("--offline",) if self.is_offline else ()))
        words = ("env", *unset, self.uv, *argv, *options)
        return self.host.run(words, timeout_s=RESOLVE_TIMEOUT_S, env={**_PLAIN, **kept, **(env or {})})


@dataclass(frozen=True, slots=True)
class Supply:
    """Where the packages with an index of their own come from this time."""

    missing: tuple[Missing, ...] = ()  # nowhere: an empty stand-in takes their place
    on_index: Mapping[str, str] = field(default_factory=dict)  # name -> label; the others lie in find-links


def ask(inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path, *form: str) -> Ran:
    """Writes what is asked into an empty folder and runs `uv pip compile` on it; `form` are options of the output."""
    return resolver.run(
        ("pip", "compile", "--no-header", *form, *write_question(inputs, supply, resolver, folder)),
        env=environ(resolver, folder),
    )


def write_question(inputs: Inputs, supply: Supply, resolver: Resolver, folder: Path) -> tuple[str, ...]:
    """The files that uv reads, in `folder`, and the options that name them."""
    for kind in (CONSTRAIN, REPLACE, EXCLUDE):
        lines = inputs.of(kind)
        if kind == REPLACE:
            # uv looks for an override on the default index only: where a package has an index of its own, its exact pin
            # has to do (`==2.8.0` accepts 2.8.0+cpu).
            lines = [line for line in lines if canonicalize_name(Requirement(line).name) not in supply.on_index]
        (folder / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "links").mkdir(exist_ok=True)
    for gone in supply.missing:
        requires = stand_in_requires(gone.name, gone.version) or ()
        write_wheel(folder / "links", gone.name, gone.version, requires=requires)
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
    """The variables of a resolution: the stand-ins beside the user's own links, credentials of the indexes."""
    secret: dict[str, str] = {}
    for label, url in resolver.indexes.items():
        named_index(label, url, secret)
    links = [for_uv(resolver.settings).environ.get("UV_FIND_LINKS"), str(folder / "links")]
    return {**secret, "UV_FIND_LINKS": ",".join(filter(None, links)), "NO_COLOR": "1"}


def platform_options(platform: Platform) -> tuple[str, ...]:
    """uv's options for a platform other than this machine's.

    To find a Python of that version, uv starts each on PATH, and those of pyenv are slow scripts (measured: 0.2 s of a
    core instead of 0.02). Where this Python has it, it is named.
    """
    options = ("--python-platform", uv_platform(platform), "--python-version", platform.python)
    is_this = platform.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (*options, "--python", sys.executable) if is_this and sys.executable else options


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


def is_cache_miss(text: str) -> bool:
    """True when uv was told to stay offline and its cache does not hold enough."""
    return _CACHE_MISS in text


def undated(text: str) -> tuple[str, ...]:
    """Packages whose age the index does not tell, in a complaint that the limit on age caused.

    Real output (uv 0.13.8): "hint: `zz` was filtered by `exclude-newer` to only include packages uploaded before
    2024-01-01T00:00:00Z. The latest version satisfying the requirement is v1.0. Consider using ..."; with a known
    age the sentence goes on with ", published at 2026-07-02T08:40:04.659Z".
    """
    pattern = r"`(\S+)` was filtered by `exclude-newer`.*? (?:is|version,) v[^\s,]*[^\s,.]\. "
    return tuple(dict.fromkeys(re.findall(pattern, text)))


def _age_options(inputs: Inputs) -> tuple[str, ...]:
    """The day as uv takes it: files uploaded before the midnight after it. What was chosen by version has any age."""
    if not inputs.newest:
        return ()
    free = tuple(word for name in inputs.any_age for word in ("--exclude-newer-package", f"{name}=false"))
    return ("--exclude-newer", f"{inputs.first_day_out}T00:00:00Z", *free)


def _without_requirements(inputs: Inputs, folder: Path) -> tuple[str, ...]:
    """The option for packages that uv takes as requiring nothing, which it reads from its own settings only."""
    text = ""
    for requirement in map(Requirement, inputs.of(REQUIRE)):
        version = str(requirement.specifier).removeprefix("==")
        if ignored_requirements(requirement.name, version):
            text += f'[[dependency-metadata]]\nname = "{requirement.name}"\nversion = "{version}"\nrequires-dist = []\n'
    (folder / "uv.toml").write_text(text, encoding="utf-8")
    return ("--config-file", str(folder / "uv.toml")) if text else ()


def _project(inputs: Inputs, supply: Supply, resolver: Resolver) -> str:
    """A project file: the one form in which uv takes an index for a single package."""
    lines = inputs.of(REQUIRE)
    asked = {canonicalize_name(Requirement(line).name) for line in lines}
    on_index = {name: label for name, label in supply.on_index.items() if name in asked}
    text = ["[project]", f'name = "{PROJECT}"', 'version = "0"', f'requires-python = ">={inputs.platform.python}"']
    text += [f"dependencies = [{', '.join(json.dumps(line) for line in lines)}]", "", "[tool.uv.sources]"]
    text += [f"{name} = {{ index = {json.dumps(label)} }}" for name, label in on_index.items()]
    for label in sorted(set(on_index.values())):
        bare = named_index(label, resolver.indexes[label], {}).partition("=")[2]
        text += ["", "[[tool.uv.index]]", f"name = {json.dumps(label)}", f"url = {json.dumps(bare)}"]
        text += ["explicit = true"]
    return "\n".join(text) + "\n"
