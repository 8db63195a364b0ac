"""Installs a stack into an environment of its own, from its lock: `install`; `preview` only plans.

Before the last step the doctor's checks of the packages must pass: `verify_environment`.
"""

from __future__ import annotations

import platform
import shlex
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.app import resolution
from npuenv.app.examine import FRAMEWORKS
from npuenv.app.progress import (
    SILENT,
    InstallJob,
    InstallOptions,
    InstallPreview,
    InstallRequest,
    InstallResult,
    Progress,
)
from npuenv.core.errors import BadInput, NothingFits, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.conditions import going_out, unmet
from npuenv.facts.manifest import describe
from npuenv.facts.pip import for_uv
from npuenv.host.local import LocalHost
from npuenv.install import executor, planning
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace, data_folder, is_complete, points_to, remember, target_for
from npuenv.install.executor import chosen
from npuenv.install.planning import FINISH, MEND, VERIFY, keep_supplied, replaced_packages
from npuenv.install.prerequisites import Prerequisites, cann_steps, look_at_system, system_steps, with_found_cann
from npuenv.install.target import (
    check_content,
    check_target,
    damage_of,
    digests_of,
    existing_target,
    find_conda,
    find_python,
    kept_lock,
    present_in,
    require_same,
)
from npuenv.lock.checking import require_complete, require_sources
from npuenv.lock.store import as_locked, for_chip
from npuenv.lock.uv import wheels_in_links
from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations
from npuenv.resolve.types import Request, Stack, command_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.checks import Finding
    from npuenv.core.plan import Plan
    from npuenv.host import Host


# Areas of checks that an installation answers for, and the groups of facts that they read.
_CHECKED_AREAS = ("python.", "stack.")
_CHECKED_GROUPS = frozenset({"python", "cann", "machine"})
# Of the session and not of the packages: they hold in the shell that sources the activation script.
_OF_SESSION = ("stack.settings", "stack.cann")


def install(request: Request, options: InstallOptions | None = None, progress: Progress = SILENT) -> InstallResult:
    """Plans, executes and verifies an installation. What is done already is not done again.

    Raises ConflictError, BadInput (target, interpreter, files), NothingFits (lock, interpreter), StepFailed.
    """
    options = options or InstallOptions()
    with open_request(request, options, progress) as opened:
        job = plan_install(opened, options)
        progress.approve(job, ())
        return execute(job, options, progress)


def preview(request: Request, options: InstallOptions | None = None, progress: Progress = SILENT) -> InstallPreview:
    """The plan of an installation for any platform, whatever this machine is.

    A lock made for it is kept; nothing else is changed.
    Raises BadInput for an unknown step and, where the plan is for machines like this one, for a folder that an
    installation would refuse.
    """
    options = options or InstallOptions()
    with open_request(request, options, progress) as opened:
        job = _plan_dry_run(opened, options)
        return InstallPreview(job, tuple(_lacks(job, options)))


def script_of(request: Request, options: InstallOptions, progress: Progress, *, lang: str = "en") -> str:
    """The plan as a POSIX shell script. A lock made for it is kept; nothing else is changed.

    Raises as `preview`, and NothingFits for a lock that is not complete: what lacks would come unchecked.
    """
    from npuenv.render.script import render_script

    with open_request(request, options, progress) as opened:
        job = _plan_dry_run(opened, options, as_script=True)
        require_complete(job.request.lock, opened.resolver, opened.request)
        return render_script(
            job.plan,
            for_uv(opened.resolver.settings),
            title=f"{opened.stack.name} ({opened.stack.platform.tag}), npuenv {__version__}",
            lang=lang,
            steps=job.steps,
            is_replacing=options.is_replacing,
        )


