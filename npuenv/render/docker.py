"""A stack and its locks as the folder of an image: Dockerfile, lists of packages, scripts.

The layers follow the stack's install order, so the image holds what the installer would put onto a machine. Nothing is
read or written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.render import base, layers
from npuenv.render.base import DOCTOR, IMAGE_FILES, image_files
from npuenv.render.dockerfile import (
    BLANK,
    DOCKER_ARCH,
    Command,
    Instruction,
    Var,
    Word,
    arg,
    by_arch,
    comment,
    env,
    healthcheck,
    label,
    listed,
    run,
    sh,
    when,
    workdir,
)
from npuenv.render.files import one_word
from npuenv.render.layers import PackageList, package_lists
from npuenv.render.upstream import corresponding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock.file import Lock
    from npuenv.matrix.rows import Index
    from npuenv.resolve.types import Stack

# The first line of every Dockerfile rendered here, the same in every language: by it a folder is known to be ours.
MARK = "# npuenv.dockerfile/1 "

# Distributions whose versions a healthy container shows, as far as the stack pins them.
_HEALTH = ("torch", "torch-npu", "triton-ascend")

_WORKPLACE = "/workspace"


def folder_name(stack: Stack) -> str:
    """`<stack>.<hardware>.<os>`, the name of the image's folder."""
    return f"{stack.name}.{stack.platform.hardware}.{stack.platform.os}"


def render_docker(
    stacks: Mapping[str, Stack],
    locks: Mapping[str, Lock],
    *,
    indexes: Mapping[str, Index],
    digest: str | None = None,
    user: str = "root",
    has_doctor: bool = False,
    version: str = npuenv.__version__,
    lang: str = "en",
) -> dict[str, str]:
    """Relative path -> text of the files of one image; the paths start with the image's folder.

    `stacks` and `locks` are by architecture (x86_64, aarch64) and belong to one stack, hardware and operating system;
    an architecture left out is refused by the image's build. `indexes` are by label: their addresses become defaults of
    build arguments. `digest` (sha256:...) pins the base image; for both architectures it has to be that of the list of
    images, not of one of them. `user` runs the container. `has_doctor`: the health check asks the doctor, which the
    caller puts into the folder as DOCTOR.

    Raises BadInput for a stack without an image, for platforms or locks that do not belong together, for a system whose
    packages cannot be installed, and for a value that could break out of its instruction.
    """
    ordered = {arch: stacks[arch] for arch in DOCKER_ARCH if arch in stacks}
    _refuse_unfit(ordered, locks)
    lists = {arch: package_lists(stack, locks[arch]) for arch, stack in ordered.items()}
    _refuse_indexes(lists, indexes)
    recipe = layers.ImageRecipe(
        ordered, lists, indexes, lambda message: say(message, lang), base.digest(digest), base.user(user), has_doctor
    )
    name = one_word(folder_name(recipe.stack), "stack")
    files = {"Dockerfile": "\n".join((f"{MARK}{name}", *_instructions(recipe, locks, version), ""))}
    files.update(image_files(recipe))
    for found in (found for each in lists.values() for found in each):
        files[found.file] = _list_text(recipe, found, version)
    return {f"{name}/{file}": files[file] for file in sorted(files)}


def _instructions(recipe: layers.ImageRecipe, locks: Mapping[str, Lock], version: str) -> tuple[Instruction, ...]:
    """All but the first line. Every ENV and ARG stands before SHELL, which hadolint forgets at a later one."""
    return (
        *_head(recipe, locks, version),
        *base.base(recipe),
        *_arguments(recipe),
        *_labels(recipe, locks, version),
        *_settings(recipe),
        listed("SHELL", "/bin/bash", "-o", "pipefail", "-c"),
        *_preparation(recipe),
        *(line for step in recipe.stack.order for line in (*layers.layer(recipe, step), BLANK)),
        *_end(recipe),
    )


def _refuse_unfit(stacks: Mapping[str, Stack], locks: Mapping[str, Lock]) -> None:
    first = next(iter(stacks.values()))
    platform, args = first.platform, {"stack": first.name}
    if not platform.hardware or not platform.os:
        raise BadInput(Message("render.not-an-image", args), Message("render.not-an-image-hint", args))
    place = {"hardware": platform.hardware, "os": platform.os, "arch": platform.arch}
    if first.image is None:
        raise _no_base(first, {**args, **place})
    if layers.package_tool(platform.os) is None:
        raise BadInput(Message("render.unknown-os", {"os": platform.os}), Message("render.unknown-os-hint", args))
    for stack in stacks.values():
        _refuse_other(first, stack)
    for arch, stack in stacks.items():
        _refuse_lock(arch, stack, locks.get(arch))


