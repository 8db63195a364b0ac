"""The steps around the packages: the environment itself, mending, activation, verification, the switch."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.facts.environment import INSPECTOR
from npuenv.lock.file import write_lock
from npuenv.messages import Message
from npuenv.plan.types import Action, Run, Step, Want, WriteFile
from npuenv.store.places import MARKER, marker_text

if TYPE_CHECKING:
    from npuenv.plan.making import Making

ACTIVATION = "activate.sh"


def venv(making: Making) -> Step:
    """A fresh environment unless the one there has this Python and this lock; older content goes first."""
    root, own = making.target.root, making.target.own
    stale = [f"{root}/{name}" for name in ("bin", "lib", "lib64", "include", "share", "src", "pyvenv.cfg")]
    inspector = pkgutil.get_data("npuenv.plan", "inspector.py")
    assert inspector is not None
    do: tuple[Action, ...] = (
        WriteFile(f"{root}/{MARKER}", marker_text(making.lock, "building")),
        Run(("rm", "-rf", *stale)),
        making.uv("venv", "--allow-existing", "--no-project", "--python", making.tools.base_python, root),
        WriteFile(f"{root}/{INSPECTOR}", inspector.decode()),
        WriteFile(own("lock.toml"), write_lock(making.lock)),
    )
    wants = (
        Want("venv.python", (root,), making.stack.platform.python),
        Want("file.text", (f"{root}/{INSPECTOR}",), inspector.decode()),
        Want("file.text", (own("lock.toml"),), write_lock(making.lock)),
    )
    return Step("venv", Message("plan.why-venv", {"python": making.stack.platform.python}), do, wants)


def mend(making: Making) -> Step:
    root = making.target.root
    do = (Run((making.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "mend", root)),)
    return Step("mend", Message("plan.why-mend"), do, (Want("env.intact", (root,), "yes"),))


def activate(making: Making, text: str) -> Step:
    path = f"{making.target.root}/{ACTIVATION}"
    want = Want("file.text", (path,), text)
    return Step("activate", Message("plan.why-activate", {"path": path}), (WriteFile(path, text),), (want,))


def verify(making: Making) -> Step:
    root, torch = making.target.root, making.lock.package("torch")
    words = ["--import", f"torch=={torch.version}"] if torch else []
    words += [f"{package.name}=={package.version}" for package in making.lock.packages]
    words += [canonicalize_name(s.name) for s in making.stack.git_sources if s.how != "pythonpath"]
    argv = (making.target.python, "-I", "-B", f"{root}/{INSPECTOR}", "verify", root, making.lock.hash, *words)
    want = Want("env.verified", (root,), making.lock.hash)
    return Step("verify", Message("plan.why-verify"), (Run(argv),), (want,))


def finish(making: Making) -> Step:
    """The environment is declared complete, and becomes the current one by renaming a link over the old one."""
    root, link = making.target.root, making.target.link
    text = marker_text(making.lock, "complete")
    do: list[Action] = [WriteFile(f"{root}/{MARKER}", text)]
    wants = [Want("file.text", (f"{root}/{MARKER}",), text)]
    if link:
        do += [Run(("ln", "-sfn", root, f"{link}.new")), Run(("mv", "-T", f"{link}.new", link))]
        wants.append(Want("path.link", (link,), root))
    return Step("finish", Message("plan.why-finish"), tuple(do), tuple(wants))
