"""`npuenv install`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, absolute, common_options, request_options
from npuenv.cli.machine import Machine, for_this_machine, lock_of, resolve_or_stop, this_machine
from npuenv.errors import BadInput, ExitCode
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.lock import Lock
    from npuenv.plan import Plan
    from npuenv.resolve.types import Request, Stack
    from npuenv.store.places import Target


@click.command("install")
@request_options
@click.option("--target", metavar="DIR", help="The environment's folder (default: in the user's data folder).")
@click.option("--dry-run", is_flag=True, help="Print the plan; change nothing.")
@click.option("--script", is_flag=True, help="Print the plan as a POSIX shell script; change nothing.")
@click.option("--base-python", metavar="EXE", help="The interpreter that the environment is made from.")
@click.option("--only-step", metavar="ID", help="Run this step alone.")
@click.option("--from-step", metavar="ID", help="Run this step and those after it.")
@click.option("--fill", is_flag=True, help="Complete a partial lock from its indexes first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    target: str | None,
    dry_run: bool,
    script: bool,
    base_python: str | None,
    only_step: str | None,
    from_step: str | None,
    fill: bool,
    yes: bool,
) -> int:
    """Install a stack into an environment of its own, from its lock, and verify it.

    Every step asks whether it is done before it acts: after an interruption, the same command goes on where it was.
    An environment that is complete is verified again, and packages with damaged or missing files are put in anew.
    """
    if only_step and from_step:
        raise BadInput(Message("cli.step-options"), Message("cli.step-options-hint"))
    if script and ui.is_json:
        raise BadInput(Message("cli.script-json"), Message("cli.script-json-hint"))
    how = How(str(absolute(Path(target))) if target else None, base_python, only_step, from_step, fill)
    if dry_run or script:
        return int(_show(ui, request, how, as_script=script))
    run_install(ui, request, yes=yes, how=how)
    return int(ExitCode.FINE)


@dataclass(frozen=True, slots=True)
class How:
    """The options of an installation that are not about what is installed."""

    target: str | None = None
    base_python: str | None = None
    only_step: str | None = None
    from_step: str | None = None
    fill: bool = False


def run_install(ui: Ui, request: Request, *, yes: bool, how: How | None = None) -> Path:
    """Plans, asks, executes; the environment's folder. Raises NpuenvError when it cannot be done."""
    from npuenv.execute import Session, execute
    from npuenv.facts.pip import for_uv
    from npuenv.lock.refuse import require_complete, require_sources
    from npuenv.plan.target import check_target, find_python
    from npuenv.store.places import target_for

    how = how or How()
    stack = resolve_or_stop(ui, for_this_machine(request))
    machine = this_machine(ui)
    resolver = machine.resolver
    lock = lock_of(ui, stack, machine, fill=how.fill)
    target = target_for(lock, resolver.host.environ(), how.target)
    check_target(resolver.host, target, lock)
    require_complete(lock, resolver)
    python = find_python(resolver.host, stack.platform.python, stack.platform.arch, how.base_python or _running(stack))
    plan = _plan(stack, lock, target, machine, python=python, links=require_sources(stack, lock, resolver))
    if not (yes or _is_complete(target, lock)):
        _ask(ui, plan, stack, target, machine)
    from npuenv.cli.progress import Teller

    with Teller(ui) as teller:
        session = Session(
            resolver.host,
            target.root,
            settings=for_uv(resolver.settings),
            tell=teller.tell,
            again=_same_command(),
        )
        outcome = execute(plan, session, only=how.only_step, start_at=how.from_step)
    _report(ui, stack, target, num_done=len(outcome.done))
    return Path(target.root)


def _same_command() -> tuple[str, ...]:
    """What the user typed, for the hint that says how to go on."""
    return ("npuenv", *sys.argv[1:])


