"""What becomes of an environment that exists: `update` to the present lock, `repair`, and `roll_back`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.app import installation
from npuenv.app.progress import SILENT, PackageChange
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.plan import Condition
from npuenv.facts.conditions import ask
from npuenv.facts.manifest import LOCK
from npuenv.host.local import LocalHost
from npuenv.host.writing import write_whole
from npuenv.install.environments import (
    CURRENT,
    EnvironmentEntry,
    data_folder,
    environments,
    find,
    points_to,
    previous_of,
)
from npuenv.install.environments import roll_back as roll_links_back
from npuenv.lock.file import read_lock, write_lock
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from npuenv.app.progress import InstallJob, InstallOptions, InstallResult, Progress
    from npuenv.host import Host
    from npuenv.lock.file import Lock


@dataclass(frozen=True, slots=True)
class Update:
    """What an update changes."""

    environment: EnvironmentEntry  # the old one
    changes: tuple[PackageChange, ...]
    job: InstallJob | None  # None: nothing changes
    result: InstallResult | None = None  # None: not carried out

    @property
    def is_active(self) -> bool:
        """Whether the new environment is in use; after a part of the plan it is not."""
        if self.result is None:
            return False
        root = Path(self.result.job.target.root)
        return points_to(root.parent / CURRENT) == root.name


@dataclass(frozen=True, slots=True)
class RollBack:
    """The environment that is active now, and the one before; None: none was."""

    path: Path
    before: Path | None


def update(
    request: Request, options: InstallOptions, progress: Progress = SILENT, *, is_dry_run: bool = False
) -> Update:
    """Builds the stack's present lock beside the old environment and switches to it. Raises as `install`."""
    old = _find(request, options, "--update")
    if old.role == "elsewhere":
        raise BadInput(Message("install.update-elsewhere", {"path": old.described.root}), _again_hint(old))
    # The new one goes to a folder of its own, however the old one was named, and is of its kind: venv is the default.
    kind = old.described.kind if options.kind == "venv" else options.kind
    options = replace(options, target=None, into=None, kind=kind or options.kind)
    request, before = _request_of(old, request, options), _lock_of(old)
    with installation.open_request(request, options, progress) as opened:
        found = package_changes(before, opened.lock)
        if not found:
            return Update(old, (), None)
        job = installation.plan_install(opened, options)
        if is_dry_run:
            return Update(old, found, job)
        progress.approve(job, found)
        # Within the block: what a bundle was unpacked to is there, and what was shown is what is installed.
        return Update(old, found, job, installation.execute(job, options, progress))


def repair(request: Request, options: InstallOptions, progress: Progress = SILENT) -> InstallResult:
    """Restores the environment's files from its own lock; what was not altered stays untouched. Raises as `install`."""
    request, options = repair_request(request, options, progress)
    assert options.lock is not None
    root = Path(options.into).parents[1] if options.into else Path(options.target or "")
    _put_lock_back(root, options.lock)
    return installation.install(request, options, progress)


def repair_request(request: Request, options: InstallOptions, progress: Progress) -> tuple[Request, InstallOptions]:
    """The installation that restores an environment."""
    kept = _find(request, options, "--repair")
    own = kept.described
    options = replace(options, is_repairing=True)
    request = _request_of(kept, Request(), options)
    options = replace(options, lock=_lock_or_same(kept, request, options, progress))
    if own.kind == "existing":
        return request, replace(options, into=str(Path(own.root) / "bin" / "python"))
    return request, replace(options, target=own.root, into=None, kind=own.kind or options.kind)


def roll_back(request: Request, options: InstallOptions, *, is_dry_run: bool = False) -> RollBack:
    """Makes the former environment active again, after checking that it is intact. A second time returns."""
    kept = _find(request, options, "--rollback")
    home = Path(kept.described.root).parent
    if kept.role == "elsewhere":
        raise BadInput(Message("store.no-previous", {"path": kept.described.root}), Message("store.no-previous-hint"))
    before = previous_of(home)
    fact = ask(LocalHost(), Condition("env.intact", (str(before),), "yes"))
    if fact.value != "yes":
        why = fact.value or next((item.line for item in fact.evidence), "")
        again = f"npuenv install --repair --target {before}"
        raise BadInput(
            Message("install.previous-damaged", {"path": str(before), "why": why}),
            Message("execute.run-again", {"command": again}),
        )
    if is_dry_run:
        now, left = before, home / points_to(home / CURRENT)
    else:
        now, left = roll_links_back(home)
    return RollBack(now, left if left != home else None)


