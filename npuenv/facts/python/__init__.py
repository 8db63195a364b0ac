"""The Python that would train: which one, what is installed in it, what its modules and devices do.

Nothing of it is imported here: small programs run inside it (`npuenv.facts.target`), each import in its own process.
What lies in its folders is read in `npuenv.facts.python.packages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - `from_json` reads these annotations at run time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import (
    USE_LEVEL,
    Collector,
    FactGroup,
    fact,
    from_json,
    made_of,
    not_asked,
    pairs,
    was_asked,
    why_failed,
)
from npuenv.facts.manifest import Described, described
from npuenv.facts.target import text as program
from npuenv.host import Host, PathState, Ran
from npuenv.host.recorded import RecordedHost, RecordingHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.python.packages import Elf, Files, Hashes, Packages


_IMPORT_TIMEOUT_S = 90.0  # torch with torch_npu takes seconds, on a cold network disk a minute
_DEVICES_TIMEOUT_S = 105.0  # importing, then at most 25 s to count the devices and 40 s to use them
USUAL = "python3"
# What stands for it where there is none of that name, as in images that bring one version alone.
OTHERS = ("python", *(f"python3.{minor}" for minor in range(14, 8, -1)))
_START_S = 10.0  # for what runs before Python itself does anything
_MARK = "NPUENV-ANSWER "
_HOOK = "NPUENV-HOOK "
# The empty entry is the working folder: a json.py that lies about there must not be imported.
_LOADER = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import os; exec(compile(os.environ.pop('NPUENV_PROGRAM'), 'npuenv', 'exec'))"
)
# Module -> the distributions of which one has to be installed for it to be tried, by what the host is for.
_FOR_CPU = {"numpy": ("numpy",), "transformers": ("transformers",), "ray": ("ray",), "torchvision": ("torchvision",)}
_FOR_NPU = {
    **_FOR_CPU,
    "pyarrow": ("pyarrow",),
    "tensordict": ("tensordict",),
    "torchaudio": ("torchaudio",),
    "triton": ("triton-ascend", "triton"),
    "vllm": ("vllm",),
    "vllm_ascend": ("vllm-ascend",),
    "verl": ("verl",),
}
_WITHOUT_TORCH = frozenset({"numpy", "pyarrow", "ray"})
_IMPORT_S = 60.0  # at level 1: torch with torch_npu took more than 25 s on a busy machine with two cores


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Two distributions that own the same files: the one installed last has overwritten the other."""

    owners: tuple[str, ...]
    count: int
    examples: tuple[str, ...]
    fits: tuple[int, ...] = ()  # per owner, how many of the files have the size that it recorded and the other did not


class Python(NamedTuple):
    """An interpreter and its distributions."""

    executable: str
    version: str  # "3.11.14"
    kind: str  # venv | conda | system
    prefix: str
    libc: str  # "glibc 2.35"
    distributions: Mapping[str, str]  # lower case with dashes -> version
    installed_twice: Mapping[str, tuple[str, ...]]  # the same name at several places of the path
    shared_files: tuple[SharedFiles, ...]
    triton_backends: tuple[str, ...]  # folders under triton/backends: ascend, nvidia, amd
    machine: str = ""  # as the interpreter itself says: aarch64; "" where that was not asked


class Broken(NamedTuple):
    """Why an interpreter does not run."""

    # no-folder | no-home (the Python that a virtual environment was made from is gone) | no-program
    # | hook (a file that it runs at each start ends it, or keeps it waiting)
    # | too-old (it runs, and cannot read the question) | garbled (it answers, and the answer cannot be read)
    what: str
    path: str  # what is not there; the file that it does not get past; the version of one that is too old


class Import(NamedTuple):
    """What importing a module in a process of its own gave."""

    module: str
    is_ok: bool
    version: str
    errors: tuple[str, ...]  # "ImportError: libhccl.so: ..." from the outermost to the innermost
    crash: str  # how the process ended when it could not even report, "" when it did

    @property
    def innermost(self) -> str:
        """The first thing that went wrong."""
        return self.errors[-1] if self.errors else self.crash


class DeviceRun(NamedTuple):
    """What one device did, in a process of its own. None: not reached."""

    number: int  # as torch numbers it
    copies_exactly: bool | None
    computes_correctly: bool | None
    worst_error: float | None
    rounds: int  # products that were computed
    error: str  # also that it hangs or that its process died


@dataclass(frozen=True, slots=True)
class Devices:
    """What torch_npu does with its devices; the sums are of those that answered."""

    is_available: bool
    count: int
    names: tuple[str, ...]
    copies_exactly: bool | None  # None: not reached
    computes_correctly: bool | None
    worst_error: float | None  # largest absolute difference of the product from the CPU's, None when it is not finite
    tolerance: float | None
    error: str  # of listing the devices, or of the first one when all fail
    cards: tuple[DeviceRun, ...] = ()


