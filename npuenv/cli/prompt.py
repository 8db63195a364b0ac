"""What is shown of an installation before it begins, and the question whether to go on. Start from `ask`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from npuenv.cli.common import Ui
    from npuenv.cli.prepared import Prepared
    from npuenv.install.plan import Plan


def ask(ui: Ui, prepared: Prepared) -> None:
    """Shows what of the plan is not done yet and asks. Raises BadInput where nobody can be asked, Stop on no."""
    from npuenv.install.executor import is_done

    host = prepared.wanted.machine.resolver.host
    left = tuple(step for step in prepared.steps if not is_done(step, host))
    list_plan(ui, replace(prepared, steps=left))
    confirm(ui)


def confirm(ui: Ui, *, is_yes_usual: bool = True) -> None:
    """Asks whether to go on; Enter alone means what is usual. Raises BadInput where nobody can be asked, Stop on no."""
    from npuenv.cli.common import Stop

    if ui.is_json or not sys.stdin.isatty():
        raise BadInput(Message("cli.cannot-ask"), Message("cli.cannot-ask-hint"))
    if not click.confirm(say(Message("cli.go-on"), ui.lang), default=is_yes_usual):
        ui.say(Message("cli.declined"), err=True)
        raise Stop(ExitCode.INTERRUPTED)


def needs_consent(prepared: Prepared) -> bool:
    """True when something is to be changed now that nobody has agreed to.

    In an environment that is complete npuenv puts back its own without asking: somebody agreed to that before.
    """
    from npuenv.install.environments import is_complete
    from npuenv.install.executor import changes_more_than_its_own, is_done

    host = prepared.wanted.machine.resolver.host
    if is_complete(host, prepared.target, prepared.wanted.lock):
        return changes_more_than_its_own(prepared.steps, host)
    # The last first: what says that an environment is finished is cheap to ask, and not there yet.
    return not all(is_done(step, host) for step in reversed(prepared.steps))


def list_plan(ui: Ui, prepared: Prepared) -> None:
    """The plan as text, with pip's settings in force, and what it leaves to the user."""
    from npuenv.report.plan import list_plan as as_text

    stack, settings = prepared.wanted.stack, prepared.wanted.machine.resolver.settings
    args = {"stack": stack.name, "platform": stack.platform.tag, "path": prepared.target.root}
    ui.say(Message("cli.plan-head", args), err=ui.is_json)
    if not ui.is_verbose:  # with -v they were said when the settings were read
        for warning in settings.warnings:
            ui.say(warning, err=True)
    click.echo(as_text(shown_part(prepared), settings, lang=ui.lang), nl=False, err=ui.is_json)
    tell_notes(ui, prepared)


def shown_part(prepared: Prepared) -> Plan:
    """The part of the plan that was asked for."""
    return replace(prepared.plan, steps=prepared.steps)


def tell_notes(ui: Ui, prepared: Prepared) -> None:
    """Says what the plan cannot do itself: system packages without consent, parts of CANN that nobody supplied."""
    for note in prepared.notes:
        ui.say(note, err=True)
