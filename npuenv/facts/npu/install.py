"""How the driver came to be here: what its installer said, and whether it was changed after the machine started.

The installer's log has one line per event:

    [Driver] [2025-12-24 14:55:18] [INFO]Driver package installed successfully! The new version takes effect ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.npu.text import plain_lines
from npuenv.facts.read import file_text, why_failed

if TYPE_CHECKING:
    from npuenv.host.base import Host

LOG = "/var/log/ascend_seclog/ascend_install.log"
_LINE = re.compile(r"\[(Driver|Firmware)\] (?:\[[^\]]*\] )?\[(INFO|WARNING|ERROR)\]\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Changed:
    """When the kernel started and when the driver's version file was last written, in seconds since 1970."""

    booted_s: int
    written_s: int

    @property
    def is_after_boot(self) -> bool:
        return self.written_s > self.booted_s


@dataclass(frozen=True, slots=True)
class Installer:
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
        return (
            unknown(Evidence("/proc/stat", "no btime"))
            if boot.value is not None
            else Fact(boot.state, None, boot.evidence)
        )
    ran = host.run(("stat", "-c", "%Y", version_file))
    command = f"stat -c %Y {version_file}"
    if ran.is_absent:
        return absent(Evidence(command, "not found"))
    written = re.fullmatch(r"(\d{1,12})\s*", ran.out)
    if ran.code != 0 or written is None:
        return unknown(Evidence(command, why_failed(ran)))
    return known(
        Changed(int(found[1]), int(written[1])),
        Evidence("/proc/stat", found[0]),
        Evidence(command, written[1]),
    )


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
        found = _LINE.search(line)
        if found and "Start time:" in found[3]:
            run = []
        if found:
            run.append((found[1].lower(), found[2], found[3].strip()))
    if not run:
        return None
    return _judge(run)


def _judge(run: list[tuple[str, str, str]]) -> Installer:
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
