"""Facts of CANN and NNAL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.cann import parts, toolkit

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

CANN = "/usr/local/Ascend/cann-8.5.0"
OLDER = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "cann": lambda host: toolkit.cann(host, "aarch64"),
    "cann_closed": toolkit.closed,
    "cann_of_any_arch": lambda host: toolkit.cann(host, None),
    "nnal": toolkit.nnal,
    "nnal_atb": parts.atb,
    "opp": toolkit.opp,
    "opp_kernels": lambda host: parts.kernels(host, f"{CANN}/opp"),
    "opp_custom": lambda host: parts.custom(host, f"{CANN}/opp"),
    "cann_installs": lambda host: toolkit.installs(host, "aarch64"),
    "cann_entries": toolkit.entries,
    "cann_install_record": toolkit.install_record,
    "cann_parts": lambda host: parts.parts(host, OLDER),
    "cann_running": lambda host: parts.running(host, OLDER),
    "cann_ops": lambda host: parts.ops(host, CANN, "aarch64"),
    "cann_ops_older": lambda host: parts.ops(host, OLDER, "aarch64"),
    "cann_writes": parts.writes,
    "cann_named_files": parts.named_files,
    "cann_compilers": lambda host: parts.compilers(host, 2.0),
    "cann_torch_abi": lambda host: parts.torch_abi(host, "/opt/env/bin/python"),
}
