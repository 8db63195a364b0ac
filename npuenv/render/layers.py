"""One layer of an image for each step of a stack's install order, and the lists of packages that they install."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.install.cann import cann_scripts
from npuenv.lock.export import requirement_lines
from npuenv.matrix import load_matrix
from npuenv.render.dockerfile import Command, Instruction, Var, by_arch, comment, export, run, sh, when
from npuenv.render.files import one_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.matrix.rows import Index
    from npuenv.resolve.types import BuildStep, GitSource, Stack


REST = "rest"
_INSTALLS = ("pip", "requirements")


@dataclass(frozen=True, slots=True)
class PackageList:
    """The packages that one `pip install` takes, sorted by name."""

    step: str
    arch: str
    index: str | None  # label; None: the default index
    is_hashed: bool
    is_rest: bool  # True for what no step names
    packages: tuple[LockedPackage, ...]

    @property
    def file(self) -> str:
        """`requirements.<arch>.txt` for the rest; the step, the index and `unhashed` are said where they apply."""
        parts = [] if self.is_rest else [self.step]
        parts += [self.index] if self.index else []
        parts += [] if self.is_hashed else ["unhashed"]
        return ".".join(("requirements", self.arch, *parts, "txt"))

    def text(self) -> str:
        """One requirement per package, exact, with all hashes of the platform's files."""
        return "".join(f"{line}\n" for package in self.packages for line in _lines(package))


def package_lists(stack: Stack, lock: Lock) -> tuple[PackageList, ...]:
    """The lists of a lock in the order of the stack's steps; within a step the default index comes first.

    Raises BadInput when a package of the lock has no step: neither one that names it, nor one that takes the rest.
    """
    places = _places(stack)
    found: dict[tuple[int, str, bool], list[LockedPackage]] = {}
    for package in lock.packages:
        name = versions.normalised(package.name)
        place = places.get(name, places.get(REST))
        if place is None:
            raise BadInput(
                Message("render.no-place", {"package": package.name, "stack": stack.name}),
                Message("render.no-place-hint", {"stack": stack.name, "arch": stack.platform.arch}),
            )
        if place >= 0:
            found.setdefault((place, package.index or "", not package.sha256), []).append(package)
    return tuple(
        PackageList(
            step=stack.order[place].id,
            arch=stack.platform.arch,
            index=label or None,
            is_hashed=not is_bare,
            is_rest=stack.order[place].does == REST,
            packages=tuple(sorted(packages, key=lambda package: package.name)),
        )
        for (place, label, is_bare), packages in sorted(found.items(), key=lambda item: item[0])
    )


def _places(stack: Stack) -> Mapping[str, int]:
    """Package name -> number of the step that installs it; -1 for one that is only ever removed. `rest`: the others.

    The first step that names a package installs it, so that what is built later finds it; but one that a step removes
    has to come after that step (triton-ascend owns files that triton owns too).
    """
    removed = {
        versions.normalised(name): number
        for number, step in enumerate(stack.order)
        if step.does == "uninstall"
        for name in step.what
    }
    places: dict[str, int] = dict.fromkeys(removed, -1)
    for number, step in enumerate(stack.order):
        for name in map(versions.normalised, step.what) if step.does in _INSTALLS else ():
            is_late_enough = number > removed.get(name, -1)
            if is_late_enough and places.get(name, -1) < 0:
                places[name] = number
        if step.does == REST:
            places[REST] = number
    return places


def _lines(package: LockedPackage) -> list[str]:
    for word in (f"{package.name}=={package.version}", *package.sha256):
        one_word(word, package.name)
    return requirement_lines(package)


HOME = "/opt/npuenv"  # where the image keeps the files of its folder
SOURCES = "/opt/src"  # where the image keeps the components built from repositories
# Settings of a build that a reader may want to change: build arguments, not literals in the layers.
BUILD_ARGUMENTS = ("SOC_VERSION", "COMPILE_CUSTOM_KERNELS", "MAX_JOBS")
OS_MIRROR = "NPUENV_OS_MIRROR"  # the build argument that stands in for the hosts of the distribution's repositories
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_PIP = ("python3", "-m", "pip")
_INSTALL = (*_PIP, "install", "--no-cache-dir", "--disable-pip-version-check", "--no-deps")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_FULL_COMMIT_DIGITS = 40


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """What the layers of one image are made from. `stacks` and `lists` are by architecture."""

    stacks: Mapping[str, Stack]
    lists: Mapping[str, tuple[PackageList, ...]]
    indexes: Mapping[str, Index]
    say: Callable[[Message], str]
    digest: str | None = None  # of the base image, like sha256:...; None: nobody gave one
    user: str = "root"  # who runs the container
    has_doctor: bool = False  # the doctor lies in the image, and its health check asks it

    @property
    def stack(self) -> Stack:
        """The first architecture's stack, for everything in which they are equal."""
        return next(iter(self.stacks.values()))

    def comment(self, key: str, **args: object) -> Instruction:
        """A sentence of the catalogue `render` by the last part of its key, for the reader of the Dockerfile."""
        return comment(self.say(Message(f"render.{key}", args)))


