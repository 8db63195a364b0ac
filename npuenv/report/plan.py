"""A plan as lines for people, and as the `npuenv.plan/1` document."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.core.plan import Run, WriteFile
from npuenv.facts.pip import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.plan import Action, Plan, Step
    from npuenv.facts.pip import PipSetting, PipSettings
    from npuenv.resolve.types import Stack


def list_plan(plan: Plan, settings: PipSettings, *, lang: str = "en") -> str:
    """The steps in order, before them pip's settings in force with where each stands. Pure; no secrets."""
    lines = [without_secrets(f"{name} = {item.value}  ({item.origin})") for name, item in _in_force(settings)]
    if lines:
        lines = [say(Message("plan.settings-head"), lang), *(f"  {line}" for line in lines), ""]
    for number, step in enumerate(plan.steps, 1):
        lines.append(f"{number}. {step.id}: {say(step.why, lang)}")
        lines += [f"     {_short(action, lang)}" for action in step.do]
    return "\n".join(lines) + "\n"


def _in_force(settings: PipSettings) -> Iterator[tuple[str, PipSetting]]:
    single = {
        "index-url": settings.index_url,
        "cert": settings.cert,
        "client-cert": settings.client_cert,
        "proxy": settings.proxy,
        "timeout": settings.timeout_s,
        "retries": settings.retries,
    }
    several = {
        "extra-index-url": settings.extra_index_urls,
        "find-links": settings.find_links,
        "trusted-host": settings.trusted_hosts,
    }
    yield from ((name, item) for name, item in single.items() if item)
    yield from ((name, item) for name, items in several.items() for item in items)
    yield from settings.proxies.items()


def _short(action: Action, lang: str) -> str:
    """One line: a command (long package lists cut), or the file that is written."""
    if isinstance(action, WriteFile):
        return say(Message("plan.writes", {"path": action.path}), lang)
    env = " ".join(f"{name}={shlex.quote(value)}" for name, value in action.env.items())
    words = " ".join(shlex.quote(word) for word in action.argv)
    text = without_secrets(f"{env} {words}".strip())
    return text if len(text) <= 400 else f"{text[:397]}..."


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
    runs = [action for action in step.do if isinstance(action, Run)]
    return {
        "id": step.id,
        "why": say(step.why, lang),
        "after": list(step.after),
        "needs_root": step.needs_root,
        "needs_network": step.needs_network,
        "commands": [{"argv": list(run.argv), "env": dict(run.env)} for run in runs],
        "writes": [action.path for action in step.do if not isinstance(action, Run)],
    }
