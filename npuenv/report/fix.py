"""What `doctor --fix` would do and what it did, as text and as the `npuenv.fix/1` document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import title
from npuenv.core.messages import Message, clean, say
from npuenv.core.plan import Run
from npuenv.core.shell import shell_line
from npuenv.install.fix_plan import SESSION_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.core.plan import Step
    from npuenv.install.fix_plan import FixPlan, ManualFix

SCHEMA = "npuenv.fix/1"


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """A plan, and what became of it. Ids of checks, except in `states` and `reasons`, which are by step id."""

    fixes: FixPlan
    states: Mapping[str, str] = field(default_factory=dict)  # planned | already | done | failed
    reasons: Mapping[str, Message] = field(default_factory=dict)  # of failed steps
    mended: tuple[str, ...] = ()
    in_shell: tuple[str, ...] = ()  # mended in a shell that has read the session file
    left: tuple[str, ...] = ()
    new: tuple[str, ...] = ()  # failures that were none before
    undo: str | None = None
    session_file: str | None = None


def plan_lines(outcome: FixOutcome, lang: str, restore: Callable[[str], str] = str) -> Iterator[str]:
    """The plan for reading: each step that is not done already with its reason and commands, then what is only shown.

    `restore` turns stand-ins in sentences into real names; those in commands are turned back when the plan is made.
    """
    fixes, states = outcome.fixes, outcome.states
    steps = [step for step in fixes.plan.steps if states.get(step.id) != "already"]
    if steps:
        yield _say("plan-head", lang)
    for number, step in enumerate(steps, 1):
        yield restore(_say("plan-step", lang, number=number, step=step.id, why=step.why))
        prompt = "#" if step.needs_root else "$"
        for line in _commands(step, fixes):
            yield f"     {prompt} {line}"
        notes = [_say("plan-for", lang, checks=tuple(map(title, fixes.checks[step.id])))]
        notes += [_say("plan-root", lang)] if step.needs_root else []
        notes += [] if fixes.undo[step.id] else [_say("plan-once", lang)]
        yield f"     {' · '.join(notes)}"
    if fixes.manual:
        yield _say("shown-head", lang)
    shared: dict[str, tuple[ManualFix, list[str]]] = {}
    for each in fixes.manual:  # what several checks want is told once
        shared.setdefault(f"{each.says} {each.commands} {each.why}", (each, []))[1].append(each.check)
    for each, checks in shared.values():
        names = tuple(map(title, checks))
        yield "  - " + clean(restore(_say("shown", lang, names=names, says=each.says, why=each.why)))
        prompt = "#" if each.needs_root else "$"
        yield from (f"     {prompt} {shell_line(argv)}" for argv in each.commands)


def outcome_lines(result: FixOutcome, lang: str) -> Iterator[str]:
    """What is mended and what is not, and how to take it back."""
    yield from (say(why, lang) for why in result.reasons.values())
    for name, checks in (("mended", result.mended), ("mended-in-shell", result.in_shell), ("left", result.left)):
        if checks:
            yield _say(name, lang, names=tuple(map(title, checks)))
    if result.new:
        yield _say("new", lang, names=tuple(map(title, result.new)))
    if result.session_file is not None:
        yield _say("use-session", lang)
        yield f"     $ {shell_line(('.', result.session_file))}"
    if result.undo is not None:
        yield _say("undo", lang, path=shell_line((result.undo,)))


def fix_document(
    result: FixOutcome, *, exit_code: int, is_dry_run: bool, lang: str, redact: Callable[[str], str] = str
) -> dict[str, Any]:
    """The JSON document. `redact` puts stand-ins for names back into what was made for this machine."""
    fixes = result.fixes

    def words(argv: Sequence[str]) -> list[str]:
        return [redact(word) for word in argv]

    steps = [
        {
            "id": step.id,
            "why": redact(say(step.why, lang)),
            "checks": list(fixes.checks[step.id]),
            "state": result.states.get(step.id, "planned"),
            "commands": [words(action.argv) for action in step.do if isinstance(action, Run)],
            "writes": [redact(action.path) for action in step.do if not isinstance(action, Run)],
            "needs_root": step.needs_root,
            "undo": [words(argv) for argv in fixes.undo[step.id]],
        }
        for step in fixes.plan.steps
    ]
    shown = [
        {
            "check": each.check,
            "says": redact(say(each.says, lang)),
            "commands": [words(argv) for argv in each.commands],
            "why": say(each.why, lang),
        }
        for each in fixes.manual
    ]
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": exit_code,
        "dry_run": is_dry_run,
        "steps": steps,
        "shown": shown,
        "session": [shell_line(words(argv)) for argv in fixes.session],
        "mended": list(result.mended),
        "mended_in_shell": list(result.in_shell),
        "left": list(result.left),
        "new": list(result.new),
        "undo": redact(result.undo) if result.undo else None,
    }


def _commands(step: Step, fixes: FixPlan) -> Iterator[str]:
    if step.id == SESSION_STEP:
        yield from map(shell_line, fixes.session)
    yield from (shell_line(action.argv) for action in step.do if isinstance(action, Run))


def _say(name: str, lang: str, /, **args: object) -> str:
    return say(Message(f"fix.{name}", args), lang)