def layer(recipe: ImageRecipe, step: BuildStep) -> list[Instruction]:
    """The comment and the RUN of one step; only a comment where nothing is left to do."""
    head = recipe.comment("step", id=step.id, why=step.why)
    if step.does == "git":
        return [head, *_sources(recipe, step)]
    if step.does == "uninstall":
        return [head, run(sh(*_PIP, "uninstall", "-y", *(one_word(name, step.id) for name in step.what)))]
    commands = {
        arch: tuple(_install(recipe, found) for found in recipe.lists[arch] if found.step == step.id)
        for arch in recipe.stacks
    }
    if not any(commands.values()):
        return [head, recipe.comment("step-empty")]
    return [head, run(by_arch(commands), may_log_in=True)]


def system_layer(recipe: ImageRecipe) -> list[Instruction]:
    """The distribution's packages, without the lists that were read for them; nothing where the stack asks for none."""
    if not recipe.stack.system_packages:
        return []
    rows = load_matrix().packages_among(recipe.stack.system_packages)
    reasons = [comment(f"* {recipe.say(Message(row.why))}") for row in rows if row.why]
    return [recipe.comment("system-packages"), *reasons, run(*_system_packages(recipe))]


def _system_packages(recipe: ImageRecipe) -> tuple[Command, ...]:
    packages = tuple(one_word(name, "system package") for name in recipe.stack.system_packages)
    if package_tool(recipe.stack.platform.os or "") == "dnf":
        options = ("install", "-y", "--setopt=install_weak_deps=False")
        install = (sh("dnf", *options, *load_matrix().dnf_names(packages)), sh("dnf", "clean", "all"))
        return _with_mirror("/etc/yum.repos.d", "repo", install)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    return _with_mirror(
        "/etc/apt",
        "list|sources",
        (
            sh("apt-get", "update"),
            sh("apt-get", "install", "-y", "--no-install-recommends", *packages, env=quiet),
            Command("rm -rf /var/lib/apt/lists/*"),
            *(
                sh("update-alternatives", "--install", f"/usr/bin/{name}", name, f"/usr/bin/{program}", "20")
                for row in load_matrix().packages_among(packages)
                for name, program in row.alternatives.items()
            ),
        ),
    )


def _with_mirror(folder: str, kinds: str, install: tuple[Command, ...]) -> tuple[Command, ...]:
    """The installation with the build's mirror, where one is given, in place of the hosts in the lists of repositories.

    The lists are put back in the same layer. Lists of mirrors (`metalink`) would lead past the one given: they go out.
    """
    kept = f"{folder}.npuenv"
    is_given = sh("test", "-n", Var(OS_MIRROR))
    mirror = ("s|https?://[^/ ]+|", Var(OS_MIRROR), "|g")
    files = (folder, "-regextype", "posix-extended", "-type", "f", "-regex", f".*[.]({kinds})")
    edit = ("sed", "-i", "-E", "-e", "/^(metalink|mirrorlist) *=/d", "-e", mirror)
    return (
        when(is_given, sh("cp", "-a", folder, kept), sh("find", *files, "-exec", *edit, "{}", "+")),
        *install,
        when(is_given, sh("rm", "-rf", folder), sh("mv", kept, folder)),
    )


def preloaded(stack: Stack) -> tuple[str, ...]:
    """The libraries of the stack's system packages that every process loads first, as a shell finds them in an image.

    Example: ("/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2",)
    """
    is_dnf = package_tool(stack.platform.os or "") == "dnf"
    folder = "/usr/lib64" if is_dnf else "/usr/lib/$(uname -m)-linux-gnu"
    return tuple(
        f"{folder}/{row.preload}" for row in load_matrix().packages_among(stack.system_packages) if row.preload
    )


def package_tool(os: str) -> str | None:
    """`apt-get` or `dnf` for the operating systems whose base images are known, else None."""
    if os.startswith(("ubuntu", "debian")):
        return "apt-get"
    return "dnf" if os.startswith("openeuler") else None


def source_folder(source: GitSource) -> str:
    """Where the image keeps a component built from a repository."""
    return f"{SOURCES}/{one_word(source.name, 'source')}"


def git_argument(source: GitSource) -> str:
    """The build argument that holds the address of a repository, like `NPUENV_GIT_VLLM_ASCEND`."""
    return f"NPUENV_GIT_{re.sub(r'[^A-Za-z0-9]', '_', source.name).upper()}"


def build_defaults(stack: Stack) -> dict[str, str]:
    """Defaults of the build arguments that the stack's sources are built with."""
    found = {"SOC_VERSION": stack.soc_version or "", "COMPILE_CUSTOM_KERNELS": "1", "MAX_JOBS": "8"}
    for source in stack.git_sources:
        found.update({key: value for key, value in source.build_env.items() if key in BUILD_ARGUMENTS})
    return {key: value for key, value in found.items() if value}


