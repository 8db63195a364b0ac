"""What the programs print that run inside the Python of a simulated machine.

Everything follows from the machine's list of packages and from its files and variables: which files are installed, what
they were built for, which libraries the loader finds, what an import or a card then does. A fault that is known only by
its message (a damaged extension) is given as the message of the import.
"""

from __future__ import annotations

import functools
import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import load_toml
from npuenv.host import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK = "NPUENV-ANSWER "
ELF = "npuenv-elf"
AUTOLOAD = (
    "RuntimeError: Failed to load the backend extension: torch_npu. "
    "You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
)
OVER_TORCH = ("torchvision", "torchaudio", "tensordict")  # their modules import torch at once
NATIVE = {"torch": "lib/libtorch_cpu.so", "torch_npu": "lib/libtorch_npu.so"}
OF_CANN = ("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so")
SHADOWED = ("torch", "torch_npu", "torchvision", "torchaudio", "vllm", "vllm_ascend", "ray", "transformers", "numpy")
Look = "Callable[[str], tuple[str, ...]]"  # the names in a folder, empty where there is none


def target_answer(told: Mapping[str, Any], words: tuple[str, ...], names: Callable[[str], tuple[str, ...]]) -> Ran:
    """The answer of the target's interpreter to a program; `names` lists a folder of the machine."""
    python = told["python"]
    if python.get("broken"):
        return Ran(words, None, "", python["broken"])
    if words[1:] in {("-V",), ("--version",)}:
        return Ran(words, 0, f"Python {python['version']}\n", "")
    if len(words) < 4:
        return Ran(words, 2, "", "usage: python [option] ... [-c cmd | -m mod | file | -] [arg] ...\n")
    answer = _PROGRAMS[words[3]](_Target(told, words[0], names), *words[4:])
    return Ran(words, 0, MARK + json.dumps(answer, sort_keys=True) + "\n", "")


def elf_answer(told: Mapping[str, Any], words: tuple[str, ...], names: Callable[[str], tuple[str, ...]]) -> Ran:
    """What reading the extension modules gives: those of torch_npu look for CANN's libraries."""
    folders = told["environ"].get("LD_LIBRARY_PATH", "").split(":")
    found = {name for folder in folders if folder for name in names(folder)}
    npu = [path for path in words[3:] if path.endswith("libtorch_npu.so")]
    gone = [name for name in OF_CANN if npu and name not in found]
    rows = [{"path": npu[0], "library": name, "lies_in": _lies_in(told, name)} for name in gone]
    arch = _arch(told)
    answer = {"error": "", "looked": len(words) - 3, "machines": [arch], "machine": [], "unread": [], "symbols": []}
    return Ran(words, 0, json.dumps({**answer, "missing": rows, "versions": []}) + "\n", "")


