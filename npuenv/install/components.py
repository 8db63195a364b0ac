"""The steps that put the components of a stack into an environment: wheels by uv, sources fetched and built.

Each call of uv reads the complete environment. So packages from one location are installed together, whichever entries
of the stack's order named them: without dependencies and at exact versions the order of wheels cannot change the
result. A build, an uninstallation and the package that must be last end such a group.

A source is assembled beside its final location and then exchanged for the former one, so that an unreachable repository
leaves the former source in place. The notes `source-NAME.txt` and `built-NAME.txt` record which source is present and
what was built.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Run, Step, WriteFile
from npuenv.facts.pip import INDEX_VARIABLES, UvSettings, named_index
from npuenv.host import PathState
from npuenv.install.cann import LAUNCHER, cann_scripts
from npuenv.install.target import is_source_folder, unpacker_text
from npuenv.lock.uv import uv_platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host import Host
    from npuenv.install.environments import EnvironmentPlace
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.resolve.types import BuildStep, GitSource, Stack


LAST = "triton-ascend"
UNPACKER = "unpacker.py"
_VERSION = re.compile(r"v?\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
_SUPPLIED = re.compile(r"(sha256|tree):[0-9a-f]+|folder .+")  # a note about a source from no repository
_ALL_PLACES = (*INDEX_VARIABLES, "UV_FIND_LINKS")
_NETWORK = tuple(
    spelling
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for spelling in (name, name.upper())
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a plan: the base interpreter, uv, how uv links files, and where packages come from."""

    base_python: str
    uv: str
    settings: UvSettings = field(default_factory=UvSettings)
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> address; credentials never reach the plan
    in_links: Mapping[str, str] = field(default_factory=dict)  # name -> find-links folder with exactly this wheel
    # A copy shares nothing with uv's cache: damage in the environment does not reach the cache.
    link_mode: str = "copy"
    wheels: str = ""  # a bundle's folder with every wheel; no index is used then
    given: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> archive or folder instead of git
    digests: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> what `given` holds, as
    # `npuenv.install.target.digests_of` tells it; a name that lacks was not looked at
    # Normalised source name -> what was supplied before and stays, unless `given`: `supplied_in`.
    supplied_before: Mapping[str, str] = field(default_factory=dict)
    # Normalised names of what lies in the user's own environment, whole or not; None where nobody looked.
    present: frozenset[str] | None = None
    conda: str = ""  # the program that makes conda environments; needed for a target of that kind

    @property
    def offline(self) -> tuple[str, ...]:
        """uv's options to stay off the network if all packages are local."""
        return ("--offline",) if self.wheels else ()


@dataclass(frozen=True, slots=True)
class Making:
    """A stack, its lock, the target and the tools."""

    stack: Stack
    lock: Lock
    target: EnvironmentPlace
    tools: Tools
    request: Mapping[str, Any] = field(default_factory=dict)  # the request, for the manifest

    @property
    def is_own(self) -> bool:
        """False for an environment that the user already had, whose content may be intentional."""
        return self.target.kind != "existing"

    @property
    def over(self) -> tuple[str, ...]:
        """The verifier's option for the package that may own files of another: it is installed last and takes
        precedence.
        """
        return ("--over", f"{LAST}=triton") if self.lock.package(LAST) else ()

    def uv(self, *argv: str, env: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()) -> Run:
        """A command line of uv."""
        return Run((self.tools.uv, *argv), env or {}, unset)

    def source(self, name: str) -> GitSource:
        """The stack's source of that name. Raises: StopIteration without one, which the stack's order rules out."""
        return next(s for s in self.stack.git_sources if canonicalize_name(s.name) == canonicalize_name(name))


@dataclass(frozen=True, slots=True)
class _Location:
    """A package location: a labelled index must not serve packages of another."""

    label: str  # label of an index; "": the default one
    folder: str  # a folder that replaces every index; "": none
    is_hashed: bool


@dataclass(slots=True)
class _Group:
    """The packages of one call of uv."""

    items: list[BuildStep] = field(default_factory=list)
    packages: list[LockedPackage] = field(default_factory=list)


