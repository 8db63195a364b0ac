"""One installation: what is to be had, where it goes, the plan, the question, the work, the proof. `run_install`."""

from __future__ import annotations

import platform
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.cli.machine import (
    for_this_host,
    for_this_machine,
    lock_of,
    resolve_or_stop,
    tell_basis,
    this_machine,
)
from npuenv.cli.prepared import Prepared, Wanted
from npuenv.cli.prompt import ask, list_plan, needs_consent, shown_part, tell_notes
from npuenv.core.errors import BadInput, ExitCode, NothingFits
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npuenv.cli.common import Ui
    from npuenv.install.executor import Outcome
    from npuenv.install.locations import Target
    from npuenv.install.plan.context import Tools
    from npuenv.install.plan.prerequisites import Prerequisites
    from npuenv.lock import Lock
    from npuenv.resolve.types import Request, Stack


@dataclass(frozen=True, slots=True)
class How:
    """The options of an installation that are not about what is installed."""

    target: str | None = None
    kind: str = "venv"  # venv | conda | existing
    base_python: str | None = None
    into: str | None = None  # the Python whose environment is to take the packages
    bundle: str | None = None  # a bundle's folder or archive: nothing is asked of the network
    cann_files: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)  # source name -> archive or folder
    with_system: bool = False
    is_replacing: bool = False
    is_repairing: bool = False  # what is damaged goes out first, also in an environment that the user had already
    only_step: str | None = None
    from_step: str | None = None
    fill: bool = False


def run_install(ui: Ui, request: Request, *, yes: bool, how: How | None = None, lock: Lock | None = None) -> Path:
    """Plans, asks, executes, proves; the environment's folder. Raises NpuenvError when it cannot be done.

    `lock`: this one instead of the stack's present lock.
    """
    how = how or How()
    with wanted_for(ui, request, how, lock) as wanted:
        prepared = prepare(wanted, how)
        if yes or not needs_consent(prepared):
            tell_notes(ui, prepared)
        else:
            ask(ui, prepared)
        return install_prepared(ui, prepared, how)


def install_prepared(ui: Ui, prepared: Prepared, how: How) -> Path:
    """Executes what was agreed to, while `wanted_for` is open; the environment's folder. Raises as `carry_out`."""
    outcome = carry_out(ui, prepared, how)
    _remember(prepared.wanted, prepared.target)
    _report(ui, prepared, outcome)
    return Path(prepared.target.root)


@contextmanager
def wanted_for(ui: Ui, request: Request, how: How, lock: Lock | None = None) -> Iterator[Wanted]:
    """The stack and its lock: resolved and locked here, or as the bundle has them, unpacked while the block runs."""
    from npuenv.install.plan.cann_files import with_found_cann
    from npuenv.lock.store import as_locked

    machine = this_machine(ui)
    if how.bundle is None:
        request = for_this_machine(request)
        stack = with_found_cann(machine.resolver.host, resolve_or_stop(ui, request))
        tell_basis(ui, request, stack)
        # An environment's own lock also says where what it built came from.
        stack = as_locked(stack, lock) if lock else stack
        yield Wanted(stack, lock or lock_of(ui, stack, machine, fill=how.fill), machine, request)
        return
    from npuenv.bundle.offline.compatibility import as_bundled, require_known, require_meant
    from npuenv.bundle.offline.reader import open_bundle
    from npuenv.matrix import load_matrix

    with open_bundle(how.bundle) as bundle:
        lacking = [name for name in bundle.left_out if name not in how.given]
        if lacking:
            said = {"path": how.bundle, "names": tuple(lacking), "first": lacking[0]}
            raise BadInput(Message("install.bundle-lacks", said), Message("install.bundle-lacks-hint", said))
        require_known(bundle, load_matrix())
        own = for_this_host(as_bundled(bundle), frozenset({"hardware"}))
        stack = as_locked(resolve_or_stop(ui, own), bundle.lock)
        require_meant(request, bundle, stack, load_matrix())
        asked = replace(bundle.request, hardware=own.hardware)
        yield Wanted(with_found_cann(machine.resolver.host, stack), bundle.lock, machine, asked, bundle)


