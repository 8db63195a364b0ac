"""From a stack and its lock to the steps that put it into an environment. Start from `plan_install`.

Packages go in group by group in the stack's published order, each at its exact version with its hash and without asking
for dependencies, so no order can change what ends up there; order still counts for components built from source and for
triton-ascend, which overwrites files of `triton` and therefore comes last.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.facts.environment import INSPECTOR
from npuenv.facts.pip import UvSettings, named_index
from npuenv.lock.file import Lock, LockedPackage, write_lock
from npuenv.lock.wheels import uv_platform
from npuenv.messages import Message
from npuenv.plan.cann import cann_scripts
from npuenv.plan.target import MARKER, Target, marker_text
from npuenv.plan.types import Action, Plan, Run, Step, Want, WriteFile
from npuenv.resolve.types import BuildStep, GitSource, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST = "triton-ascend"
ACTIVATION = "activate.sh"
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY")


@dataclass(frozen=True, slots=True)
class Tools:
    """What a plan runs with: the base interpreter, uv, how uv links files, and where packages come from."""

    base_python: str
    uv: str
    settings: UvSettings = field(default_factory=UvSettings)
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> address; credentials never reach the plan
    in_links: Mapping[str, str] = field(default_factory=dict)  # name -> find-links folder that holds exactly this wheel
    # A copy shares nothing with uv's cache: a file damaged in the environment stays whole in the cache.
    link_mode: str = "copy"


def plan_install(stack: Stack, lock: Lock, target: Target, tools: Tools, *, activation: str) -> Plan:
    """The whole road from an empty folder to a verified environment.

    `activation` is the text of the activation script. Packages without a hash get a step of their own that says so;
    callers that execute the plan refuse such a lock first (`npuenv.lock.refuse.require_complete`).
    """
    builder = _Builder(stack, lock, target, tools)
    steps = [builder.venv(), builder.mend()]
    for item in builder.order():
        steps += builder.component(item)
    steps += [builder.activate(activation), builder.verify(), builder.finish()]
    return Plan(_chained(steps))


def _chained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Each step after the one before it: on this platform the order is part of the recipe."""
    from dataclasses import replace

    return tuple(replace(step, after=(steps[number - 1].id,) if number else ()) for number, step in enumerate(steps))


