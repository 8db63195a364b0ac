"""Corruptions of an installed environment: the doctor names each, a repair mends each, and every file is as before.

NPUENV_CORRUPTIONS sets how many are drawn (two changes of each place; from 33 on all kinds), NPUENV_CORRUPTION_SEED
which files and bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from npuenv.facts.conditions import INSPECTOR
from npuenv.facts.manifest import LOCK, MANIFEST, MARKER, VERIFIED
from npuenv.lock.uv import write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.install.conftest import Product

NUM_CORRUPTIONS = int(os.environ.get("NPUENV_CORRUPTIONS", "0"))
SEED = int(os.environ.get("NPUENV_CORRUPTION_SEED", "1"))
# Differ between two runs of one installation, or hold what was moved aside.
OF_A_RUN = ("journal.jsonl", "stamps.json", "running", "logs", "set-aside")
OF_A_TIME = ("at", "hashed", "seal")  # in the verification


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(7)
    path.write_bytes(content)


def cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def link(path: Path, draw: random.Random) -> None:
    """To the same content, which is somebody else's."""
    elsewhere = Path(os.environ["XDG_DATA_HOME"], "elsewhere")
    elsewhere.mkdir(exist_ok=True)
    shutil.copy2(path, elsewhere / path.name)
    path.unlink()
    path.symlink_to(elsewhere / path.name)


def add(path: Path, draw: random.Random) -> None:
    path.write_text("import sys\n")


PLACES = {  # below the environment; SITE is the folder of the packages
    "module": ("SITE/torch/*.*", "SITE/many/*.*", "SITE/many/*/*.*", "SITE/tools.py", "SITE/numbers_a.py"),
    "record": ("SITE/*.dist-info/RECORD",),
    "metadata": ("SITE/*.dist-info/METADATA", "SITE/*.dist-info/WHEEL", "SITE/*.dist-info/entry_points.txt"),
    "script": ("bin/many*",),
    "hook": ("SITE/many.pth", "SITE/_virtualenv.p*"),
    "activation": ("activate.*", ".npuenv/entering.py", ".npuenv/activation.json"),
    "own-word": (MARKER, MANIFEST, VERIFIED, LOCK, INSPECTOR),
    "venv": ("pyvenv.cfg", "bin/activate*"),
}
ADDED = ("zz.pth", "sitecustomize.py", "usercustomize.py")
Change: TypeAlias = "Callable[[Path, random.Random], None]"
Kind: TypeAlias = "tuple[str, Change]"
CHANGES: list[Change] = [flip, cut, delete, link]
KINDS: list[Kind] = [(name, change) for name in PLACES for change in CHANGES] + [("hook", add)]


def drawn() -> list[Kind]:
    """One of each kind, and as many more as are wanted; where fewer are wanted, two changes of each place."""
    if len(KINDS) > NUM_CORRUPTIONS:
        return [kind for at, kind in enumerate(KINDS) if (at + at // len(CHANGES)) % 2 == 0]
    return [*KINDS, *random.Random(SEED).choices(KINDS, k=max(0, NUM_CORRUPTIONS - len(KINDS)))]


def place(root: Path, name: str, draw: random.Random) -> Path:
    """A file of this kind, never one of no bytes, in which nothing can be altered."""
    site = next(root.glob("lib/python*/site-packages")).relative_to(root).as_posix()
    found = [path for pattern in PLACES[name] for path in root.glob(pattern.replace("SITE", site))]
    return draw.choice(sorted(path for path in found if path.stat().st_size and path.suffix != ".pyc"))


def tree(root: Path) -> dict[str, str]:
    """Path -> mode and content, byte code and what tells of a run left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if "__pycache__" in path.parts or (name.startswith(".npuenv/") and path.parts[len(root.parts) + 1] in OF_A_RUN):
            continue
        if path.is_symlink() or path.is_dir():
            found[name] = f"-> {path.readlink()}" if path.is_symlink() else f"{path.stat().st_mode:o}"
            continue
        content = path.read_bytes()
        if name == VERIFIED:
            told = json.loads(content)
            assert told["seal"]
            content = json.dumps({key: told[key] for key in sorted(told) if key not in OF_A_TIME}).encode()
        found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
    return found


@pytest.fixture
def whole(product: Product) -> Product:
    """With a package that has what packages have: folders, a hook, scripts, a header."""
    files = {f"many/{folder}part{n}.py": f"X = {n}\n" * (n + 1) for folder in ("", "deep/") for n in range(8)}
    files |= {"many/__init__.py": "", "many/data.txt": "some\n" * 99, "many/include/many.h": "int many;\n"}
    files |= {"many.pth": "import many\n", "many-1.0.data/scripts/many-old": "#!python\nprint(1)\n"}
    files |= {"many-1.0.dist-info/entry_points.txt": "[console_scripts]\nmany = many.part1:X\n"}
    write_wheel(product.world.wheels, "many", "1.0", files=files)
    product.change(requirements=("tools", "many"))
    code, _, err = product.run("install", "--update", "--yes")
    assert code == 0, err
    return product


def problems(product: Product) -> dict[str, dict[str, Any]]:
    """What the doctor says of packages and of npuenv's own files, by the text of each finding."""
    words = ("--python", str(product.current / "bin/python"), "--hash", "--for", "cpu", "--json")
    found = json.loads(product.run("doctor", *words)[1])["findings"]
    bad = (item for item in found if item["check"].startswith("python.") and item["status"] in ("fail", "warn"))
    return {json.dumps(item): item for item in bad}


def names(finding: str, path: Path) -> bool:
    """Whether a finding is about this file: of an altered RECORD it names the files that it denies."""
    package = path.parent.name.partition("-")[0]
    return path.name in finding or (path.name == "RECORD" and f"RECORD of {package}" in finding)


@pytest.mark.slow
def test_the_doctor_names_each_corruption_and_a_repair_mends_it(whole: Product) -> None:
    root, draw, flaws = whole.current, random.Random(SEED), []
    before, silent = tree(root), problems(whole)
    for name, change in drawn():
        path = (
            place(root, name, draw) if change is not add else Path(place(root, name, draw).parent, draw.choice(ADDED))
        )
        what = f"{change.__name__} {path.relative_to(root)}"
        change(path, draw)
        found = [text for text in problems(whole) if text not in silent]
        if not any(names(text, path) for text in found):
            flaws.append((what, "not named", found))
        code, _, err = whole.run("install", "--repair", "--target", str(root), "--yes")
        after = tree(root)
        assert (code, after) == (0, before), (
            what,
            err,
            {key for key in {*before, *after} if before.get(key) != after.get(key)},
        )
    sys.stderr.write(f"{len(drawn())} corruptions, {len(flaws)} not named, all mended\n")
    assert flaws == []
