"""The command line of the system's OpenSSH client for a node, and the meaning of its error messages.

The user's configuration applies: names, keys, users, ports, jump hosts. Always off: prompts, unknown host keys, agent
forwarding, new shared connections, and quiet logging.
"""

from __future__ import annotations

import enum
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.cluster.inventory import NO_JUMP, Node
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeFailure(enum.Enum):
    """Why there is no result of a command. An error that the command itself prints is a result."""

    UNREACHABLE = "unreachable"  # no route, or no response from the address
    REFUSED = "refused"  # nothing listens at this port
    DENIED = "denied"  # user or key rejected
    HOST_KEY = "host-key"  # the host key is unknown, or of a type that ssh rejects
    CHANGED_KEY = "host-key-changed"  # the host key differs from the known one
    NO_KEYS = "no-keys"  # UserKnownHostsFile is /dev/null
    FORBIDDEN = "forbidden"  # the jump host refuses to forward
    NOT_FOUND = "not-found"  # the name does not resolve
    NO_PYTHON = "no-python"  # no Python on the node
    TOO_OLD = "too-old"  # the Python is too old for the doctor
    TIMED_OUT = "timed-out"  # not finished within our own limit; ssh has others, which --limit does not raise
    BROKEN = "broken"  # the connection or the command died
    TOO_MUCH = "too-much"  # too much output
    CLIENT = "client"  # ssh did not start: no such program, or an invalid configuration

    @property
    def is_not_asked(self) -> bool:
        """Whether the node may be healthy: it could not be examined."""
        is_failed = (NodeFailure.UNREACHABLE, NodeFailure.REFUSED, NodeFailure.NOT_FOUND, NodeFailure.TIMED_OUT)
        return self not in (*is_failed, NodeFailure.BROKEN, NodeFailure.TOO_MUCH)


OWN_ERROR = 255  # ssh's exit code for its own errors
_NOT_FOUND = (126, 127)  # a shell's exit codes for a program that is missing, or cannot be run
_SETTINGS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"),
    # A shared connection of the user is used; none is opened.
    *("ControlMaster=no", "PermitLocalCommand=no", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    # The default. At ERROR "Connection closed by" and "no matching host key type" are missing.
    "LogLevel=INFO",
)
_ASK_S = 5.0  # for `ssh -G`, which does not connect
# The first match decides.
_FAILURES = (
    (NodeFailure.CLIENT, r"Bad configuration option|Bad owner or permissions on|terminating, \d+ bad configuration"),
    (NodeFailure.CLIENT, r"Can't open user config file|command-line: line \d+|^usage: ssh|percent_expand"),
    (NodeFailure.CLIENT, r"Cannot execute command-line and remote command"),  # RemoteCommand in the configuration
    (NodeFailure.NOT_FOUND, r"Could not resolve hostname|Name or service not known|nodename nor servname"),
    (NodeFailure.CHANGED_KEY, r"[Hh]ost key for .* has changed"),  # these name the host
    (NodeFailure.HOST_KEY, r"host key is known for"),
    (NodeFailure.CHANGED_KEY, r"REMOTE HOST IDENTIFICATION HAS CHANGED"),
    (NodeFailure.HOST_KEY, r"Host key verification failed"),
    (NodeFailure.HOST_KEY, r"Host key .* is revoked|no matching host key type"),
    (NodeFailure.DENIED, r"Permission denied \(|Too many authentication failures|No supported authentication methods"),
    (NodeFailure.DENIED, r"Authentication failed|Received disconnect from .*: \d+: (?:.* not allowed|Auth)"),
    (NodeFailure.REFUSED, r"port \d+: Connection refused|: Connection refused\s*$"),
    (
        NodeFailure.UNREACHABLE,
        r"No route to host|Network is unreachable|Host is down|port \d+: (?:Connection|Operation) timed",
    ),
    (NodeFailure.FORBIDDEN, r"open failed: administratively prohibited"),
    (NodeFailure.UNREACHABLE, r"stdio forwarding failed|open failed: connect failed"),
    (NodeFailure.UNREACHABLE, r"timed out during banner exchange|Connection to .* port \d+ timed out"),
    (NodeFailure.BROKEN, r"Timeout, server .* not responding"),  # it was connected
)
_PATTERNS = tuple((failure, re.compile(text, re.MULTILINE)) for failure, text in _FAILURES)
_HOST_OF_KEY = re.compile(r"host key (?:is known )?for (?P<place>\S+) (?:and|has)", re.IGNORECASE)
_HOSTS = (
    re.compile(r"resolve hostname (\S+?): |connect to host (\S+) port|Connection to (\S+) port \d+ timed"),
    re.compile(r"^(?:\S*@)?([^\s@]+): Permission denied \("),
    _HOST_OF_KEY,
)
_PROXY_DIED = "UNKNOWN port 65535"  # the peer behind a ProxyJump or ProxyCommand, in the client's messages
# Banners, and warnings of newer clients about older servers. openEuler's: "Authorized users only. All activities may be
# monitored and reported."
_GREETING = re.compile(r"Warning: Permanently added|Authorized use(?:r)?s only|\*\* ")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the client for all nodes."""

    config: str | None = None  # a configuration file; None: the user's
    connect_s: int = 10  # ConnectTimeout
    settings: tuple[str, ...] = ()  # further `-o`, before ours, so that they win


def require_config(path: str | None) -> None:
    """Raises BadInput if the configuration file does not exist."""
    if path is not None and not os.path.isfile(path):
        args = {"path": path}
        raise BadInput(Message("cluster.no-ssh-config", args), Message("cluster.no-ssh-config-hint"))


def argv_for(
    node: Node, command: Sequence[str], client: Sequence[str] = ("ssh",), options: Options | None = None
) -> list[str]:
    """The client's command line for one node, with the command quoted for the remote shell."""
    options = options or Options()
    argv = [*client, *_common(options)]
    if node.address != node.name:
        # The percent sign of a link-local address would begin a token of ssh.
        argv += ["-o", f"HostName={node.address.replace('%', '%%')}"]
    if node.user:
        argv += ["-l", node.user]
    if node.port:
        argv += ["-p", str(node.port)]
    if node.jump:
        proxy = NO_JUMP if node.jump == NO_JUMP else _proxy(node.jump, client, options)
        argv += ["-o", f"ProxyCommand={proxy}"]
    return [*argv, "-T", "--", node.name, _shell(command)]


