"""Checks of the interfaces that HCCL, gloo and TensorPipe are configured to use, or would choose by default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, unknown, warn
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status
from npuenv.facts.network import is_loopback
from npuenv.facts.network.interfaces import number_of, way_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.facts.network.interfaces import Interface, Route

_IFNAME = "hicann/hccl user guide, HCCL_SOCKET_IFNAME and HCCL_IF_IP"
# Bridges, pairs and tunnels of containers and virtual machines, the driver's own `endvnic`, and a management
# controller's USB interface: none of them reaches another host.
INNER = re.compile(
    r"docker.*|virbr.*|br-[0-9a-f]{12}|veth.*|cni.*|flannel.*|cali.*|kube-.*|nodelocaldns|podman.*|lxc.*|tunl.*|vxlan.*"
    r"|endvnic.*|nerdctl.*|lxdbr.*|incusbr.*|isula.*|cilium.*|antrea.*|weave.*|ovs-.*|ovn.*|usb\d+|dummy.*|vmnet.*|vboxnet.*"
)


def variable(context: Context, name: str) -> Evidence:
    """A variable that is set as evidence, as it is judged: without surrounding blanks."""
    return Evidence("environment", f"{name}={context.setting(name)}")


def _unread(context: Context) -> CheckResult:
    return unknown("network.interfaces-unread", *context.facts.network.interfaces.evidence)


def matching(setting: str, names: Iterable[str]) -> list[str]:
    """The interfaces that HCCL_SOCKET_IFNAME selects, in the order in which HCCL tries them.

    `eth,enp` prefixes, `=eth0` exact names, `^eth` all but those prefixes, `^=eth0` all but those names.
    """
    excludes, rest = setting.startswith("^"), setting.lstrip("^")
    is_exact, words = rest.startswith("="), [word.strip() for word in rest.lstrip("=").split(",") if word.strip()]
    ordered = sorted(names)

    def fits(name: str, word: str) -> bool:
        return name == word if is_exact else name.startswith(word)

    if excludes:
        return [name for name in ordered if not any(fits(name, word) for word in words)]
    return list(dict.fromkeys(name for word in words for name in ordered if fits(name, word)))


def _hccl_interface(context: Context) -> CheckResult:
    setting = context.setting("HCCL_SOCKET_IFNAME")
    if not setting:
        return skip("network.ifname-unset")
    if context.setting("HCCL_IF_IP"):
        return skip("network.ifname-outranked")
    if context.facts.network.interfaces.value is None:
        return _unread(context)
    interfaces = {item.name: item for item in context.facts.network.interfaces.value}
    chosen = [interfaces[name] for name in matching(setting, interfaces)]
    if setting.startswith("^"):
        chosen.sort(key=_rank)
    usable = [item for item in chosen if item.is_up and item.addresses]
    several = _apart(context, usable) if re.match(r"[^=^]", setting) else []
    if several:
        lines = (variable(context, "HCCL_SOCKET_IFNAME"), *_rows(context, *several))
        fix = fix_for("network.ifname-exact", ("export", f"HCCL_SOCKET_IFNAME=={several[0]}"))
        return warn("network.ifname-several", *lines, fix=fix, setting=setting, names=tuple(several))
    return _judge_names(context, "HCCL_SOCKET_IFNAME", setting, (usable or chosen)[:1])


def _apart(context: Context, chosen: Sequence[Interface]) -> list[str]:
    """The interfaces' names if one is in another subnet than the first; [] if unknown, and if only HCCL's own settings
    refer to other nodes.

    HCCL uses "the first that matches", and no document gives the order in which a prefix is matched.
    """
    table, spoken_of = context.facts.network.routes.value, set(context.facts.network.spans.value or ())
    outer = [item for item in chosen if _is_good(item)]
    if table is None or len(outer) < 2 or spoken_of <= {"HCCL_SOCKET_IFNAME", "HCCL_IF_IP"}:
        return []
    return [item.name for item in outer] if any(not _is_near(table, outer[0], item) for item in outer[1:]) else []


def _is_near(table: Iterable[Route], one: Interface, other: Interface) -> bool:
    """Whether a directly connected network contains an address of each."""
    numbers = [[number for text in item.addresses if (number := number_of(text)) is not None] for item in (one, other)]
    nets = [(route.network, route.mask) for route in table if not route.gateway and route.mask]
    return any(all(any(number & mask == net for number in own) for own in numbers) for net, mask in nets)


def _judge_names(context: Context, name_set: str, setting: str, chosen: Sequence[Interface]) -> CheckResult:
    """Whether the interface that a variable selects exists, is up, and reaches other nodes if it has to."""
    found = context.facts.network.interfaces
    line = variable(context, name_set)
    good = tuple(item.name for item in found.value or () if _is_good(item))
    export = ("export", f"{name_set}={good[0]}") if good else ()
    fix = fix_for("network.ifname", export, names=good) if good else fix_for("network.ifname-none")
    if not chosen:
        return fail("network.ifname-missing", line, *found.evidence, fix=fix, variable=name_set, setting=setting)
    inner = [item for item in chosen if item.name == "lo" or INNER.fullmatch(item.name)]
    faulty = {
        "down": [item for item in chosen if not item.is_up],
        "bare": [item for item in chosen if not item.addresses],
        "inner": inner if context.spans_nodes else [],
    }
    for what, item in ((what, item) for what, items in faulty.items() for item in items):
        says = {"variable": name_set, "name": item.name} | ({"state": item.state} if what == "down" else {})
        return fail(f"network.ifname-{what}", line, *_rows(context, item.name), fix=fix, **says)
    return ok("network.ifname-ok", line, name=chosen[0].name)


def _is_good(item: Interface) -> bool:
    return item.is_up and bool(item.addresses) and item.name != "lo" and not INNER.fullmatch(item.name)


def _rows(context: Context, *names: str) -> list[Evidence]:
    return [item for item in context.facts.network.interfaces.evidence if item.line.split(" ")[0] in names]


def _other_interfaces(context: Context) -> CheckResult:
    """Gloo and TensorPipe take exact names, separated by commas."""
    names_set = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    set_to = {name: value for name in names_set if (value := context.setting(name))}
    if not set_to:
        return skip("network.ifname-unset")
    if context.facts.network.interfaces.value is None:
        return _unread(context)
    interfaces = {item.name: item for item in context.facts.network.interfaces.value}
    verdict = ok("network.ifname-ok", name=next(iter(set_to.values())))
    for name_set, setting in set_to.items():
        names = [word.strip() for word in setting.split(",") if word.strip()]
        chosen = [interfaces[name] for name in names] if all(name in interfaces for name in names) else []
        verdict = _judge_names(context, name_set, setting, chosen)
        if verdict.status is Status.FAIL:
            return verdict
    return verdict


def _hccl_address(context: Context) -> CheckResult:
    """HCCL_IF_IP has to be one address of this host."""
    setting = context.setting("HCCL_IF_IP")
    if not setting:
        return skip("network.if-ip-unset")
    if context.facts.network.interfaces.value is None:
        return _unread(context)
    line = variable(context, "HCCL_IF_IP")
    interfaces = context.facts.network.interfaces.value
    good = tuple(address for item in interfaces if _is_good(item) for address in item.addresses if number_of(address))
    export = ("export", f"HCCL_IF_IP={good[0]}") if good else ()
    fix = fix_for("network.if-ip", export, addresses=good) if good else fix_for("network.if-ip-none")
    if number_of(setting) is None and not re.fullmatch(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*", setting):
        return skip("network.if-ip-unreadable")  # session.hccl reports it
    owner = next((item for item in interfaces if setting in item.addresses), None)
    if owner is None:
        rows = context.facts.network.interfaces.evidence
        return fail("network.if-ip-foreign", line, *rows, fix=fix, setting=setting)
    lines = (line, *_rows(context, owner.name))
    if not owner.is_up:
        return fail("network.if-ip-down", *lines, fix=fix, name=owner.name, state=owner.state)
    if context.spans_nodes and (is_loopback(setting) or INNER.fullmatch(owner.name)):
        return fail("network.if-ip-inner", *lines, fix=fix, setting=setting, name=owner.name)
    return ok("network.if-ip-ok", line, name=owner.name)


def hccl_choice(interfaces: Iterable[Interface]) -> Interface | None:
    """HCCL's default choice: by name, docker's after all others, lo last."""
    return min((item for item in interfaces if item.is_up and item.addresses), key=_rank, default=None)


def _rank(item: Interface) -> tuple[int, str]:
    return (2 if item.name == "lo" else 1 if item.name.startswith("docker") else 0, item.name)


def _hccl_guess(context: Context) -> CheckResult:
    """Without a setting, HCCL's default interface has to be the one that reaches the other nodes."""
    network = context.facts.network
    if context.setting("HCCL_SOCKET_IFNAME") or context.setting("HCCL_IF_IP"):
        return skip("network.guess-told")
    if not context.spans_nodes:
        return skip("network.one-node")
    if network.interfaces.value is None:
        return _unread(context)
    chosen = hccl_choice(network.interfaces.value)
    if chosen is None:
        return skip("network.guess-nothing")
    master, table = network.master.value, network.routes.value or ()
    meeting = set(master.addresses) if master else set()
    ways = {way_to(table, address) for address in meeting if not is_loopback(address)}
    own = {item.name for item in network.interfaces.value if meeting & set(item.addresses)}
    good = sorted(name for name in own or ways if name and name != "lo")
    if good and chosen.name not in good:
        fix = fix_for("network.ifname", ("export", f"HCCL_SOCKET_IFNAME={good[0]}"), names=tuple(good))
        lines = _rows(context, chosen.name, *good)
        return warn("network.guess-wrong", *lines, fix=fix, name=chosen.name, wanted=good[0])
    if not good and INNER.fullmatch(chosen.name):
        lines = _rows(context, chosen.name)
        return warn("network.guess-inner", *lines, fix="network.ifname-none", name=chosen.name)
    return ok("network.guess-ok", *_rows(context, chosen.name), name=chosen.name)