def _no_base(stack: Stack, args: dict[str, object]) -> BadInput:
    """Why there is no base image: nobody publishes one, or the published file puts this CANN over another one's."""
    upstream, cann = corresponding(stack, load_matrix()), stack.pin("cann")
    below = upstream.base.rpartition(":")[2].partition("-")[0] if upstream else ""
    is_here = upstream is not None and upstream.os == stack.platform.os
    if upstream is None or cann is None or not is_here or below.casefold() == cann.version.casefold():
        return BadInput(
            Message("render.no-base-image", args), Message("render.no-base-image-hint", {"stack": stack.name})
        )
    args |= {"cann": cann.version, "base": upstream.base, "below": below, "source": upstream.source}
    return BadInput(Message("render.cann-over-base", args), Message("render.cann-over-base-hint", args))


def _refuse_other(first: Stack, stack: Stack) -> None:
    """One Dockerfile serves both architectures: they may differ in their lists of packages, in nothing else."""
    for what in ("name", "image", "cann_root", "soc_version", "order", "git_sources", "system_packages"):
        _refuse_difference(what, getattr(first, what), getattr(stack, what))
    _refuse_difference("env", _arch_free(first), _arch_free(stack))


def _refuse_difference(what: str, one: object, other: object) -> None:
    if one != other:
        args = {"what": what, "first": str(one), "second": str(other)}
        raise BadInput(Message("render.not-one-stack", args), Message("render.not-one-stack-hint"))


def _arch_free(stack: Stack) -> dict[str, tuple[str, ...]]:
    """The settings, each value cut at Docker's name of the architecture, which a file for both writes as TARGETARCH."""
    arch = DOCKER_ARCH[stack.platform.arch]
    return {name: tuple(value.split(arch)) for name, value in stack.env.items()}


def _refuse_lock(arch: str, stack: Stack, lock: Lock | None) -> None:
    args = {"stack": stack.name, "arch": arch}
    if lock is None:
        raise BadInput(Message("render.no-lock", args), Message("render.no-lock-hint", args))
    if (lock.stack, lock.platform) != (stack.name, stack.platform.tag):
        wrong = {"stack": lock.stack, "arch": arch, "other": lock.platform}
        raise BadInput(Message("render.wrong-lock", wrong), Message("render.wrong-lock-hint", args))
    for pin in stack.pins:
        package = lock.package(pin.name) if pin.is_python else None
        if package and package.version != pin.version:
            other = {**args, "package": pin.name, "locked": package.version, "wanted": pin.version}
            raise BadInput(Message("render.stale-lock", other), Message("render.wrong-lock-hint", args))
    for missing in lock.missing:
        if missing.reason == "does-not-resolve":
            why = {**args, "why": missing.detail}
            raise BadInput(Message("render.unresolved-lock", why), Message("render.unresolved-lock-hint", args))


def _refuse_indexes(lists: Mapping[str, tuple[PackageList, ...]], indexes: Mapping[str, Index]) -> None:
    """Labels need an address, and an address in a file must not hold a password."""
    for name in _labels_used(lists):
        if name not in indexes:
            raise BadInput(
                Message("render.index-unknown", {"label": name, "known": tuple(sorted(indexes))}),
                Message("render.index-unknown-hint"),
            )
        if "@" in urlsplit(indexes[name].url).netloc:
            raise BadInput(
                Message("render.index-password", {"label": name}),
                Message("render.index-password-hint", {"arg": indexes[name].argument}),
            )


def _labels_used(lists: Mapping[str, tuple[PackageList, ...]]) -> list[str]:
    return sorted({found.index for each in lists.values() for found in each if found.index})


