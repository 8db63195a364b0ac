"""Everything a doctor wants to know about one host, asked once and in order. Start from `collect`.

Commands on one host run one after the other, each with a timeout: some of the tools refuse to run twice at a time.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.facts import cann as cann_facts
from npuenv.facts import driver as driver_facts
from npuenv.facts import machine, network
from npuenv.facts import python as python_facts
from npuenv.facts.base import Evidence, Fact, absent, known, unknown
from npuenv.host.base import Host, NotRecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.facts.cann import Cann, Nnal
    from npuenv.facts.driver import Nodes, VersionInfo
    from npuenv.facts.machine import Space, System
    from npuenv.facts.network import HccnConf, Proxy
    from npuenv.facts.python import Devices, Import, Python
    from npuenv.facts.smi import SmiTable, SmiTrouble

DEVICES_LEVEL = 2  # from this level on, cards and the network are used, not only read


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a host. A field that was not asked at this level is absent with that as its evidence."""

    time: Fact[str]
    arch: Fact[str]
    kernel: Fact[str]
    system: Fact[System]
    glibc: Fact[str]
    container: Fact[str]
    cpus: Fact[float]
    memory_kib: Fact[int]
    shared_memory: Fact[Space]
    disk: Fact[Space]  # of the home folder, where environments go
    open_files: Fact[int]
    locked_memory: Fact[int]
    environment: Fact[Mapping[str, str]]
    driver: Fact[VersionInfo]
    firmware: Fact[VersionInfo]
    install_info: Fact[dict[str, str]]
    driver_libraries: Fact[tuple[str, ...]]
    modules: Fact[tuple[str, ...]]
    pci_devices: Fact[tuple[str, ...]]
    nodes: Fact[Nodes]
    smi: Fact[SmiTable]
    smi_trouble: Fact[SmiTrouble]
    cann: Fact[Cann]
    opp: Fact[str]  # what ASCEND_OPP_PATH names: "folder", ...; absent where it is not set or names nothing
    nnal: Fact[Nnal]
    hccn_conf: Fact[HccnConf]
    proxies: Fact[tuple[Proxy, ...]]
    python: Fact[Python]
    import_torch: Fact[Import]
    import_torch_npu: Fact[Import]
    devices: Fact[Devices]
    proxies_listen: Fact[dict[str, bool]]  # variable -> whether something accepts connections there


def collect(host: Host, *, python: str | None = None, level: int = 1) -> Facts:
    """The facts of a host. `python` is the interpreter to look at (None: the session's), `level` how far to go: 0 reads
    files only, 1 also imports torch in child processes, 2 also uses a device and tries the proxies.

    A question that a capture does not hold is an unknown fact, never a "no".
    """
    chosen = python_facts.choose(host, python)
    asked = _Asker(host)
    arch = asked(machine.arch)
    smi, trouble = _smi(host)
    interpreter = asked(lambda host: python_facts.interpreter(host, chosen))
    installed = interpreter.value.distributions if interpreter.value else {}
    return Facts(
        time=asked(machine.time),
        arch=arch,
        kernel=asked(machine.kernel),
        system=asked(machine.system),
        glibc=asked(machine.glibc),
        container=asked(machine.container),
        cpus=asked(machine.cpus),
        memory_kib=asked(machine.memory_kib),
        shared_memory=asked(lambda host: machine.space(host, "/dev/shm")),
        disk=asked(lambda host: machine.space(host, host.environ().get("HOME") or "/")),
        open_files=asked(lambda host: machine.limit(host, "Max open files")),
        locked_memory=asked(lambda host: machine.limit(host, "Max locked memory")),
        environment=known(host.environ(), Evidence("environment", "")),
        driver=asked(driver_facts.driver),
        firmware=asked(driver_facts.firmware),
        install_info=asked(driver_facts.install_info),
        driver_libraries=asked(driver_facts.libraries),
        modules=asked(driver_facts.modules),
        pci_devices=asked(driver_facts.pci_devices),
        nodes=asked(driver_facts.nodes),
        smi=smi,
        smi_trouble=trouble,
        cann=asked(lambda host: cann_facts.cann(host, arch.value)),
        opp=asked(cann_facts.opp),
        nnal=asked(cann_facts.nnal),
        hccn_conf=asked(network.hccn_conf),
        proxies=asked(network.proxies),
        python=interpreter,
        import_torch=_import(asked, chosen, "torch", installed, level),
        import_torch_npu=_import(asked, chosen, "torch_npu", installed, level),
        devices=_devices(asked, chosen, installed, level),
        proxies_listen=_listen(asked, chosen, level),
    )


def to_json(facts: Facts) -> dict[str, Any]:
    """The facts as JSON values: each with its state, its value (null unless known) and its evidence."""
    return {field.name: _fact_to_json(getattr(facts, field.name)) for field in dataclasses.fields(facts)}


class _Asker:
    """Asks one fact; what a capture does not hold becomes unknown, with the missing question as evidence."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def __call__(self, ask: Callable[[Host], Fact[Any]]) -> Fact[Any]:
        try:
            return ask(self.host)
        except NotRecorded as error:
            return unknown(Evidence(str(error), "not in the capture"))


def _smi(host: Host) -> tuple[Fact[SmiTable], Fact[SmiTrouble]]:
    try:
        return driver_facts.smi(host)
    except NotRecorded as error:
        evidence = Evidence(str(error), "not in the capture")
        return unknown(evidence), unknown(evidence)


def _import(asked: _Asker, python: str, module: str, installed: Mapping[str, str], level: int) -> Fact[Import]:
    name = module.replace("_", "-")
    if name not in installed:
        return absent(Evidence(f"{python} (inventory)", f"{name} is not installed"))
    if level < 1:
        return _not_asked(1)
    fact: Fact[Import] = asked(lambda host: python_facts.imports(host, python, module))
    return fact


def _devices(asked: _Asker, python: str, installed: Mapping[str, str], level: int) -> Fact[Devices]:
    if not {"torch", "torch-npu"} <= set(installed):
        return absent(Evidence(f"{python} (inventory)", "torch and torch-npu are not both installed"))
    if level < DEVICES_LEVEL:
        return _not_asked(DEVICES_LEVEL)
    fact: Fact[Devices] = asked(lambda host: python_facts.devices(host, python))
    return fact


def _listen(asked: _Asker, python: str, level: int) -> Fact[dict[str, bool]]:
    proxies = asked(network.proxies)
    if proxies.value is None:
        return Fact(proxies.state, None, proxies.evidence)
    if level < DEVICES_LEVEL:
        return _not_asked(DEVICES_LEVEL)
    answers: dict[str, bool] = {}
    evidence: list[Evidence] = []
    for proxy in proxies.value:
        if proxy.port is not None:
            fact = asked(functools.partial(python_facts.listens, python=python, name=proxy.name, port=proxy.port))
            evidence += fact.evidence
            if fact.value is not None:
                answers[proxy.variable] = fact.value
    return known(answers, *evidence) if answers else unknown(*evidence)


def _not_asked(level: int) -> Fact[Any]:
    return absent(Evidence("not asked", f"needs --level {level}"))


def _fact_to_json(fact: Fact[Any]) -> dict[str, Any]:
    evidence = [{"command": item.command, "line": item.line} for item in fact.evidence]
    return {"state": fact.state.value, "value": plain(fact.value), "evidence": evidence}


def plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses as mappings, enumerations as their words, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value
