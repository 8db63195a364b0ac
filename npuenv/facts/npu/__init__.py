"""The cards and their driver as the host shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, State, absent, unknown
from npuenv.facts.collector import USE_LEVEL, not_asked
from npuenv.facts.npu import driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.collector import Asker
    from npuenv.facts.npu.burn import Dmi
    from npuenv.facts.npu.driver import Nodes, VersionInfo
    from npuenv.facts.npu.holders import Holder
    from npuenv.facts.npu.install import Changed, Installer
    from npuenv.facts.npu.kernel import Claim, KernelEvent
    from npuenv.facts.npu.queries import Board, Ecc, FaultEvent, Health, Mapped, Refusal, Spod, Topology
    from npuenv.facts.npu.smi import SmiTable, SmiTrouble
    from npuenv.facts.python.interpreter import Devices

BURN_LEVEL = 3  # from this level on, cards are kept busy for minutes
BURN_S = 60


@dataclass(frozen=True, slots=True)
class NpuFacts:
    """What is true of cards and driver. Either `smi` or `smi_trouble` is known, or neither."""

    driver: Fact[VersionInfo]
    firmware: Fact[VersionInfo]
    install_info: Fact[dict[str, str]]
    driver_libraries: Fact[tuple[str, ...]]
    library_files: Fact[dict[str, tuple[str, ...]]]  # folder of the driver -> the libraries in it
    topology_files: Fact[tuple[str, ...]]
    modules: Fact[tuple[str, ...]]
    pci_devices: Fact[tuple[str, ...]]
    pci_addresses: Fact[tuple[str, ...]]
    nodes: Fact[Nodes]
    smi: Fact[SmiTable]
    smi_trouble: Fact[SmiTrouble]
    changed: Fact[Changed]  # whether the driver was written after the boot
    installer: Fact[Installer]  # asked only where the driver does not answer
    holders: Fact[tuple[Holder, ...]]
    claims: Fact[tuple[Claim, ...]]  # who holds which device, by the driver's own account
    kernel: Fact[tuple[KernelEvent, ...]]
    health: Fact[tuple[Health, ...]]  # below the level that uses cards only of those that are not OK
    ecc: Fact[tuple[Ecc, ...]]
    boards: Fact[tuple[Board, ...]]
    chips: Fact[tuple[Board, ...]]
    mapped: Fact[tuple[Mapped, ...]]
    topology: Fact[Topology]
    spods: Fact[tuple[Spod, ...]]
    faults: Fact[tuple[FaultEvent, ...]]
    silent: Fact[tuple[Refusal, ...]]
    unread: Fact[dict[str, dict[str, Evidence]]]  # fact of these -> the cards that it lacks, and what they said instead
    burn: Fact[Devices]
    dmi: Fact[Dmi]


def collect(ask: Asker) -> NpuFacts:
    """Asks for all of them; npu-smi once for the table, then for what the level wants."""
    smi = ask(lambda host: driver.smi(host, timeout_s=ask.timeout(4.0, 20.0)))
    table = driver.table_of(smi)
    version_file = ask(driver.driver)
    pci = ask(driver.pci_rows)
    return NpuFacts(
        driver=version_file,
        firmware=ask(driver.firmware),
        install_info=ask(driver.install_info),
        driver_libraries=ask(driver.libraries),
        library_files=ask(driver.library_files),
        topology_files=ask(driver.topology_files),
        modules=ask(driver.modules),
        pci_devices=driver.pci_devices_of(pci),
        pci_addresses=driver.pci_addresses_of(pci),
        nodes=ask(driver.nodes),
        smi=table,
        smi_trouble=driver.trouble_of(smi),
        **_around(ask, table, smi, version_file),
        **_details(ask, table, smi),
        **_burnt(ask, table),
    )


def _around(ask: Asker, table: Fact[SmiTable], smi: Fact[Any], version_file: Fact[VersionInfo]) -> dict[str, Fact[Any]]:
    """What lies around the table: who uses the cards, and why there may be no table. Modules are loaded when needed."""
    from npuenv.facts.npu import install

    value, trouble = version_file.value, driver.trouble_of(smi).value
    is_sick = trouble is not None or smi.state is State.ABSENT
    return {
        "changed": ask.at(1, lambda host: install.changed(host, value.path)) if value else _version(version_file),
        "installer": ask.at(1, install.installer) if is_sick else absent(Evidence(install.LOG, "not looked at")),
        "holders": _holders(ask, table.value) if table.value else _without_table(smi),
        **_told_by_kernel(ask, trouble),
    }


def _holders(ask: Asker, table: SmiTable) -> Fact[tuple[Holder, ...]]:
    from npuenv.facts.npu.holders import holders

    return ask(lambda host: holders(host, table))


def _told_by_kernel(ask: Asker, trouble: SmiTrouble | None) -> dict[str, Fact[Any]]:
    """Who holds the devices is asked as soon as somebody else does."""
    in_use = trouble is not None and trouble.is_in_use
    if ask.level < USE_LEVEL and not in_use:
        return dict.fromkeys(("claims", "kernel"), not_asked(USE_LEVEL))
    from npuenv.facts.npu import kernel

    return {"claims": ask.at(1, kernel.claims), "kernel": ask.at(USE_LEVEL, kernel.events)}


def _details(ask: Asker, table: Fact[SmiTable], smi: Fact[Any]) -> dict[str, Fact[Any]]:
    """The queries about single cards; below the level that uses cards only ill ones are asked, and for their reason."""
    names = ("ecc", "boards", "chips", "mapped", "topology", "spods", "faults", "silent", "unread")
    if table.value is None:
        return dict.fromkeys(("health", *names), _without_table(smi))
    if ask.level < USE_LEVEL and all(card.health in ("OK", None) for card in table.value.cards):
        return {"health": absent(*table.evidence), **dict.fromkeys(names, not_asked(USE_LEVEL))}
    from npuenv.facts.npu.details import Questions

    questions = Questions(table.value, timeout_s=ask.timeout(4.0, 10.0))
    ask_health: Callable[..., Any] = questions.health if ask.level >= USE_LEVEL else questions.health_of_ill
    found = {"health": ask.at(1, ask_health)}
    for name in names[:-1]:
        found[name] = ask.at(USE_LEVEL, getattr(questions, name))
    return {**found, "unread": ask.at(1, questions.unread)}


def _burnt(ask: Asker, table: Fact[SmiTable]) -> dict[str, Fact[Any]]:
    """What keeps the cards busy; not done where a process is on one of them."""
    if ask.level < BURN_LEVEL:
        return dict.fromkeys(("burn", "dmi"), not_asked(BURN_LEVEL))
    if table.value is not None and table.value.processes:
        return dict.fromkeys(("burn", "dmi"), absent(Evidence("npu-smi info", "processes run on the cards")))
    if table.value is not None and table.value.unlisted:
        return dict.fromkeys(("burn", "dmi"), unknown(Evidence("npu-smi info", "the processes cannot be read")))
    from npuenv.facts.npu import burn
    from npuenv.facts.python import interpreter

    return {"burn": ask(lambda host: interpreter.devices(host, ask.python, BURN_S)), "dmi": ask(burn.dmi)}


def _without_table(smi: Fact[Any]) -> Fact[Any]:
    """A fact about listed cards where nothing is listed: a consequence of what npu-smi says."""
    return absent(*smi.evidence) if smi.is_known else Fact(smi.state, None, smi.evidence)


def _version(version_file: Fact[VersionInfo]) -> Fact[Any]:
    return Fact(version_file.state, None, version_file.evidence)
