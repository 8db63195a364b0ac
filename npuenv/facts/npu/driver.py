"""The NPU driver and its cards as a host shows them: version files, npu-smi, device nodes, a container's mounts.

The installer's log has one line per event:

    [Driver] [2025-12-24 14:55:18] [INFO]Driver package installed successfully! The new version takes effect ...
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import (
    Collector,
    FactGroup,
    fact,
    file_text,
    first_line,
    line_with,
    made_of,
    not_asked,
    not_here,
    of_file,
    pairs,
    plain_lines,
    why_failed,
)
from npuenv.facts.npu.failures import SmiFailure, SmiTrouble
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from npuenv.facts.npu.smi import SmiTable

ROOT = "/usr/local/Ascend"
INSTALL_INFO = "/etc/ascend_install.info"
SMI_PLACES = ("npu-smi", "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
_PCI_ROW = (
    r"(?i)(?:^|\s)(?P<place>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) "
    r"(?:(?:Class )?1200: 19e5:|Processing accelerators: Huawei[^:]*\bDevice )(?P<device>[0-9a-f]{4})\b"
)
_MANAGERS = (("/dev/davinci_manager",), ("/dev/devmm_svm", "/dev/svm0"), ("/dev/hisi_hdc",))
LOG = "/var/log/ascend_seclog/ascend_install.log"
_LINE = r"\[(Driver|Firmware)\] (?:\[[^\]]*\] )?\[(INFO|WARNING|ERROR)\]\s*(.*)$"
VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
_NO_CARDS = ("", "NoDevFiles")


class VersionInfo(NamedTuple):
    """A `version.info` of the driver or the firmware."""

    version: str
    path: str
    compatible_firmware: str  # `compatible_version_fw` of the driver, "" where it is not said
    compatible_driver: str = ""  # `compatible_version_drv` of the firmware, "" where it is not said


class DeviceNode(NamedTuple):
    """A device node. Openable is what permissions and the device cgroup say; a sandbox may still refuse."""

    path: str
    is_openable: bool
    why_not: str


class Nodes(NamedTuple):
    """The device nodes of the NPUs and of their managers."""

    cards: tuple[DeviceNode, ...]  # by number
    managers: tuple[DeviceNode, ...]
    missing_managers: tuple[str, ...]

    @property
    def numbers(self) -> list[int]:
        """The physical numbers of the cards, which a container keeps."""
        return [int(node.path.removeprefix("/dev/davinci")) for node in self.cards]


def version_info(host: Host, part: str) -> Fact[VersionInfo]:
    """The version file of the driver or the firmware, at the place that the installer recorded or at the usual one.

    Containers rarely have that of the firmware.
    """
    tried: list[Evidence] = []
    for path in dict.fromkeys(f"{root}/{part}/version.info" for root in (_root(host, part.capitalize()), ROOT)):
        text = file_text(host, path)
        tried += text.evidence
        if text.state is State.UNKNOWN:
            return unknown(*tried)
        if text.value is None:
            continue
        fields = pairs(text.value)
        key = next((name for name in fields if name.lower() == "version"), "Version")
        version, line = fields.get(key, ""), line_with(text.value, key)
        if not re.fullmatch(r"[0-9]+(\.[0-9A-Za-z]+)+", version):
            return unknown(Evidence(path, line or text.evidence[0].line))
        compatible = (fields.get(f"compatible_version_{name}", "") for name in ("fw", "drv"))
        return known(VersionInfo(version, path, *compatible), Evidence(path, line))
    return absent(*tried)


@of_file(INSTALL_INFO)
def install_info(text: str) -> Fact[dict[str, str]] | None:
    """What the driver's installer wrote to /etc/ascend_install.info."""
    fields = pairs(text)
    return known(fields, Evidence(INSTALL_INFO, first_line(text))) if fields else None


def smi(host: Host, *, timeout_s: float = 20.0) -> Fact[SmiTable | SmiTrouble]:
    """The card table, or the trouble instead of it (it hangs when the driver is sick); absent without the program."""
    command = "npu-smi info"
    for place in SMI_PLACES:
        ran = host.run((place, "info"), timeout_s=timeout_s)
        if not ran.is_absent:
            break
    else:
        return absent(Evidence(command, f"not found: {', '.join(SMI_PLACES)}"))
    # Loaded where there is an npu-smi: a machine without cards needs no parser.
    from npuenv.facts.npu.smi import SmiTable, parse_info

    if ran.timed_out:
        line = f"no end after {timeout_s:.0f} s"
        return known(SmiTrouble(SmiFailure.TIMEOUT, line), Evidence(command, line))
    read = parse_info(ran.out + ("\n" + ran.err if ran.err else ""))
    line = read.title if isinstance(read, SmiTable) else read.line or why_failed(ran)
    return known(read, Evidence(command, line))


