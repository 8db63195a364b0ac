"""How the system's OpenSSH client is called for a node, and what its error texts mean. Start from `argv_for`.

The user's configuration holds: names, keys, users, ports, jump hosts. What it may not do: ask questions, take a key
that is not known, hand the agent on, leave a connection open behind us, or keep silent about what went wrong.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.cluster.types import NO_JUMP, Trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.cluster.types import Node

OWN_ERROR = 255  # ssh's exit code for what went wrong with itself
_NOT_FOUND = (126, 127)  # a shell's exit codes for a program that is not there, or cannot be run
_SETTINGS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"),
    # A connection that the user keeps open is used; none is left open by us.
    *("ControlMaster=no", "PermitLocalCommand=no", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    # ssh's usual one. Below it, at ERROR, it does not say "Connection closed by" or "no matching host key type".
    "LogLevel=INFO",
)
_ASK_S = 5.0  # for the client to say how it is set; it connects to nobody
# In this order: a text that names two reasons is about the first.
_TROUBLES = (
    (Trouble.CLIENT, r"Bad configuration option|Bad owner or permissions on|terminating, \d+ bad configuration"),
    (Trouble.CLIENT, r"Can't open user config file|command-line: line \d+|^usage: ssh|percent_expand"),
    (Trouble.CLIENT, r"Cannot execute command-line and remote command"),  # RemoteCommand in the configuration
    (Trouble.NOT_FOUND, r"Could not resolve hostname|Name or service not known|nodename nor servname"),
    (Trouble.HOST_KEY, r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known for"),
    (Trouble.HOST_KEY, r"host key for .* has changed|Host key .* is revoked|no matching host key type"),
    (Trouble.DENIED, r"Permission denied \(|Too many authentication failures|No supported authentication methods"),
    (Trouble.DENIED, r"Authentication failed|Received disconnect from .*: \d+: (?:.* not allowed|Auth)"),
    (Trouble.REFUSED, r"port \d+: Connection refused|: Connection refused\s*$"),
    (
        Trouble.UNREACHABLE,
        r"No route to host|Network is unreachable|Host is down|port \d+: (?:Connection|Operation) timed",
    ),
    (Trouble.UNREACHABLE, r"stdio forwarding failed|open failed: connect failed"),
    (Trouble.TIMED_OUT, r"timed out during banner exchange|Connection to .* port \d+ timed out"),
    (Trouble.TIMED_OUT, r"Timeout, server .* not responding"),
)
_PATTERNS = tuple((trouble, re.compile(text, re.MULTILINE)) for trouble, text in _TROUBLES)


@dataclass(frozen=True, slots=True)
class Options:
    """How the client is used for all nodes."""

    config: str | None = None  # a configuration instead of the user's own; None: the user's
    connect_s: int = 10  # how long it may take to reach a node
    settings: tuple[str, ...] = ()  # more of `-o`, before ours, so that they win


def argv_for(
    node: Node, command: Sequence[str], client: Sequence[str] = ("ssh",), options: Options | None = None
) -> list[str]:
    """The client's command line for one node; the remote shell gets the command's words as they are."""
    options = options or Options()
    argv = [*client, *_common(options)]
    if node.address != node.name:
        # A percent sign stands before the interface of a link-local address; ssh would take it for one of its own.
        argv += ["-o", f"HostName={node.address.replace('%', '%%')}"]
    if node.user:
        argv += ["-l", node.user]
    if node.port:
        argv += ["-p", str(node.port)]
    if node.jump:
        way = NO_JUMP if node.jump == NO_JUMP else _proxy(node.jump, client, options)
        argv += ["-o", f"ProxyCommand={way}"]
    return [*argv, "-T", "--", node.name, _shell(command)]


def trouble_of(code: int | None, err: str, command: Sequence[str]) -> Trouble | None:
    """Why a command has no exit code of its own, from the client's code and texts; None: it has one.

    ssh's own errors have the code 255, which a command may have too: then the texts decide, and without one that is
    known the connection counts as broken.
    """
    if code is None or code < 0:
        return Trouble.BROKEN
    if code == OWN_ERROR:
        return next((trouble for trouble, pattern in _PATTERNS if pattern.search(err)), Trouble.BROKEN)
    if code in _NOT_FOUND and command and "python" in command[0].rpartition("/")[2]:
        return Trouble.NO_PYTHON
    return None


def deciding_line(err: str) -> str:
    """The line of the client's texts that says what happened; "" where there is none."""
    lines = [line.strip() for line in err.splitlines() if line.strip() and not _is_decoration(line)]
    for _, pattern in _PATTERNS:
        for line in lines:
            if pattern.search(line):
                return line.strip("@ ")  # of the frame around a warning
    return lines[-1] if lines else ""


def keeps_keys(node: Node, client: Sequence[str] = ("ssh",), options: Options | None = None) -> bool:
    """Whether the client has a file for host keys, for the node and each jump host that is named for it.

    `UserKnownHostsFile /dev/null` makes every key an unknown one. Where the client does not say, it has one.
    """
    hops = [hop.rpartition("@")[2].partition(":")[0] for hop in (node.jump or "").split(",") if hop]
    return all(_has_file_for_keys(name, client, options or Options()) for name in (node.name, *hops))


def _has_file_for_keys(name: str, client: Sequence[str], options: Options) -> bool:
    """`ssh -G` of OpenSSH 9.2 prints `userknownhostsfile /root/.ssh/known_hosts /root/.ssh/known_hosts2`."""
    argv = [*client, *_common(options), "-G", "--", name]
    try:
        ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    found = re.search(rb"^userknownhostsfile (.+)$", ran.stdout, re.MULTILINE)
    return found is None or any(file not in (b"/dev/null", b"none") for file in found[1].split())


def _common(options: Options) -> list[str]:
    argv = ["-F", options.config] if options.config else []
    for setting in (*options.settings, *_SETTINGS, f"ConnectTimeout={options.connect_s}"):
        argv += ["-o", setting]
    return argv


def _shell(command: Sequence[str]) -> str:
    """The words as the remote shell gets them: quoted, but for the home at the front of the program's path."""
    home = re.match(r"~[A-Za-z0-9_.-]*/", command[0]) if command else None
    if home is None:
        return shlex.join(command)
    return home[0] + shlex.join([command[0][home.end() :], *command[1:]])


def _proxy(jump: str, client: Sequence[str], options: Options) -> str:
    """The command that leads through the jump hosts.

    Each of them is reached with our settings, through the ones before it. `-J` would not pass them on: the keys would
    be checked as the hosts' configuration likes.
    """
    *before, last = jump.split(",")
    user, _, place = last.rpartition("@")
    host, _, port = place.rpartition(":") if re.fullmatch(r"[^:]+:\d+", place) else (place, "", "")
    argv = [*client, *_common(options)]
    # The forwarding that -W is would be cleared as well.
    argv = [word.replace("ClearAllForwardings=yes", "ClearAllForwardings=no") for word in argv]
    argv += [*(["-l", user] if user else []), *(["-p", port] if port else [])]
    argv += ["-o", f"ProxyCommand={_proxy(','.join(before), client, options)}"] if before else []
    return shlex.join(argv).replace("%", "%%") + f" -W '[%h]:%p' -- {shlex.quote(host)}"


def _is_decoration(line: str) -> bool:
    """Whether it is a frame or a greeting, such as the @@@ around a warning."""
    return not re.search(r"\w", line) or line.startswith(("Warning: Permanently added", "Authorized uses only"))
