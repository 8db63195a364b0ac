"""Plans an installation: the order of its steps, and those around the packages (creation, repair, activation,
verification, switching).

Packages are installed at exact versions with hashes and without dependencies, so their order cannot change the result.
The stack's published order matters for components built from source and for triton-ascend, which overwrites files of
`triton` and therefore comes last.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from npuenv import __version__
from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Plan, Run, Step, WriteFile, chained
from npuenv.core.seal import seal_of, text_hash
from npuenv.facts.conditions import INSPECTOR, ask, dist_versions, unmet
from npuenv.facts.manifest import MANIFEST, MARKER, SCHEMA, describe
from npuenv.install import components
from npuenv.install.components import LAST, Making, Tools, supplied
from npuenv.install.env_verifier import text as program
from npuenv.lock.file import write_lock
from npuenv.matrix import load_matrix
from npuenv.resolve.types import BuildStep, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host import Host
    from npuenv.install.environments import EnvironmentPlace
    from npuenv.lock.file import Lock


ACTIVATION = "activate.sh"
MEND = "mend"
VERIFY = "verify"
FINISH = "finish"  # before this step an environment is not active
# Without conda-meta conda fills the existing folder; with it, conda would first remove the complete environment,
# including npuenv's own files.
_OF_VENV = ("bin", "lib", "lib64", "include", "share", "src", "pyvenv.cfg", "conda-meta")
_OF_CONDA = (*_OF_VENV, "etc", "man", "sbin", "ssl", "var", "compiler_compat",
             "aarch64-conda-linux-gnu", "x86_64-conda-linux-gnu")  # fmt: skip


def plan_install(
    stack: Stack,
    lock: Lock,
    target: EnvironmentPlace,
    tools: Tools,
    *,
    activation: str | Mapping[str, str],
    request: Mapping[str, Any] | None = None,
    before: Sequence[Step] = (),
    is_repairing: bool = False,
) -> Plan:
    """All steps from an empty folder to a verified environment.

    `activation`: the activation files' texts by their paths below the environment; a single text is that of
    `activate.sh`. `request`: the request, for the manifest. `before`: prerequisite steps (`prerequisites`).
    With `is_repairing`, altered packages of the lock are also removed from an environment that the user already had.
    Packages without a hash get a step of their own that says so; callers that execute the plan refuse such a lock first
    (`npuenv.lock.checking.require_complete`).
    """
    making = Making(stack, lock, target, tools, request or {})
    steps = [*before, _creation_step(making), _inspector_step(making)]
    # Changes in the user's own environment may be intentional: they are removed only on request.
    if making.is_own or is_repairing:
        steps.append(_mend_step(making, is_repairing=is_repairing))
    steps += _components(making)
    files = {ACTIVATION: activation} if isinstance(activation, str) else activation
    steps += [_activation_step(making, files), _verification_step(making)]
    steps.append(_finish_step(making, steps))
    return Plan(chained(steps))


def _components(making: Making) -> list[Step]:
    """The stack's order as steps. Wheels between two entries whose order matters are installed together."""
    steps: list[Step] = []
    wheels: list[BuildStep] = []
    for item in _in_order(making.stack):
        if item.does not in ("git", "uninstall") and LAST not in item.what:
            wheels.append(item)
            continue
        steps += components.wheel_steps(making, wheels)
        wheels = []
        if item.does == "git":
            steps += [step for name in item.what for step in components.source_steps(making, item, making.source(name))]
        elif item.does == "uninstall":
            steps.append(components.removal_step(making, item))
        else:
            steps += components.wheel_steps(making, [item])
    return steps + components.wheel_steps(making, wheels)


def _in_order(stack: Stack) -> list[BuildStep]:
    """The stack's complete order: entries that no step names before the first build, LAST at the end."""
    items = list(stack.order)
    if not any(item.does == "rest" for item in items):
        first_build = next((n for n, item in enumerate(items) if item.does == "git"), len(items))
        items.insert(first_build, BuildStep("rest", "rest", (), Message("plan.why-rest")))
    last = [item for item in items if item.does == "pip" and LAST in item.what]
    return [item for item in items if item not in last] + last


def keep_supplied(host: Host, stack: Stack, lock: Lock, target: EnvironmentPlace, tools: Tools) -> Tools:
    """The tools with the sources that were supplied before, unless a finished environment is recreated.

    Those of an unfinished environment are dropped: they may be the reason that it was never finished.
    """
    found = components.supplied_in(host, target, stack)
    there = describe(host, target.root) if found else None
    if there is None or not there.npuenv:
        return tools
    is_changed = unmet(_creation_step(Making(stack, lock, target, tools)), host)
    return tools if is_changed else replace(tools, supplied_before=found)


