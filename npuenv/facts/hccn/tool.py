"""hccn_tool: where it is, how it refuses, and what it is told: /etc/hccn.conf and the rank table.

The program is a large file, so its folder is listed and links are followed: the file itself is never read.

Its exit status does not decide: one number has several meanings (4: wrong device, wrong count, device missing; 13: no
address, or not for this product), some failures exit 0, and some failure texts go to stdout. So the text is read
first. Exit 0 with nothing on stdout is a failure.

A rank table:

{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [{"server_id": "node_0",
 "device": [{"device_id": "0", "device_ip": "192.168.1.8", "rank_id": "0"}]}]}
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Any, NamedTuple

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact, file_text, made_of, of_file
from npuenv.host import Host, PathState, Ran

_ESCAPES = r"\x1b\[[0-9;?]*[ -/]*[@-~]"
NOT_ASKED = "not asked after"  # a question of hccn_tool that did not end; followed by why
HCCN_CONF = "/etc/hccn.conf"
_ENTRY = r"([a-z_]+?)_([0-9]+)\s*=\s*(.*)"
VARIABLE = "RANK_TABLE_FILE"
TOOLS = "/usr/local/Ascend/driver/tools"
DRIVER_TOOL = f"{TOOLS}/hccn_tool"
LINKED_TOOL = "/usr/bin/hccn_tool"  # images often lack this link


def lines_of(text: str) -> list[str]:
    """The lines that are not empty, in order."""
    plain = re.sub(_ESCAPES, "", text) if "\x1b" in text else text
    return [line for line in map(str.strip, plain.splitlines()) if line]


def is_address(text: str) -> bool:
    """Whether it is an IPv4 or IPv6 address."""
    import ipaddress  # some milliseconds that only machines with something to read pay

    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


class HccnRefusal(enum.Enum):
    """Ways in which the tool does not answer."""

    BUSY = "busy"  # another one runs: it refuses to run twice at a time
    PERMISSION = "permission"
    GRAMMAR = "grammar"  # the words of the other family of tools
    DEVICE = "device"  # no such card
    UNSUPPORTED = "unsupported"  # not on this product
    NOT_SET = "not-set"  # nothing was configured: no address, no certificate, no gateway
    NO_ANSWER = "no-answer"  # the card does not answer, or the tool ran out of time
    NOT_INSTALLED = "not-installed"  # the shell's words, or the loader's
    FAILED = "failed"  # without a reason


class RefusedAnswer(NamedTuple):
    """A refusal with the line that says it."""

    kind: HccnRefusal
    line: str


_TEXTS = (
    ("is busy, please try again", HccnRefusal.BUSY),
    ("traceroute is running", HccnRefusal.BUSY),
    ("permission denied", HccnRefusal.PERMISSION),
    ("get invalid major cmd type", HccnRefusal.GRAMMAR),
    ("please specify a valid mode", HccnRefusal.GRAMMAR),
    ("get invalid device id", HccnRefusal.DEVICE),
    ("not supported on this product", HccnRefusal.UNSUPPORTED),
    (" was preset there", HccnRefusal.NOT_SET),
    ("no certificate found", HccnRefusal.NOT_SET),
    ("get device health status failed", HccnRefusal.NO_ANSWER),
    ("error while loading shared libraries", HccnRefusal.NOT_INSTALLED),
    ("command not found", HccnRefusal.NOT_INSTALLED),
    ("command execute failed", HccnRefusal.FAILED),
    ("cmd execute failed", HccnRefusal.FAILED),
)
# What a text-less status means for one item alone: its own argv is right, so the other meanings fall away.
_STATUSES = {
    ("gateway", 2): HccnRefusal.NOT_SET,
    ("ip", 13): HccnRefusal.NOT_SET,
    ("tls", 14): HccnRefusal.NOT_SET,
    ("optical", 20): HccnRefusal.NOT_SET,
}


@functools.lru_cache(maxsize=512)  # eight cards say the same
def refusal(text: str) -> RefusedAnswer | None:
    """The failure that a text states, by its words alone; None for a text that states none."""
    for line in lines_of(text):
        lower = line.lower()
        for words, kind in _TEXTS:
            if words in lower:
                return RefusedAnswer(kind, line)
    return None


def refused(ran: Ran, item: str = "") -> RefusedAnswer | None:
    """How a command of the tool failed, None when it did not. `item` is what was asked for: ip, tls, ..."""
    if ran.timed_out:
        return RefusedAnswer(HccnRefusal.NO_ANSWER, "timed out")
    if ran.is_absent:
        return RefusedAnswer(HccnRefusal.NOT_INSTALLED, ran.err.strip() or "no such program")
    said = refusal(ran.err) or refusal(ran.out)
    if said is not None:
        return said
    lines = lines_of(ran.err) or lines_of(ran.out)
    line = lines[0] if lines else f"exit {ran.code}"
    if (item, ran.code) in _STATUSES:
        return RefusedAnswer(_STATUSES[item, ran.code or 0], line)
    if ran.code == 127:
        return RefusedAnswer(HccnRefusal.NOT_INSTALLED, line)
    return None if lines_of(ran.out) else RefusedAnswer(HccnRefusal.FAILED, line)


class HccnConf(NamedTuple):
    """/etc/hccn.conf: `key_<physical id>=value`. A line that is missing means the device's default."""

    by_device: dict[int, dict[str, str]]
    unreadable_lines: tuple[str, ...]


