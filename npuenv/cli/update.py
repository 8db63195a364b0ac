"""What `npuenv install` does with an environment that exists: bring it up to date, restore it, return to the former."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.installing import How, install_prepared, prepare, run_install, show_plan, wanted_for
from npuenv.cli.lock import options_of, refuse_with
from npuenv.cli.prompt import confirm, list_plan, needs_consent, tell_notes
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.core.messages.visible import clean
from npuenv.facts.manifest import LOCK
from npuenv.install import environments as switch
from npuenv.install.environments import Kept, environments, find
from npuenv.install.locations import Target, data_folder
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from npuenv.cli.common import Ui
    from npuenv.host.base import Host
    from npuenv.install.environments import Change
    from npuenv.lock import Lock


def update(ui: Ui, request: Request, how: How, *, yes: bool, is_dry_run: bool) -> ExitCode:
    """Builds the stack's present lock beside the old environment, after showing what changes, and switches to it."""
    from npuenv.install.environments import changes

    kept = _chosen(request, how, "--update")
    if kept.role == "elsewhere":
        raise BadInput(Message("install.update-elsewhere", {"path": kept.described.root}), _again_hint(kept))
    # The new one goes to a place of its own, however the old one was named, and is of its kind: a venv is also what is
    # meant where nothing is said.
    kind = kept.described.kind if how.kind == "venv" else how.kind
    how = replace(how, target=None, into=None, kind=kind or how.kind)
    request, before = _request_of(kept, request, how), _lock_of(kept)
    with wanted_for(ui, request, how) as wanted:
        found = changes(before, wanted.lock)
        if not found:
            return _up_to_date(ui, kept)
        prepared = prepare(wanted, how)
        _show_changes(ui, kept, found, prepared.target)
        if is_dry_run:
            _print_changes(ui, kept, prepared.target.root, found)
            return ExitCode.FINE
        is_asking = not yes and needs_consent(prepared)
        if is_asking and ui.is_verbose:
            list_plan(ui, prepared)
        else:
            tell_notes(ui, prepared)
        if is_asking:
            confirm(ui)
        # Within the block: what a bundle was unpacked to is there, and what was shown is what is installed.
        root = install_prepared(ui, prepared, how)
    if switch.points_to(root.parent / switch.CURRENT) == root.name:  # not where a part of the plan alone was asked for
        ui.say(Message("install.can-roll-back", {"stack": kept.described.stack}))
    return ExitCode.FINE


def repair(ui: Ui, request: Request, how: How, *, yes: bool, is_shown: bool, as_script: bool) -> ExitCode:
    """Restores the environment's files from its own lock; what was not altered stays untouched.

    `is_shown`: the plan is only printed, as a list or `as_script`.
    """
    kept, how = _chosen(request, how, "--repair"), replace(how, is_repairing=True)
    # What is there is restored: a wish for something else would be written down and not met.
    refuse_with("--repair", options_of(replace(request, stack=None, framework=None)))
    request = _request_of(kept, Request(), how)
    lock = _lock_or_same(ui, kept, request, how)
    own = kept.described
    if own.kind == "existing":
        how = replace(how, into=str(Path(own.root) / "bin" / "python"))
    else:
        how = replace(how, target=own.root, into=None, kind=own.kind or how.kind)
    if is_shown:
        return show_plan(ui, request, how, as_script=as_script, lock=lock)
    _put_lock_back(own.root, lock)
    run_install(ui, request, yes=yes, how=how, lock=lock)
    return ExitCode.FINE


def roll_back(ui: Ui, request: Request, how: How, *, yes: bool, is_dry_run: bool) -> ExitCode:
    """Puts the former environment in force again, once it is seen to be whole. A second time returns."""
    from npuenv.core.plan import Condition
    from npuenv.facts.environment import ask_environment
    from npuenv.host.local import LocalHost

    kept = _chosen(request, how, "--rollback")
    home = Path(kept.described.root).parent
    if kept.role == "elsewhere":
        raise BadInput(Message("store.no-previous", {"path": kept.described.root}), Message("store.no-previous-hint"))
    before = switch.previous_of(home)
    fact = ask_environment(LocalHost(), Condition("env.intact", (str(before),), "yes"))
    if fact.value != "yes":
        why = fact.value or next((item.line for item in fact.evidence), "")
        again = f"npuenv install --repair --target {before}"
        raise BadInput(
            Message("install.previous-damaged", {"path": str(before), "why": why}),
            Message("execute.run-again", {"command": again}),
        )
    now, left = (before, home / switch.points_to(home / switch.CURRENT)) if is_dry_run else switch.roll_back(home)
    was = str(left) if left != home else None  # nothing was in force
    if ui.is_json:
        said = {"dry_run": is_dry_run, "target": str(now), "before": was}
        ui.print_json({"schema": "npuenv.rollback/1", "exit": 0, **said})
    done = Message("install.rolled-back", {"path": str(now), "before": was or Message("plan.none")})
    ui.say(Message("install.would-roll-back", {"path": str(now)}) if is_dry_run else done)
    return ExitCode.FINE


