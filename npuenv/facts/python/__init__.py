"""The Python that would train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, State, absent, known
from npuenv.facts.collector import USE_LEVEL, not_asked, was_asked
from npuenv.facts.manifest import described
from npuenv.facts.python import interpreter as python_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collector import Asker
    from npuenv.facts.manifest import Described
    from npuenv.facts.python.elf import Elf
    from npuenv.facts.python.interpreter import Broken, Devices, Import, Python
    from npuenv.facts.python.packages import Files, Hashes, Packages

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
class PythonFacts:
    """What is true of the target interpreter."""

    interpreter: Fact[Python]
    broken: Fact[Broken]  # asked only where the interpreter does not run
    packages: Fact[Packages]
    files: Fact[Files]
    hashes: Fact[Hashes]
    elf: Fact[Elf]
    import_torch: Fact[Import]
    import_torch_npu: Fact[Import]
    imports: Fact[Mapping[str, Import]]  # the other modules; one that could not be tried is in the evidence only
    devices: Fact[Devices]
    made: Fact[Described]  # what npuenv wrote down when it made this environment; absent where somebody else did


def tried(framework: str | None) -> Mapping[str, tuple[str, ...]]:
    """The modules that are imported besides torch and torch_npu, each with the distributions that bring it."""
    return _FOR_CPU if framework == "cpu" else _FOR_NPU


def found(ask: Asker) -> tuple[Asker, Fact[dict[str, Any]]]:
    """The interpreter's inventory, and whom to ask from there on.

    Where there is no python3 that is one with its version in its name, as in images that bring no other.
    """

    def answer_of(ask: Asker) -> Fact[dict[str, Any]]:
        return ask(lambda host: python_facts.inventory(host, ask.python, ask.timeout(15, 60)))

    answer = answer_of(ask)
    if ask.python == python_facts.USUAL and was_asked(answer) and answer.state is State.ABSENT:
        for name in python_facts.OTHERS:
            other = replace(ask, python=name)
            if (told := answer_of(other)).value is not None:
                return other, told
    return ask, answer


def collect(ask: Asker, answer: Fact[dict[str, Any]]) -> PythonFacts:
    """Asks for all of them; imports, files and devices only of what is installed. `answer` is that of `found`."""
    interpreter = python_facts.interpreter_of(answer, ask.python)
    if interpreter.value is None:
        return _nothing(ask, interpreter)
    from npuenv.facts.python import packages as package_facts  # level 0 asks no interpreter and needs none of it

    installed = interpreter.value.distributions
    packages = package_facts.packages(answer)
    prefix = interpreter.value.prefix
    torch = _import(ask, "torch", installed)
    torch_hangs = any(item.line == "timed out" for item in torch.evidence)
    torch_npu = _untried(ask) if torch_hangs else _import(ask, "torch_npu", installed)
    # With its autoload torch brings torch_npu in, and most of the others bring in torch.
    hangs = torch_hangs or any(item.line == "timed out" for item in torch_npu.evidence)
    return PythonFacts(
        interpreter=interpreter,
        broken=absent(Evidence(ask.python, "runs")),
        packages=packages,
        files=package_facts.files(answer),
        hashes=_hashes(ask),
        elf=_elf(ask, interpreter, packages),
        import_torch=torch,
        import_torch_npu=torch_npu,
        imports=_imports(ask, installed, hangs),
        devices=_untried(ask) if torch_hangs else _devices(ask, installed),
        made=_made(ask, prefix),
    )


def _nothing(ask: Asker, interpreter: Fact[Python]) -> PythonFacts:
    """The facts of a Python that did not run or was not asked: nothing of it is more certain than itself."""
    same: Fact[Any] = Fact(interpreter.state, None, interpreter.evidence)
    broken: Fact[Broken] = same
    if was_asked(interpreter):
        broken = ask(lambda host: python_facts.broken(host, ask.python, interpreter))
    return PythonFacts(interpreter, broken, same, same, same, same, same, same, same, same, same)


def _hashes(ask: Asker) -> Fact[Hashes]:
    if not ask.hashes and ask.level < USE_LEVEL:
        return not_asked(USE_LEVEL)
    from npuenv.facts.python import packages as package_facts

    answer = ask(lambda host: python_facts.hashes(host, ask.python))
    return not_asked(USE_LEVEL) if _is_unrecorded(answer) else package_facts.hashes(answer)


def _made(ask: Asker, prefix: str) -> Fact[Described]:
    made = ask(lambda host: described(host, prefix))
    return absent(*made.evidence) if _is_unrecorded(made) else made


def _is_unrecorded(*facts: Fact[Any]) -> bool:
    """Whether a capture holds no answer to any of these: it was made before they were asked."""
    return all(item.line == "not in the capture" for fact in facts for item in fact.evidence)


def _elf(ask: Asker, interpreter: Fact[Python], packages: Fact[Packages]) -> Fact[Elf]:
    python, found = interpreter.value, packages.value
    if python is None or found is None:
        return Fact(packages.state, None, packages.evidence)
    from npuenv.facts.python.elf import elf

    files = [path for paths in found.extensions.values() for path in paths]
    near = dict.fromkeys(f"{prefix}/lib" for prefix in (python.prefix, _base(found, python.prefix)) if prefix)
    return ask.at(1, lambda host: elf(host, files, near=tuple(near), timeout_s=ask.timeout(10, 60)))


def _base(packages: Packages, prefix: str) -> str:
    """The folder of the Python that an environment was made from, by its standard library on the path."""
    library = next((each for each in packages.path if each.endswith("/lib-dynload")), "")
    return library.rpartition("/lib/")[0] or prefix


def _import(ask: Asker, module: str, installed: Mapping[str, str]) -> Fact[Import]:
    name = module.replace("_", "-")
    if name not in installed:
        return absent(Evidence(f"{ask.python} (inventory)", f"{name} is not installed"))
    if not ask.imports:
        return not_asked(1)
    return ask.at(1, lambda host: python_facts.imports(host, ask.python, module, ask.timeout(_IMPORT_S, 90)))


def _imports(ask: Asker, installed: Mapping[str, str], torch_hangs: bool) -> Fact[Mapping[str, Import]]:
    """Each module in a process of its own, one after the other; absent where none of them is installed."""
    if not ask.imports:
        return not_asked(1)
    wanted = [name for name, owners in tried(ask.framework).items() if any(owner in installed for owner in owners)]
    if not wanted:
        return absent(Evidence(f"{ask.python} (inventory)", "none of the modules is installed"))
    if torch_hangs:  # what rests on torch would hang as well, a minute each
        wanted = [name for name in wanted if name in _WITHOUT_TORCH]
    if not wanted:
        return _untried(ask)
    facts = {
        name: ask(lambda host, name=name: python_facts.imports(host, ask.python, name, ask.timeout(60, 90)))  # type: ignore[misc]
        for name in wanted
    }
    if _is_unrecorded(*facts.values()):
        return not_asked(1)
    evidence = [item for fact in facts.values() for item in fact.evidence]
    return known({name: fact.value for name, fact in facts.items() if fact.value is not None}, *evidence)


def _untried(ask: Asker) -> Fact[Any]:
    return absent(Evidence(f"{ask.python} -c 'import torch'", "timed out: nothing that rests on it was tried"))


def _devices(ask: Asker, installed: Mapping[str, str]) -> Fact[Devices]:
    if not {"torch", "torch-npu"} <= set(installed):
        return absent(Evidence(f"{ask.python} (inventory)", "torch and torch-npu are not both installed"))
    return ask.at(USE_LEVEL, lambda host: python_facts.devices(host, ask.python))
