"""The steps around the packages: the environment itself, mending, activation, verification, the switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Run, Step, WriteFile
from npuenv.facts.environment import INSPECTOR
from npuenv.facts.manifest import MANIFEST, MARKER
from npuenv.install.env_verifier import text as program
from npuenv.install.environments import manifest_text
from npuenv.install.locations import marker_text
from npuenv.install.plan.sources import supplied
from npuenv.lock.file import write_lock
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.install.plan.context import Making

ACTIVATION = "activate.sh"
MEND = "mend"
VERIFY = "verify"
FINISH = "finish"  # before it an environment is in force nowhere
# Without conda-meta conda sees a folder, and fills it; with it, it would remove the whole environment first, our own
# files too.
_OF_VENV = ("bin", "lib", "lib64", "include", "share", "src", "pyvenv.cfg", "conda-meta")
_OF_CONDA = (*_OF_VENV, "etc", "man", "sbin", "ssl", "var", "compiler_compat",
             "aarch64-conda-linux-gnu", "x86_64-conda-linux-gnu")  # fmt: skip


def make(making: Making) -> Step:
    """A fresh environment unless the one there has this Python and this lock; older content goes first.

    In an environment that the user had already nothing is made and nothing goes.
    """
    root, own, kind = making.target.root, making.target.own, making.target.kind
    version = making.stack.platform.python
    do: tuple[Action, ...] = (
        WriteFile(f"{root}/{MARKER}", marker_text(making.lock, "building", kind)),
        *_made(making),
        WriteFile(own("lock.toml"), write_lock(making.lock)),
    )
    wants: tuple[Condition, ...] = (
        Condition("venv.python" if kind == "venv" else "prefix.python", (root,), version),
        Condition("file.text", (own("lock.toml"),), write_lock(making.lock)),
    )
    if kind == "conda":
        wants = (*wants, Condition("path.state", (f"{root}/conda-meta",), "folder"))
    step, key = _STEPS[kind]
    is_asking = kind == "conda" and not making.tools.wheels
    return Step(step, Message(key, {"python": version, "path": root}), do, wants, needs_network=is_asking)


# Kind of target -> the step's id, and why it is done.
_STEPS = {
    "venv": ("venv", "plan.why-venv"),
    "conda": ("conda", "plan.why-conda"),
    "existing": ("prepare", "plan.why-existing"),
}


def _made(making: Making) -> tuple[Action, ...]:
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


def inspector(making: Making) -> Step:
    """The program that tells of this environment; a newer one replaces it and leaves all else as it is."""
    path, text = f"{making.target.root}/{INSPECTOR}", program()
    do = (WriteFile(path, text),)
    wants = (Condition("file.text", (path,), text),)
    return Step("inspector", Message("plan.why-inspector"), do, wants, is_upkeep=True)


def mend(making: Making, *, is_repairing: bool = False) -> Step:
    """What is damaged goes out; in the user's own environment packages of the lock alone: others, nobody puts back.

    A repair also puts back what the environment was made of, and sets aside what runs at every start and came later.
    """
    root, over = making.target.root, making.over
    if not making.is_own:
        over = (*over, "--only-locked")
    elif is_repairing:
        over = (*over, "--surroundings")
    argv = (making.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "mend", root, *over, "--uv", making.tools.uv)
    want = Condition("env.intact", (root, *over), "yes")
    return Step(MEND, Message("plan.why-mend"), (Run(argv),), (want,), is_upkeep=making.is_own)


def activate(making: Making, files: Mapping[str, str]) -> Step:
    """The activation scripts and what they read: path below the environment -> text."""
    placed = {f"{making.target.root}/{name}": text for name, text in files.items()}
    do = tuple(WriteFile(path, text) for path, text in placed.items())
    wants = tuple(Condition("file.text", (path,), text) for path, text in placed.items())
    why = Message("plan.why-activate", {"path": f"{making.target.root}/{ACTIVATION}"})
    return Step("activate", why, do, wants, is_upkeep=True)


def verify(making: Making) -> Step:
    root, lock = making.target.root, making.lock
    words = [word for probe in _probes(making) for word in ("--import", probe)]
    words += [f"{package.name}=={package.version}" for package in lock.packages]
    words += [canonicalize_name(s.name) for s in making.stack.git_sources if s.how != "pythonpath"]
    inspector = (making.target.python, "-I", "-B", f"{root}/{INSPECTOR}")
    argv = (*inspector, "verify", root, lock.hash, *making.over, *words)
    want = Condition("env.verified", (root, *making.over), lock.hash)
    return Step(VERIFY, Message("plan.why-verify"), (Run(argv),), (want,), is_upkeep=True)


def _probes(making: Making) -> list[str]:
    """Modules to import: torch with the version that it must call itself, then those of the table that the lock has."""
    torch = making.lock.package("torch")
    found = [f"torch=={torch.version}"] if torch else []
    return found + [row.module for row in load_matrix().probes if making.lock.package(row.distribution)]


def finish(making: Making, steps: Sequence[Step]) -> Step:
    """The environment is declared complete, and becomes the current one; the one before stays reachable beside it.

    What a repeated run would ask of each step's own files, the manifest holds too: from it others know what is lost.
    """
    below = f"{making.target.root}/"
    wants_of_files = [want for step in steps for want in step.done_when if want.fact == "file.text"]
    files = {want.of[0][len(below) :]: want.value for want in wants_of_files if want.of[0].startswith(below)}
    root, link = making.target.root, making.target.link
    manifest = manifest_text(
        making.stack,
        making.lock,
        kind=making.target.kind,
        origin="bundle" if making.tools.wheels else "indexes",
        steps=(*(step.id for step in steps), FINISH),
        request=making.request,
        supplied={each.name: text for each in making.stack.git_sources if (text := supplied(making, each))},
        files=files,
    )
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