@contextmanager
def open_request(request: Request, options: InstallOptions, progress: Progress) -> Iterator[InstallRequest]:
    """The stack and its lock: resolved and locked here, or as the bundle has them, unpacked while the block runs."""
    resolver = resolution.this_resolver(progress)
    if options.bundle is None:
        asked, request = request, resolution.for_this_machine(request)
        stack = with_found_cann(resolver.host, resolution.resolve(request))
        for note in resolution.basis_of(request, stack, asked):
            progress.note(note)
        if options.lock:
            # An environment's own lock also says where what it built came from.
            stack, lock = as_locked(stack, options.lock), options.lock
        else:
            lock = resolution.lock(stack, resolver, fill=options.fill, progress=progress)
            stack, lock = for_chip(stack, lock, options.given)
        yield InstallRequest(stack, lock, resolver, request)
        return
    from npuenv.bundle.reader import as_bundled, open_bundle, require_known, require_matching

    with open_bundle(options.bundle) as bundle:
        lacking = [name for name in bundle.left_out if name not in options.given]
        if lacking:
            said = {"path": options.bundle, "names": tuple(lacking), "first": lacking[0]}
            raise BadInput(Message("install.bundle-lacks", said), Message("install.bundle-lacks-hint", said))
        require_known(bundle, load_matrix())
        own = resolution.for_this_host(as_bundled(bundle), frozenset({"hardware"}))
        stack = as_locked(resolution.resolve(own), bundle.lock)
        require_matching(request, bundle, stack, load_matrix())
        asked = replace(bundle.request, hardware=own.hardware)
        yield InstallRequest(with_found_cann(resolver.host, stack), bundle.lock, resolver, asked, bundle)


def plan_install(request: InstallRequest, options: InstallOptions) -> InstallJob:
    """The plan for this machine.

    Raises BadInput (architecture, target, interpreter, files), NothingFits (lock, interpreter).
    """
    stack, resolver = request.stack, request.resolver
    target = _target(request, options)
    if target.kind != "existing":
        _require_this_machine(request)
        check_target(resolver.host, target, request.lock)
        require_same(resolver.host, target, request.lock, is_replacing=options.is_replacing)
    request = replace(request, lock=kept_lock(resolver.host, target, request.lock))
    require_complete(request.lock, resolver, request.request)
    python = _base_python(request, options) if target.kind == "venv" else target.python
    tools = _tools(request, target, options, python=python)
    tools = replace(tools, conda=find_conda(resolver.host) if target.kind == "conda" else "")
    job = _planned(request, target, options, tools)
    if _fetches_from_own_index(job, tools):
        require_sources(stack, request.lock, resolver)
    return job


def _require_this_machine(request: InstallRequest) -> None:
    """Raises BadInput for a stack of another architecture, with the command that bundles it for such a machine."""
    stack, own = request.stack, platform.machine()
    if stack.platform.arch != own:
        command = shlex.join(("npuenv", "bundle", *command_for(request.request)[2:]))
        said = {"own": own, "arch": stack.platform.arch, "stack": stack.name, "command": command}
        hint = None if request.bundle else Message("install.other-arch-hint", said)
        raise BadInput(Message("install.other-arch", said), hint)


def _plan_dry_run(request: InstallRequest, options: InstallOptions, *, as_script: bool = False) -> InstallJob:
    """A plan that is only shown: what is not here is called by its usual name.

    A script may run later, and again after it was stopped: what is present now says nothing for it.
    """
    stack, host = request.stack, request.resolver.host
    target = _target(request, options)
    is_for_here = stack.platform.arch == platform.machine()
    if is_for_here and target.kind != "existing":
        check_content(host, target)
        require_same(host, target, request.lock, is_replacing=options.is_replacing)
    request = replace(request, lock=kept_lock(host, target, request.lock))
    python = options.base_python or f"python{stack.platform.python}"
    if is_for_here and target.kind == "venv":
        with suppress(NothingFits):
            python = _base_python(request, options)
    tools = replace(_tools(request, target, options, python=python), conda="conda")
    return _planned(request, target, options, replace(tools, present=None) if as_script else tools)


def _target(request: InstallRequest, options: InstallOptions) -> EnvironmentPlace:
    """Where it goes. Raises BadInput for a Python whose environment cannot take the stack."""
    host = request.resolver.host
    if options.into is not None:
        return existing_target(host, options.into, request.lock, request.stack)
    return target_for(request.lock, host.environ(), options.target)._replace(kind=options.kind)