def choose(host: Host, python: str | None) -> str:
    """The interpreter to look at: the one asked for, else that of the active environment, else python3 of the PATH.

    A capture answers for the interpreter it was made with, whatever was active then.
    """
    if python:
        return host.redact(python) if isinstance(host, RecordingHost) else python
    if isinstance(host, RecordedHost):
        recorded = next((argv[0] for argv in host.commands() if argv[1:] == ("-c", _LOADER, "inventory")), None)
        if recorded is not None:
            return recorded
    environ = host.environ()
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name):
            return f"{environ[name]}/bin/python"
    return USUAL


def read_interpreter(host: Host, python: str) -> Fact[Python]:
    """The interpreter with its distributions; absent where there is no such program."""
    return interpreter_of(ask(host, python, "inventory", timeout_s=30.0), python)


def interpreter_of(answer: Fact[dict[str, Any]], python: str) -> Fact[Python]:
    """The interpreter with its distributions, from the answer of the inventory."""

    def read(found: dict[str, Any]) -> Fact[Python] | None:
        try:
            kind = "conda" if found["is_conda"] else "venv" if found["prefix"] != found["base_prefix"] else "system"
            value = from_json(Python, {**found, "kind": kind})
        except (KeyError, TypeError, AttributeError, ValueError):  # of a foreign interpreter, or from a capture
            return None
        line = f"Python {value.version}, {len(value.distributions)} distributions"
        return known(value, Evidence(f"{python} (inventory)", line))

    return made_of(answer, read)


def broken(host: Host, python: str, answer: Fact[Any]) -> Fact[Broken]:
    """Why an interpreter gave no answer (`answer` is what it gave); absent where neither it nor its folder tells."""
    told = answer.evidence[-1].line if answer.evidence else ""
    if told.startswith(_MARK):
        return known(Broken("garbled", python), *answer.evidence)
    if told.startswith("SyntaxError"):
        return _too_old(host, python)
    gone = _gone(host, python)
    return gone if gone.value is not None else _hooked(host, python, gone)


def _hooked(host: Host, python: str, otherwise: Fact[Broken]) -> Fact[Broken]:
    """The file among those run at each start that the interpreter does not get past."""
    ran = host.run((python, "-S", "-c", _LOADER, "start"), timeout_s=_START_S, env={"NPUENV_PROGRAM": program("start")})
    named = [line[len(_HOOK) :] for line in ran.out.splitlines() if line.startswith(_HOOK)]
    if not named or _MARK in ran.out:
        return otherwise
    return known(Broken("hook", named[-1]), Evidence(named[-1], _ending(replace(ran, out=""))))


def _too_old(host: Host, python: str) -> Fact[Broken]:
    """A Python that runs and stumbles over the question's grammar."""
    ran = host.run((python, "--version"), timeout_s=10.0)
    match = re.search(r"^Python ([0-9]+\.[0-9]+\S*)", f"{ran.out}\n{ran.err}", re.MULTILINE)  # 2.7 says it on stderr
    told = Evidence(f"{python} --version", match.group() if match else _ending(ran))
    return known(Broken("too-old", match.group(1)), told) if match else absent(told)


def _gone(host: Host, python: str) -> Fact[Broken]:
    """What of its folders is not there."""
    folder, _, name = python.rpartition("/bin/")
    if not folder or not name:
        return absent(Evidence(python, "not in a folder of its own"))
    state = host.look(folder).state
    if state is PathState.ABSENT:
        return known(Broken("no-folder", folder), Evidence(folder, "absent"))
    config = host.look(f"{folder}/pyvenv.cfg")
    home = pairs(config.text).get("home", "")
    if home and host.look(home).state is PathState.ABSENT:
        return known(Broken("no-home", home), Evidence(f"{folder}/pyvenv.cfg", f"home = {home}"))
    if host.look(python).state is PathState.ABSENT:
        return known(Broken("no-program", python), Evidence(python, "absent, or a link to nothing"))
    return absent(Evidence(folder, state.value))


def imports(host: Host, python: str, module: str, timeout_s: float = _IMPORT_TIMEOUT_S) -> Fact[Import]:
    """What `import MODULE` does in a fresh process, with the session's own environment."""
    answer = ask(host, python, "imports", module, timeout_s=timeout_s)
    command = f"{python} -c 'import {module}'"
    if answer.value is not None:
        try:
            errors = tuple(map(str, answer.value["errors"]))
            value = Import(module, bool(answer.value["ok"]), str(answer.value["version"]), errors, "")
        except (KeyError, TypeError):
            return unknown(*answer.evidence)
        return known(value, Evidence(command, value.innermost or f"{module} {value.version}"))
    crash = next((item.line for item in answer.evidence if item.line.startswith("ended by signal")), "")
    if crash:
        return known(Import(module, False, "", (), crash), Evidence(command, crash))
    return Fact(answer.state, None, tuple(Evidence(command, item.line) for item in answer.evidence))