def _head(recipe: layers.ImageRecipe, locks: Mapping[str, Lock], version: str) -> list[Instruction]:
    """What the reader has to know first: what this is, what it overrules, what is not pinned."""
    stack = recipe.stack
    cann, python = stack.pin("cann"), stack.platform.python
    place = {"stack": stack.name, "hardware": stack.platform.hardware, "os": stack.platform.os, "version": version}
    about = {"cann": cann.version if cann else "", "python": python, "archs": tuple(recipe.stacks)}
    # An image is built from source; a wheel is of one architecture.
    notes = [note for note in stack.notes if not note.key.startswith("resolve.note-chip-wheel")]
    return [
        recipe.comment("header", **place),
        recipe.comment("header-cann", **about, verified=stack.verified_by),
        recipe.comment("header-build", tag=f"{stack.name.lower()}:{stack.platform.hardware}"),
        recipe.comment("header-shell"),
        *(comment(recipe.say(unpinned)) for unpinned in base.unpinned(stack, recipe.digest)),
        *_overrides(recipe),
        *([comment(""), recipe.comment("notes")] if notes else []),
        *(comment(f"* {recipe.say(note)}") for note in notes),
        *_gaps(recipe, locks),
        BLANK,
    ]


def _overrides(recipe: layers.ImageRecipe) -> list[Instruction]:
    """Every overruled requirement once, with its reason; one of a single architecture names it."""
    said: dict[str, list[str]] = {}
    for arch, stack in recipe.stacks.items():
        for override in stack.overrides:
            args = {"package": override.package, "requirement": override.requirement, "reason": override.because.says}
            said.setdefault(recipe.say(Message(f"render.override-{override.does}", args)), []).append(arch)
    lines = [
        comment(f"* {line}" if len(archs) == len(recipe.stacks) else f"* [{archs[0]}] {line}")
        for line, archs in said.items()
    ]
    return [comment(""), recipe.comment("overrides"), *lines] if said else []


def _unpinned(recipe: layers.ImageRecipe, locks: Mapping[str, Lock]) -> list[str]:
    """What another build may find changed, beside the sources that follow a branch."""
    gaps = {missing.name for arch in recipe.stacks for missing in locks[arch].missing}
    return [
        *([] if recipe.digest else ["base-image"]),
        *layers.unpinned_tags(recipe.stack.git_sources),
        *sorted(one_word(name, "lock") for name in gaps),
    ]


def _gaps(recipe: layers.ImageRecipe, locks: Mapping[str, Lock]) -> list[Instruction]:
    """Everything the locks could not pin: packages without a hash, and what is not locked at all."""
    lines: list[Instruction] = []
    for arch in recipe.stacks:
        packages = {package.name for package in locks[arch].packages}
        for missing in locks[arch].missing:
            key = "unhashed" if missing.name in packages else "not-locked"
            reason = f"{missing.reason} {missing.index or ''}".strip()
            lines.append(recipe.comment(key, name=missing.name, version=missing.version, arch=arch, reason=reason))
    return [comment(""), recipe.comment("gaps"), *lines] if lines else []


def _arguments(recipe: layers.ImageRecipe) -> list[Instruction]:
    used = _labels_used(recipe.lists)
    sources = recipe.stack.git_sources
    named: list[Instruction] = [arg(recipe.indexes[label].argument, recipe.indexes[label].url) for label in used]
    pip = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT")
    return [
        recipe.comment("args-arch"),
        arg("TARGETARCH"),
        recipe.comment("args-proxy"),
        recipe.comment("args-pip"),
        *(arg(name) for name in pip),
        recipe.comment("args-os"),
        arg(layers.OS_MIRROR),
        *([recipe.comment("args-index"), *named] if named else []),
        *([recipe.comment("args-git")] if sources else []),
        *(arg(layers.git_argument(source), one_word(source.repo, source.name)) for source in sources),
        recipe.comment("args-build"),
        *(arg(name, value) for name, value in layers.build_defaults(recipe.stack).items()),
        recipe.comment("args-user"),
        arg("NPUENV_USER", recipe.user),
        BLANK,
    ]


def _labels(recipe: layers.ImageRecipe, locks: Mapping[str, Lock], version: str) -> list[Instruction]:
    stack = recipe.stack
    cann = stack.pin("cann")
    labels = {
        "org.opencontainers.image.title": folder_name(stack),
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.base.name": stack.image or "",
        "org.opencontainers.image.base.digest": recipe.digest or "",
        "npuenv.stack": stack.name,
        "npuenv.hardware": stack.platform.hardware or "",
        "npuenv.cann": cann.version if cann else "",
        "npuenv.verified-by": stack.verified_by,
        "npuenv.moving-sources": layers.moving_sources(stack.git_sources),
        "npuenv.checked-commits": layers.commits(stack.git_sources),
        "npuenv.unpinned": ",".join(_unpinned(recipe, locks)),
        **{f"npuenv.lock.{arch}": locks[arch].hash for arch in recipe.stacks},
    }
    return [*(label(name, value) for name, value in labels.items() if value), BLANK]