def _find(request: Request, options: InstallOptions, verb: str) -> EnvironmentEntry:
    """The environment that is meant: a folder, a Python's, a stack's name or use, or the only one. Raises BadInput."""
    host = LocalHost()
    data = Path(data_folder(host.environ()))
    word = options.target or (_root_of(host, options.into) if options.into else request.stack)
    if word:
        return find(host, data, word)
    roles = ("current",) if verb == "--rollback" else ("current", "elsewhere")
    found = [kept for kept in environments(host, data) if kept.role in roles]
    if request.framework:
        framework = request.framework.partition("==")[0]
        found = [kept for kept in found if _framework_of(kept) == framework]
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadInput(Message("install.no-environment"), Message("install.no-environment-hint"))
    first = found[0].described
    hint = {"verb": verb, "word": first.stack if found[0].role == "current" else f"--target {first.root}"}
    known = tuple(kept.described.root for kept in found)
    raise BadInput(Message("install.which", {"known": known}), Message("install.which-hint", hint))


def _framework_of(kept: EnvironmentEntry) -> str | None:
    """What the environment is for, however it was asked for: as it says itself, else as the tables say of its stack."""
    own = kept.described
    recipe = None if own.framework else recipe_named(own.stack, load_matrix())
    return recipe.framework if recipe else own.framework or None


def _root_of(host: Host, exe: str) -> str:
    """The folder of the environment that a Python belongs to. Raises BadInput for what is no Python."""
    ran = host.run((exe, "-I", "-c", "import sys; print(sys.prefix)"), timeout_s=20.0)
    if ran.code != 0:
        raise BadInput(Message("plan.into-no-python", {"exe": exe}), Message("plan.into-hint"))
    return ran.out.rstrip("\n")


def _request_of(kept: EnvironmentEntry, said: Request, options: InstallOptions) -> Request:
    """What the environment was asked for, for the very stack it has; what is said now counts before it.

    A bundle was asked for by itself: only what is said now is held against it.
    """
    empty = asdict(Request())
    now = {name: value for name, value in asdict(said).items() if value != empty[name]}
    known = {name: value for name, value in kept.described.request.items() if name in empty and not options.bundle}
    return Request(**{**known, **now, "stack": kept.described.stack})


def _lock_of(kept: EnvironmentEntry) -> Lock:
    """The environment's own lock. Raises BadInput where it is not there or not sound."""
    own = kept.described
    try:
        return read_lock(Path(own.root) / ".npuenv" / "lock.toml")
    except BadInput as error:
        said = {"path": own.root, "stack": own.stack}
        raise BadInput(Message("install.own-lock-gone", said), Message("install.own-lock-gone-hint", said)) from error


def _lock_or_same(kept: EnvironmentEntry, request: Request, options: InstallOptions, progress: Progress) -> Lock:
    """The environment's own lock, or where that is lost the stack's present one if it is the same."""
    try:
        return _lock_of(kept)
    except BadInput:
        with installation.open_request(request, options, progress) as opened:
            if opened.lock.hash != kept.described.lock:
                raise
            return opened.lock


def _put_lock_back(root: Path, lock: Lock) -> None:
    """Else the whole environment would count as one of another lock, and be made anew."""
    path, text = root / LOCK, write_lock(lock)
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode():
        write_whole(str(path), text)


def _again_hint(kept: EnvironmentEntry) -> Message:
    own = kept.described
    if own.kind == "existing":
        said = {"stack": own.stack, "python": str(Path(own.root) / "bin" / "python")}
        return Message("install.update-existing-hint", said)
    return Message("install.update-elsewhere-hint", {"stack": own.stack})


def package_changes(before: Lock, after: Lock) -> tuple[PackageChange, ...]:
    """Changes by name. A package of the same version with changed files is listed with the first digits of its hash."""
    old, new = _versions(before), _versions(after)
    found = []
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name, ("", "")), new.get(name, ("", ""))
        if one == other:
            continue
        has_same_version = one[0] == other[0]
        found.append(PackageChange(name, *(" ".join(each) if has_same_version else each[0] for each in (one, other))))
    return tuple(found)


def _versions(lock: Lock) -> dict[str, tuple[str, str]]:
    """Name -> version, and what distinguishes two files of one version."""
    packages = {each.name: (each.version, ",".join(digest[:8] for digest in each.sha256)) for each in lock.packages}
    return {**packages, **{each.name: (each.ref, each.repo) for each in lock.sources}}