def devices(host: Host, python: str, burn_s: int = 0) -> Fact[Devices]:
    """Count, copies and products on every device, compared with the CPU's; uses the devices, for `burn_s` at least."""
    words = (str(burn_s),) if burn_s else ()
    answer = ask(host, python, "devices", *words, timeout_s=_DEVICES_TIMEOUT_S + burn_s)
    command = " ".join((f"{python} (devices", *words)) + ")"
    if answer.value is None:
        return Fact(answer.state, None, tuple(Evidence(command, item.line) for item in answer.evidence))
    try:
        runs = tuple(DeviceRun(**item) for item in answer.value.get("cards", ()))
        value = Devices(**{**answer.value, "names": tuple(answer.value["names"]), "cards": runs})
    except (KeyError, TypeError):
        return unknown(*answer.evidence)
    line = value.error or f"{value.count} devices, largest difference {value.worst_error}, tolerance {value.tolerance}"
    return known(value, Evidence(command, line))


def listens(host: Host, python: str, name: str, port: int) -> Fact[bool]:
    """Whether something accepts connections there, asked from the interpreter's machine within three seconds."""
    answer = ask(host, python, "listens", name, str(port), timeout_s=10.0)
    if answer.value is None or not isinstance(answer.value.get("listens"), bool):
        return Fact(State.UNKNOWN, None, answer.evidence)
    return known(answer.value["listens"], Evidence(f"connect {name}:{port}", str(answer.value.get("why", ""))))


def ask(host: Host, python: str, name: str, *words: str, timeout_s: float) -> Fact[dict[str, Any]]:
    """What a program of `npuenv.facts.target` answers inside the interpreter."""
    # The program travels in a variable: the argv stays short and the same when the program changes, so captures last.
    argv = (python, "-c", _LOADER, name, *words)
    ran = host.run(argv, timeout_s=timeout_s, env={"NPUENV_PROGRAM": program(name)})
    command = f"{python} ({' '.join((name, *words))})"
    if ran.is_absent:
        return absent(Evidence(command, ran.err or "no such program"))
    # A start-up hook may have printed before it without ending its line, and anything may follow.
    _, mark, text = ran.out.rpartition(_MARK)
    if not mark:
        return unknown(Evidence(command, _ending(ran)))
    line = text.partition("\n")[0].rstrip("\r")
    try:
        document = parse_json(line, has_nan=True)
    except JsonError:
        document = None
    is_read = isinstance(document, dict)
    return known(document, Evidence(command, "")) if is_read else unknown(Evidence(command, _MARK + line))


def _ending(ran: Ran) -> str:
    if ran.code is not None and ran.code < 0:
        return f"ended by signal {-ran.code}"
    return why_failed(ran)


def tried(framework: str | None) -> Mapping[str, tuple[str, ...]]:
    """The modules that are imported besides torch and torch_npu, each with the distributions that bring it."""
    return _FOR_CPU if framework == "cpu" else _FOR_NPU


def find_python(host: Collector) -> None:
    """Takes a Python with its version in its name where there is no python3, as in images that bring no other."""
    answer = host.shared(_inventory, host.python)
    if host.python == USUAL and was_asked(answer) and answer.state is State.ABSENT:
        host.python = next((name for name in OTHERS if host.shared(_inventory, name).is_known), host.python)


def _inventory(host: Collector, python: str) -> Fact[dict[str, Any]]:
    return ask(host, python, "inventory", timeout_s=host.timeout(15, 60))


def _broken(host: Collector, found: Fact[Python]) -> Fact[Broken]:
    """Asked only where the interpreter does not run."""
    if found.is_known:
        return absent(Evidence(host.python, "runs"))
    return broken(host, host.python, found) if was_asked(found) else not_asked(1)


def _of_python(reader: Callable[..., Fact[Any]], *needs: str) -> Any:
    """Declares a fact whose reader gets the interpreter after the host; nothing of it is more certain than itself."""

    def read(host: Collector, found: Fact[Python], *given: Any) -> Fact[Any]:
        return made_of(found, lambda python: reader(host, python, *given))

    return fact(read, "python.interpreter", *needs)


def _part(name: str) -> Any:
    """Declares the fact that a reader of `npuenv.facts.python.packages` finds in the answer of the inventory."""

    def read(host: Collector, _: Python) -> Fact[Any]:
        from npuenv.facts.python import packages  # level 0 asks no interpreter and needs none of it

        reader: Callable[..., Fact[Any]] = getattr(packages, name)
        return reader(host.shared(_inventory, host.python))

    return _of_python(read)