def wheel_steps(making: Making, items: Sequence[BuildStep]) -> list[Step]:
    """One step for each location of these entries' packages."""
    groups: dict[_Location, _Group] = {}
    for item in items:
        for package in _packages_of(making, item):
            group = groups.setdefault(_location_of(making, package), _Group())
            if item not in group.items:
                group.items.append(item)
            group.packages.append(package)
    parted = {item.id for item in items if sum(item in group.items for group in groups.values()) > 1}
    return [_group_step(making, location, group, parted) for location, group in groups.items()]


def removal_step(making: Making, item: BuildStep) -> Step:
    names = [canonicalize_name(name) for name in item.what]
    run = making.uv("pip", "uninstall", "--python", making.target.python, *making.tools.offline, *names)
    # A name that is installed again later cannot be a condition: every further run would uninstall it once more.
    later = {package.name for package in making.lock.packages}
    wants = tuple(Condition("dist.version", (making.target.python, n), "") for n in names if n not in later)
    reinstalled = [package for package in making.lock.packages if package.name in names]
    # Packages that are installed again were put there by npuenv; any other may be the user's.
    is_upkeep = making.is_own and not wants
    return Step(item.id, item.why, (run,), wants or (_complete_want(making, reinstalled),), is_upkeep=is_upkeep)


def _packages_of(making: Making, item: BuildStep) -> list[LockedPackage]:
    """The packages of an entry; for `rest` those that no other entry names."""
    if item.does == "rest":
        named = {canonicalize_name(n) for other in making.stack.order for n in other.what if other.does != "git"}
        return [p for p in making.lock.packages if p.name not in named]
    wanted = {canonicalize_name(name) for name in item.what}
    return [p for p in making.lock.packages if p.name in wanted]


def _location_of(making: Making, package: LockedPackage) -> _Location:
    if making.tools.wheels:
        return _Location("", making.tools.wheels, bool(package.sha256))
    folder = making.tools.in_links.get(package.name, "") if package.index else ""
    if folder and folder in making.tools.settings.public.get("UV_FIND_LINKS", "").split(",") and package.sha256:
        return _Location("", "", True)  # found there with all others: the hash admits no other file of that name
    return _Location(package.index or "", folder, bool(package.sha256))


def _group_step(making: Making, location: _Location, group: _Group, parted: set[str]) -> Step:
    """A step named after its entries, and after the location if one of them has several."""

    def both(first: Message, other: Message) -> Message:
        return Message("plan.why-both", {"first": first, "other": other})

    name = "+".join(item.id for item in group.items)
    if any(item.id in parted for item in group.items):
        name += f"@{location.label or 'default'}{'' if location.is_hashed else '-unhashed'}"
    lines = [
        " ".join([f"{p.name}=={p.version}", *(f"--hash=sha256:{digest}" for digest in p.sha256)])
        for p in group.packages
    ]
    file = making.target.own(f"{name}.txt")
    options, env, unset = _uv_settings(making, location)
    if not making.is_own:
        options += _reinstall_options(making, group.packages)
    run = making.uv("pip", "install", "--python", making.target.python, *options, "-r", file, env=env, unset=unset)
    args = {
        "why": functools.reduce(both, (item.why for item in group.items)),
        "count": len(group.packages),
        "from": location.folder or location.label or Message("plan.default-index"),
    }
    message = Message("plan.why-group" if location.is_hashed else "plan.why-group-unhashed", args)
    want = _complete_want(making, group.packages)
    do = (WriteFile(file, "\n".join(lines) + "\n"), run)
    return Step(name, message, do, (want,), needs_network=not location.folder, is_upkeep=making.is_own)


def _reinstall_options(making: Making, packages: Sequence[LockedPackage]) -> list[str]:
    """uv's options to reinstall installed packages, because nothing removes damaged packages from the user's
    environment.

    uv also unpacks these packages again beside its cached copy: therefore only packages that are installed are named.
    """
    present = making.tools.present
    if present is None:
        return ["--reinstall"]
    return [word for package in packages if package.name in present for word in ("--reinstall-package", package.name)]


