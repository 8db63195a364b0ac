"""The Python that would train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, known
from npuenv.facts.collector import USE_LEVEL, Collector, FactGroup, fact, made_of, not_asked, was_asked
from npuenv.facts.manifest import Described, described
from npuenv.facts.python import interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.facts.python.interpreter import Broken, Devices, Import, Python
    from npuenv.facts.python.packages import Elf, Files, Hashes, Packages

T = TypeVar("T")
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


def tried(framework: str | None) -> Mapping[str, tuple[str, ...]]:
    """The modules that are imported besides torch and torch_npu, each with the distributions that bring it."""
    return _FOR_CPU if framework == "cpu" else _FOR_NPU


def find_python(host: Collector) -> None:
    """Takes a Python with its version in its name where there is no python3, as in images that bring no other."""
    answer = host.shared(_inventory, host.python)
    if host.python == interpreter.USUAL and was_asked(answer) and answer.state is State.ABSENT:
        host.python = next((name for name in interpreter.OTHERS if host.shared(_inventory, name).is_known), host.python)


def _inventory(host: Collector, python: str) -> Fact[dict[str, Any]]:
    return interpreter.ask(host, python, "inventory", timeout_s=host.timeout(15, 60))


def _broken(host: Collector, found: Fact[Python]) -> Fact[Broken]:
    """Asked only where the interpreter does not run."""
    if found.is_known:
        return absent(Evidence(host.python, "runs"))
    return interpreter.broken(host, host.python, found) if was_asked(found) else not_asked(1)


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

    answer = host.read(lambda host: interpreter.ask(host, host.python, "hashes", timeout_s=120.0))
    return not_asked(USE_LEVEL) if _is_unrecorded(answer) else packages.hashes(answer)


def _elf(host: Collector, python: Python, packages: Fact[Packages]) -> Fact[Elf]:
    def ask(found: Packages) -> Fact[Elf]:
        from npuenv.facts.python.packages import elf

        files = [path for paths in found.extensions.values() for path in paths]
        # The folder of the Python that the environment was made from, by its standard library on the path.
        library = next((each for each in found.path if each.endswith("/lib-dynload")), "")
        base = library.rpartition("/lib/")[0] or python.prefix
        near = dict.fromkeys(f"{prefix}/lib" for prefix in (python.prefix, base) if prefix)
        return elf(host, files, near=tuple(near), timeout_s=host.timeout(10, 60))

    return made_of(packages, ask)


def _import(host: Collector, python: Python, module: str, torch: Fact[Import] | None = None) -> Fact[Import]:
    if torch is not None and _hangs(torch):
        return _untried(host)
    name = module.replace("_", "-")
    if name not in python.distributions:
        return absent(Evidence(f"{host.python} (inventory)", f"{name} is not installed"))
    if not host.imports:
        return not_asked(1)
    return interpreter.imports(host, host.python, module, host.timeout(_IMPORT_S, 90))


def _imports(
    host: Collector, python: Python, torch: Fact[Import], torch_npu: Fact[Import]
) -> Fact[Mapping[str, Import]]:
    """Each module in a process of its own, one after the other; absent where none of them is installed."""
    if not host.imports:
        return not_asked(1)
    wanted = [
        name for name, owners in tried(host.framework).items() if any(owner in python.distributions for owner in owners)
    ]
    if not wanted:
        return absent(Evidence(f"{host.python} (inventory)", "none of the modules is installed"))
    # With its autoload torch brings torch_npu in, and most of the others bring in torch.
    if _hangs(torch) or _hangs(torch_npu):  # what rests on them would hang as well, a minute each
        wanted = [name for name in wanted if name in _WITHOUT_TORCH]
    if not wanted:
        return _untried(host)
    facts = {name: host.read(interpreter.imports, host.python, name, host.timeout(60, 90)) for name in wanted}
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
    return interpreter.devices(host, host.python) if host.level >= USE_LEVEL else not_asked(USE_LEVEL)


def _made(host: Collector, python: Python) -> Fact[Described]:
    made = host.read(described, python.prefix)
    return absent(*made.evidence) if _is_unrecorded(made) else made


def _is_unrecorded(*facts: Fact[Any]) -> bool:
    """Whether a capture holds no answer to any of these: it was made before they were asked."""
    return all(item.line == "not in the capture" for fact in facts for item in fact.evidence)


class PythonFacts(FactGroup):
    interpreter: Fact[Python] = fact(
        lambda host: interpreter.interpreter_of(host.shared(_inventory, host.python), host.python)
    )
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
