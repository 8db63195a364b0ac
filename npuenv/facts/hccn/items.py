"""The parser of each thing that hccn_tool can be asked for, in either grammar, by the word that asks for it.

A live survey asks some of them; a pasted output can hold any. All are pure: text -> value, or None for unreadable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.hccn import a2, a5
from npuenv.facts.hccn.ping import ping
from npuenv.facts.hccn.tls import tls

if TYPE_CHECKING:
    from collections.abc import Callable

ITEMS: dict[str, Callable[[str], Any]] = {
    "link": a2.link,
    "ip": a2.ip,
    "gateway": a2.gateway,
    "netdetect": a2.netdetect,
    "net_health": a2.net_health,
    "lldp": a2.lldp,
    "speed": a2.speed,
    "mtu": a2.mtu,
    "tls": tls,
    "vnic": a2.vnic,
    "ping": ping,
    "hccs_ping": ping,
    "ub_ping": ping,
    "optical": a2.optical,
    "stat": a2.stat,
    "link_stat": a2.link_stat,
    "bandwidth": a2.bandwidth,
    "fec": a2.fec,
    "dev_info": a5.dev_info,
    "port_info": a5.port_info,
}