def _uv_settings(making: Making, location: _Location) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """uv's options, the variables it gets, and those that are unset."""
    options = ["--no-deps", "--python-platform", uv_platform(making.stack.platform)]
    options += ["--link-mode", making.tools.link_mode, *["--require-hashes"] * location.is_hashed]
    if location.folder:
        unset = (*_ALL_PLACES, *_NETWORK) if making.tools.wheels else _ALL_PLACES
        return [*options, "--no-index", "--find-links", location.folder, *making.tools.offline], {}, unset
    if location.label:
        address = named_index(location.label, making.tools.indexes[location.label], {})
        return options, {"UV_DEFAULT_INDEX": address}, INDEX_VARIABLES
    return [*options, *making.tools.settings.options], {}, ()


def _complete_want(making: Making, packages: Sequence[LockedPackage]) -> Condition:
    names = (f"{package.name}=={package.version}" for package in packages)
    return Condition("env.dists", (making.target.root, *making.over, *names), "complete")


def source_steps(making: Making, item: BuildStep, source: GitSource) -> list[Step]:
    """The step that fetches the source, and the one that builds it unless it is used in place."""
    name = canonicalize_name(source.name)
    is_only = len(item.what) == 1
    fetch = f"{item.id}-source" if is_only else f"{name}-source"
    given = making.tools.given.get(name, "")
    if given:
        steps = [_given(making, fetch, source, given)]
    else:
        steps = [(_keep if supplied(making, source) else _cloned)(making, fetch, source)]
    if source.how != "pythonpath":
        steps.append(_built(making, item.id if is_only else name, item.why, source))
    return steps


def supplied_in(host: Host, target: EnvironmentPlace, stack: Stack) -> dict[str, str]:
    """Normalised name -> digest of each source in an environment that came from no repository."""
    found = {}
    for source in stack.git_sources:
        note, text = host.look(_source_note_path(target, source)), ""
        if note.state is PathState.FILE and host.look(_source_folder(target, source)).state is PathState.FOLDER:
            text = note.text.removesuffix("\n")
        if _SUPPLIED.fullmatch(text):
            found[str(canonicalize_name(source.name))] = text
    return found


def supplied(making: Making, source: GitSource) -> str:
    """The digest of a source from no repository, supplied now or before; "" for one from its repository."""
    name = canonicalize_name(source.name)
    given, digest = making.tools.given.get(name, ""), making.tools.digests.get(name, "")
    if not given:
        return making.tools.supplied_before.get(name, "")
    if _is_linked(source, given, digest):
        return f"folder {given}"  # the user's own folder, whose content may change
    return digest or given  # the same archive at another path is the same source


def _source_folder(target: EnvironmentPlace, source: GitSource) -> str:
    return f"{target.root}/src/{source.name}"


def _source_note_path(target: EnvironmentPlace, source: GitSource) -> str:
    return target.own(f"source-{canonicalize_name(source.name)}.txt")


def _source_note(making: Making, source: GitSource) -> tuple[str, str]:
    """The note beside a source: its path, and a text that differs for every source."""
    text = supplied(making, source) or f"{source.repo} {source.ref}"
    return _source_note_path(making.target, source), f"{text}\n"


def _is_linked(source: GitSource, given: str, digest: str) -> bool:
    """Whether a folder stays editable because the user works in it. Everything else is unpacked or copied."""
    return is_source_folder(given, digest) and source.how != "install"


def _cloned(making: Making, step: str, source: GitSource) -> Step:
    folder = _source_folder(making.target, source)
    new = f"{folder}.new"
    # A clone has all branches but the default one under the remote's name only.
    ref = f"origin/{source.ref}" if source.is_moving else source.ref
    kind = "-moving" if source.is_moving else "-commit" if source.commit else ""
    why = Message(f"plan.why-source{kind}", {"repo": source.repo, "ref": source.ref, "commit": source.commit})
    do = (
        Run(("rm", "-rf", new)),
        Run(("git", "clone", "--filter=blob:none", "--no-checkout", source.repo, new)),
        # The commit rather than the tag, which its owner can move. The step fails if the commit is unreachable.
        Run(("git", "-C", new, "checkout", "--detach", source.commit or ref)),
        Run(("git", "-C", new, "submodule", "update", "--init", "--recursive")),
        *_exchange(making, source),
    )
    done_when = (_note_want(making, source), Condition("path.state", (f"{folder}/.git",), "folder"))
    return Step(step, why, do, done_when, needs_network=True)


