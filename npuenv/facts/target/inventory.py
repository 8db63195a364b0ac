"""Prints one marked JSON line about the interpreter that runs it, the distributions on its path and their files.

With the word `hashes`: about the contents of the files instead, against the SHA-256 that their distributions recorded.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import site
import sys
import sysconfig
import time

from npuenv.facts.target.dist_info import Disk, list_folder, located, normal, sha256, source_folder
from npuenv.facts.target.records import EXAMPLES_AT_MOST, Distribution, PathEntry, Tally, is_native, read

TYPE_CHECKING = False  # as in the first part
if TYPE_CHECKING:
    from typing import Any

EXTENSIONS_AT_MOST = 24
# Files that many packages put at the same place and that overwrite nothing of worth.
HARMLESS = ("../", "tests/", "test/", "docs/", "examples/", "LICENSE", "README")
IS_OURS = os.path.isdir(os.path.join(sys.prefix, ".npuenv"))
# What images and packagers take out to save space; nothing imports it.
SPARED = re.compile(
    r"(^|/)(tests?|testing|docs?|examples?|benchmarks?|include|share)/|\.(pyi|h|hpp|a|md|rst|txt|c|pyx)$"
)
# Modules that a folder of the same name hides. Not those of which people run a checkout on purpose: verl, megatron.
MODULES = {
    "torch": "torch",
    "torch_npu": "torch-npu",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "vllm": "vllm",
    "vllm_ascend": "vllm-ascend",
    "triton": "triton-ascend",
    "ray": "ray",
    "tensordict": "tensordict",
    "transformers": "transformers",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
}
# Those with native code that hangs on other packages and on CANN.
NATIVE = ("torch", "torch_npu", "torchvision", "torchaudio", "vllm", "vllm_ascend", "triton", "tensordict")
EXTENSION = re.compile(r"\.cpython-\d+\w*-[\w-]+\.so$")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX") or "")


class Distributions:
    """Distributions by name: the first on the path counts, as it does for imports."""

    def __init__(self, folders: list[PathEntry]) -> None:
        self.first: dict[str, Distribution] = {}
        self.others: dict[str, list[Distribution]] = {}
        for folder in folders:
            for distribution in folder.distributions():
                key = normal(distribution.name)
                if key in self.first:
                    self.others.setdefault(key, []).append(distribution)
                elif key:
                    self.first[key] = distribution
        self.disk = Disk()
        self.looked = 0
        self.missing, self.spared, self.altered, self.emptied, self.linked = (Tally() for _ in range(5))
        self.unread: set[str] = set()
        self.foreign: dict[str, str] = {}
        self.owners: dict[str, tuple[str, str, str]] = {}  # file -> name, hash and size as recorded
        self.shared: dict[tuple[str, str], dict[str, Any]] = {}
        for key, distribution in self.first.items():
            self._look(key, distribution)

    def _look(self, key: str, distribution: Distribution) -> None:
        tagged: list[str] = []
        has_own = False
        for path, digest, size in distribution.files():
            if EXTENSION.search(path):
                tagged.append(path)
                has_own = has_own or path.endswith(SUFFIX)
            self._file(distribution, path, (key, digest, size))
        if tagged and not has_own:
            self.foreign[key] = tagged[0]

    def _file(self, distribution: Distribution, path: str, claim: tuple[str, str, str]) -> None:
        """One file; `claim` is the distribution's name with the hash and the size that RECORD gives."""
        key, digest, size = claim
        place = located(distribution.folder, path)
        try:
            stamp = self.disk.stamp(place)
            has: int | None = -1 if stamp is None else stamp[0]
        except OSError:
            has = None
        self.looked += 1
        other = self.owners.setdefault(place, claim)
        if other[0] != key and not path.startswith(HARMLESS):
            if other[1:] != claim[1:] or not digest:  # of equal content it does not matter whose it is
                self._share((other[0], other[2]), (key, size), path, has)
        elif has is None:
            self.unread.add(os.path.dirname(path))
        elif has < 0:
            # Some packagers strip it; METADATA is told by itself.
            is_metadata = path.startswith(distribution.entry + "/")
            (self.spared if is_metadata or SPARED.search(path) else self.missing).add(key, path)
        elif size.isdigit() and has != int(size):
            # Some wheels are published with a METADATA of another size than their own RECORD says (torch_npu
            # 2.1.0.post13). Where npuenv has installed, it has held the files against that.
            as_published = path == distribution.entry + "/METADATA" and has > 0 and not IS_OURS
            tally = self.spared if as_published else self.emptied if has == 0 else self.altered
            tally.add(key, f"{path} ({has} bytes, {size} recorded)")
        elif self.disk.link(place, distribution.folder):
            self.linked.add(key, path)

    def _share(self, one: tuple[str, str], two: tuple[str, str], path: str, has: int | None) -> None:
        found = self.shared.setdefault((one[0], two[0]), {"paths": [], "fits": [0, 0]})
        found["paths"].append(path)
        if one[1] != two[1]:  # of equal size both fit, which tells nothing
            for at, (_, size) in enumerate((one, two)):
                found["fits"][at] += str(has) == size

    def twice(self) -> list[dict[str, Any]]:
        rows = []
        for name, others in sorted(self.others.items()):
            all_ = [self.first[name], *others]
            rows.append({"name": name, "versions": [o.version for o in all_], "folders": [o.folder for o in all_]})
        return rows

    def troubles(self) -> list[dict[str, str]]:
        everything = [*self.first.values(), *(other for others in self.others.values() for other in others)]
        return [
            {"entry": each.entry, "name": normal(each.name), "what": "; ".join(dict.fromkeys(each.trouble))}
            for each in everything
            if each.trouble
        ]

    def requires(self) -> dict[str, list[str]]:
        return {
            name: each.requires
            for name, each in sorted(self.first.items())
            if each.requires and each.is_installed and not each.is_of_others
        }


