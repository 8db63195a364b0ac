"""The NPU driver and its cards as a host shows them: version files, npu-smi, device nodes, a container's mounts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.npu.text import plain_lines
from npuenv.facts.read import file_text, line_with, pairs, why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.facts.npu.smi import SmiTable, SmiTrouble
    from npuenv.host.base import Host

ROOT = "/usr/local/Ascend"
INSTALL_INFO = "/etc/ascend_install.info"
SMI_TIMEOUT_S = 20.0  # npu-smi hangs when the driver is sick
SMI_PLACES = ("npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
_PCI_ROW = re.compile(
    r"(?:^|\s)(?P<place>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) "
    r"(?:(?:Class )?1200: 19e5:|Processing accelerators: Huawei[^:]*\bDevice )(?P<device>[0-9a-f]{4})\b",
    re.IGNORECASE,
)
_MANAGERS = (("/dev/davinci_manager",), ("/dev/devmm_svm", "/dev/svm0"), ("/dev/hisi_hdc",))


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A `version.info` of the driver or the firmware."""

    version: str
    path: str
    compatible_firmware: str  # `compatible_version_fw` of the driver, "" where it is not said
    compatible_driver: str = ""  # `compatible_version_drv` of the firmware, "" where it is not said


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


def smi(host: Host, *, timeout_s: float = SMI_TIMEOUT_S) -> Fact[SmiTable | SmiTrouble]:
    """The card table, or the trouble instead of it; absent where there is no such program."""
    command = "npu-smi info"
    for place in SMI_PLACES:
        ran = host.run((place, "info"), timeout_s=timeout_s)
        if not ran.is_absent:
            break
    else:
        return absent(Evidence(command, f"not found: {', '.join(SMI_PLACES)}"))
    # Loaded where there is an npu-smi: a machine without cards needs no parser.
    from npuenv.facts.npu.smi import SmiTable, SmiTrouble, Trouble, parse_info

    if ran.timed_out:
        line = f"no end after {timeout_s:.0f} s"
        return known(SmiTrouble(Trouble.TIMEOUT, line), Evidence(command, line))
    read = parse_info(ran.out + ("\n" + ran.err if ran.err else ""))
    line = read.title if isinstance(read, SmiTable) else read.line or why_failed(ran)
    return known(read, Evidence(command, line))


def table_of(smi: Fact[SmiTable | SmiTrouble]) -> Fact[SmiTable]:
    """The table; unknown where there is a trouble instead."""
    if smi.value is None:
        return Fact(smi.state, None, smi.evidence)
    from npuenv.facts.npu.smi import SmiTable

    return known(smi.value, *smi.evidence) if isinstance(smi.value, SmiTable) else unknown(*smi.evidence)


def trouble_of(smi: Fact[SmiTable | SmiTrouble]) -> Fact[SmiTrouble]:
    """The trouble; absent where there is a table."""
    if smi.value is None:
        return Fact(smi.state, None, smi.evidence)
    from npuenv.facts.npu.smi import SmiTrouble

    return known(smi.value, *smi.evidence) if isinstance(smi.value, SmiTrouble) else absent(*smi.evidence)


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


def pci_rows(host: Host) -> Fact[tuple[tuple[str, str], ...]]:
    """(bus address, device id) of Huawei's NPUs on the PCI bus, like ("0000:c1:00.0", "d802"); absent without lspci.

    NPUs have class 1200 and ids from d000 on. Kunpeng's compression engines share the class: a250 and so on.
    """
    ran = host.run(("lspci", "-n", "-d", "19e5:"))
    command = "lspci -n -d 19e5:"
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    if ran.code != 0:
        return unknown(Evidence(command, why_failed(ran)))
    rows = parse_lspci(ran.out)
    kinds = " ".join(sorted({device for _, device in rows}))
    return known(rows, Evidence(command, f"{len(rows)} of class 1200: {kinds}".rstrip(": ")))


def pci_devices_of(rows: Fact[tuple[tuple[str, str], ...]]) -> Fact[tuple[str, ...]]:
    """The device ids, like ("d802", "d802")."""
    value = None if rows.value is None else tuple(device for _, device in rows.value)
    return Fact(rows.state, value, rows.evidence)


def pci_addresses_of(rows: Fact[tuple[tuple[str, str], ...]]) -> Fact[tuple[str, ...]]:
    """The bus addresses, each with its domain and in small letters."""
    value = None if rows.value is None else tuple(place for place, _ in rows.value)
    return Fact(rows.state, value, rows.evidence)


def parse_lspci(text: str) -> tuple[tuple[str, str], ...]:
    """The NPUs in what `lspci` or `lspci -n` prints."""
    found = [_PCI_ROW.search(line) for line in plain_lines(text)]
    rows = [(_address(row["place"].lower()), row["device"].lower()) for row in found if row]
    return tuple(row for row in rows if row[1] >= "d000")


def _address(place: str) -> str:
    return place if place.count(":") > 1 else f"0000:{place}"


def topology_files(host: Host) -> Fact[tuple[str, ...]]:
    """The names in the driver's folder of board descriptions, which cards of the 950 generation need."""
    info = install_info(host).value or {}
    path = f"{info.get('Driver_Install_Path_Param') or ROOT}/driver/topo"
    looked = host.look(path)
    if looked.state is PathState.FOLDER:
        return known(looked.names, Evidence(path, " ".join(looked.names) or "empty"))
    if looked.state is PathState.ABSENT:
        return absent(Evidence(path, "absent"))
    return unknown(Evidence(path, looked.error or looked.state.value))


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


def library_files(host: Host) -> Fact[dict[str, tuple[str, ...]]]:
    """The libraries in the driver's folders, by folder; absent where there is no such folder."""
    root = (install_info(host).value or {}).get("Driver_Install_Path_Param") or ROOT
    found: dict[str, tuple[str, ...]] = {}
    looked_at: list[Evidence] = []
    for path in (f"{root}/driver/lib64/{part}" for part in ("common", "driver")):
        looked = host.look(path)
        if looked.state is PathState.FOLDER:
            found[path] = tuple(name for name in looked.names if re.search(r"\.so(\.|$)", name))
        looked_at.append(Evidence(path, looked.error or looked.state.value))
    if found:
        return known(found, *looked_at)
    return absent(*looked_at) if all(item.line == PathState.ABSENT.value for item in looked_at) else unknown(*looked_at)


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
        value = VersionInfo(
            version, path, fields.get("compatible_version_fw", ""), fields.get("compatible_version_drv", "")
        )
        return known(value, Evidence(path, line_with(text.value, "Version")))
    return absent(*tried)


def _node(host: Host, path: str) -> Node:
    looked = host.look(path)
    is_openable = looked.state is PathState.DEVICE and looked.is_writable
    return Node(path, is_openable, "" if is_openable else looked.error or looked.state.value)