@of_file(HCCN_CONF)
def hccn_conf(text: str) -> Fact[HccnConf]:
    """The file's entries by device; absent where there is no file (a container sees it only when it is mounted)."""
    by_device: dict[int, dict[str, str]] = {}
    bad = []
    for line in (line.strip() for line in text.splitlines()):
        match = re.fullmatch(_ENTRY, line)
        if match:
            by_device.setdefault(int(match[2]), {})[match[1]] = match[3].strip()
        elif line and not line.startswith("#"):
            bad.append(line)
    if bad and not by_device:
        return unknown(Evidence(HCCN_CONF, bad[0]))
    return known(HccnConf(by_device, tuple(bad)), Evidence(HCCN_CONF, f"{len(by_device)} devices"))


class ConfDevice(NamedTuple):
    """One card of the table; None stands where its line has no number."""

    card: int | None
    ip: str  # "": left out, which one server alone may do
    rank: int | None
    super_id: str  # "" where it is left out; version 1.2 needs it


class Server(NamedTuple):
    """One server: a name of the table's own, or its address."""

    id: str
    devices: tuple[ConfDevice, ...]


class RankTable(NamedTuple):
    """The table. `trouble` says why it is none: it is no JSON, or has no list of servers; then the rest is empty."""

    path: str
    status: str
    version: str
    server_count: str
    servers: tuple[Server, ...]
    trouble: str = ""


def ranks(host: Host) -> Fact[RankTable]:
    """The table of the session; absent where none is named, or where the named file is not there."""
    path = host.environ().get(VARIABLE, "").strip()
    if not path:
        return absent(Evidence("environment", f"{VARIABLE} is not set"))

    def told(text: str) -> Fact[RankTable]:
        found = parse(path, text)
        return known(found, Evidence(path, found.trouble or f"version {found.version}, {len(found.servers)} servers"))

    return made_of(file_text(host, path), told)


def parse(path: str, text: str) -> RankTable:
    """The table in a text, or what keeps it from being one."""
    try:
        document = parse_json(text)
    except JsonError as error:
        return RankTable(path, "", "", "", (), str(error)[:120])
    servers = document.get("server_list") if isinstance(document, dict) else None
    if not isinstance(servers, list):
        return RankTable(path, "", "", "", (), "no server_list")
    status, version, count = (_text(document.get(key)) for key in ("status", "version", "server_count"))
    return RankTable(path, status, version, count, tuple(_server(item) for item in servers if isinstance(item, dict)))


def _server(document: dict[str, Any]) -> Server:
    listed = document.get("device")
    rows = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    devices = (
        ConfDevice(
            _number(row.get("device_id")),
            _text(row.get("device_ip")),
            _number(row.get("rank_id")),
            _text(row.get("super_device_id")),
        )
        for row in rows
    )
    return Server(_text(document.get("server_id")), tuple(devices))


def _text(value: object) -> str:
    return str(value).strip() if isinstance(value, (str, int)) else ""


def _number(value: object) -> int | None:
    text = _text(value)
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


class HccnTool(NamedTuple):
    """The tool that is used. It can be there and yet not be found by its name."""

    path: str
    is_linked: bool  # also found as `hccn_tool` by a shell


def hccn_tool(host: Host) -> Fact[HccnTool]:
    """The tool of the driver's folder, or that to which /usr/bin links; absent where there is neither."""
    folder, link = host.look(TOOLS), host.run(("readlink", LINKED_TOOL))
    is_linked = link.code == 0
    if "hccn_tool" in folder.names:
        return known(HccnTool(DRIVER_TOOL, is_linked), Evidence(TOOLS, "hccn_tool"))
    if is_linked and link.out.strip() != DRIVER_TOOL:
        return known(HccnTool(LINKED_TOOL, True), Evidence(f"readlink {LINKED_TOOL}", link.out.strip()))
    if folder.state is PathState.UNREADABLE:
        return unknown(Evidence(TOOLS, folder.error))
    why = "hccn_tool is not in it" if folder.state is PathState.FOLDER else folder.state.value
    dangling = (Evidence(f"readlink {LINKED_TOOL}", f"{link.out.strip()}, which is not there"),) if is_linked else ()
    return absent(Evidence(TOOLS, why), *dangling)


class ConfFacts(FactGroup):
    conf: Fact[HccnConf] = fact(hccn_conf)
    rank_table: Fact[RankTable] = fact(ranks)  # what RANK_TABLE_FILE names
    tool: Fact[HccnTool] = fact(hccn_tool)