class Modules:
    """Where importing finds a module, without importing it."""

    def __init__(self, path: list[str], inventory: Distributions) -> None:
        self.path, self.inventory = path, inventory

    def places(self, name: str) -> list[tuple[str, str]]:
        """Each place of the path that has it, in order, with its kind: package, module, or bare folder."""
        return [(entry, kind) for entry in self.path for kind in [kind_of(entry, name)] if kind]

    def home(self, name: str) -> str:
        """The folder of a package that an import would take; "" where there is none."""
        found = [entry for entry, kind in self.places(name) if kind == "package"]
        if found:
            return os.path.join(found[0], name)
        distribution = self.inventory.first.get(MODULES.get(name, name))
        source = source_folder(distribution.origin()) if distribution is not None else ""
        folder = os.path.join(source, name)
        return folder if source and os.path.isfile(os.path.join(folder, "__init__.py")) else ""

    def extensions(self, name: str) -> list[str]:
        """The shared libraries of a package: beside its modules and in its lib folder, largest part of it first."""
        home, found = self.home(name), []
        for folder in (home, os.path.join(home, "lib"), os.path.join(home, "_C")) if home else ():
            found += [os.path.join(folder, each) for each in _readable(folder)]
        # A dangling link is a file that is gone, which `files` tells.
        there = (path for path in found if is_native(os.path.basename(path)) and os.path.exists(path))
        return list(there)[:EXTENSIONS_AT_MOST]


def _readable(path: str) -> list[str]:
    """The names in a folder; [] where there is none or it cannot be read."""
    try:
        return list_folder(path)
    except OSError:
        return []


def kind_of(folder: str, name: str) -> str:
    place = os.path.join(folder, name)
    if os.path.isfile(os.path.join(place, "__init__.py")):
        return "package"
    if os.path.isfile(place + ".py"):
        return "module"
    has_code = any(each.endswith((".py", ".so")) for each in _readable(place))
    return "folder" if has_code else ""


def shadows(modules: Modules) -> list[dict[str, str]]:
    """Modules found elsewhere than where their distribution lies, and those that lie in the session's own folder."""
    rows: list[dict[str, str]] = []
    for name, owner in MODULES.items():
        distribution = modules.inventory.first.get(owner) or modules.inventory.first.get(name)
        places = [(entry, kind) for entry, kind in modules.places(name) if kind != "folder"]
        if distribution is not None:
            rows += shadow(name, distribution, places, modules.path)
        # Some distribution, whatever it is called, may have recorded the package: triton comes under several names.
        elif (
            places
            and places[0][1] == "package"
            and f"{places[0][0]}/{name}/__init__.py" not in modules.inventory.owners
        ):
            rows.append({"module": name, "place": places[0][0], "kind": "package", "over": ""})
    return rows


