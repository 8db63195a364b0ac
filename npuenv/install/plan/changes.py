"""What an installation replaces in an environment that the user already had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.facts.conditions import ask, dist_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.core.plan import Plan, Step
    from npuenv.host.base import Host
    from npuenv.install.locations import EnvironmentPlace


def replaced(host: Host, target: EnvironmentPlace, plan: Plan) -> tuple[Message, ...]:
    """The plan's changes to installed packages: new versions, reinstalled, added, removed.

    Empty for an environment of npuenv's own, and if everything is installed. uv installs a step's packages together, so
    a package at the right version is reinstalled if another one of its step is missing.
    """
    if target.kind != "existing":
        return ()
    present = dist_versions(host, target.python).value
    if present is None:
        return (Message("plan.changes-unknown", {"path": target.root}),)
    found: dict[str, dict[str, str | Message]] = {"version": {}, "again": {}, "new": {}, "out": {}}
    for step in plan.steps:
        for kind, name, text in (*_put_in(step, present), *_built(host, step, present), *_taken_out(step, present)):
            found[kind][name] = text
    return tuple(
        Message(f"plan.changes-{kind}", {"path": target.root, "count": len(texts), "names": tuple(texts.values())})
        for kind, texts in ((kind, dict(sorted(texts.items()))) for kind, texts in found.items() if texts)
    )


def _put_in(step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Kind, name and description of each package of a step that installs wheels; none if all are installed."""
    words = [word for want in step.done_when if want.fact == "env.dists" for word in want.of[1:]]
    wanted = dict(word.split("==", 1) for word in words if "==" in word)
    if all(present.get(name) == version for name, version in wanted.items()):
        return []
    found = []
    for name, version in wanted.items():
        before = present.get(name)
        if before is None:
            found.append(("new", name, f"{name} {version}"))
        elif before == version:
            found.append(("again", name, f"{name} {version}"))
        else:
            found.append(("version", name, f"{name} {before} -> {version}"))
    return found


def _built(host: Host, step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str | Message]]:
    """The same for a step that builds a package; its version is known only afterwards."""
    names = [want.of[-1] for want in step.done_when if want.fact == "env.dists" and "=" not in want.of[-1]]
    notes = [want for want in step.done_when if want.fact == "file.text"]
    if all(name in present for name in names) and all(ask(host, want).value == want.value for want in notes):
        return []
    built = {name: Message("plan.built-from-source", {"name": name, "before": present.get(name, "")}) for name in names}
    return [("version", name, built[name]) if name in present else ("new", name, name) for name in names]


def _taken_out(step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str]]:
    wants = [want for want in step.done_when if want.fact == "dist.version" and want.value == ""]
    return [("out", want.of[-1], f"{want.of[-1]} {present[want.of[-1]]}") for want in wants if want.of[-1] in present]
