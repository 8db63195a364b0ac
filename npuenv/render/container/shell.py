"""Parts that the shell scripts share: the check of the host, the two sides of a Ray cluster, lines of options."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.render.container.description import Mount, advice, head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.render.container.description import Container, Say

RAY_PORT = 6379

# Arguments: what stands before and after the list of what is missing, then pairs of a test and a place.
_CHECK = """\
before=$1 after=$2 missing=
shift 2
while [ "$#" -gt 0 ]; do
    test "$1" "$2" || missing="$missing $2"
    shift 2
done
[ -z "$missing" ] && exit 0
printf "%s%s%s\\n" "$before" "$missing" "$after" >&2
exit 1"""

# Arguments of the function: the head's name, seconds to wait until it can be resolved, what to say where the interface
# is not found. As network.sh of render-launch does, by Python alone: an image may have no program ip. A name that leads
# to the loopback is the head's own, and the interface of the default route is taken, whose address Ray takes as well.
_NETWORK = """\
network() {
    found=$(python3 - "$1" "$2" <<"END"
import fcntl, socket, struct, sys, time

def own_address(peer):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((peer, 9))  # sends nothing
        return way.getsockname()[0]

end = time.monotonic() + float(sys.argv[2])
while True:
    try:
        own = own_address(sys.argv[1])
        own = own_address("192.0.2.1") if own.startswith("127.") else own
        break
    except OSError:
        if time.monotonic() > end:
            sys.exit(1)
        time.sleep(1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    for _, name in socket.if_nameindex():
        try:
            answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
        except OSError:
            continue  # it has no address
        if socket.inet_ntoa(answer[20:24]) == own and name != "lo":
            print(name, own)
            sys.exit()
sys.exit(1)
END
    ) || { printf "%s\\n" "$3" >&2; return 0; }
    export HCCL_SOCKET_IFNAME="${HCCL_SOCKET_IFNAME-=${found% *}}" HCCL_IF_IP="${HCCL_IF_IP-${found#* }}"
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME-${found% *}}" TP_SOCKET_IFNAME="${TP_SOCKET_IFNAME-${found% *}}"
}
"""

# Arguments: this node's name, the port, how many nodes there are, what to say where they do not all come, what to say
# where the interface is not found, then the command, whose end is the end of the cluster. It waits as the scripts of
# render-launch do. ROLL reads the three variables to learn that it is on the head; they are set after Ray's start, or
# every worker of Ray would have them too. The interface is set before it: Ray's processes inherit what it starts with.
LEAD = (
    _NETWORK
    + """\
network "$1" 60 "$5"
ray start --head --port="$2" || exit
export RANK=0 WORLD_SIZE="$3" MASTER_ADDR="$1"
waited=0
until ray status 2>/dev/null | awk -v nodes="$3" "
    /^(Active|Idle):/ { active = 1; next }
    /^[A-Za-z].*:/ { active = 0 }
    active && / node_/ { joined += \\$1 }
    END { exit (joined < nodes) }"
do
    if [ "$waited" -ge "${NPUENV_WAIT_S:-600}" ]; then
        printf "%s\\n" "$4" >&2
        ray stop >/dev/null
        exit 1
    fi
    sleep 5
    waited=$((waited + 5))
done
shift 5
"$@"
code=$?
ray stop >/dev/null
exit "$code\""""
)

# Arguments: HOST:PORT of the head, which may come up later, what to say where it does not, what to say where the
# interface is not found. Whoever started this ends it.
FOLLOW = (
    _NETWORK
    + """\
wait="${NPUENV_WAIT_S:-600}"
end=$(($(date +%s) + wait))
network "${1%:*}" "$wait" "$3"
until timeout "$wait" ray start --address="$1"; do
    if [ "$(date +%s)" -ge "$end" ]; then
        printf "%s\\n" "$2" >&2
        exit 1
    fi
    sleep 5
done
exec sleep infinity"""
)

_TESTS = {"device": "-e", "directory": "-d", "file": "-f"}


def opening(container: Container, version: str, say: Say, *notes: str, shell: str = "/bin/sh") -> list[str]:
    """The first lines of a script, with what helps where one of the mounts is missing."""
    return [f"#!{shell}", *head(container, version, say, *notes, *advice(container.mounts, say))]


def program(name: str, text: str) -> list[str]:
    """A variable that holds a program for another shell."""
    assert "'" not in text
    return ["# shellcheck disable=SC2016 # read by another shell", f"{name}='{text}'"]


_PLACES = "%places%"  # known only where the script runs


def check(container: Container, say: Say, *, runner: Sequence[str] = ()) -> list[str]:
    """Ends the script with one sentence where a required place is missing. `runner` starts it elsewhere."""
    before, after = say("missing", places=_PLACES).split(_PLACES)
    pairs = [f"-e {shlex.quote(item.path)}" for item in container.devices if item.is_required]
    pairs += [f"{_TESTS[mount.kind]} {shlex.quote(mount.source)}" for mount in container.mounts if mount.is_required]
    pairs += [f"-d {shlex.quote(place)}" for place in container.mount_points]
    start = " ".join((*runner, 'sh -c "$check" check'))
    return [*program("check", _CHECK), *lines(start, [f"{shlex.quote(before)} {shlex.quote(after)}", *pairs])]


def lines(start: str, rest: Sequence[str]) -> list[str]:
    """One command over several lines."""
    whole = [start, *(f"    {item}" for item in rest)]
    return [*(f"{line} \\" for line in whole[:-1]), whole[-1]]


def default_command(words: Sequence[str]) -> str:
    """Arguments of the script are the command; without any, these words are."""
    return f'if [ "$#" -eq 0 ]; then set -- {shlex.join(words)}; fi'


def open_files(container: Container, say: Say) -> list[str]:
    """Raises the limit where the caller may, else says so: the lack shows much later. For bash, which knows -n."""
    words = shlex.quote(say("few-open-files", limit=container.nofile))
    return [f"ulimit -n {container.nofile} 2>/dev/null || printf '%s\\n' {words} >&2"]


def lead(container: Container, say: Say, head: str) -> list[str]:
    """Arguments of `LEAD` before the command; `head` is the head's name."""
    return [head, str(RAY_PORT), str(container.nodes), say("no-nodes", nodes=container.nodes), say("no-interface")]


def follow(say: Say, head: str) -> list[str]:
    """Arguments of `FOLLOW`."""
    return [f"{head}:{RAY_PORT}", say("no-head"), say("no-interface")]


def required(container: Container) -> list[Mount]:
    """Devices and mounts that are always there, as mounts: for forms that know devices as paths only."""
    return [mount for mount in as_mounts(container) if mount.is_required]


def optional(container: Container) -> list[Mount]:
    """The rest of `required`."""
    return [mount for mount in as_mounts(container) if not mount.is_required]


def as_mounts(container: Container) -> list[Mount]:
    """Every device and mount, the devices writable."""
    devices = [
        Mount(item.path, item.path, "file", is_read_only=False, is_required=item.is_required)
        for item in container.devices
    ]
    return [*devices, *container.mounts]


def triple(mount: Mount) -> str:
    """`source:target`, with `:ro` where it is not to be written, as pyxis and Apptainer read it."""
    return f"{mount.source}:{mount.target}" + (":ro" if mount.is_read_only else "")