def _chosen(request: Request, how: How, verb: str) -> Kept:
    """The environment that is meant: a folder, a Python's, a stack's name or use, or the only one. Raises BadInput."""
    from npuenv.host.local import LocalHost

    host = LocalHost()
    data = Path(data_folder(host.environ()))
    word = how.target or (_root_of(host, how.into) if how.into else request.stack)
    if word:
        return find(host, data, word)
    roles = ("current",) if verb == "--rollback" else ("current", "elsewhere")
    there = [kept for kept in environments(host, data) if kept.role in roles]
    if request.framework:
        wanted = request.framework.partition("==")[0]
        there = [kept for kept in there if _framework_of(kept) == wanted]
    if len(there) == 1:
        return there[0]
    if not there:
        raise BadInput(Message("install.no-environment"), Message("install.no-environment-hint"))
    first = there[0].described
    hint = {"verb": verb, "word": first.stack if there[0].role == "current" else f"--target {first.root}"}
    known = tuple(kept.described.root for kept in there)
    raise BadInput(Message("install.which", {"known": known}), Message("install.which-hint", hint))


def _framework_of(kept: Kept) -> str | None:
    """What the environment is for, however it was asked for: as it says itself, else as the tables say of its stack."""
    from npuenv.matrix import load_matrix
    from npuenv.resolve.release_stacks import recipe_named

    own = kept.described
    recipe = None if own.framework else recipe_named(own.stack, load_matrix())
    return recipe.framework if recipe else own.framework or None


def _root_of(host: Host, exe: str) -> str:
    """The folder of the environment that a Python belongs to. Raises BadInput for what is no Python."""
    ran = host.run((exe, "-I", "-c", "import sys; print(sys.prefix)"), timeout_s=20.0)
    if ran.code != 0:
        raise BadInput(Message("plan.into-no-python", {"exe": exe}), Message("plan.into-hint"))
    return ran.out.rstrip("\n")


def _request_of(kept: Kept, said: Request, how: How) -> Request:
    """What the environment was asked for, for the very stack it has; what is said now counts before it.

    A bundle was asked for by itself: only what is said now is held against it.
    """
    empty = asdict(Request())
    now = {name: value for name, value in asdict(said).items() if value != empty[name]}
    known = {name: value for name, value in kept.described.request.items() if name in empty and not how.bundle}
    return Request(**{**known, **now, "stack": kept.described.stack})


def _lock_of(kept: Kept) -> Lock:
    """The environment's own lock. Raises BadInput where it is not there or not sound."""
    from npuenv.lock.file import read_lock

    own = kept.described
    try:
        return read_lock(Path(own.root) / ".npuenv" / "lock.toml")
    except BadInput as error:
        said = {"path": own.root, "stack": own.stack}
        raise BadInput(Message("install.own-lock-gone", said), Message("install.own-lock-gone-hint", said)) from error


def _lock_or_same(ui: Ui, kept: Kept, request: Request, how: How) -> Lock:
    """The environment's own lock, or where that is lost the stack's present one if it is the same."""
    try:
        return _lock_of(kept)
    except BadInput:
        with wanted_for(ui, request, how) as wanted:
            if wanted.lock.hash != kept.described.lock:
                raise
            return wanted.lock


def _put_lock_back(root: str, lock: Lock) -> None:
    """Else the whole environment would count as one of another lock, and be made anew."""
    from npuenv.host.writing import write_whole
    from npuenv.lock.file import write_lock

    path, text = Path(root) / LOCK, write_lock(lock)
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode():
        write_whole(str(path), text)


def _up_to_date(ui: Ui, kept: Kept) -> ExitCode:
    own = kept.described
    _print_changes(ui, kept, own.root, ())
    ui.say(Message("install.up-to-date", {"stack": own.stack, "path": own.root}))
    if pins := own.request.get("pins"):
        said = {"stack": own.stack, "pins": tuple(f"{name}=={version}" for name, version in sorted(pins.items()))}
        ui.say(Message("install.keeps-pins", said))
    return ExitCode.FINE


def _print_changes(ui: Ui, kept: Kept, root: str, found: tuple[Change, ...]) -> None:
    """The document of an update that installs nothing: `root` is where the stack's present lock is or would be."""
    if ui.is_json:
        rows = [asdict(each) for each in found]
        said = {"stack": kept.described.stack, "target": root, "changes": rows}
        ui.print_json({"schema": "npuenv.update/1", "exit": 0, **said})


def _show_changes(ui: Ui, kept: Kept, found: tuple[Change, ...], target: Target) -> None:
    said = {"stack": kept.described.stack, "count": len(found), "path": target.root}
    ui.say(Message("install.changes-head", said), err=ui.is_json)
    for each in found if not ui.is_quiet else ():
        click.echo(clean(f"  {each.name}: {each.before or '-'} -> {each.after or '-'}"), err=ui.is_json)


def _again_hint(kept: Kept) -> Message:
    own = kept.described
    if own.kind == "existing":
        said = {"stack": own.stack, "python": str(Path(own.root) / "bin" / "python")}
        return Message("install.update-existing-hint", said)
    return Message("install.update-elsewhere-hint", {"stack": own.stack})