def shadow(name: str, owner: Distribution, places: list[tuple[str, str]], path: list[str]) -> list[dict[str, str]]:
    origin = owner.origin()
    source = source_folder(origin) if origin.get("is_editable") else ""
    rows = []
    if places and not source and not same(places[0][0], owner.folder) and owner.record:
        rows.append({"module": name, "place": places[0][0], "kind": places[0][1], "over": owner.folder})
    cwd = current_folder()
    kind = kind_of(cwd, name) if cwd else ""
    # A bare folder hides nothing that the path finds; an editable install is found only after it.
    is_hidden = kind in ("package", "module") or (kind == "folder" and bool(source) and not places)
    if is_hidden and not any(same(cwd, place) for place in (owner.folder, source, *path) if place):
        rows.append({"module": name, "place": cwd, "kind": f"cwd-{kind}", "over": source or owner.folder})
    return rows


def same(one: str, two: str) -> bool:
    try:
        return os.path.realpath(one) == os.path.realpath(two)
    except OSError:  # a relative entry, and the folder of the session is gone
        return one == two


def current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed under the session
        return ""


def gone_sources(inventory: Distributions) -> list[dict[str, str]]:
    """Editable installations whose source folder is no longer there."""
    rows = []
    for name, distribution in sorted(inventory.first.items()):
        origin = distribution.origin()
        folder = source_folder(origin)
        if origin.get("is_editable") and not os.path.isdir(folder):
            rows.append({"name": name, "folder": folder})
    return rows


def built(modules: Modules) -> dict[str, dict[str, str]]:
    """What packages say of their own build, read from their source: torch for CUDA, vllm-ascend for a chip."""
    wanted = {
        "torch": ("version.py", ("cuda", "hip")),
        "vllm_ascend": ("_build_info.py", ("__device_type__", "__soc_version__")),
    }
    found: dict[str, dict[str, str]] = {}
    for name, (file, keys) in wanted.items():
        home = modules.home(name)
        try:
            text = read(os.path.join(home, file)) if home else None
        except OSError:
            text = None
        if text is None:
            continue
        for key in keys:
            match = re.search(rf"^{key}\s*(?::[^=\n]*)?=\s*['\"]?([\w.-]+)", text, re.MULTILINE)
            if match:
                found.setdefault(name, {})[key.strip("_")] = match.group(1)
    return found


def triton_backends(path: list[str]) -> list[str]:
    """The backend folders of the triton that an import would find."""
    for entry in path:
        folder = os.path.join(entry, "triton", "backends")
        if os.path.isdir(folder):
            names = [name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))]
            return sorted(name for name in names if not name.startswith("_"))
    return []


def unique(path: list[str]) -> list[str]:
    """The folders of a path, each once: lib64 is often a link to lib."""
    found: dict[str, str] = {}
    for entry in path:
        if entry and os.path.isdir(entry):  # a relative entry is none where the session's folder is gone
            found.setdefault(os.path.realpath(entry), entry)
    return list(found.values())


def shared(inventory: Distributions) -> list[dict[str, Any]]:
    rows = []
    for pair, found in sorted(inventory.shared.items()):
        examples = sorted(found["paths"])[:EXAMPLES_AT_MOST]
        rows.append({"owners": list(pair), "count": len(found["paths"]), "examples": examples, "fits": found["fits"]})
    return rows


def packages(path: list[str], folders: list[PathEntry], inventory: Distributions, modules: Modules) -> dict[str, Any]:
    first = inventory.first
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return {
        "path": path,
        "no_settings": no_settings(),
        "of_conda": of_conda(inventory),
        "unreadable": [{"place": each.place, "why": each.error} for each in folders if each.error] + not_there(),
        "user_site": user if user and any(same(user, entry) for entry in path) else "",
        "in_user_site": sorted(name for name, each in first.items() if user and same(each.folder, user)),
        "twice": inventory.twice(),
        "leftovers": [os.path.join(each.place, name) for each in folders for name in each.names if name[0] == "~"],
        "requires": inventory.requires(),
        "requires_python": {
            name: each.requires_python for name, each in first.items() if each.requires_python and each.is_installed
        },
        "origins": {name: origin for name, each in first.items() for origin in [each.origin()] if origin},
        "gone_sources": gone_sources(inventory),
        "links": [link for each in folders for link in each.links()],
        "shadows": shadows(modules),
        "foreign_wheels": {name: tag for name, each in first.items() for tag in [each.foreign_tag()] if tag},
        "foreign_extensions": inventory.foreign,
        "built": built(modules),
        "extensions": {name: found for name in NATIVE for found in [modules.extensions(name)] if found},
        "trouble": inventory.troubles(),  # last: reading the rest can add to it
    }


