"""CANN and NNAL on this machine, and the session's paths to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, absent
from npuenv.facts.cann import installs, surroundings, toolkit

if TYPE_CHECKING:
    from npuenv.facts.cann.installs import Entry, Installs
    from npuenv.facts.cann.kernels import CustomOps, Kernels
    from npuenv.facts.cann.parts import Ops, Part, Running
    from npuenv.facts.cann.surroundings import Atb, Named, Written
    from npuenv.facts.cann.toolkit import Cann, Closed, Nnal
    from npuenv.facts.collector import Asker
    from npuenv.facts.machine import MachineFacts

_NO_TOOLKIT = Evidence("CANN", "no toolkit")
_INSIDE = ("parts", "running", "ops", "kernels", "custom")  # facts of a toolkit


@dataclass(frozen=True, slots=True)
class CannFacts:
    """What is true of CANN and of the packages beside it."""

    toolkit: Fact[Cann]
    closed: Fact[Closed]  # asked only where no toolkit can be read
    opp: Fact[str]  # what ASCEND_OPP_PATH names: "folder", ...; absent where it is not set or names nothing
    nnal: Fact[Nnal]
    installs: Fact[Installs]
    entries: Fact[tuple[Entry, ...]]
    install_record: Fact[str]  # the folder that /etc/Ascend names
    parts: Fact[tuple[Part, ...]]
    running: Fact[Running]
    ops: Fact[Ops]
    kernels: Fact[Kernels]
    custom: Fact[CustomOps]
    atb: Fact[Atb]
    torch_abi: Fact[str]  # "0" or "1": the C++ ABI of the target's torch
    writes: Fact[tuple[Written, ...]]
    named_files: Fact[tuple[Named, ...]]
    compilers: Fact[dict[str, str]]  # gcc, g++, cmake -> version


def collect(ask: Asker, machine: MachineFacts) -> CannFacts:
    """Asks for all of them; what lies in a toolkit only where there is one."""
    arch = machine.arch.value
    found: Fact[Cann] = ask(lambda host: toolkit.cann(host, arch))
    root = found.value.root if found.value else ""
    return CannFacts(
        toolkit=found,
        closed=absent(*found.evidence) if found.is_known else ask(toolkit.closed),
        opp=ask(toolkit.opp),
        nnal=ask(toolkit.nnal),
        installs=ask(lambda host: installs.installs(host, arch)),
        entries=ask(installs.entries),
        install_record=ask(installs.install_record),
        **(_inside(ask, root, arch) if root else dict.fromkeys(_INSIDE, absent(_NO_TOOLKIT))),
        atb=ask(surroundings.atb),
        torch_abi=ask(lambda host: surroundings.torch_abi(host, ask.python)),
        writes=ask(surroundings.writes),
        named_files=ask(surroundings.named_files),
        compilers=_compilers(ask) if root else absent(_NO_TOOLKIT),
    )


def _inside(ask: Asker, root: str, arch: str | None) -> dict[str, Fact[Any]]:
    """What lies in a toolkit. Modules are loaded when needed."""
    from npuenv.facts.cann import kernels, parts

    opp = ask.host.environ().get("ASCEND_OPP_PATH", "").rstrip("/") or f"{root}/opp"
    return {
        "parts": ask(lambda host: parts.parts(host, root)),
        "running": ask(lambda host: parts.running(host, root)),
        "ops": ask(lambda host: parts.ops(host, root, arch)),
        "kernels": ask(lambda host: kernels.kernels(host, opp)),
        "custom": ask(lambda host: kernels.custom(host, opp)),
    }


def _compilers(ask: Asker) -> Fact[dict[str, str]]:
    return ask.at(1, lambda host: surroundings.compilers(host, ask.timeout(2, 10)))
