"""Files among the packages that no RECORD names."""

from __future__ import annotations

import os
import re

from npuenv.facts.target.dist_info import list_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.install.env_verifier.inspection import Inspection

TORN = re.compile(r"\.tmp\w{6}")  # how uv calls a file that it has not finished writing
NOBODYS = ("_virtualenv.py", "_virtualenv.pth", "distutils-precedence.pth")  # made with the environment


def unowned(inspection: Inspection) -> Iterator[str]:
    """Files among the packages that no RECORD names, byte code left out; in `bin` and above only what a kill left."""
    for folder, _, names in os.walk(inspection.site):
        if os.path.basename(folder) != "__pycache__":
            for name in names:
                path = folder + "/" + name
                if path not in inspection.owners and name not in NOBODYS and not name.endswith(".pyc"):
                    yield path
    for folder in (inspection.root, os.path.join(inspection.root, "bin")):
        yield from (os.path.join(folder, name) for name in list_folder(folder) if TORN.fullmatch(name))


def foreign_pth(inspection: Inspection) -> list[str]:
    """Names of the `.pth` files that no package owns. Python runs the lines of such files whenever it starts."""
    names = [name for name in list_folder(inspection.site) if name.endswith(".pth") and name not in NOBODYS]
    return [name for name in names if inspection.site + "/" + name not in inspection.owners]


def remove_if_torn(path: str) -> bool:
    """True when the file or folder is what a killed uv leaves of one that it was writing; it is removed then."""
    is_torn = TORN.fullmatch(os.path.basename(path)) is not None
    if is_torn and os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    elif is_torn:
        os.remove(path)
    return is_torn


def remove_byte_code(path: str) -> None:
    """Removes what Python compiled from a source file that is gone."""
    folder, name = os.path.split(path)
    cache = os.path.join(folder, "__pycache__")
    if name.endswith(".py"):
        for entry in list_folder(cache):
            if entry.startswith(name[:-2]):
                os.remove(os.path.join(cache, entry))