class _Target:
    """The interpreter of one machine with what it would say of itself."""

    def __init__(self, told: Mapping[str, Any], executable: str, names: Callable[[str], tuple[str, ...]]) -> None:
        self.told, self.executable, self.names = told, executable, names
        self.python: dict[str, Any] = told["python"]
        self.packages: dict[str, str] = self.python["packages"]
        short = ".".join(self.python["version"].split(".")[:2])
        self.site = f"{self.python['prefix']}/lib/python{short}/site-packages"

    def inventory(self) -> dict[str, Any]:
        python = self.python
        twice = python["installed_twice"]
        shared = [{**row, "fits": [0, row["count"]]} for row in python["shared_files"]]
        if "ascend" not in python["triton_backends"]:
            shared = [{**row, "fits": [row["count"], 0]} for row in python["shared_files"]]
        return {
            "version": python["version"],
            "executable": self.executable,
            "prefix": python["prefix"],
            "base_prefix": python["base_prefix"],
            "is_conda": python["is_conda"],
            "libc": python["libc"],
            "machine": _arch(self.told),
            "distributions": self.packages,
            "installed_twice": twice,
            "shared_files": shared,
            "triton_backends": python["triton_backends"],
            "packages": self._metadata(),
            "files": self._files(),
        }

    def _metadata(self) -> dict[str, Any]:
        on_path = [entry for entry in self.told["environ"].get("PYTHONPATH", "").split(":") if entry]
        library = posixpath.dirname(self.site)
        twice = self.python["installed_twice"]
        empty: dict[str, Any] = {
            key: [] for key in ("unreadable", "in_user_site", "leftovers", "gone_sources", "links")
        }
        return {
            **empty,
            "path": [*(entry for entry in on_path if self.names(entry)), library, self.site],
            "user_site": "",
            "twice": [
                {"name": name, "versions": all_, "folders": [self.site] * len(all_)} for name, all_ in twice.items()
            ],
            "requires": self._requires(),
            "requires_python": {},
            "origins": self.python.get("origins", {}),
            "shadows": self._shadows(),
            "foreign_wheels": {},
            "foreign_extensions": {},
            "built": self._built(),
            "extensions": {
                name: [f"{self.site}/{name}/{file}"]
                for name, file in NATIVE.items()
                if name.replace("_", "-") in self.packages
            },
            "trouble": [],
            **self.python.get("metadata", {}),
        }

    def _requires(self) -> dict[str, list[str]]:
        """What the metadata of these versions asks for, as far as it is known."""
        local = "+cpu" if _arch(self.told) == "x86_64" else ""
        found = {}
        for name, version in self.packages.items():
            lines = _requirements().get(name, {}).get(version.split("+")[0])
            if lines:
                found[name] = [line.replace("{cpu}", local) for line in lines]
        return found

    def _shadows(self) -> list[dict[str, str]]:
        """Modules that a folder of the session's own folder hides, as the import system sees it."""
        here = self.told["environ"].get("PWD", "")
        rows = []
        for module in SHADOWED:
            inside = self.names(f"{here}/{module}") if here else ()
            source = self.python.get("origins", {}).get(module.replace("_", "-"), {}).get("url", "")[len("file://") :]
            kind = "package" if "__init__.py" in inside else ""
            if not kind and source and any(name.endswith((".py", ".so")) for name in inside):
                kind = "folder"
            if kind and here != source:
                rows.append({"module": module, "place": here, "kind": f"cwd-{kind}", "over": source or self.site})
        return rows

    def _built(self) -> dict[str, dict[str, str]]:
        version = self.packages.get("torch", "")
        if not version:
            return {}
        local = version.partition("+")[2]
        is_plain_x86 = _arch(self.told) == "x86_64" and not local
        cuda = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") else "12.8" if is_plain_x86 else "None"
        return {"torch": {"cuda": cuda, "hip": "None"}, **self.python.get("built", {})}

    def _files(self) -> dict[str, Any]:
        lost = "triton-ascend" in self.packages and "ascend" not in self.python["triton_backends"]
        row = {"owner": "triton-ascend", "count": 212, "native": 1, "examples": ["triton/_C/libtriton.so"]}
        is_shared = bool(self.python["shared_files"])
        return {
            "looked": 40000,
            "missing": [row] if lost and not is_shared else [],
            "altered": [],
            "emptied": [],
            "unreadable": [],
            **self.python.get("files", {}),
        }

    def hashes(self) -> dict[str, Any]:
        return {"looked": 40000, "is_complete": True, "altered": [], "unreadable": []}

    def imports(self, module: str) -> dict[str, Any]:
        errors = self._errors(module)
        name = {"triton": "triton-ascend"}.get(module, module.replace("_", "-"))
        if not errors and name not in self.packages and module not in ("torch_npu", "triton"):
            errors = [f"ModuleNotFoundError: No module named '{module}'"]
        return {"ok": not errors, "version": "" if errors else self.packages.get(name, ""), "errors": errors}

    def _errors(self, module: str) -> list[str]:
        """The chain of errors of an import; with a torch that loads torch_npu by itself it reaches all over torch."""
        own = self.python["imports"].get(module)
        if own:
            return [own]
        of_npu = self.python["imports"].get("torch_npu")
        loads_npu = self.told["environ"].get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "0"
        if module == "torch" and of_npu and loads_npu and "torch-npu" in self.packages:
            return [AUTOLOAD, of_npu]
        return self._errors("torch") if module in OVER_TORCH else []

    def devices(self, burn_s: str = "0") -> dict[str, Any]:
        python, count = self.python, self.python.get("device_count", self._num_chips())
        error = python.get("device_error") or next(iter(reversed(self._errors("torch"))), "")
        good = not error and not python.get("device_is_wrong")
        used = {"copies_exactly": None if error else True, "computes_correctly": None if error else good}
        worst = None if error else 0.001 if good else 31.5
        cards = [{"number": n, **used, "worst_error": worst, "rounds": 1, "error": error} for n in range(count)]
        names = [f"Ascend{self.told['chip_name']}"] * count
        reached = used if cards else {"copies_exactly": None, "computes_correctly": None}
        answer = {"is_available": count > 0, "count": count, "names": names, "cards": cards, "tolerance": 0.05}
        return {**answer, **reached, "worst_error": worst if cards else None, "error": error}

    def _num_chips(self) -> int:
        """As many devices as the variable shows of those that are there."""
        shown = self.told["environ"].get("ASCEND_RT_VISIBLE_DEVICES")
        there = len([path for path in self.told["devices"] if path[len("/dev/davinci") :].isdigit()])
        if shown is None:
            return there
        ids = shown.split(",") if shown else []
        return len(ids) if all(one.isdigit() and int(one) < there for one in ids) else 0

    def listens(self, name: str, port: str) -> dict[str, Any]:
        does = self.python.get("listens", True)
        return {"listens": does, "why": "accepted" if does else "Connection refused"}


_PROGRAMS: dict[str, Any] = {
    "inventory": _Target.inventory,
    "hashes": _Target.hashes,
    "imports": _Target.imports,
    "devices": _Target.devices,
    "listens": _Target.listens,
}


def _arch(told: Mapping[str, Any]) -> str:
    return str(told["commands"]["uname -m"]).strip()


def _lies_in(told: Mapping[str, Any], library: str) -> str:
    closed = tuple(told["unreadable"])
    return next(
        (at for at, names in told["folders"].items() if library in names and not (closed and at.startswith(closed))), ""
    )


@functools.cache
def _requirements() -> dict[str, dict[str, list[str]]]:
    """Requires-Dist lines by package and version; `{cpu}` stands for the local part that x86_64 wheels ask for."""
    return load_toml(Path(__file__).parent / "parts" / "requires.toml")