def _install(recipe: ImageRecipe, found: PackageList) -> Command:
    """pip on one list. A named index is the only one: pip's configuration and further indexes are out for that call."""
    hashed = ("--require-hashes",) if found.is_hashed else ()
    where = ("--requirement", f"{HOME}/{found.file}")
    if found.index is None:
        return sh(*_INSTALL, *hashed, *where)
    alone = {"PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    index = ("--index-url", Var(recipe.indexes[found.index].argument))
    return sh(*_INSTALL, *hashed, *index, *where, env=alone)


def _sources(recipe: ImageRecipe, step: BuildStep) -> list[Instruction]:
    """The layers of the repositories of a step."""
    named = {versions.normalised(source.name): source for source in recipe.stack.git_sources}
    found: list[Instruction] = []
    for name in step.what:
        source = named[versions.normalised(name)]
        if source.is_moving:
            found.append(recipe.comment("moving", name=source.name, ref=source.ref))
        if _is_short(source.ref):
            found.append(recipe.comment("short-commit", ref=source.ref))
        if _is_tag(source):
            key = "tag-commit" if source.commit else "tag"
            found.append(recipe.comment(key, name=source.name, ref=source.ref, commit=source.commit))
        found.append(run(*_fetch(source), *_build(recipe, source), may_log_in=True))
    return found


def _fetch(source: GitSource) -> tuple[Command, ...]:
    """The repository at its ref, without its history, with its submodules.

    A tag is set again by name: versions of packages are read from it while they are built. Its one commit is all that
    is there: asking for the known one by its beginning finds it, or another stands under the tag and the build ends.
    A shortened commit cannot be asked for from afar, so all is fetched there.
    """
    folder, ref = source_folder(source), one_word(source.ref, source.name)
    git = ("git", "-C", folder)
    depth = ("--tags", "origin") if _is_short(ref) else ("--depth", "1", "origin", ref)
    is_tag = _is_tag(source)
    known = f"{one_word(source.commit, source.name)}^{{commit}}" if is_tag and source.commit else ""
    return (
        sh("git", "init", "--quiet", folder),
        sh(*git, "remote", "add", "origin", Var(git_argument(source))),
        sh(*git, "fetch", *depth),
        *((sh(*git, "rev-parse", "--verify", known),) if known else ()),
        sh(*git, "checkout", "--quiet", ref if _is_short(ref) else "FETCH_HEAD"),
        *((sh(*git, "tag", "--force", ref),) if is_tag else ()),
        sh(*git, "submodule", "update", "--init", "--recursive"),
    )


def _build(recipe: ImageRecipe, source: GitSource) -> tuple[Command, ...]:
    """Its installation with CANN's settings in force; nothing where the tree itself is put on PYTHONPATH."""
    if source.how == "pythonpath":
        return ()
    own = {key: value for key, value in source.build_env.items() if key not in (*BUILD_ARGUMENTS, _AUTOLOAD)}
    where = ("--editable", source_folder(source)) if source.how == "editable" else (source_folder(source),)
    scripts = cann_scripts(recipe.stack)
    return (
        # Without a driver in the build, importing torch must not load torch_npu; NNAL's script imports torch too.
        export(_AUTOLOAD, "0"),
        *(sh(".", script) for script in scripts),  # dash has no `source`
        by_arch({arch: (_stub_libraries(recipe.stack, arch),) for arch in recipe.stacks}),
        sh(*_INSTALL, "--no-build-isolation", *where, env=own),
    )


def _stub_libraries(stack: Stack, arch: str) -> Command:
    """Stand-ins for the driver's libraries, which an image does not hold, behind everything else on the search path."""
    path = f"{stack.cann_root}/{arch}-linux/devlib"
    return export("LD_LIBRARY_PATH", (Var("LD_LIBRARY_PATH"), f":{path}"))


def _is_tag(source: GitSource) -> bool:
    return not source.is_moving and not _COMMIT.fullmatch(source.ref)


def unpinned_tags(sources: Sequence[GitSource]) -> tuple[str, ...]:
    """The sources at a tag whose commit is not known, like `vllm@v0.13.0`: their owner can move it."""
    found = (source for source in sources if _is_tag(source) and not source.commit)
    return tuple(one_word(f"{source.name}@{source.ref}", source.name) for source in found)


def commits(sources: Sequence[GitSource]) -> str:
    """The sources whose tag was checked against its commit, like `vllm-ascend@6281c1207a`, joined by commas."""
    return ",".join(f"{source.name}@{source.commit}" for source in sources if _is_tag(source) and source.commit)


def _is_short(ref: str) -> bool:
    return bool(_COMMIT.fullmatch(ref)) and len(ref) < _FULL_COMMIT_DIGITS


def moving_sources(sources: Sequence[GitSource]) -> str:
    """The sources that follow a branch, like `vllm-ascend@releases/v0.13.0`, joined by commas."""
    return ",".join(f"{source.name}@{source.ref}" for source in sources if source.is_moving)