@dataclass(frozen=True, slots=True)
class _Builder:
    stack: Stack
    lock: Lock
    target: Target
    tools: Tools

    def order(self) -> list[BuildStep]:
        """The stack's order with everything in it: what no step names before the first build, LAST at the end."""
        items = list(self.stack.order)
        if not any(item.does == "rest" for item in items):
            first_build = next((n for n, item in enumerate(items) if item.does == "git"), len(items))
            items.insert(first_build, BuildStep("rest", "rest", (), Message("plan.why-rest")))
        last = [item for item in items if item.does == "pip" and LAST in item.what]
        return [item for item in items if item not in last] + last

    def component(self, item: BuildStep) -> list[Step]:
        if item.does == "uninstall":
            return [self._uninstall(item)]
        if item.does == "git":
            return [step for name in item.what for step in self._git(item, self._source(name))]
        return self._pip(item)

    def venv(self) -> Step:
        """A fresh environment unless the one there has this Python and this lock; older content goes first."""
        root, own = self.target.root, self.target.own
        stale = [f"{root}/{name}" for name in ("bin", "lib", "lib64", "include", "share", "src", "pyvenv.cfg")]
        inspector = pkgutil.get_data("npuenv.plan", "inspector.py")
        assert inspector is not None
        do: tuple[Action, ...] = (
            WriteFile(f"{root}/{MARKER}", marker_text(self.lock, "building")),
            Run(("rm", "-rf", *stale)),
            self._uv("venv", "--allow-existing", "--no-project", "--python", self.tools.base_python, root),
            WriteFile(f"{root}/{INSPECTOR}", inspector.decode()),
            WriteFile(own("lock.toml"), write_lock(self.lock)),
        )
        wants = (
            Want("venv.python", (root,), self.stack.platform.python),
            Want("file.text", (f"{root}/{INSPECTOR}",), inspector.decode()),
            Want("file.text", (own("lock.toml"),), write_lock(self.lock)),
        )
        return Step("venv", Message("plan.why-venv", {"python": self.stack.platform.python}), do, wants)

    def mend(self) -> Step:
        root = self.target.root
        do = (Run((self.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "mend", root)),)
        return Step("mend", Message("plan.why-mend"), do, (Want("env.intact", (root,), "yes"),))

    def activate(self, text: str) -> Step:
        path = f"{self.target.root}/{ACTIVATION}"
        want = Want("file.text", (path,), text)
        return Step("activate", Message("plan.why-activate", {"path": path}), (WriteFile(path, text),), (want,))

    def verify(self) -> Step:
        root, torch = self.target.root, self.lock.package("torch")
        words = ["--import", f"torch=={torch.version}"] if torch else []
        words += [f"{package.name}=={package.version}" for package in self.lock.packages]
        words += [canonicalize_name(s.name) for s in self.stack.git_sources if s.how != "pythonpath"]
        argv = (self.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "verify", root, self.lock.hash, *words)
        want = Want("env.verified", (root,), self.lock.hash)
        return Step("verify", Message("plan.why-verify"), (Run(argv),), (want,))

    def finish(self) -> Step:
        """The environment is declared complete, and becomes the current one by renaming a link over the old one."""
        root, link = self.target.root, self.target.link
        text = marker_text(self.lock, "complete")
        do: list[Action] = [WriteFile(f"{root}/{MARKER}", text)]
        wants = [Want("file.text", (f"{root}/{MARKER}",), text)]
        if link:
            do += [Run(("ln", "-sfn", root, f"{link}.new")), Run(("mv", "-T", f"{link}.new", link))]
            wants.append(Want("path.link", (link,), root))
        return Step("finish", Message("plan.why-finish"), tuple(do), tuple(wants))

    def _source(self, name: str) -> GitSource:
        return next(s for s in self.stack.git_sources if canonicalize_name(s.name) == canonicalize_name(name))

    def _pip(self, item: BuildStep) -> list[Step]:
        """One step per place the packages come from: a labelled index must not serve what belongs to another."""
        if item.does == "rest":
            named = {canonicalize_name(n) for other in self.stack.order for n in other.what if other.does != "git"}
            packages = [p for p in self.lock.packages if p.name not in named]
        else:
            wanted = {canonicalize_name(name) for name in item.what}
            packages = [p for p in self.lock.packages if p.name in wanted]
        groups: dict[tuple[str, str, bool], list[LockedPackage]] = {}
        for package in packages:
            folder = self.tools.in_links.get(package.name, "") if package.index else ""
            groups.setdefault((package.index or "", folder, bool(package.sha256)), []).append(package)
        steps = []
        for (label, folder, is_hashed), group in groups.items():
            suffix = "" if len(groups) == 1 else f"@{label or 'default'}{'' if is_hashed else '-unhashed'}"
            steps.append(self._group(f"{item.id}{suffix}", item.why, group, label=label, folder=folder))
        return steps

    def _group(self, step: str, why: Message, group: list[LockedPackage], *, label: str, folder: str) -> Step:
        names = [f"{package.name}=={package.version}" for package in group]
        is_hashed = all(package.sha256 for package in group)
        lines = [
            " ".join([f"{p.name}=={p.version}", *(f"--hash=sha256:{digest}" for digest in p.sha256)]) for p in group
        ]
        file = self.target.own(f"{step}.txt")
        platform = ("--python-platform", uv_platform(self.stack.platform))
        options = ["--no-deps", *platform, "--link-mode", self.tools.link_mode]
        options += ["--require-hashes"] * is_hashed
        env: dict[str, str] = {}
        unset: tuple[str, ...] = ()
        if folder:
            options += ["--no-index", "--find-links", folder]
            unset = (*_INDEX_VARIABLES, "UV_FIND_LINKS")
        elif label:
            env, unset = {"UV_DEFAULT_INDEX": named_index(label, self.tools.indexes[label], {})}, _INDEX_VARIABLES
        else:
            options += self.tools.settings.options
        run = self._uv("pip", "install", "--python", self.target.python, *options, "-r", file, env=env, unset=unset)
        said = {"why": why, "count": len(group), "from": folder or label or Message("plan.default-index")}
        message = Message("plan.why-group" if is_hashed else "plan.why-group-unhashed", said)
        want = Want("env.dists", (self.target.root, *names), "complete")
        return Step(step, message, (WriteFile(file, "\n".join(lines) + "\n"), run), (want,), needs_network=not folder)

    def _uninstall(self, item: BuildStep) -> Step:
        names = [canonicalize_name(name) for name in item.what]
        run = self._uv("pip", "uninstall", "--python", self.target.python, *names)
        # A name that goes in again later cannot be a condition: it would make every further run take it out once more.
        later = {package.name for package in self.lock.packages}
        wants = tuple(Want("dist.version", (self.target.python, n), "") for n in names if n not in later)
        return Step(item.id, item.why, (run,), wants or (self._complete_want(names),))

    def _complete_want(self, names: Sequence[str]) -> Want:
        found = [p for p in self.lock.packages if p.name in names]
        return Want("env.dists", (self.target.root, *(f"{p.name}=={p.version}" for p in found)), "complete")

    def _git(self, item: BuildStep, source: GitSource) -> list[Step]:
        name = canonicalize_name(source.name)
        folder, note = f"{self.target.root}/src/{source.name}", self.target.own(f"source-{name}.txt")
        text = f"{source.repo} {source.ref}\n"
        # A clone knows every branch but the default one under the remote's name only.
        ref = f"origin/{source.ref}" if source.is_moving else source.ref
        fetch = Step(
            f"{item.id}-source" if len(item.what) == 1 else f"{name}-source",
            Message("plan.why-source-moving" if source.is_moving else "plan.why-source",
                    {"repo": source.repo, "ref": source.ref}),
            (
                Run(("rm", "-rf", folder)),
                Run(("git", "clone", "--filter=blob:none", "--no-checkout", source.repo, folder)),
                Run(("git", "-C", folder, "checkout", "--detach", ref)),
                Run(("git", "-C", folder, "submodule", "update", "--init", "--recursive")),
                WriteFile(note, text),
            ),
            (Want("file.text", (note,), text), Want("path.state", (f"{folder}/.git",), "folder")),
            needs_network=True,
        )  # fmt: skip
        if source.how == "pythonpath":
            return [fetch]
        where = ("-e", folder) if source.how == "editable" else (folder,)
        build = self._uv(
            "pip", "install", "--python", self.target.python, "--no-deps", "--no-build-isolation", *where,
            env={**self._build_env(), **source.build_env},
        )  # fmt: skip
        do: tuple[Action, ...] = (build,)
        if self.stack.cann_root:
            # Builds need CANN's variables; its set_env.sh is a shell script, so a small launcher sources it.
            launcher = self.target.own("with-cann.sh")
            do = (WriteFile(launcher, _LAUNCHER, 0o755), Run(("sh", launcher, *build.argv), build.env, build.unset))
        want = Want("env.dists", (self.target.root, name), "complete")
        return [fetch, Step(item.id if len(item.what) == 1 else name, item.why, do, (want,))]

    def _build_env(self) -> dict[str, str]:
        # With torch_npu installed a plain `import torch` in a setup.py dies where no card is there: no autoload.
        env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VIRTUAL_ENV": self.target.root}
        if self.stack.cann_root:
            env["NPUENV_CANN"], env["NPUENV_NNAL"] = cann_scripts(self.stack)
        return env | ({"SOC_VERSION": self.stack.soc_version} if self.stack.soc_version else {})

    def _uv(self, *argv: str, env: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()) -> Run:
        return Run((self.tools.uv, *argv), env or {}, unset)


_LAUNCHER = """\
#!/bin/sh
# Runs a command with the environment of CANN (its script is named in NPUENV_CANN) and of NNAL, where that is installed.
# These scripts read variables that need not be set, so `set -u` must be off here.
set +u
if [ ! -r "$NPUENV_CANN" ]; then
    echo "CANN is not installed: there is no $NPUENV_CANN" >&2
    exit 1
fi
. "$NPUENV_CANN"
if [ -r "$NPUENV_NNAL" ]; then
    . "$NPUENV_NNAL"
fi
PATH="$VIRTUAL_ENV/bin:$PATH"
export PATH
exec "$@"
"""
