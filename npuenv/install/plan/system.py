"""The system packages that a stack needs and this machine lacks.

Stacks use the package names of Debian and Ubuntu; names that differ elsewhere are in `matrix/system_packages.toml`.
Nothing is installed without consent; without it, the missing packages are reported with the command to install them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.core.plan import Condition, Run, Step
from npuenv.facts import machine as machine_facts
from npuenv.facts.conditions import missing_packages
from npuenv.host.base import Host, PathState
from npuenv.install.plan.prerequisites import NONE, Prerequisites, as_lines, as_root, privilege_of
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

# Ids of /etc/os-release. ID_LIKE is ignored, because package names of unknown systems must not be guessed.
_DEBIANS = ("ubuntu", "debian")
_RPMS = ("openeuler", "centos", "rhel", "fedora", "rocky", "almalinux", "kylin", "anolis", "hce", "euleros", "bclinux")
_LOCK_WAIT_S = 120  # another installation, often the nightly one, may hold apt's lock


@dataclass(frozen=True, slots=True)
class PackageManager:
    """A machine's package manager, and the stack's packages that it lacks."""

    name: str  # for messages
    database: str  # dpkg | rpm; "": unknown
    installer: str  # apt-get | dnf | yum
    missing: tuple[str, ...]  # with their names on this system
    is_known: bool  # False: the database could not be read, and `missing` holds all packages
    privilege: str  # root | sudo | none


def look_at_system(host: Host, stack: Stack) -> PackageManager:
    """The stack's system packages that this machine lacks; on an unknown system all of them."""
    found = machine_facts.system(host)
    identity = found.value.id.casefold() if found.value else ""
    name = found.value.name if found.value else "Linux"
    if identity in _DEBIANS:
        database, installer, wanted = "dpkg", "apt-get", stack.system_packages
    elif identity in _RPMS:
        database, wanted = "rpm", load_matrix().dnf_names(stack.system_packages)
        installer = "dnf" if host.look("/usr/bin/dnf").state is PathState.FILE else "yum"
    else:
        return PackageManager(name, "", "", stack.system_packages, False, NONE)
    if not wanted:
        return PackageManager(name, database, installer, (), True, NONE)
    missing = missing_packages(host, database, wanted)
    if missing.value is None:
        return PackageManager(name, database, installer, tuple(wanted), False, privilege_of(host))
    return PackageManager(name, database, installer, missing.value, True, privilege_of(host) if missing.value else NONE)


def system_steps(stack: Stack, machine: PackageManager, *, is_allowed: bool) -> Prerequisites:
    """The step that installs missing packages, if that is allowed and possible; else a note with the command."""
    if not machine.missing:
        return Prerequisites()
    args = {"packages": machine.missing, "system": machine.name}
    if not machine.database:
        return Prerequisites(notes=(Message("plan.system-stranger", args),))
    runs = _runs(machine)
    if is_allowed and machine.privilege != NONE:
        want = Condition("system.packages", (machine.database, *machine.missing), "installed")
        why = Message("plan.why-system", {**args, "stack": stack.name})
        do = tuple(as_root(run, machine.privilege) for run in runs)
        return Prerequisites((Step("system", why, do, (want,), needs_root=True, needs_network=True),))
    key = "plan.system-administrator" if machine.privilege == NONE else "plan.system-missing"
    key = key if machine.is_known else "plan.system-unknown"
    return Prerequisites(notes=(Message(key, {**args, "command": as_lines(runs)}),))


def _runs(machine: PackageManager) -> tuple[Run, ...]:
    if machine.installer == "apt-get":
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        wait = ("-o", f"DPkg::Lock::Timeout={_LOCK_WAIT_S}")
        install = ("install", "-y", "--no-install-recommends", *machine.missing)
        return (Run(("apt-get", *wait, "update")), Run(("apt-get", *wait, *install), quiet))
    weak = ("--setopt=install_weak_deps=False",) if machine.installer == "dnf" else ()
    return (Run((machine.installer, "install", "-y", *weak, *machine.missing)),)