def _tools(request: InstallRequest, target: EnvironmentPlace, options: InstallOptions, *, python: str) -> Tools:
    resolver, bundle = request.resolver, request.bundle
    given = {**(bundle.sources if bundle else {}), **options.given}
    labelled = (package for package in request.lock.packages if package.index)
    links = wheels_in_links(resolver, labelled, request.stack.platform)
    tools = Tools(
        base_python=python,
        uv=resolver.uv,
        settings=for_uv(resolver.settings),
        indexes=resolver.indexes,
        in_links={} if bundle else links,
        wheels=bundle.wheels if bundle else "",
        given=given,
        digests=digests_of(resolver.host, given, request.stack, sys.executable),
        present=present_in(resolver.host, target, request.stack.platform.python) if target.kind == "existing" else None,
    )
    return keep_supplied(resolver.host, request.stack, request.lock, target, tools)


def _base_python(request: InstallRequest, options: InstallOptions) -> str:
    """The interpreter that an environment of its own is made from. Raises BadInput (unfit option), NothingFits."""
    stack, host = request.stack, request.resolver.host
    # This process's own interpreter, where it is of the wanted version, is known to work.
    running = sys.executable if stack.platform.python == f"{sys.version_info.major}.{sys.version_info.minor}" else None
    try:
        return find_python(host, stack.platform.python, stack.platform.arch, options.base_python or running)
    except NothingFits as error:
        if request.bundle is None or not request.bundle.python_archive:
            raise
        raise NothingFits(error.message, Message("install.bundled-python", {"path": options.bundle})) from error


def _planned(request: InstallRequest, target: EnvironmentPlace, options: InstallOptions, tools: Tools) -> InstallJob:
    prerequisites = _prerequisites(request, target, options)
    plan = planning.plan_install(
        request.stack,
        request.lock,
        target,
        tools,
        activation=render_activations(request.stack, target.root),
        request=manifest_request(request.request),
        before=prerequisites.steps,
        is_repairing=options.is_repairing,
    )
    host, steps = request.resolver.host, chosen(plan, options.only_step, options.from_step)
    notes = (
        *damage_of(host, target),
        *_switched(request, target),
        *prerequisites.notes,
        *replaced_packages(host, target, plan),
    )
    return InstallJob(request, target, plan, steps, notes)


def manifest_request(request: Request) -> dict[str, Any]:
    """What a request says, without what it leaves open: as the manifest keeps it. A host can change what it says."""
    empty = Request()
    of_host: dict[str, Any] = dict.fromkeys({"os", "driver", "cann"} & set(request.origins))
    said = asdict(replace(request, origins={}, **of_host))
    return {name: value for name, value in said.items() if value != getattr(empty, name)}


def _prerequisites(request: InstallRequest, target: EnvironmentPlace, options: InstallOptions) -> Prerequisites:
    """What the environment stands on: the system's packages and CANN. Asked of this machine only if it is meant."""
    stack, host = request.stack, request.resolver.host
    files = (*(request.bundle.cann_files if request.bundle else ()), *options.cann_files)
    if stack.platform.arch != platform.machine():
        return cann_steps(host, stack, files, target) if files else Prerequisites()
    of_system = system_steps(stack, look_at_system(host, stack), is_allowed=options.with_system)
    return of_system + cann_steps(host, stack, files, target)


def _switched(request: InstallRequest, target: EnvironmentPlace) -> tuple[Message, ...]:
    """That an environment which is there already takes the place of the one in force, as after a rollback."""
    before = points_to(Path(target.link)) if target.link else ""
    if not before or before == Path(target.root).name or not is_complete(request.resolver.host, target, request.lock):
        return ()
    said = {"before": str(Path(target.root).with_name(before)), "path": target.root}
    return (Message("install.comes-into-force", said),)


def _fetches_from_own_index(job: InstallJob, tools: Tools) -> bool:
    """True when a package that no other index may serve, and that lies in no folder, is to be fetched now."""
    if tools.wheels:
        return False
    packages = (each for each in job.request.lock.packages if each.index and each.name not in tools.in_links)
    words = {f"{package.name}=={package.version}" for package in packages}
    puts_in = [step for step in job.steps if any(words.intersection(want.of) for want in step.done_when)]
    return any(unmet(step, job.request.resolver.host) for step in puts_in)


