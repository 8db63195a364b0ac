"""Which card to ping from which: the next one that its address reaches without a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.core.fact import Fact
    from npuenv.facts.hccn.a2 import Address


def peers(
    links: Fact[dict[int, Fact[str]]], addresses: Fact[dict[int, Fact[Address]]], *, is_a3: bool
) -> dict[int, str]:
    """Card -> the address of the next card of its subnet; a way of which one end is down is left out.

    The last one of a subnet is reached and asks nobody: its health is what tells whether it can send. The two chips of
    one A3 card cannot reach each other over RoCE and are never paired.
    """
    up = {card for card, fact in (links.value or {}).items() if fact.value == "UP"}
    known = {card: fact.value for card, fact in (addresses.value or {}).items() if fact.value}
    found: dict[int, str] = {}
    for card, address in known.items():
        after = (item for item in sorted(known) if item > card and network(known[item]) == network(address))
        other = next((item for item in after if not (is_a3 and item // 2 == card // 2)), None)
        if other is not None and {card, other} <= up and known[other].ip != address.ip:
            found[card] = known[other].ip
    return found


def network(address: Address) -> str:
    """The subnet that an address says it is in: 10.12.165.80 with 255.255.255.0 -> 10.12.165.0/24."""
    import ipaddress

    try:
        return str(ipaddress.ip_network(f"{address.ip}/{address.netmask}", strict=False))
    except ValueError:  # a netmask of IPv6 as the tool prints it; such an address stands alone
        return address.ip