def _hashes(host: Collector, _: Python) -> Fact[Hashes]:
    if not host.hashes and host.level < USE_LEVEL:
        return not_asked(USE_LEVEL)
    from npuenv.facts.python import packages

    answer = host.read(lambda host: ask(host, host.python, "hashes", timeout_s=120.0))
    return not_asked(USE_LEVEL) if _is_unrecorded(answer) else packages.hashes(answer)


def _elf(host: Collector, python: Python, packages: Fact[Packages]) -> Fact[Elf]:
    def read(found: Packages) -> Fact[Elf]:
        from npuenv.facts.python.packages import elf

        files = [path for paths in found.extensions.values() for path in paths]
        # The folder of the Python that the environment was made from, by its standard library on the path.
        library = next((each for each in found.path if each.endswith("/lib-dynload")), "")
        base = library.rpartition("/lib/")[0] or python.prefix
        near = dict.fromkeys(f"{prefix}/lib" for prefix in (python.prefix, base) if prefix)
        return elf(host, files, near=tuple(near), timeout_s=host.timeout(10, 60))

    return made_of(packages, read)


def _import(host: Collector, python: Python, module: str, torch: Fact[Import] | None = None) -> Fact[Import]:
    if torch is not None and _hangs(torch):
        return _untried(host)
    name = module.replace("_", "-")
    if name not in python.distributions:
        return absent(Evidence(f"{host.python} (inventory)", f"{name} is not installed"))
    if not host.imports:
        return not_asked(1)
    return imports(host, host.python, module, host.timeout(_IMPORT_S, 90))


def _imports(
    host: Collector, python: Python, torch: Fact[Import], torch_npu: Fact[Import]
) -> Fact[Mapping[str, Import]]:
    """Each module in a process of its own, one after the other; absent where none of them is installed."""
    if not host.imports:
        return not_asked(1)
    modules = tried(host.framework).items()
    wanted = [name for name, owners in modules if any(owner in python.distributions for owner in owners)]
    if not wanted:
        return absent(Evidence(f"{host.python} (inventory)", "none of the modules is installed"))
    # With its autoload torch brings torch_npu in, and most of the others bring in torch.
    if _hangs(torch) or _hangs(torch_npu):  # what rests on them would hang as well, a minute each
        wanted = [name for name in wanted if name in _WITHOUT_TORCH]
    if not wanted:
        return _untried(host)
    facts = {name: host.read(imports, host.python, name, host.timeout(60, 90)) for name in wanted}
    if _is_unrecorded(*facts.values()):
        return not_asked(1)
    evidence = [item for fact in facts.values() for item in fact.evidence]
    return known({name: fact.value for name, fact in facts.items() if fact.value is not None}, *evidence)


def _hangs(found: Fact[Import]) -> bool:
    return any(item.line == "timed out" for item in found.evidence)


def _untried(host: Collector) -> Fact[Any]:
    return absent(Evidence(f"{host.python} -c 'import torch'", "timed out: nothing that rests on it was tried"))


def _devices(host: Collector, python: Python, torch: Fact[Import]) -> Fact[Devices]:
    if _hangs(torch):
        return _untried(host)
    if not {"torch", "torch-npu"} <= set(python.distributions):
        return absent(Evidence(f"{host.python} (inventory)", "torch and torch-npu are not both installed"))
    return devices(host, host.python) if host.level >= USE_LEVEL else not_asked(USE_LEVEL)


def _made(host: Collector, python: Python) -> Fact[Described]:
    made = host.read(described, python.prefix)
    return absent(*made.evidence) if _is_unrecorded(made) else made


def _is_unrecorded(*facts: Fact[Any]) -> bool:
    """Whether a capture holds no answer to any of these: it was made before they were asked."""
    return all(item.line == "not in the capture" for fact in facts for item in fact.evidence)


class PythonFacts(FactGroup):
    interpreter: Fact[Python] = fact(lambda host: interpreter_of(host.shared(_inventory, host.python), host.python))
    broken: Fact[Broken] = fact(_broken, "python.interpreter")
    packages: Fact[Packages] = _part("packages")
    files: Fact[Files] = _part("files")
    hashes: Fact[Hashes] = _of_python(_hashes)
    elf: Fact[Elf] = _of_python(_elf, "python.packages")
    import_torch: Fact[Import] = _of_python(lambda host, python: _import(host, python, "torch"))
    import_torch_npu: Fact[Import] = _of_python(
        lambda host, python, torch: _import(host, python, "torch_npu", torch), "python.import_torch"
    )
    # The other modules; one that could not be tried is in the evidence only.
    imports: Fact[Mapping[str, Import]] = _of_python(_imports, "python.import_torch", "python.import_torch_npu")
    devices: Fact[Devices] = _of_python(_devices, "python.import_torch")
    made: Fact[Described] = _of_python(_made)  # what npuenv wrote down; absent where somebody else made it
