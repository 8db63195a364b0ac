"""Runs what this interpreter runs whenever it starts, one file after the other, and says each before it runs.

Asked of an interpreter that gives no answer: the last file that is named ended the process, or keeps it. To be run with
`-S`, which leaves all of them out.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys


def prefix() -> str:
    """The folder of the virtual environment, else the interpreter's own: with -S Python does not look for it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
    return home if os.path.isfile(os.path.join(home, "pyvenv.cfg")) else sys.prefix


def folders() -> list[str]:
    """Where .pth files count, in Python's order; the user's own folder comes first."""
    user = site.getusersitepackages() if site.check_enableusersite() else None
    return [folder for folder in (user, *site.getsitepackages([prefix()])) if folder and os.path.isdir(folder)]


def name(path: str) -> None:
    os.write(1, b"\nNPUENV-HOOK " + os.fsencode(path) + b"\n")


def module(title: str) -> None:
    """One of the modules that Python imports if it finds it."""
    try:
        spec = importlib.util.find_spec(title)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin:
        name(spec.origin)
        try:
            importlib.import_module(title)
        except Exception:  # Python goes on after these too
            return


sys.prefix = sys.exec_prefix = prefix()
known: set[str] = set()
for folder in folders():
    sys.path.append(folder)
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".pth") and not entry.startswith("."):
            name(os.path.join(folder, entry))
            site.addpackage(folder, entry, known)
module("sitecustomize")
if site.check_enableusersite():
    module("usercustomize")
os.write(1, b'\nNPUENV-ANSWER {"started": true}\n')
