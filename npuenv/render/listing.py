"""A plan as text for reading: each step, why, and the commands it would run. Start from `list_plan`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.core.plan import WriteFile
from npuenv.facts.pip import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.plan import Action, Plan
    from npuenv.facts.pip import PipSettings, Setting


def list_plan(plan: Plan, settings: PipSettings, *, lang: str = "en") -> str:
    """The steps in order, before them pip's settings in force with where each stands. Pure; no secrets."""
    lines = [without_secrets(f"{name} = {item.value}  ({item.origin})") for name, item in _in_force(settings)]
    if lines:
        lines = [say(Message("plan.settings-head"), lang), *(f"  {line}" for line in lines), ""]
    for number, step in enumerate(plan.steps, 1):
        lines.append(f"{number}. {step.id}: {say(step.why, lang)}")
        lines += [f"     {_short(action, lang)}" for action in step.do]
    return "\n".join(lines) + "\n"


def _in_force(settings: PipSettings) -> Iterator[tuple[str, Setting]]:
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