def table_of(smi: Fact[SmiTable | SmiTrouble]) -> Fact[SmiTable]:
    """The table; unknown where there is a trouble instead."""
    return made_of(smi, lambda value: None if isinstance(value, SmiTrouble) else known(value, *smi.evidence))


def trouble_of(smi: Fact[SmiTable | SmiTrouble]) -> Fact[SmiTrouble]:
    """The trouble; absent where there is a table."""
    lines = smi.evidence
    return made_of(smi, lambda value: known(value, *lines) if isinstance(value, SmiTrouble) else absent(*lines))


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


def pci_column(rows: Fact[tuple[tuple[str, str], ...]], column: int) -> Fact[tuple[str, ...]]:
    """The bus addresses (0), each with its domain and in small letters, or the device ids (1), like "d802"."""
    return made_of(rows, lambda found: known(tuple(row[column] for row in found), *rows.evidence))


def parse_lspci(text: str) -> tuple[tuple[str, str], ...]:
    """The NPUs in what `lspci` or `lspci -n` prints."""
    found = [re.search(_PCI_ROW, line) for line in plain_lines(text)]
    rows = [(row["place"].lower(), row["device"].lower()) for row in found if row]
    return tuple((place if place.count(":") > 1 else f"0000:{place}", kind) for place, kind in rows if kind >= "d000")


def topology_files(host: Host) -> Fact[tuple[str, ...]]:
    """The names in the driver's folder of board descriptions, which cards of the 950 generation need."""
    path = f"{_root(host, 'Driver')}/driver/topo"
    looked = host.look(path)
    if looked.state is PathState.FOLDER:
        return known(looked.names, Evidence(path, " ".join(looked.names) or "empty"))
    return not_here(looked)


@of_file("/proc/modules")
def modules(text: str) -> Fact[tuple[str, ...]]:
    """Names of loaded kernel modules that look like the NPU driver's. Containers often show none."""
    names = [line.split(" ", 1)[0] for line in text.splitlines()]
    ours = tuple(sorted(name for name in names if re.search(r"davinci|devmm|ascend|drv_pcie|drv_seclib", name)))
    return known(ours, Evidence("/proc/modules", " ".join(ours) or "no driver module"))


def libraries(host: Host) -> Fact[tuple[str, ...]]:
    """Which folders of driver libraries are there; a container gets them by mounts."""
    wanted = [*_library_folders(host), "/usr/local/dcmi"]
    there = tuple(path for path in wanted if host.look(path).state is PathState.FOLDER)
    evidence = tuple(Evidence(path, "present" if path in there else "absent") for path in wanted)
    return known(there, *evidence) if there else absent(*evidence)


def library_files(host: Host) -> Fact[dict[str, tuple[str, ...]]]:
    """The libraries in the driver's folders, by folder; absent where there is no such folder."""
    found: dict[str, tuple[str, ...]] = {}
    looked_at: list[Evidence] = []
    for path in _library_folders(host):
        looked = host.look(path)
        if looked.state is PathState.FOLDER:
            found[path] = tuple(name for name in looked.names if re.search(r"\.so(\.|$)", name))
        looked_at.append(Evidence(path, looked.error or looked.state.value))
    if found:
        return known(found, *looked_at)
    return absent(*looked_at) if all(item.line == PathState.ABSENT.value for item in looked_at) else unknown(*looked_at)


def _root(host: Host, part: str) -> str:
    """Where the installer put the driver or the firmware."""
    return (install_info(host).value or {}).get(f"{part}_Install_Path_Param") or ROOT


def _library_folders(host: Host) -> list[str]:
    return [f"{_root(host, 'Driver')}/driver/lib64/{part}" for part in ("common", "driver")]


def _node(host: Host, path: str) -> DeviceNode:
    looked = host.look(path)
    is_openable = looked.state is PathState.DEVICE and looked.is_writable
    return DeviceNode(path, is_openable, "" if is_openable else looked.error or looked.state.value)


class Changed(NamedTuple):
    """When the kernel started and when the driver's version file was last written, in seconds since 1970."""

    booted_s: int
    written_s: int

    @property
    def is_after_boot(self) -> bool:
        return self.written_s > self.booted_s


class Installer(NamedTuple):
    """The last run of an installer, as its lines tell it."""

    part: str  # driver | firmware
    outcome: str  # installed | failed | unfinished
    needs_reboot: bool | None  # None: it does not say
    missing_tools: tuple[str, ...]
    line: str  # the one that decides


