"""CANN and NNAL on this machine, and the session's paths to them. Start from `collect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from npuenv.facts.base import Evidence, Fact, absent
from npuenv.facts.cann import installs, kernels, parts, surroundings, toolkit

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.asker import Asker
    from npuenv.facts.cann.installs import Entry, Installs
    from npuenv.facts.cann.kernels import CustomOps, Kernels
    from npuenv.facts.cann.parts import Ops, Part, Running
    from npuenv.facts.cann.surroundings import Atb, Named, Written
    from npuenv.facts.cann.toolkit import Cann, Closed, Nnal
    from npuenv.facts.machine import MachineFacts
    from npuenv.host.base import Host

T = TypeVar("T")


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
    opp = ask.host.environ().get("ASCEND_OPP_PATH", "").rstrip("/") or (f"{root}/opp" if root else "")

    def of_toolkit(fact: Callable[[Host], Fact[T]]) -> Fact[T]:
        return ask(fact) if root else absent(Evidence("CANN", "no toolkit"))

    return CannFacts(
        toolkit=found,
        closed=absent(*found.evidence) if found.is_known else ask(toolkit.closed),
        opp=ask(toolkit.opp),
        nnal=ask(toolkit.nnal),
        installs=ask(lambda host: installs.installs(host, arch)),
        entries=ask(installs.entries),
        install_record=ask(installs.install_record),
        parts=of_toolkit(lambda host: parts.parts(host, root)),
        running=of_toolkit(lambda host: parts.running(host, root)),
        ops=of_toolkit(lambda host: parts.ops(host, root, arch)),
        kernels=of_toolkit(lambda host: kernels.kernels(host, opp)),
        custom=of_toolkit(lambda host: kernels.custom(host, opp)),
        atb=ask(surroundings.atb),
        torch_abi=ask(lambda host: surroundings.torch_abi(host, ask.python)),
        writes=ask(surroundings.writes),
        named_files=ask(surroundings.named_files),
        compilers=ask.at(1, lambda host: surroundings.compilers(host, ask.timeout(2, 10))) if root else _no_toolkit(),
    )


def _no_toolkit() -> Fact[dict[str, str]]:
    return absent(Evidence("CANN", "no toolkit"))
