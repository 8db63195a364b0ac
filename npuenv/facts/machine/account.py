"""Who this session is: numbers, names, groups, and what the kernel lets it do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import file_text, why_failed

if TYPE_CHECKING:
    from npuenv.host.base import Host

DRIVER_GROUP = "HwHiAiUser"  # owns the device nodes; created by the driver's installer
_NUMBER = r"([0-9]+)(?:\(([^()]*)\))?"
_ID = re.compile(
    rf"uid={_NUMBER} gid={_NUMBER}(?: euid={_NUMBER})?(?: egid={_NUMBER})?(?: groups=(\S.*?))?(?: context=\S+)?\s*$",
    re.MULTILINE,
)
_GROUP = re.compile(_NUMBER)
_STATUS = "/proc/self/status"


@dataclass(frozen=True, slots=True)
class Account:
    """The effective user. A name is None where the number has no entry in the user or group database."""

    uid: int
    gid: int
    name: str | None
    groups: tuple[int, ...]  # all of them, the primary one included
    group_names: tuple[str, ...]  # of those that have an entry

    @property
    def is_root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True, slots=True)
class Privileges:
    """What the kernel grants beyond the account."""

    capabilities: int  # the effective set, as its bits
    is_filtered: bool | None  # seccomp sorts out system calls; None: the kernel does not say
    is_sealed: bool | None  # no-new-privs: neither sudo nor setuid programs work


def account(host: Host) -> Fact[Account]:
    """The account from `id`, as `uid=1000(bob) gid=1000(bob) groups=1000(bob),1001(HwHiAiUser)`."""
    ran = host.run(("id",))
    found = _ID.search(ran.out)
    if found is None:
        return (absent if ran.is_absent else unknown)(Evidence("id", why_failed(ran)))
    uid, name, gid, group, euid, ename, egid, egroup, listed = found.groups()
    if euid is not None:
        uid, name = euid, ename
    if egid is not None:
        gid, group = egid, egroup
    rows = [(int(number), word) for number, word in _GROUP.findall(listed or "")] or [(int(gid), group or "")]
    numbers = tuple(dict.fromkeys([int(gid), *(number for number, _ in rows)]))
    names = tuple(dict.fromkeys(word for _, word in rows if word))
    return known(Account(int(uid), int(gid), name or None, numbers, names), Evidence("id", found.group().strip()))


def driver_group(host: Host) -> Fact[int]:
    """The number of the driver's group on this system; absent where it has none of that name."""
    argv = ("getent", "group", DRIVER_GROUP)
    ran = host.run(argv)
    found = re.search(rf"^{DRIVER_GROUP}:[^:\n]*:([0-9]+):", ran.out, re.MULTILINE)
    if found:
        return known(int(found.group(1)), Evidence(" ".join(argv), f"{DRIVER_GROUP}:{found.group(1)}"))
    return (absent if ran.code == 2 else unknown)(Evidence(" ".join(argv), why_failed(ran)))


def privileges(host: Host) -> Fact[Privileges]:
    """Capabilities and filters of this process, from /proc/self/status."""
    text = file_text(host, _STATUS)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]{8,16})\s*$", text.value, re.MULTILINE)
    if effective is None:
        return unknown(Evidence(_STATUS, "no CapEff"))
    value = Privileges(int(effective.group(1), 16), _switch(text.value, "Seccomp"), _switch(text.value, "NoNewPrivs"))
    return known(value, Evidence(_STATUS, " ".join(effective.group().split())))


def _switch(text: str, name: str) -> bool | None:
    found = re.search(rf"^{name}:\s*([0-9]+)\s*$", text, re.MULTILINE)
    return None if found is None else found.group(1) != "0"