def prepare(wanted: Wanted, how: How) -> Prepared:
    """The plan for this machine. Raises BadInput (target, interpreter, files), NothingFits (lock, interpreter)."""
    from npuenv.install.plan.target import check_target, find_conda, kept_lock, require_same
    from npuenv.lock.preconditions import require_complete, require_sources

    stack, resolver = wanted.stack, wanted.machine.resolver
    target = _target(wanted, how)
    if target.kind != "existing":
        check_target(resolver.host, target, wanted.lock)
        require_same(resolver.host, target, wanted.lock, is_replacing=how.is_replacing)
    wanted = replace(wanted, lock=kept_lock(resolver.host, target, wanted.lock))
    require_complete(wanted.lock, resolver, wanted.request)
    python = _base_python(wanted, how) if target.kind == "venv" else target.python
    tools = _tools(wanted, target, how, python=python)
    tools = replace(tools, conda=find_conda(resolver.host) if target.kind == "conda" else "")
    prepared = _planned(wanted, target, how, tools)
    if _asks_an_index_of_its_own(prepared, tools):
        require_sources(stack, wanted.lock, resolver)
    return prepared


def _asks_an_index_of_its_own(prepared: Prepared, tools: Tools) -> bool:
    """True when a package that no other index may serve, and that lies in no folder, is to be fetched now."""
    from npuenv.install.executor import unmet

    if tools.wheels:
        return False
    packages = (each for each in prepared.wanted.lock.packages if each.index and each.name not in tools.in_links)
    words = {f"{package.name}=={package.version}" for package in packages}
    puts_in = [step for step in prepared.steps if any(words.intersection(want.of) for want in step.done_when)]
    return any(unmet(step, prepared.wanted.machine.resolver.host) for step in puts_in)


def _base_python(wanted: Wanted, how: How) -> str:
    """The interpreter that an environment of its own is made from. Raises BadInput (unfit option), NothingFits."""
    from npuenv.install.plan.target import find_python

    stack, host = wanted.stack, wanted.machine.resolver.host
    chosen = how.base_python or _running(stack)
    try:
        return find_python(host, stack.platform.python, stack.platform.arch, chosen)
    except NothingFits as error:
        if wanted.bundle is None or not wanted.bundle.python_archive:
            raise
        raise NothingFits(error.message, Message("install.bundled-python", {"path": how.bundle})) from error


def show_plan(ui: Ui, request: Request, how: How, *, as_script: bool, lock: Lock | None = None) -> ExitCode:
    """Prints what an installation lacks and then the plan, as a list or as a script; the exit code that it would have.

    Works for any platform, whatever this machine is.

    Raises BadInput for an unknown step and, where the plan is for machines like this one, for a folder that an
    installation would refuse; NothingFits for a script of a lock that is not complete: what lacks would come unchecked.
    """
    with wanted_for(ui, request, how, lock) as wanted:
        prepared = _imagine(wanted, how, as_script=as_script)
        lacks = () if as_script else tuple(_lacks(prepared, how))
        code = ExitCode.NOTHING_FITS if lacks else ExitCode.FINE
        for error in lacks:
            ui.say(Message("cli.would-fail", {"why": error.message}), err=True)
            if error.hint:
                ui.say(Message("cli.hint", {"hint": error.hint}), err=True)
        if as_script:
            from npuenv import __version__
            from npuenv.lock.preconditions import require_complete

            require_complete(prepared.wanted.lock, prepared.wanted.machine.resolver, prepared.wanted.request)
            from npuenv.facts.pip import for_uv
            from npuenv.render.script import render_script

            title = f"{wanted.stack.name} ({wanted.stack.platform.tag}), npuenv {__version__}"
            settings = for_uv(wanted.machine.resolver.settings)
            text = render_script(
                prepared.plan,
                settings,
                title=title,
                lang=ui.lang,
                steps=prepared.steps,
                is_replacing=how.is_replacing,
            )
            click.echo(text, nl=False)
        elif ui.is_json:
            from npuenv.report.plan import as_json

            document = as_json(shown_part(prepared), wanted.stack, prepared.target.root, ui.lang)
            ui.print_json({**document, "exit": int(code), "lacks": [say(error.message, ui.lang) for error in lacks]})
        else:
            list_plan(ui, prepared)
    return code


def _lacks(prepared: Prepared, how: How) -> Iterator[NothingFits]:
    """What would end an installation from here before it begins, where no index has to be asked for it."""
    from npuenv.lock.preconditions import require_complete

    wanted = prepared.wanted
    try:
        require_complete(wanted.lock, wanted.machine.resolver, wanted.request)
    except NothingFits as error:
        yield error
    if wanted.stack.platform.arch == platform.machine() and prepared.target.kind == "venv":
        try:
            _base_python(wanted, how)
        except NothingFits as error:
            yield error


