"""Recorded cards for real hosts: npu-smi and hccn_tool that say what a recorded machine says, and the driver's files.

`prepare` once, then `replay` as often as wanted. What a tool says is a file named by its command line, so an edit of
`tests/support/machines/edits.py` changes what it prints. Nothing is written outside a host's namespaces and the test's
folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

from tests.support.machines.simulated import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.namespaces import Machine, Machines

TOOLS = ("npu-smi", "hccn_tool")
_DRIVER_TOOLS = "usr/local/Ascend/driver/tools"
_FILES = ("/etc/hccn.conf", "/etc/ascend_install.info", "/usr/local/Ascend/driver/", "/usr/local/Ascend/firmware/")
# All hosts see the same tools: which one they run on tells the kernel.
_TOOL = """#!/bin/sh
read -r host < /proc/sys/kernel/hostname
said="{folder}/$host/said/${{0##*/}} $*"
echo "${{0##*/}} $*" >> "{folder}/$host/asked"
if [ -e "$said" ]; then exec cat "$said"; fi
echo "Command or option is not found."
exit 211
"""
# Folders of the host's own over those of this machine, with links to all that lies beneath: what is added stays there.
_OWN = """set -e
for place in /etc /usr/local; do
    beneath=/run/beneath$place
    mkdir -p "$beneath"
    mount --rbind "$place" "$beneath"
    mount -t tmpfs none "$place"
    for path in "$beneath"/*; do
        if [ -L "$path" ]; then cp -P "$path" "$place/"; else ln -s "$path" "$place/"; fi
    done
done
"""
# A Python whose clock is ahead where it runs what came over ssh; what that starts has the right time.
_AHEAD = """#!{python}
import os, sys, time
right, code, sys.argv = time.time, sys.argv[2], ["-c"]
time.time = lambda: right() + 3600.0
exec(code)
"""


def tools_folder(folder: Path) -> Path:
    """Where the tools of all hosts lie: the first one of their PATH."""
    return folder / "tools"


def prepare(hosts: Machines) -> None:
    """The tools, and for each host a place of its own where the driver's files can be put."""
    tools = tools_folder(hosts.folder)
    tools.mkdir()
    for name in TOOLS:
        _write(tools / name, _TOOL.format(folder=hosts.folder), is_program=True)
    for host in hosts:
        host.run("sh", "-c", _OWN)
    _write(hosts.folder / "python-ahead", _AHEAD.format(python=sys.executable), is_program=True)


def replay(hosts: Machines, host: Machine, told: Mapping[str, Any]) -> None:
    """From now on the host has the cards of this description."""
    folder, tree = hosts.folder / host.name, hosts.folder / host.name / "tree"
    said = folder / "said"
    for place in (said, tree):
        shutil.rmtree(place, ignore_errors=True)
    (folder / "asked").unlink(missing_ok=True)
    said.mkdir()
    for words, text in _answers(told):
        _write(said / words, text)
    for path, text in told["files"].items():
        if path.startswith(_FILES):
            _write(tree / path.lstrip("/"), text)
    _write(tree / _DRIVER_TOOLS / "hccn_tool", (tools_folder(hosts.folder) / "hccn_tool").read_text(), is_program=True)
    # Never on this machine itself: only where both places are the host's own.
    own = "stat -f -c %T /etc /usr/local | grep -c tmpfs"
    host.run("sh", "-c", f'test "$({own})" = 2 && cp -r {shlex.quote(str(tree))}/. /')


def _answers(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The command lines of the tools, and what they print: as recorded, pings by the addresses and links there are."""
    recorded = SimulatedHost(dict(told))
    lines = [line for line in told["commands"] if line.split(" ")[0] in TOOLS]
    cards = [line.split(" ")[2] for line in lines if re.fullmatch(r"hccn_tool -i \d+ -ip -g", line)]
    own = [recorded.run(("hccn_tool", "-i", card, "-ip", "-g")).out.partition("\n")[0] for card in cards]
    addresses = [line.removeprefix("ipaddr:") for line in own]
    pings = [f"hccn_tool -i {card} -ping -g address {address}" for card, address in product(cards, addresses)]
    for line in [*lines, *pings]:
        yield line, recorded.run(line.split(" ")).out


def _write(path: Path, text: str, *, is_program: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if is_program:
        path.chmod(0o755)