def _given(making: Making, step: str, source: GitSource, given: str) -> Step:
    folder = _source_folder(making.target, source)
    new = f"{folder}.new"
    digest = making.tools.digests.get(canonicalize_name(source.name), "")
    program = making.target.own(UNPACKER)
    do: tuple[Action, ...] = (Run(("rm", "-rf", new)),)
    if _is_linked(source, given, digest):
        why = Message("plan.why-source-linked", {"name": source.name, "path": given})
        do += (Run(("mkdir", "-p", f"{making.target.root}/src")), Run(("ln", "-s", given, new)))
    else:
        why = Message("plan.why-source-given", {"name": source.name, "path": given})
        argv = (making.tools.base_python, "-I", "-B", program, "unpack", given, digest or "-", new)
        do += (WriteFile(program, unpacker_text()), Run(argv))
    wants = (_note_want(making, source), Condition("path.state", (folder,), "folder"))
    return Step(step, why, (*do, *_exchange(making, source)), wants)


def _keep(making: Making, step: str, source: GitSource) -> Step:
    """Keeps a source that was supplied before: the user may work in it, and its origin is not recorded.

    A script that runs on another machine stops here.
    """
    folder = _source_folder(making.target, source)
    wants = (_note_want(making, source), Condition("path.state", (folder,), "folder"))
    why = Message("plan.why-source-kept", {"name": source.name, "path": folder})
    return Step(step, why, (Run(("test", "-d", folder)),), wants)


def _note_want(making: Making, source: GitSource) -> Condition:
    path, text = _source_note(making, source)
    return Condition("file.text", (path,), text)


def _exchange(making: Making, source: GitSource) -> tuple[Action, ...]:
    """Replaces the old folder with the new one. The note is removed before and written after, so that it never lies."""
    folder, (note, text) = _source_folder(making.target, source), _source_note(making, source)
    return (
        Run(("rm", "-f", note)),
        Run(("rm", "-rf", folder)),
        Run(("mv", f"{folder}.new", folder)),
        WriteFile(note, text),
    )


def _built(making: Making, step: str, why: Message, source: GitSource) -> Step:
    name, folder = canonicalize_name(source.name), _source_folder(making.target, source)
    env = {**_build_env(making, source), **source.build_env}
    where = ("-e", folder) if source.how == "editable" else (folder,)
    # uv checks only a folder's build files for changes; but here every build has another source.
    options = ("--no-deps", "--no-build-isolation", "--reinstall-package", name, *making.tools.offline)
    build = making.uv("pip", "install", "--python", making.target.python, *options, *where, env=env)
    note, text = making.target.own(f"built-{name}.txt"), _built_text(making, source, env)
    do: tuple[Action, ...] = (Run(("rm", "-f", note)), build)
    if making.stack.cann_root:
        # Builds need CANN's variables; its set_env.sh is a shell script, so a small launcher sources it.
        launcher = making.target.own("with-cann.sh")
        run = Run(("sh", launcher, *build.argv), build.env, build.unset)
        do = (Run(("rm", "-f", note)), WriteFile(launcher, LAUNCHER, 0o755), run)
    done_when = (Condition("env.dists", (making.target.root, name), "complete"), Condition("file.text", (note,), text))
    return Step(step, why, (*do, WriteFile(note, text)), done_when, is_upkeep=making.is_own)


def _built_text(making: Making, source: GitSource, env: dict[str, str]) -> str:
    """The inputs of a build: the source and the variables that affect its result."""
    settings = {**source.build_env} | ({"SOC_VERSION": env["SOC_VERSION"]} if "SOC_VERSION" in env else {})
    return _source_note(making, source)[1] + "".join(f"{key}={value}\n" for key, value in sorted(settings.items()))


def _build_env(making: Making, source: GitSource) -> dict[str, str]:
    # With torch_npu installed a plain `import torch` in a setup.py fails without a card, hence no autoload.
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VIRTUAL_ENV": making.target.root}
    if making.stack.cann_root:
        env["NPUENV_CANN"], env["NPUENV_NNAL"] = cann_scripts(making.stack)
    if supplied(making, source) and _VERSION.fullmatch(source.ref):
        # An archive of a repository has no history from which setuptools-scm could read the version.
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = source.ref.removeprefix("v")
    return env | ({"SOC_VERSION": making.stack.soc_version} if making.stack.soc_version else {})
