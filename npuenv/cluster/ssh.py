"""How the system's OpenSSH client is called for a node, and what its error texts mean.

The user's configuration holds: names, keys, users, ports, jump hosts. What it may not do: ask questions, take a key
that is not known, hand the agent on, leave a connection open behind us, or keep silent about what went wrong.
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
    """Why a node gave no answer. What a command prints, be it an error, is an answer."""

    UNREACHABLE = "unreachable"  # no way there, or nobody at the address
    REFUSED = "refused"  # somebody is there, but not listening at this port
    DENIED = "denied"  # neither the user nor the keys are let in
    HOST_KEY = "host-key"  # its key is not known here, or not one that ssh takes
    CHANGED_KEY = "host-key-changed"  # its key is another one than it was
    NO_KEYS = "no-keys"  # no key can be known: ssh's configuration keeps none
    FORBIDDEN = "forbidden"  # the jump host passes no connection on
    NOT_FOUND = "not-found"  # the name has no address
    NO_PYTHON = "no-python"  # no interpreter there
    TOO_OLD = "too-old"  # an interpreter that is too old for the doctor
    TIMED_OUT = "timed-out"  # not done within the limit
    BROKEN = "broken"  # the connection or the command died half way
    TOO_MUCH = "too-much"  # it never stopped talking
    CLIENT = "client"  # ssh itself did not begin: no such program, or a configuration that it cannot read


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
    (NodeFailure.TIMED_OUT, r"timed out during banner exchange|Connection to .* port \d+ timed out"),
    (NodeFailure.TIMED_OUT, r"Timeout, server .* not responding"),
)
_PATTERNS = tuple((failure, re.compile(text, re.MULTILINE)) for failure, text in _FAILURES)
_HOST_OF_KEY = re.compile(r"host key (?:is known )?for (?P<place>\S+) (?:and|has)", re.IGNORECASE)
_HOSTS = (
    re.compile(r"resolve hostname (\S+?): |connect to host (\S+) port|Connection to (\S+) port \d+ timed"),
    re.compile(r"^(?:\S*@)?([^\s@]+): Permission denied \("),
    _HOST_OF_KEY,
)
_PROXY_DIED = "UNKNOWN port 65535"  # what the client calls the other end of a ProxyJump or a ProxyCommand
# Greetings, and what newer clients say of older servers. openEuler's: "Authorized users only. All activities may be
# monitored and reported."
_GREETING = re.compile(r"Warning: Permanently added|Authorized use(?:r)?s only|\*\* ")


@dataclass(frozen=True, slots=True)
class Options:
    """How the client is used for all nodes."""

    config: str | None = None  # a configuration instead of the user's own; None: the user's
    connect_s: int = 10  # how long it may take to reach a node
    settings: tuple[str, ...] = ()  # more of `-o`, before ours, so that they win


def require_config(path: str | None) -> None:
    """Raises BadInput where the configuration for ssh is named and is no file."""
    if path is not None and not os.path.isfile(path):
        args = {"path": path}
        raise BadInput(Message("cluster.no-ssh-config", args), Message("cluster.no-ssh-config-hint"))


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


def failure_of(code: int | None, err: str, command: Sequence[str]) -> NodeFailure | None:
    """Why a command has no exit code of its own, from the client's code and texts; None: it has one.

    ssh's own errors have the code 255, which a command may have too: then the texts decide, and without one that is
    known the connection counts as broken.
    """
    if code is None or code < 0:
        return NodeFailure.BROKEN
    if code == OWN_ERROR:
        return next((failure for failure, pattern in _PATTERNS if pattern.search(err)), NodeFailure.BROKEN)
    if code in _NOT_FOUND and command and "python" in command[0].rpartition("/")[2]:
        return NodeFailure.NO_PYTHON
    return None


def deciding_line(err: str) -> str:
    """The line of the client's texts that says what happened; "" where there is none."""
    lines = [line.strip() for line in err.splitlines() if line.strip() and not _is_decoration(line)]
    return _known_line(lines) or (lines[-1] if lines else "")