def _creation_step(making: Making) -> Step:
    """Creates an environment unless the existing one has this Python and this lock; other content is removed first.

    In an environment that the user already had nothing is created or removed.
    """
    root, own, kind = making.target.root, making.target.own, making.target.kind
    version = making.stack.platform.python
    do: tuple[Action, ...] = (
        WriteFile(f"{root}/{MARKER}", marker_text(making.lock, "building", kind)),
        *_creation(making),
        WriteFile(own("lock.toml"), write_lock(making.lock)),
    )
    wants: tuple[Condition, ...] = (
        Condition("venv.python" if kind == "venv" else "prefix.python", (root,), version),
        Condition("file.text", (own("lock.toml"),), write_lock(making.lock)),
    )
    if kind == "conda":
        wants = (*wants, Condition("path.state", (f"{root}/conda-meta",), "folder"))
    step, key = _CREATION_STEPS[kind]
    is_asking = kind == "conda" and not making.tools.wheels
    return Step(step, Message(key, {"python": version, "path": root}), do, wants, needs_network=is_asking)


# Kind of target -> the step's id and reason.
_CREATION_STEPS = {
    "venv": ("venv", "plan.why-venv"),
    "conda": ("conda", "plan.why-conda"),
    "existing": ("prepare", "plan.why-existing"),
}


def _creation(making: Making) -> tuple[Action, ...]:
    root, kind, tools = making.target.root, making.target.kind, making.tools
    if kind == "venv":
        stale = Run(("rm", "-rf", *(f"{root}/{name}" for name in _OF_VENV)))
        new = making.uv("venv", "--allow-existing", "--no-project", "--python", tools.base_python, root)
        return stale, new
    if kind == "conda":
        stale = Run(("rm", "-rf", *(f"{root}/{name}" for name in _OF_CONDA)))
        # Source: conda 26.5 `conda create`: -y, -q, -p PREFIX, --no-default-packages, --offline.
        options = ("--yes", "--quiet", "--no-default-packages", *tools.offline, "--prefix", root)
        return stale, Run((tools.conda, "create", *options, f"python={making.stack.platform.python}"))
    return ()


def _inspector_step(making: Making) -> Step:
    """Writes the verifier program of this environment; a newer one replaces it and changes nothing else."""
    path, text = f"{making.target.root}/{INSPECTOR}", program()
    do = (WriteFile(path, text),)
    wants = (Condition("file.text", (path,), text),)
    return Step("inspector", Message("plan.why-inspector"), do, wants, is_upkeep=True)


def _mend_step(making: Making, *, is_repairing: bool = False) -> Step:
    """Removes what is damaged; in the user's own environment only packages of the lock, because npuenv cannot reinstall
    others.

    A repair also restores the files of the virtual environment, and sets aside startup hooks that were added later.
    """
    root, over = making.target.root, making.over
    if not making.is_own:
        over = (*over, "--only-locked")
    elif is_repairing:
        over = (*over, "--surroundings")
    argv = (making.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "mend", root, *over, "--uv", making.tools.uv)
    want = Condition("env.intact", (root, *over), "yes")
    return Step(MEND, Message("plan.why-mend"), (Run(argv),), (want,), is_upkeep=making.is_own)


def _activation_step(making: Making, files: Mapping[str, str]) -> Step:
    """The activation scripts and their data files: path below the environment -> text."""
    placed = {f"{making.target.root}/{name}": text for name, text in files.items()}
    do = tuple(WriteFile(path, text) for path, text in placed.items())
    wants = tuple(Condition("file.text", (path,), text) for path, text in placed.items())
    why = Message("plan.why-activate", {"path": f"{making.target.root}/{ACTIVATION}"})
    return Step("activate", why, do, wants, is_upkeep=True)


def _verification_step(making: Making) -> Step:
    root, lock = making.target.root, making.lock
    words = [word for probe in _probes(making) for word in ("--import", probe)]
    words += [f"{package.name}=={package.version}" for package in lock.packages]
    words += [canonicalize_name(s.name) for s in making.stack.git_sources if s.how != "pythonpath"]
    inspector = (making.target.python, "-I", "-B", f"{root}/{INSPECTOR}")
    argv = (*inspector, "verify", root, lock.hash, *making.over, *words)
    want = Condition("env.verified", (root, *making.over), lock.hash)
    return Step(VERIFY, Message("plan.why-verify"), (Run(argv),), (want,), is_upkeep=True)


def _probes(making: Making) -> list[str]:
    """Modules to import: torch with the version that it must report, then those of the table that the lock contains."""
    torch = making.lock.package("torch")
    found = [f"torch=={torch.version}"] if torch else []
    return found + [row.module for row in load_matrix().probes if making.lock.package(row.distribution)]