def carry_out(ui: Ui, prepared: Prepared, how: How) -> Outcome:
    """Executes the plan with its progress shown. Raises StepFailed, BadInput, NothingFits."""
    from npuenv.cli.step_progress import Teller
    from npuenv.facts.pip import for_uv
    from npuenv.install.executor import Session, execute

    resolver = prepared.wanted.machine.resolver
    with Teller(ui) as teller:
        session = Session(
            resolver.host,
            prepared.target.root,
            settings=for_uv(resolver.settings),
            tell=teller.tell,
            wait=partial(teller.wait, prepared.target.root),
            again=_same_command(),
            proofs=_proofs(prepared),
        )
        return execute(prepared.plan, session, only=how.only_step, start_at=how.from_step)


def _proofs(prepared: Prepared) -> dict[str, Callable[[], None]]:
    """Step id -> what must pass before it acts: what goes out can come back, and nothing unproven comes into force."""
    from npuenv.cli.verify import prove
    from npuenv.facts.environment import going_out
    from npuenv.install.plan.environment import FINISH, MEND
    from npuenv.lock.preconditions import require_sources

    wanted, resolver = prepared.wanted, prepared.wanted.machine.resolver

    def require_what_goes_in_again() -> None:
        if wanted.bundle is None:
            want = next(want for step in prepared.plan.steps if step.id == MEND for want in step.done_when)
            out = going_out(resolver.host, want).value
            require_sources(wanted.stack, wanted.lock, resolver, only=out)

    return {
        MEND: require_what_goes_in_again,
        FINISH: lambda: prove(resolver.host, wanted.stack, prepared.target, prepared.plan),
    }


def asked_for(request: Request) -> dict[str, Any]:
    """What a request says, without what it leaves open: as the manifest keeps it. A host can change what it says."""
    from npuenv.resolve.types import Request

    empty = Request()
    of_host: dict[str, Any] = dict.fromkeys({"os", "driver", "cann"} & set(request.origins))
    said = asdict(replace(request, origins={}, **of_host))
    return {name: value for name, value in said.items() if value != getattr(empty, name)}


def _imagine(wanted: Wanted, how: How, *, as_script: bool) -> Prepared:
    """A plan that is only shown: what is not here is called by its usual name.

    A script may run later, and again after it was stopped: what is present now says nothing for it.
    """
    from npuenv.install.plan.target import check_content, kept_lock, require_same

    stack, host = wanted.stack, wanted.machine.resolver.host
    target = _target(wanted, how)
    is_for_here = stack.platform.arch == platform.machine()
    if is_for_here and target.kind != "existing":
        check_content(host, target)
        require_same(host, target, wanted.lock, is_replacing=how.is_replacing)
    wanted = replace(wanted, lock=kept_lock(host, target, wanted.lock))
    python = how.base_python or f"python{stack.platform.python}"
    if is_for_here and target.kind == "venv":
        with suppress(NothingFits):
            python = _base_python(wanted, how)
    tools = replace(_tools(wanted, target, how, python=python), conda="conda")
    return _planned(wanted, target, how, replace(tools, present=None) if as_script else tools)


def _target(wanted: Wanted, how: How) -> Target:
    """Where it goes. Raises BadInput for a Python whose environment cannot take the stack."""
    from npuenv.install.locations import target_for
    from npuenv.install.plan.target import existing_target

    host = wanted.machine.resolver.host
    if how.into is not None:
        return existing_target(host, how.into, wanted.lock, wanted.stack)
    return replace(target_for(wanted.lock, host.environ(), how.target), kind=how.kind)


def _tools(wanted: Wanted, target: Target, how: How, *, python: str) -> Tools:
    from npuenv.facts.pip import for_uv
    from npuenv.install.plan.local_sources import digests_of
    from npuenv.install.plan.make import Tools, keep_supplied
    from npuenv.install.plan.target import present_in
    from npuenv.lock.wheels import wheels_in_links

    resolver, bundle = wanted.machine.resolver, wanted.bundle
    given = {**(bundle.sources if bundle else {}), **how.given}
    labelled = [(package.name, package.version) for package in wanted.lock.packages if package.index]
    links = wheels_in_links(resolver.host, resolver.settings, labelled, wanted.stack.platform)
    tools = Tools(
        base_python=python,
        uv=resolver.uv,
        settings=for_uv(resolver.settings),
        indexes=resolver.indexes,
        in_links={} if bundle else links,
        wheels=bundle.wheels if bundle else "",
        given=given,
        digests=digests_of(resolver.host, given, wanted.stack, sys.executable),
        present=present_in(resolver.host, target, wanted.stack.platform.python) if target.kind == "existing" else None,
    )
    return keep_supplied(resolver.host, wanted.stack, wanted.lock, target, tools)


