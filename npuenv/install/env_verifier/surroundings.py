"""What belongs to no package and decides how Python starts: a virtual environment's own files, and hooks."""

from __future__ import annotations

import os
import re

from npuenv.core.seal import text_hash
from npuenv.facts.target.dist_info import list_folder
from npuenv.install.env_verifier.files import read_json
from npuenv.install.env_verifier.leftovers import NOBODYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from npuenv.install.env_verifier.inspection import Inspection

KEPT = "venv.json"  # path -> text
HOOK = re.compile(r".*\.pth|(site|user)customize\.py")
OF_VENV = re.compile(r"(de)?activate.*|pydoc\.bat")  # what uv puts into `bin` beside interpreters


def venv_texts(inspection: Inspection) -> dict[str, str]:
    """The texts of the files that a virtual environment is made of, by their paths below it."""
    bin_, site = os.path.join(inspection.root, "bin"), inspection.site
    paths = [os.path.join(inspection.root, "pyvenv.cfg"), *(os.path.join(site, name) for name in NOBODYS)]
    paths += [os.path.join(bin_, name) for name in list_folder(bin_) if OF_VENV.fullmatch(name)]
    free = [path for path in paths if os.path.isfile(path) and path not in inspection.owners]
    return {os.path.relpath(path, inspection.root): text_of(path) for path in free}


def text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def hooks(inspection: Inspection) -> list[str]:
    """The files among the packages that Python runs whenever it starts."""
    return [name for name in list_folder(inspection.site) if HOOK.fullmatch(name)]


def altered(inspection: Inspection) -> dict[str, str]:
    """The virtual environment's files that are not as they were verified, with their texts of then."""
    found = read_json(os.path.join(inspection.own, "verified.json")).get("venv", {})
    kept = read_json(os.path.join(inspection.own, KEPT))
    now = venv_texts(inspection)
    return {
        name: kept[name]
        for name, digest in found.items()
        if (os.path.islink(os.path.join(inspection.root, name)) or text_hash(now.get(name, "")) != digest)
        and text_hash(kept.get(name, "")) == digest
    }


def added(inspection: Inspection) -> dict[str, str]:
    """The hooks of no package that came after the verification: path below the environment -> where they go."""
    verified = read_json(os.path.join(inspection.own, "verified.json"))
    new = [name for name in hooks(inspection) if name not in verified.get("hooks", [name])]
    free = [path for name in new if (path := inspection.site + "/" + name) not in inspection.owners]
    aside = os.path.join(inspection.own, "set-aside")
    return {os.path.relpath(path, inspection.root): os.path.join(aside, os.path.basename(path)) for path in free}


def restore(inspection: Inspection) -> None:
    """Writes back what was altered, and moves what was added out of the way."""
    for name, text in altered(inspection).items():
        print("putting back " + name)
        path = os.path.join(inspection.root, name)
        with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        os.replace(path + ".new", path)
    for name, place in added(inspection).items():
        print(f"setting {name} aside, as {os.path.relpath(place, inspection.root)}")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.replace(os.path.join(inspection.root, name), place)