def failure_of(code: int | None, err: str, command: Sequence[str]) -> NodeFailure | None:
    """Why a command has no exit code of its own, from the client's code and stderr; None: it has one.

    ssh's own errors have the code 255, which a command may have too: then stderr decides, and without a known message
    the connection counts as broken.
    """
    if code is None or code < 0:
        return NodeFailure.BROKEN
    if code == OWN_ERROR:
        return next((failure for failure, pattern in _PATTERNS if pattern.search(err)), NodeFailure.BROKEN)
    if code in _NOT_FOUND and command and "python" in command[0].rpartition("/")[2]:
        return NodeFailure.NO_PYTHON
    return None


def deciding_line(err: str) -> str:
    """The line of the client's stderr that states the error; "" if there is none."""
    lines = _lines(err)
    return _known_line(lines) or (lines[-1] if lines else "")


def failure_line(err: str, out: bytes, failure: NodeFailure | None) -> str:
    """The line that says why there is no result; "" if none does.

    Without a known message of the client it is the last line: nologin prints its reason on stdout. What was printed
    before a timeout is no reason.
    """
    lines = _lines(err)
    known = _known_line(lines)
    if known or failure is NodeFailure.TIMED_OUT:
        return known
    last = lines[-1:]
    if failure in (None, NodeFailure.BROKEN):
        last += out[-4096:].decode(errors="replace").strip().splitlines()[-1:]
    return " · ".join(dict.fromkeys(line.strip() for line in last))


def failing_hop(node: Node, err: str) -> str:
    """The jump host that the client's error is about; "" if it is about the node itself."""
    line = deciding_line(err)
    if any(each is NodeFailure.FORBIDDEN and pattern.search(line) for each, pattern in _PATTERNS):
        return next(iter(_hops(node)[-1:]), "")
    found = next(filter(None, (pattern.search(line) for pattern in _HOSTS)), None)
    host = next(filter(None, found.groups()), "") if found else ""
    bare = host.partition("]")[0].lstrip("[")
    if not bare or bare.lower() in (node.name.lower(), node.address.lower()):
        return ""
    # A host of another name can be the node itself, by the user's configuration.
    is_hop = bare.lower() in map(str.lower, _hops(node)) or _PROXY_DIED in err
    return bare if is_hop else ""