def of_conda(inventory: Distributions) -> dict[str, str]:
    """Versions that conda wrote down, by distribution, where another one is there: pip installed over it."""
    found = {}
    for entry in _readable(os.path.join(sys.prefix, "conda-meta")):
        name, _, rest = entry.rpartition("-")[0].rpartition("-") if entry.endswith(".json") else ("", "", "")
        here = inventory.first.get(normal(name))
        if here is not None and here.version != rest and here.folder.startswith(sys.prefix + "/"):
            found[normal(name)] = rest
    return found


def no_settings() -> list[str]:
    """The pyvenv.cfg that a virtual environment has lost, and its Python, which takes itself for the system's then."""
    home = os.path.dirname(os.path.dirname(sys.executable))
    own = glob.glob(os.path.join(glob.escape(home), "lib", "python3*", "site-packages"))
    was_environment = own and os.path.isfile(os.path.join(home, "bin", "activate")) and not same(home, sys.prefix)
    is_lost = sys.prefix == sys.base_prefix and was_environment
    return [os.path.join(home, "pyvenv.cfg"), os.path.realpath(sys.executable)] if is_lost else []


def not_there() -> list[dict[str, str]]:
    """The folder for packages of a virtual environment where it is none: such an environment seems merely empty."""
    place = sysconfig.get_path("purelib")
    if sys.prefix == sys.base_prefix or os.path.isdir(place):
        return []
    others = glob.glob(os.path.join(glob.escape(sys.prefix), "lib", "python3*", "site-packages"))
    why = "a link to nothing" if os.path.islink(place) else "not a folder" if os.path.exists(place) else "not there"
    return [{"place": place, "why": "; ".join([why] + [f"packages lie in {other}" for other in sorted(others)])}]


def files(inventory: Distributions) -> dict[str, Any]:
    tallies = ("missing", "spared", "altered", "emptied", "linked")
    rows = {name: getattr(inventory, name).rows() for name in tallies}
    return {"looked": inventory.looked, **rows, "unreadable": sorted(inventory.unread)[:EXAMPLES_AT_MOST]}


def answer(path: list[str]) -> dict[str, object]:
    folders = [PathEntry(entry) for entry in path]
    inventory = Distributions(folders)
    modules = Modules(path, inventory)
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "is_conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "distributions": {name: each.version for name, each in inventory.first.items()},
        "installed_twice": {row["name"]: row["versions"] for row in inventory.twice()},
        "shared_files": shared(inventory),
        "triton_backends": triton_backends(path),
        "packages": packages(path, folders, inventory, modules),
        "files": files(inventory),
    }


ENOUGH_S = 90.0  # a slow network disk: what was read until then is the answer


def is_told(place: str, claims: list[tuple[str, str, str, str]]) -> bool:
    """Whether the inventory tells already that a file is not as recorded, by its size. Raises OSError."""
    size = claims[0][3]
    return len(claims) == 1 and size.isdigit() and os.stat(place).st_size != int(size)


def hashes(path: list[str]) -> dict[str, object]:
    """Every installed file compared with the SHA-256 that its distribution recorded."""
    started, looked, is_complete = time.monotonic(), 0, True
    altered = Tally()
    unreadable: list[str] = []
    owned: dict[str, list[tuple[str, str, str, str]]] = {}
    for folder in path:
        for distribution in PathEntry(folder).distributions():
            for file, wanted, size in distribution.files():
                if wanted.startswith("sha256="):
                    claim = (normal(distribution.name), file, wanted, size)
                    owned.setdefault(located(folder, file), []).append(claim)
    for place, claims in owned.items():
        if time.monotonic() - started > ENOUGH_S:
            is_complete = False
            break
        try:
            has = "" if is_told(place, claims) else sha256(place)
        except FileNotFoundError:
            continue  # missing files are told apart by the inventory
        except OSError:
            unreadable.append(place)
            continue
        looked += 1
        # With two owners either content is right; which of them won is a question of its own.
        if has and all(has != wanted for _, _, wanted, _ in claims):
            for name, file, _, _ in claims:
                altered.add(name, file)
    return {
        "looked": looked,
        "is_complete": is_complete,
        "altered": altered.rows(),
        "unreadable": sorted(unreadable)[:EXAMPLES_AT_MOST],
    }


# "" on the path is the working folder: what lies there is not installed.
ask = hashes if sys.argv[-1] == "hashes" else answer
print("\nNPUENV-ANSWER " + json.dumps(ask(unique(sys.path)), sort_keys=True))