def _settings(recipe: layers.ImageRecipe) -> list[Instruction]:
    settings = _arch_free(recipe.stack)
    if not settings:
        return []
    return [recipe.comment("env"), *(env(name, _joined(settings[name])) for name in sorted(settings)), BLANK]


def _joined(pieces: tuple[str, ...]) -> Word:
    """The value again, with TARGETARCH at each cut."""
    return tuple(part for piece in pieces for part in (piece, Var("TARGETARCH")))[:-1]


def _preparation(recipe: layers.ImageRecipe) -> list[Instruction]:
    python = recipe.stack.platform.python
    major, minor = (int(part) for part in python.split("."))
    wanted = f"import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))"
    archs = tuple(DOCKER_ARCH[arch] for arch in recipe.stacks)
    refusal = recipe.say(Message("render.no-arch", {"archs": archs}))
    files = sorted(found.file for each in recipe.lists.values() for found in each)
    return [
        recipe.comment("first-check", python=python, archs=archs),
        run(by_arch(dict.fromkeys(recipe.stacks, ()), refusal), sh("python3", "-c", wanted)),
        *layers.system_layer(recipe),
        recipe.comment("files"),
        listed("COPY", *files, *IMAGE_FILES, *((DOCTOR,) if recipe.has_doctor else ()), f"{layers.HOME}/"),
        BLANK,
    ]


def _end(recipe: layers.ImageRecipe) -> list[Instruction]:
    who = Var("NPUENV_USER")
    rc_file = "/etc/bashrc" if layers.package_tool(recipe.stack.platform.os or "") == "dnf" else "/etc/bash.bashrc"
    healthy = ("python3", f"{layers.HOME}/healthcheck.py", *_healthy(recipe.stack))
    return [
        recipe.comment("verify"),
        recipe.comment("activation"),
        recipe.comment("user"),
        run(
            sh(*healthy),
            Command(f"echo '. {layers.HOME}/activate.sh' >> {rc_file}"),
            when(
                Command('! id -u "${NPUENV_USER}" >/dev/null 2>&1'),
                sh("useradd", "--create-home", "--shell", "/bin/bash", who),
            ),
            when(
                Command("getent group HwHiAiUser >/dev/null 2>&1"),
                sh("usermod", "--append", "--groups", "HwHiAiUser", who),
            ),
            sh("install", "--directory", "--owner", who, _WORKPLACE),
        ),
        workdir(_WORKPLACE),
        Instruction("USER ${NPUENV_USER}"),
        *_health(recipe, healthy),
        listed("ENTRYPOINT", "/bin/bash", f"{layers.HOME}/entrypoint.sh"),
        listed("CMD", "/bin/bash"),
    ]


def _health(recipe: layers.ImageRecipe, healthy: tuple[str, ...]) -> list[Instruction]:
    """The doctor takes seconds and is asked more rarely; it looks as somebody would who enters, CANN's settings on."""
    if not recipe.has_doctor:
        return [recipe.comment("health"), healthcheck(healthy, interval_s=60, timeout_s=20)]
    entered = ("/bin/bash", f"{layers.HOME}/entrypoint.sh", *healthy, "--doctor")
    return [recipe.comment("health-doctor"), healthcheck(entered, interval_s=600, timeout_s=120)]


def _healthy(stack: Stack) -> tuple[str, ...]:
    """`name==version` of the distributions to look at, the local part (`+cpu`) left out: it differs by architecture."""
    pins = [pin for name in _HEALTH if (pin := stack.pin(name))]
    return tuple(one_word(f"{pin.name}=={pin.version.split('+')[0]}", pin.name) for pin in pins)


def _list_text(recipe: layers.ImageRecipe, found: PackageList, version: str) -> str:
    args = {"stack": recipe.stack.name, "arch": found.arch, "id": found.step, "version": version}
    lines = [recipe.say(Message("render.list-head", args))]
    lines += [recipe.say(Message("render.list-index", {"label": found.index}))] if found.index else []
    lines += [] if found.is_hashed else [recipe.say(Message("render.list-unhashed"))]
    return "".join(f"# {line}\n" for line in lines) + found.text()