def _finish_step(making: Making, steps: Sequence[Step]) -> Step:
    """Declares the environment complete and makes it the current one; the former one stays as `previous`."""
    root, link = making.target.root, making.target.link
    manifest = _manifest_text(making, steps)
    marker = marker_text(making.lock, "complete", making.target.kind, manifest)
    do: list[Action] = [WriteFile(f"{root}/{MANIFEST}", manifest), WriteFile(f"{root}/{MARKER}", marker)]
    wants = [
        Condition("file.text", (f"{root}/{MANIFEST}",), manifest),
        Condition("file.text", (f"{root}/{MARKER}",), marker),
    ]
    if link:
        do.append(Run((making.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "switch", root, link)))
        wants.append(Condition("path.link", (link,), root))
    return Step(FINISH, Message("plan.why-finish"), tuple(do), tuple(wants), is_upkeep=True)


def _manifest_text(making: Making, steps: Sequence[Step]) -> str:
    """The manifest that the last step writes. The same plan gives the same text: no clock, no host.

    It has the hashes of the files that the steps write, so that missing ones can be found from it, and for each source
    from no repository its digest: `sha256:HEX`, `tree:HEX` or `folder PATH`.
    """
    stack, below = making.stack, f"{making.target.root}/"
    wants_of_files = [want for step in steps for want in step.done_when if want.fact == "file.text"]
    sources = [
        {"name": each.name, "ref": each.ref, "how": each.how, **({"from": digest} if digest else {})}
        for each in stack.git_sources
        for digest in [supplied(making, each)]
    ]
    document = {
        "schema": SCHEMA,
        "npuenv": __version__,
        "stack": stack.name,
        "framework": stack.framework,
        "platform": making.lock.platform,
        "lock": making.lock.hash,
        "kind": making.target.kind,
        "origin": "bundle" if making.tools.wheels else "indexes",
        "steps": [*(step.id for step in steps), FINISH],
        "sources": sources,
        "request": dict(making.request),
        "files": {
            want.of[0].removeprefix(below): text_hash(want.value)
            for want in wants_of_files
            if want.of[0].startswith(below)
        },
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def marker_text(lock: Lock, status: str, kind: str = "", manifest: str = "") -> str:
    """The marker file of an environment. `status`: building, complete; `kind`: as in its target; `manifest`: the text
    of the manifest, once it is complete.

    It records from the start that a folder is the user's own, so that it is never deleted.
    """
    values = {"schema": 1, "stack": lock.stack, "platform": lock.platform, "lock": lock.hash, "status": status}
    values |= {"kind": kind} if kind == "existing" else {}
    if manifest:
        values["manifest"] = text_hash(manifest)
        values["seal"] = seal_of(values)
    return json.dumps(values, sort_keys=True) + "\n"


def replaced_packages(host: Host, target: EnvironmentPlace, plan: Plan) -> tuple[Message, ...]:
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
        for kind, name, text in (
            *_replaced_by_wheels(step, present),
            *_replaced_by_build(host, step, present),
            *_replaced_by_removal(step, present),
        ):
            found[kind][name] = text
    return tuple(
        Message(f"plan.changes-{kind}", {"path": target.root, "count": len(texts), "names": tuple(texts.values())})
        for kind, texts in ((kind, dict(sorted(texts.items()))) for kind, texts in found.items() if texts)
    )


def _replaced_by_wheels(step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Kind, name and description of each package of a step that installs wheels; none if all are installed."""
    words = [word for want in step.done_when if want.fact == "env.dists" for word in want.of[1:]]
    wanted = dict(word.split("==", 1) for word in words if "==" in word)
    if all(present.get(name) == version for name, version in wanted.items()):
        return []
    found = []
    for name, version in wanted.items():
        before = present.get(name)
        kind = "new" if before is None else "again" if before == version else "version"
        found.append((kind, name, f"{name} {before} -> {version}" if kind == "version" else f"{name} {version}"))
    return found


def _replaced_by_build(host: Host, step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str | Message]]:
    """The same for a step that builds a package; its version is known only afterwards."""
    names = [want.of[-1] for want in step.done_when if want.fact == "env.dists" and "=" not in want.of[-1]]
    notes = [want for want in step.done_when if want.fact == "file.text"]
    if all(name in present for name in names) and all(ask(host, want).value == want.value for want in notes):
        return []
    built = {name: Message("plan.built-from-source", {"name": name, "before": present.get(name, "")}) for name in names}
    return [("version", name, built[name]) if name in present else ("new", name, name) for name in names]


def _replaced_by_removal(step: Step, present: Mapping[str, str]) -> list[tuple[str, str, str]]:
    wants = [want for want in step.done_when if want.fact == "dist.version" and want.value == ""]
    return [("out", want.of[-1], f"{want.of[-1]} {present[want.of[-1]]}") for want in wants if want.of[-1] in present]
