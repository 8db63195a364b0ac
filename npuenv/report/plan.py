"""A plan for people (`show`) and for programs (`as_json`)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.messages import Message, say
from npuenv.plan import Plan, Run, Step

if TYPE_CHECKING:
    from rich.console import Console

    from npuenv.resolve.types import Stack


def show(plan: Plan, stack: Stack, root: str, console: Console, *, lang: str, is_verbose: bool) -> None:
    """Prints the steps in order with their reasons and the heart of each command; `is_verbose`: every word of it."""
    from rich.padding import Padding
    from rich.text import Text

    args = {"stack": stack.name, "platform": stack.platform.tag, "path": root}
    console.print(Text(say(Message("cli.plan-head", args), lang), style="bold"), soft_wrap=True)
    for number, step in enumerate(plan.steps, 1):
        title = Text(f"{number:3} {step.id}", style="bold")
        title.append(f"  {say(step.why, lang)}", style="none")
        console.print(title, soft_wrap=True)
        for action in step.do:
            if isinstance(action, Run):
                console.print(Padding(Text(_command(action, is_verbose), overflow="fold"), (0, 0, 0, 6)))


def _command(action: Run, is_verbose: bool) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(action.env.items())]
    words += [shlex.quote(word) for word in action.argv]
    text = " ".join(words)
    return text if is_verbose or len(text) <= 240 else f"{text[:239]}…"


def as_json(plan: Plan, stack: Stack, root: str, lang: str) -> dict[str, object]:
    """The `npuenv.plan/1` document."""
    return {
        "schema": "npuenv.plan/1",
        "stack": stack.name,
        "platform": stack.platform.tag,
        "target": root,
        "steps": [_step(step, lang) for step in plan.steps],
    }


def _step(step: Step, lang: str) -> dict[str, object]:
    return {
        "id": step.id,
        "why": say(step.why, lang),
        "after": list(step.after),
        "needs_root": step.needs_root,
        "needs_network": step.needs_network,
        "commands": [
            {"argv": list(action.argv), "env": dict(action.env)} for action in step.do if isinstance(action, Run)
        ],
        "writes": [action.path for action in step.do if not isinstance(action, Run)],
    }