def _planned(wanted: Wanted, target: Target, how: How, tools: Tools) -> Prepared:
    from npuenv.install.executor import chosen
    from npuenv.install.plan.changes import replaced
    from npuenv.install.plan.make import plan_install
    from npuenv.install.plan.target import damage_of
    from npuenv.render.activation import render_activations

    ground = _ground(wanted, target, how)
    plan = plan_install(
        wanted.stack,
        wanted.lock,
        target,
        tools,
        activation=render_activations(wanted.stack, target.root),
        request=asked_for(wanted.request),
        before=ground.steps,
        is_repairing=how.is_repairing,
    )
    host, steps = wanted.machine.resolver.host, chosen(plan, how.only_step, how.from_step)
    notes = (
        *damage_of(host, target),
        *_switched(wanted, target),
        *ground.notes,
        *replaced(host, target, plan),
    )
    return Prepared(wanted, target, plan, steps, notes)


def _switched(wanted: Wanted, target: Target) -> tuple[Message, ...]:
    """That an environment which is there already takes the place of the one in force, as after a rollback."""
    from npuenv.install.environments import is_complete, points_to

    before = points_to(Path(target.link)) if target.link else ""
    if (
        not before
        or before == Path(target.root).name
        or not is_complete(wanted.machine.resolver.host, target, wanted.lock)
    ):
        return ()
    said = {"before": str(Path(target.root).with_name(before)), "path": target.root}
    return (Message("install.comes-into-force", said),)


def _ground(wanted: Wanted, target: Target, how: How) -> Prerequisites:
    """What the environment stands on: the system's packages and CANN. Asked of this machine only if it is meant."""
    from npuenv.install.plan.cann_files import cann_steps
    from npuenv.install.plan.prerequisites import Prerequisites
    from npuenv.install.plan.system import look_at_system, system_steps

    stack, host = wanted.stack, wanted.machine.resolver.host
    files = (*(wanted.bundle.cann_files if wanted.bundle else ()), *how.cann_files)
    if stack.platform.arch != platform.machine():
        return cann_steps(host, stack, files, target) if files else Prerequisites()
    of_system = system_steps(stack, look_at_system(host, stack), is_allowed=how.with_system)
    return of_system + cann_steps(host, stack, files, target)


def _running(stack: Stack) -> str | None:
    """This process's own interpreter where it is of the wanted version: it is known to work."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sys.executable if running == stack.platform.python else None


def _same_command() -> tuple[str, ...]:
    """What the user typed, for the hint that says how to go on."""
    return ("npuenv", *sys.argv[1:])


def _remember(wanted: Wanted, target: Target) -> None:
    from npuenv.install.environments import remember
    from npuenv.install.locations import data_folder

    remember(Path(target.root), Path(data_folder(wanted.machine.resolver.host.environ())))


def _report(ui: Ui, prepared: Prepared, outcome: Outcome) -> None:
    stack, target = prepared.wanted.stack, prepared.target
    num_done, is_done = len(outcome.done), _is_proven(prepared)
    args = {"stack": stack.name, "path": target.root, "steps": num_done}
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.install/1",
                "exit": 0,
                "stack": stack.name,
                "target": target.root,
                "python": target.python,
                "is_proven": is_done,
                "activate": f"{target.root}/activate.sh" if is_done else None,
                "steps_done": num_done,
                "notes": [say(note, ui.lang) for note in prepared.notes],
            }
        )
    if not is_done:
        done = outcome.done or (Message("plan.none"),)
        ui.say(Message("install.part-done", {"path": target.root, "steps": done}))
        return
    ui.say(Message("cli.installed" if num_done else "cli.was-installed", args))
    strangers = _strangers(target)
    if strangers:
        ui.say(Message("install.strangers", {"names": strangers}), err=True)
    ui.say(Message("cli.activate", args))
    if stack.cann_root:
        ui.say(Message("install.needs-cann", args))


def _is_proven(prepared: Prepared) -> bool:
    """True when the environment is complete and verified; after a part of the plan it need not be."""
    from npuenv.install.environments import is_complete
    from npuenv.install.executor import unmet
    from npuenv.install.plan.environment import VERIFY

    host, is_part = prepared.wanted.machine.resolver.host, prepared.steps != prepared.plan.steps
    verify = [step for step in prepared.plan.steps if step.id == VERIFY and is_part]
    return is_complete(host, prepared.target, prepared.wanted.lock) and not any(unmet(step, host) for step in verify)


def _strangers(target: Target) -> tuple[str, ...]:
    """Files of no package that run code whenever the environment's Python starts."""
    from npuenv.facts.manifest import describe
    from npuenv.host.local import LocalHost

    own = describe(LocalHost(), target.root)
    return own.verified.strangers if own is not None and own.verified is not None else ()