def changed(host: Host, version_file: str) -> Fact[Changed]:
    """Whether the driver was written after the boot. Inside a container both times are the host's."""
    boot = file_text(host, "/proc/stat")
    found = re.search(r"^btime (\d{1,12})$", boot.value or "", re.MULTILINE)
    if found is None:
        return made_of(boot, lambda _: unknown(Evidence("/proc/stat", "no btime")))
    ran = host.run(("stat", "-c", "%Y", version_file))
    command = f"stat -c %Y {version_file}"
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    written = re.fullmatch(r"(\d{1,12})\s*", ran.out)
    if ran.code != 0 or written is None:
        return unknown(Evidence(command, why_failed(ran)))
    value = Changed(int(found[1]), int(written[1]))
    return known(value, Evidence("/proc/stat", found[0]), Evidence(command, written[1]))


def installer(host: Host) -> Fact[Installer]:
    """The last installer run that the log tells of; only root can read it, others get absent."""
    text = file_text(host, LOG)
    if text.value is None:
        denied = any("denied" in item.line for item in text.evidence)
        return absent(*text.evidence) if denied else Fact(text.state, None, text.evidence)
    found = parse_installer(text.value)
    return known(found, Evidence(LOG, found.line)) if found else unknown(Evidence(LOG, "no line of an installer"))


def parse_installer(text: str) -> Installer | None:
    """The last run in an installer's output or log; None where no line of one can be read."""
    run: list[tuple[str, str, str]] = []
    for line in plain_lines(text):
        found = re.search(_LINE, line)
        if found and "Start time:" in found[3]:
            run = []
        if found:
            run.append((found[1].lower(), found[2], found[3].strip()))
    if not run:
        return None
    part = run[-1][0]
    done = next((words for _, _, words in run if "installed successfully" in words), None)
    error = next((words for _, kind, words in run if kind == "ERROR"), None)
    listed = re.search(r"list of missing tools:\s*(.*)", error or "")
    tools = tuple(re.findall(r"[\w.+-]+", listed[1])) if listed else ()
    if error is not None:
        return Installer(part, "failed", None, tools, error)
    if done is None:
        return Installer(part, "unfinished", None, (), run[-1][2])
    words = done.lower()
    needs = True if "reboot" in words else False if "takes effect immediately" in words else None
    return Installer(part, "installed", needs, (), done)


def visible(environment: Mapping[str, str], count: int) -> int | None:
    """How many of `count` cards a session sees; None where the variable cannot be read."""
    value = environment.get(VARIABLE)
    if value is None:
        return count
    if value.strip() in _NO_CARDS:
        return 0
    words = {word.strip() for word in value.split(",")}
    if not all(word.isascii() and word.isdecimal() for word in words):
        return None
    return sum(int(word) < count for word in words)


def without_table(table: Fact[SmiTable], trouble: Fact[SmiTrouble]) -> Fact[Any]:
    """A fact about listed cards where nothing is listed: a consequence of what npu-smi says."""
    return absent(*table.evidence) if trouble.is_known else Fact(table.state, None, table.evidence)


def _smi(host: Collector) -> Fact[SmiTable | SmiTrouble]:
    return smi(host, timeout_s=host.timeout(4.0, 20.0))


def _installer(host: Collector, table: Fact[SmiTable], trouble: Fact[SmiTrouble]) -> Fact[Installer]:
    if not trouble.is_known and table.state is not State.ABSENT:
        return absent(Evidence(LOG, "not looked at"))
    return installer(host) if host.level else not_asked(1)


class DriverFacts(FactGroup):
    driver: Fact[VersionInfo] = fact(lambda host: version_info(host, "driver"))
    firmware: Fact[VersionInfo] = fact(lambda host: version_info(host, "firmware"))
    install_info: Fact[dict[str, str]] = fact(install_info)
    driver_libraries: Fact[tuple[str, ...]] = fact(libraries)
    library_files: Fact[dict[str, tuple[str, ...]]] = fact(library_files)
    topology_files: Fact[tuple[str, ...]] = fact(topology_files)
    modules: Fact[tuple[str, ...]] = fact(modules)
    pci_devices: Fact[tuple[str, ...]] = fact(lambda host: pci_column(host.shared(pci_rows), 1))
    pci_addresses: Fact[tuple[str, ...]] = fact(lambda host: pci_column(host.shared(pci_rows), 0))
    nodes: Fact[Nodes] = fact(nodes)
    smi: Fact[SmiTable] = fact(lambda host: table_of(host.shared(_smi)))
    smi_trouble: Fact[SmiTrouble] = fact(lambda host: trouble_of(host.shared(_smi)))
    # Whether the driver was written after the boot.
    changed: Fact[Changed] = fact(
        lambda host, driver: made_of(driver, lambda value: changed(host, value.path) if host.level else not_asked(1)),
        "npu.driver",
    )
    # Asked only where the driver does not answer.
    installer: Fact[Installer] = fact(_installer, "npu.smi", "npu.smi_trouble")