def _running(stack: Stack) -> str | None:
    """This process's own interpreter where it is of the wanted version: it is known to work."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sys.executable if running == stack.platform.python else None


def _plan(stack: Stack, lock: Lock, target: Target, machine: Machine, *, python: str, links: dict[str, str]) -> Plan:
    from npuenv.facts.pip import for_uv
    from npuenv.plan.install import Tools, plan_install
    from npuenv.render.activate import render_activation

    resolver = machine.resolver
    tools = Tools(
        base_python=python,
        uv=resolver.uv,
        settings=for_uv(resolver.settings),
        indexes=resolver.indexes,
        in_links=links,
    )
    return plan_install(stack, lock, target, tools, activation=render_activation(stack, target.root))


def _show(ui: Ui, request: Request, how: How, *, as_script: bool) -> ExitCode:
    """Prints the plan, as a list or as a script. Works for any platform, whatever this machine is."""
    from npuenv.facts.pip import for_uv
    from npuenv.lock.wheels import wheels_in_links
    from npuenv.render.script import render_script
    from npuenv.store.places import target_for

    stack = resolve_or_stop(ui, for_this_machine(request))
    machine = this_machine(ui)
    resolver = machine.resolver
    lock = lock_of(ui, stack, machine, fill=how.fill)
    target = target_for(lock, resolver.host.environ(), how.target)
    labelled = [(package.name, package.version) for package in lock.packages if package.index]
    links = wheels_in_links(resolver.host, resolver.settings, labelled, stack.platform)
    python = how.base_python or _running(stack) or f"python{stack.platform.python}"
    plan = _plan(stack, lock, target, machine, python=python, links=dict(links))
    if as_script:
        from npuenv import __version__

        title = f"{stack.name} ({stack.platform.tag}), npuenv {__version__}"
        click.echo(render_script(plan, for_uv(resolver.settings), title=title, lang=ui.lang), nl=False)
    elif ui.is_json:
        from npuenv.report.plan import as_json

        ui.print_json({**as_json(plan, stack, target.root, ui.lang), "exit": 0})
    else:
        _list(ui, plan, stack, target, machine)
    for missing in lock.missing:
        from npuenv.lock.refuse import why_missing

        ui.say(Message("cli.lock-gap", {"why": why_missing(missing, resolver)}), err=True)
    return ExitCode.FINE


def _is_complete(target: Target, lock: Lock) -> bool:
    """True when the environment stands already: running it again only verifies and mends, and needs no consent anew."""
    from npuenv.store.places import MARKER, marker_text

    marker = Path(target.root) / MARKER
    return marker.is_file() and marker.read_text(encoding="utf-8") == marker_text(lock, "complete")


def _list(ui: Ui, plan: Plan, stack: Stack, target: Target, machine: Machine) -> None:
    from npuenv.render.listing import list_plan

    args = {"stack": stack.name, "platform": stack.platform.tag, "path": target.root}
    ui.say(Message("cli.plan-head", args), err=ui.is_json)
    if not ui.is_verbose:  # with -v they were said when the settings were read
        for warning in machine.resolver.settings.warnings:
            ui.say(warning, err=True)
    click.echo(list_plan(plan, machine.resolver.settings, lang=ui.lang), nl=False, err=ui.is_json)


def _ask(ui: Ui, plan: Plan, stack: Stack, target: Target, machine: Machine) -> None:
    """Shows the plan and asks. Raises BadInput where there is nobody to ask, click.Abort on no."""
    from npuenv.messages import say

    _list(ui, plan, stack, target, machine)
    if ui.is_json or not sys.stdin.isatty():
        raise BadInput(Message("cli.cannot-ask"), Message("cli.cannot-ask-hint"))
    if not click.confirm(say(Message("cli.go-on"), ui.lang), default=True):
        raise click.Abort


def _report(ui: Ui, stack: Stack, target: Target, *, num_done: int) -> None:
    args = {"stack": stack.name, "path": target.root, "steps": num_done}
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.install/1",
                "exit": 0,
                "stack": stack.name,
                "target": target.root,
                "python": target.python,
                "activate": f"{target.root}/activate.sh",
                "steps_done": num_done,
            }
        )
    ui.say(Message("cli.installed" if num_done else "cli.was-installed", args))
    ui.say(Message("cli.activate", args))
