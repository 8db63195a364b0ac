"""The steps around the packages: creating the environment, repair, activation, verification, switching to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Run, Step, WriteFile
from npuenv.facts.conditions import INSPECTOR
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
FINISH = "finish"  # before this step an environment is not active
# Without conda-meta conda fills the existing folder; with it, conda would first remove the complete environment,
# including npuenv's own files.
_OF_VENV = ("bin", "lib", "lib64", "include", "share", "src", "pyvenv.cfg", "conda-meta")
_OF_CONDA = (*_OF_VENV, "etc", "man", "sbin", "ssl", "var", "compiler_compat",
             "aarch64-conda-linux-gnu", "x86_64-conda-linux-gnu")  # fmt: skip


def make(making: Making) -> Step:
    """Creates an environment unless the existing one has this Python and this lock; other content is removed first.

    In an environment that the user already had nothing is created or removed.
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


# Kind of target -> the step's id and reason.
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
    """Writes the verifier program of this environment; a newer one replaces it and changes nothing else."""
    path, text = f"{making.target.root}/{INSPECTOR}", program()
    do = (WriteFile(path, text),)
    wants = (Condition("file.text", (path,), text),)
    return Step("inspector", Message("plan.why-inspector"), do, wants, is_upkeep=True)


def mend(making: Making, *, is_repairing: bool = False) -> Step:
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


def activate(making: Making, files: Mapping[str, str]) -> Step:
    """The activation scripts and their data files: path below the environment -> text."""
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
    """Modules to import: torch with the version that it must report, then those of the table that the lock contains."""
    torch = making.lock.package("torch")
    found = [f"torch=={torch.version}"] if torch else []
    return found + [row.module for row in load_matrix().probes if making.lock.package(row.distribution)]


def finish(making: Making, steps: Sequence[Step]) -> Step:
    """Declares the environment complete and makes it the current one; the former one stays as `previous`.

    The manifest also records the conditions of each step's own files, so that missing ones can be found from it.
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
