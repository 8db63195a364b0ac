"""The Python that would train: which one, what is installed in it, what importing torch and torch_npu does.

Nothing of it is imported here: small programs run inside it (`npuenv.facts.target`), each import in its own process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - `from_json` reads these annotations at run time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.core.json_input import JsonError, loads
from npuenv.facts.collector import from_json, made_of, pairs, why_failed
from npuenv.facts.target import text as program
from npuenv.host.base import Host, PathState, Ran
from npuenv.host.recorded import RecordedHost, RecordingHost

IMPORT_TIMEOUT_S = 90.0  # torch with torch_npu takes seconds, on a cold network disk a minute
DEVICES_TIMEOUT_S = 105.0  # importing, then at most 25 s to count the devices and 40 s to use them
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


def interpreter(host: Host, python: str) -> Fact[Python]:
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


def imports(host: Host, python: str, module: str, timeout_s: float = IMPORT_TIMEOUT_S) -> Fact[Import]:
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
    answer = ask(host, python, "devices", *words, timeout_s=DEVICES_TIMEOUT_S + burn_s)
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
        document = loads(line, has_nan=True)
    except JsonError:
        document = None
    return (
        known(document, Evidence(command, ""))
        if isinstance(document, dict)
        else unknown(Evidence(command, _MARK + line))
    )


def _ending(ran: Ran) -> str:
    if ran.code is not None and ran.code < 0:
        return f"ended by signal {-ran.code}"
    return why_failed(ran)