def _lacks(job: InstallJob, options: InstallOptions) -> Iterator[NothingFits]:
    """What would end an installation from here before it begins, where no index has to be asked for it."""
    request = job.request
    try:
        require_complete(request.lock, request.resolver, request.request)
    except NothingFits as error:
        yield error
    if request.stack.platform.arch == platform.machine() and job.target.kind == "venv":
        try:
            _base_python(request, options)
        except NothingFits as error:
            yield error


def execute(job: InstallJob, options: InstallOptions, progress: Progress) -> InstallResult:
    """Executes a plan while its request is open, and remembers the environment. Raises StepFailed, BadInput."""
    resolver, target = job.request.resolver, job.target
    session = executor.ExecutionContext(
        resolver.host,
        target.root,
        settings=for_uv(resolver.settings),
        tell=progress.step,
        wait=partial(progress.waiting, target.root),
        again=options.again,
        proofs=_proofs(job),
    )
    with progress.executing():
        outcome = executor.execute(job.plan, session, only=options.only_step, start_at=options.from_step)
    remember(Path(target.root), Path(data_folder(resolver.host.environ())))
    is_proven = _is_proven(job)
    own = describe(LocalHost(), target.root) if is_proven else None
    return InstallResult(job, outcome, is_proven, own.verified.strangers if own and own.verified else ())


def _proofs(job: InstallJob) -> dict[str, Callable[[], None]]:
    """Step id -> what must pass before it acts: what goes out can come back, and nothing unproven comes into force."""
    request, resolver = job.request, job.request.resolver

    def require_what_goes_in_again() -> None:
        if request.bundle is None:
            want = next(want for step in job.plan.steps if step.id == MEND for want in step.done_when)
            out = going_out(resolver.host, want).value
            require_sources(request.stack, request.lock, resolver, only=out)

    verify = partial(verify_environment, resolver.host, request.stack, job.target, job.plan)
    return {MEND: require_what_goes_in_again, FINISH: verify}


def verify_environment(host: Host, stack: Stack, target: EnvironmentPlace, plan: Plan) -> None:
    """Raises StepFailed for an environment that is not verified, or where the doctor finds it at odds with its stack.

    Asked before the last step too, because that can be asked for alone.
    """
    if any(unmet(step, host) for step in plan.steps if step.id == VERIFY):
        raise StepFailed(Message("install.unverified", {"path": target.root}), Message("install.unverified-hint"))
    found = failed_checks(host, stack, target.python)
    if found:
        why = tuple(Message("install.objection", {"check": each.check, "says": each.says}) for each in found)
        said = {"path": target.root, "why": why}
        hint = {"python": target.python, "stack": stack.name}
        raise StepFailed(Message("install.objections", said), Message("install.objections-hint", hint))


def failed_checks(host: Host, stack: Stack, python: str) -> tuple[Finding, ...]:
    """The doctor's failed software checks of an environment, by the stack that it is meant to hold.

    The step before has imported what needs no CANN; that is not done again. Modules that need CANN's libraries load in
    an activated shell only: that they fail here explains which libraries are missing, and is no objection.
    """
    from npuenv.checks import Status, check_all  # plans do without all checks
    from npuenv.facts.collect import collect

    needs_cann = bool(stack.cann_root)
    framework = stack.framework if stack.framework in FRAMEWORKS else None
    facts = collect(host, python=python, level=1, framework=framework, imports=needs_cann, only=_CHECKED_GROUPS)
    found = check_all(facts, framework=framework, level=1, stack=stack)
    return tuple(
        finding for finding in found if finding.status is Status.FAIL and _is_objection(finding.check, needs_cann)
    )


def _is_objection(check: str, needs_cann: bool) -> bool:
    if not check.startswith(_CHECKED_AREAS) or check in _OF_SESSION or check == "python.made":
        return False
    return not (needs_cann and check.endswith("-imports"))


def _is_proven(job: InstallJob) -> bool:
    """True when the environment is complete and verified; after a part of the plan it need not be."""
    host, is_part = job.request.resolver.host, job.steps != job.plan.steps
    verify = [step for step in job.plan.steps if step.id == VERIFY and is_part]
    return is_complete(host, job.target, job.request.lock) and not any(unmet(step, host) for step in verify)