def describe_failure(failure: NodeFailure, address: str, at: str = "") -> Message:
    """A failure in words. `at`: the jump host that it is about; "": the node itself."""
    says = Message(f"cluster.trouble-{failure.value}", {"address": at or address})
    return Message("cluster.trouble-on-the-way", {"host": at, "says": says}) if at else says


def host_key_name(line: str) -> str:
    """The name of a host key in known_hosts, from the error about it; "" if it has none."""
    found = _HOST_OF_KEY.search(line)
    return found["place"] if found else ""


def jump_host(node: Node, host: str) -> Node:
    """A jump host of a node as a node; only with its name if it is in ssh's configuration alone."""
    hops = node.jump.split(",") if _hops(node) and node.jump else []
    for at, (hop, name) in enumerate(zip(hops, _hops(node))):
        if name.lower() == host.lower():
            user, _, place = hop.rpartition("@")
            port = int(place.rpartition(":")[2]) if ":" in place else None
            return Node(name, name, user=user or None, port=port, jump=",".join(hops[:at]) or None)
    return Node(host, host)


def command_line(node: Node, *words: str) -> str:
    """The command line for a person to reach a node; `words`: the program and its own options."""
    # ssh-copy-id has no -J.
    jump = ["-o", f"ProxyJump={node.jump}"] if node.jump else []
    port = ["-p", str(node.port)] if node.port else []
    return shlex.join([*words, *jump, *port, f"{node.user}@{node.address}" if node.user else node.address])


def keeps_host_keys(node: Node, client: Sequence[str] = ("ssh",), options: Options | None = None) -> bool:
    """Whether the client has a file for host keys, for the node and each of its jump hosts.

    With `UserKnownHostsFile /dev/null` every key is unknown. If the client does not state a file, it has one.
    """
    return all(_has_file_for_keys(name, client, options or Options()) for name in (node.name, *_hops(node)))


def _hops(node: Node) -> list[str]:
    """The names of a node's jump hosts."""
    jump = node.jump if node.jump != NO_JUMP else None
    return [hop.rpartition("@")[2].partition(":")[0] for hop in (jump or "").split(",") if hop]


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
    """The command quoted for the remote shell, except a `~` at the front of the program's path."""
    home = re.match(r"~[A-Za-z0-9_.-]*/", command[0]) if command else None
    if home is None:
        return shlex.join(command)
    return home[0] + shlex.join([command[0][home.end() :], *command[1:]])


def _proxy(jump: str, client: Sequence[str], options: Options) -> str:
    """The ProxyCommand through the jump hosts, each with our settings. `-J` would not pass them on."""
    *before, last = jump.split(",")
    user, _, place = last.rpartition("@")
    host, _, port = place.rpartition(":") if re.fullmatch(r"[^:]+:\d+", place) else (place, "", "")
    argv = [*client, *_common(options)]
    # ClearAllForwardings would clear -W too.
    argv = [word.replace("ClearAllForwardings=yes", "ClearAllForwardings=no") for word in argv]
    argv += [*(["-l", user] if user else []), *(["-p", port] if port else [])]
    argv += ["-o", f"ProxyCommand={_proxy(','.join(before), client, options)}"] if before else []
    return shlex.join(argv).replace("%", "%%") + f" -W '[%h]:%p' -- {shlex.quote(host)}"


def _known_line(lines: Sequence[str]) -> str:
    """The line with the first pattern that any line matches."""
    for _, pattern in _PATTERNS:
        for line in lines:
            if pattern.search(line):
                return line.strip("@ ")  # the frame of a warning
    return ""


def _lines(err: str) -> list[str]:
    """The lines without banners, and frames such as the @@@ around a warning."""
    lines = [line.strip() for line in err.splitlines()]
    return [line for line in lines if re.search(r"\w", line) and not _GREETING.match(line)]