def _ipv6_only(context: Context) -> CheckResult:
    """HCCL uses IPv4 addresses unless HCCL_SOCKET_FAMILY is set."""
    if not context.spans_nodes:
        return skip("network.one-node")
    found = context.facts.network.interfaces.value
    if found is None:
        return _unread(context)
    outer = [address for item in found if _is_good(item) for address in item.addresses]
    family = context.setting("HCCL_SOCKET_FAMILY")
    if outer and not any(number_of(address) for address in outer) and family != "AF_INET6":
        fix = fix_for("network.family", ("export", "HCCL_SOCKET_FAMILY=AF_INET6"))
        return warn("network.ipv6-only", *context.facts.network.interfaces.evidence, fix=fix)
    if family == "AF_INET6" and outer and not any(":" in address for address in outer):
        fix = fix_for("network.family-none", ("unset", "HCCL_SOCKET_FAMILY"))
        return fail("network.ipv6-none", variable(context, "HCCL_SOCKET_FAMILY"), fix=fix)
    return ok("network.family-ok")


CHECKS = (
    card_check("network.hccl-interface", (), _IFNAME, _hccl_interface),
    card_check("network.hccl-address", (), _IFNAME, _hccl_address),
    card_check("network.hccl-guess", (), _IFNAME + "; fault diagnosis, EI0015", _hccl_guess),
    Check("network.gloo-interface", (), "PyTorch distributed, GLOO_SOCKET_IFNAME", _other_interfaces),
    card_check("network.ip-family", (), "hicann/hccl user guide, HCCL_SOCKET_FAMILY", _ipv6_only),
)