def failure_line(err: str, out: bytes, failure: NodeFailure | None) -> str:
    """The line that says why there is no answer; "" where none does.

    Without one of the client's own it is the last one: a shell says why it is none (nologin) on stdout. What a node
    that hangs has said before is no reason.
    """
    lines = [line.strip() for line in err.splitlines() if line.strip() and not _is_decoration(line)]
    known = _known_line(lines)
    if known or failure is NodeFailure.TIMED_OUT:
        return known
    last = lines[-1:]
    if failure in (None, NodeFailure.BROKEN):
        last += out[-4096:].decode(errors="replace").strip().splitlines()[-1:]
    return " · ".join(dict.fromkeys(line.strip() for line in last))


def failing_hop(node: Node, err: str) -> str:
    """The host on the way to a node of which the client's texts speak; "" where they speak of the node itself."""
    line = deciding_line(err)
    if _is_about(NodeFailure.FORBIDDEN, line):
        return next(iter(_hops(node)[-1:]), "")
    found = next(filter(None, (pattern.search(line) for pattern in _HOSTS)), None)
    host = next(filter(None, found.groups()), "") if found else ""
    bare = host.partition("]")[0].lstrip("[")
    if not bare or bare.lower() in (node.name.lower(), node.address.lower()):
        return ""
    # A host of another name can be the node's own, by the user's configuration.
    is_on_the_way = bare.lower() in map(str.lower, _hops(node)) or _PROXY_DIED in err
    return bare if is_on_the_way else ""


def describe_failure(failure: NodeFailure, address: str, at: str = "") -> Message:
    """What a failure means, for people. `at` is the host on the way where it is; "": the node itself."""
    says = Message(f"cluster.trouble-{failure.value}", {"address": at or address})
    return Message("cluster.trouble-on-the-way", {"host": at, "says": says}) if at else says


def host_key_name(line: str) -> str:
    """What ssh has noted a key under, from the line that speaks of it; "" where it does not say."""
    found = _HOST_OF_KEY.search(line)
    return found["place"] if found else ""


def jump_host(node: Node, host: str) -> Node:
    """A host on the way to a node as one that is reached itself; by its name alone where only ssh's configuration
    knows it.
    """
    hops = node.jump.split(",") if _hops(node) and node.jump else []
    for at, (hop, name) in enumerate(zip(hops, _hops(node))):
        if name.lower() == host.lower():
            user, _, place = hop.rpartition("@")
            port = int(place.rpartition(":")[2]) if ":" in place else None
            return Node(name, name, user=user or None, port=port, jump=",".join(hops[:at]) or None)
    return Node(host, host)


def command_line(node: Node, *words: str) -> str:
    """The command line by which a person reaches a node as we do; `words` are the program and options of its own."""
    # ssh-copy-id knows no -J.
    way = ["-o", f"ProxyJump={node.jump}"] if node.jump else []
    port = ["-p", str(node.port)] if node.port else []
    return shlex.join([*words, *way, *port, f"{node.user}@{node.address}" if node.user else node.address])


def keeps_host_keys(node: Node, client: Sequence[str] = ("ssh",), options: Options | None = None) -> bool:
    """Whether the client has a file for host keys, for the node and each jump host that is named for it.

    `UserKnownHostsFile /dev/null` makes every key an unknown one. Where the client does not say, it has one.
    """
    return all(_has_file_for_keys(name, client, options or Options()) for name in (node.name, *_hops(node)))


def _hops(node: Node) -> list[str]:
    """The jump hosts that are named for a node, by their names."""
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


def _known_line(lines: Sequence[str]) -> str:
    """The line that matches the first pattern that any matches."""
    for _, pattern in _PATTERNS:
        for line in lines:
            if pattern.search(line):
                return line.strip("@ ")  # of the frame around a warning
    return ""


def _is_about(failure: NodeFailure, line: str) -> bool:
    return any(each is failure and pattern.search(line) for each, pattern in _PATTERNS)


def _is_decoration(line: str) -> bool:
    """Whether it is a frame or a greeting, such as the @@@ around a warning."""
    return not re.search(r"\w", line) or _GREETING.match(line.strip()) is not None
