"""The NPU driver and its cards as a host shows them: version files, npu-smi, device nodes, a container's mounts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.base import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.read import file_text, line_with, pairs, why_failed
from npuenv.facts.smi import SmiTable, SmiTrouble, Trouble, parse_info
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

ROOT = "/usr/local/Ascend"
INSTALL_INFO = "/etc/ascend_install.info"
SMI_TIMEOUT_S = 20.0  # npu-smi hangs when the driver is sick
_SMI_PLACES = ("npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
_PCI_ROW = re.compile(r"^(\S+) (?:Class )?([0-9a-f]{4}): (19e5):([0-9a-f]{4})", re.MULTILINE | re.IGNORECASE)
_MANAGERS = (("/dev/davinci_manager",), ("/dev/devmm_svm", "/dev/svm0"), ("/dev/hisi_hdc",))


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A `version.info` of the driver or the firmware."""

    version: str
    path: str
    compatible_firmware: str  # `compatible_version_fw` of the driver, "" where it is not said


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. Openable is what permissions and the device cgroup say; a sandbox may still refuse."""

    path: str
    is_openable: bool
    why_not: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """The device nodes of the NPUs and of their managers."""

    cards: tuple[Node, ...]
    managers: tuple[Node, ...]
    missing_managers: tuple[str, ...]


def driver(host: Host) -> Fact[VersionInfo]:
    """The driver's version file, at the place that the installer recorded or at the usual one."""
    return _version_info(host, "driver")


def firmware(host: Host) -> Fact[VersionInfo]:
    """The firmware's version file; containers rarely have it."""
    return _version_info(host, "firmware")


def install_info(host: Host) -> Fact[dict[str, str]]:
    """What the driver's installer wrote to /etc/ascend_install.info."""
    text = file_text(host, INSTALL_INFO)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    fields = pairs(text.value)
    return known(fields, *text.evidence) if fields else unknown(*text.evidence)


def smi(host: Host) -> tuple[Fact[SmiTable], Fact[SmiTrouble]]:
    """The card table, and the trouble instead of it. No program: both absent. A trouble: the table is unknown."""
    command = "npu-smi info"
    for place in _SMI_PLACES:
        ran = host.run((place, "info"), timeout_s=SMI_TIMEOUT_S)
        if not ran.is_absent:
            break
    else:
        where = Evidence(command, f"not found: {', '.join(_SMI_PLACES)}")
        return absent(where), absent(where)
    if ran.timed_out:
        line = f"no end after {SMI_TIMEOUT_S:.0f} s"
        return unknown(Evidence(command, line)), known(SmiTrouble(Trouble.TIMEOUT, line), Evidence(command, line))
    read = parse_info(ran.out + ("\n" + ran.err if ran.err else ""))
    if isinstance(read, SmiTrouble):
        line = read.line or why_failed(ran)
        return unknown(Evidence(command, line)), known(read, Evidence(command, line))
    evidence = Evidence(command, read.title)
    return known(read, evidence), absent(evidence)


def nodes(host: Host) -> Fact[Nodes]:
    """The device nodes; known also when there is none, unknown when /dev cannot be listed."""
    folder = host.look("/dev")
    if folder.state is not PathState.FOLDER:
        return unknown(Evidence("/dev", folder.error or folder.state.value))
    numbers = sorted(int(name[7:]) for name in folder.names if re.fullmatch(r"davinci[0-9]+", name))
    cards = tuple(_node(host, f"/dev/davinci{number}") for number in numbers)
    found, missing = [], []
    for choices in _MANAGERS:
        path = next((path for path in choices if path.removeprefix("/dev/") in folder.names), None)
        if path is None:
            missing.append(choices[0])
        else:
            found.append(_node(host, path))
    listed = [node.path for node in (*cards, *found)]
    return known(Nodes(cards, tuple(found), tuple(missing)), Evidence("ls /dev", " ".join(listed) or "no davinci node"))


def pci_devices(host: Host) -> Fact[tuple[str, ...]]:
    """Device ids of Huawei's processing accelerators on the PCI bus, like ("d802", "d802"); absent without lspci."""
    ran = host.run(("lspci", "-n", "-d", "19e5:"))
    command = "lspci -n -d 19e5:"
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    if ran.code != 0:
        return unknown(Evidence(command, why_failed(ran)))
    ids = tuple(found[3].lower() for found in _PCI_ROW.findall(ran.out) if found[1] == "1200")
    return known(ids, Evidence(command, f"{len(ids)} of class 1200: {' '.join(sorted(set(ids)))}".rstrip(": ")))


def modules(host: Host) -> Fact[tuple[str, ...]]:
    """Names of loaded kernel modules that look like the NPU driver's. Containers often show none."""
    text = file_text(host, "/proc/modules")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    names = [line.split(" ", 1)[0] for line in text.value.splitlines()]
    ours = tuple(sorted(name for name in names if re.search(r"davinci|devmm|ascend|drv_pcie|drv_seclib", name)))
    return known(ours, Evidence("/proc/modules", " ".join(ours) or "no driver module"))


def libraries(host: Host) -> Fact[tuple[str, ...]]:
    """Which folders of driver libraries are there; a container gets them by mounts."""
    info = install_info(host).value or {}
    root = info.get("Driver_Install_Path_Param") or ROOT
    wanted = [f"{root}/driver/lib64/{part}" for part in ("common", "driver")] + ["/usr/local/dcmi"]
    there = tuple(path for path in wanted if host.look(path).state is PathState.FOLDER)
    evidence = tuple(Evidence(path, "present" if path in there else "absent") for path in wanted)
    return known(there, *evidence) if there else absent(*evidence)


def _version_info(host: Host, part: str) -> Fact[VersionInfo]:
    info = install_info(host).value or {}
    root = info.get(f"{part.capitalize()}_Install_Path_Param") or ROOT
    tried: list[Evidence] = []
    for path in dict.fromkeys((f"{root}/{part}/version.info", f"{ROOT}/{part}/version.info")):
        text = file_text(host, path)
        tried += text.evidence
        if text.value is None:
            if text.state is State.UNKNOWN:
                return unknown(*tried)
            continue
        fields = pairs(text.value)
        version = fields.get("Version", "")
        if not re.fullmatch(r"[0-9]+(\.[0-9A-Za-z]+)+", version):
            return unknown(Evidence(path, line_with(text.value, "Version") or text.evidence[0].line))
        value = VersionInfo(version, path, fields.get("compatible_version_fw", ""))
        return known(value, Evidence(path, line_with(text.value, "Version")))
    return absent(*tried)


def _node(host: Host, path: str) -> Node:
    looked = host.look(path)
    is_openable = looked.state is PathState.DEVICE and looked.is_writable
    return Node(path, is_openable, "" if is_openable else looked.error or looked.state.value)
