"""Ray on this node: what is here, a start, whether it still runs, an end, and what it says. For any Python from 3.6 on.

Input: a line of JSON with `do` and what that needs. Output: one marked JSON line. What a start has started is known by
its session and by each process's number and time of start, so that an end meets nobody else; and by a word in the
environment of its processes, where nobody could note their numbers.
"""

import contextlib
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

SERVERS = ("raylet", "gcs_server")
GRACE_S = 8.0
VERSION_S = 60.0
LAST_WORDS_S = 10  # of the limit of a start: for the scripts to say what they have waited for in vain
MARK = "NPUENV_RAY_START"  # the variable that holds the word of a start
ACTIVATION = "activate.sh"  # of an environment that npuenv has installed; it sets what CANN needs
ACTIVATED = '. "$1" || exit; shift; exec "$@"'
CANN = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH")  # its own scripts set at least one of them
VERSIONS = "import platform; from importlib import metadata as m; print(m.version('ray'), platform.python_version())"

# What `ray.nodes()` gives, what is free on each node, and what outlives the program that made it, without a driver:
# `ray.init()` would begin a job.
NODES = """
import json, sys
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions as Options
if hasattr(Options, "create"):
    options = Options.create(sys.argv[1], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
else:
    options = Options.from_gcs_address(sys.argv[1])
state = GlobalState()
state._initialize_global_state(options)
free, rows = state.available_resources_per_node(), []
for row in state.node_table():
    kept = {"address": row["NodeManagerAddress"], "is_alive": bool(row["Alive"]), "total": row.get("Resources") or {}}
    rows.append(dict(kept, free=free.get(row["NodeID"]), why=row.get("DeathReasonMessage") or ""))
left = []
try:
    from ray.core.generated.gcs_pb2 import ActorTableData
    dead = {row["JobID"] for row in state.job_table() if row["IsDead"]}
    accessor = getattr(state, "_global_state_accessor", None) or state.global_state_accessor
    for text in accessor.get_actor_table(None, "ALIVE"):
        row = ActorTableData.FromString(text)
        if row.job_id.hex() in dead:
            kept = {"kind": "actor", "type": row.class_name, "name": row.name, "namespace": row.ray_namespace}
            left.append(dict(kept, pid=row.pid, address=row.address.ip_address, total=dict(row.required_resources)))
    for number, row in state.placement_group_table().items():
        if row["state"] == "CREATED" and number[-8:] in dead:
            total = {}
            for bundle in row["bundles"].values():
                for name, count in bundle.items():
                    total[name] = total.get(name, 0) + count
            left.append({"kind": "group", "name": row["name"], "id": number, "total": total})
except Exception as error:  # another release of Ray may tell it in another way
    left = str(error)
if isinstance(left, list):
    left = [row for row in left if row["total"].get(sys.argv[2], 0) > 0][:20]
print("\\nRAY-LEFT " + json.dumps(left))
print("\\nRAY-NODES " + json.dumps(rows))
"""


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def boot() -> str:
    return text_of("/proc/sys/kernel/random/boot_id")


def processes() -> "dict[int, tuple[int, int, int, str]]":
    """Number -> (parent, session, time of start, name) of all that runs, without what has ended already."""
    found = {}
    for folder in glob.glob("/proc/[0-9]*"):
        head, _, rest = text_of(folder + "/stat").rpartition(")")
        words = rest.split()
        if len(words) > 19 and words[0] not in ("Z", "X"):
            found[int(folder[6:])] = (int(words[1]), int(words[3]), int(words[19]), head.partition("(")[2])
    return found


def with_children(found: "dict[int, tuple[int, int, int, str]]", pids: "list[int]") -> "set[int]":
    """The numbers, and those of all that descend from them."""
    wanted = set(pids)
    while True:
        more = {pid for pid, row in found.items() if row[0] in wanted} - wanted
        if not more:
            return wanted
        wanted |= more


def program(asked: "dict[str, Any]") -> str:
    """The path of the program `ray`; "" where there is none."""
    wished = asked.get("ray") or "ray"
    if os.path.isdir(wished):
        wished = os.path.join(wished, "bin", "ray")
    return shutil.which(wished) or ""


def activation(asked: "dict[str, Any]") -> str:
    """The script that sets up the environment to which `ray` belongs; "" where it has none."""
    folders = [os.path.dirname(os.path.dirname(program(asked)))]
    if asked.get("ray") and os.path.isdir(asked["ray"]):
        folders.insert(0, asked["ray"])
    paths = [os.path.join(os.path.abspath(folder), ACTIVATION) for folder in folders if folder]
    return next((path for path in paths if os.access(path, os.R_OK)), "")


def python_of(ray: str) -> str:
    """The interpreter that runs the program; "" where it is a script of another kind."""
    try:
        with open(ray, "rb") as file:
            first = file.readline(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return first[2:].strip() if re.match(r"#!\S*python[0-9.]*$", first) else ""


def versions(ray: str) -> "tuple[str, str]":
    """The versions of Ray and its Python; from what `ray` itself says where its first line names no Python."""
    python = python_of(ray)
    argv = [python, "-c", VERSIONS] if python else [ray, "--version"]
    try:
        code, out, _ = output_of(argv, dict(os.environ), VERSION_S)
    except OSError:
        return "", ""
    words = out.split() if code is not None else []
    if argv[0] == ray:
        return (words[-1] if words else ""), ""
    return (words[0], words[1]) if len(words) == 2 else ("", "")


def output_of(argv: "list[str]", environ: "dict[str, str]", limit_s: float) -> "tuple[int | None, str, str]":
    """The code of a program and what it printed; no code where it was ended, at the limit or as nobody waits for us.

    It prints into files, and runs in a session of its own: what it leaves behind cannot keep us waiting.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
        )
        try:
            watched(process, limit_s)
        finally:
            has_ended = process.returncode is not None
            if not has_ended:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left to it
                    process.wait(timeout=GRACE_S)
        texts = []
        for sink in (out, err):
            sink.seek(0)
            texts.append(sink.read().decode("utf-8", "replace")[-20000:])
    return (process.returncode if has_ended else None), texts[0], texts[1]


def look(asked: "dict[str, Any]") -> "dict[str, Any]":
    ray = program(asked)
    release, python = versions(ray) if ray else ("", "")
    devices = devices_here()
    named = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    found = processes()
    servers = {pid: row[3] for pid, row in found.items() if row[3] in SERVERS and is_in_our_network(pid)}
    joined = sorted({option(pid, "gcs-address") for pid, name in servers.items() if name == "raylet"} - {""})
    cards = len(devices) if named is None else min(len(devices), len([word for word in named.split(",") if word]))
    told = {"ray": ray, "version": release, "python": python, "cards": cards, "joined": joined}
    told.update(boot=boot(), network=network(), is_own=is_own(asked.get("address") or ""))
    return dict(told, running=sorted(servers.values()), login=login())


def devices_here() -> "list[str]":
    return [path for path in glob.glob("/dev/davinci*") if re.match(r".*/davinci[0-9]+$", path)]


def login() -> str:
    """The address of IP version 4 by which somebody is logged in here; "" where it is none that others reach."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    address = words[2] if len(words) > 3 else ""
    return address if is_own(address) else ""


def is_own(address: str) -> bool:
    """Whether it is an address of IP version 4 of this node, and one that others can reach."""
    if not re.match(r"[0-9.]+$", address) or address.startswith("127."):
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.bind((address, 0))  # only an address of this node's own can be had
    except OSError:
        return False
    return address != "0.0.0.0"


def network() -> str:
    """The number of the network that this node has; containers with their own have others on one machine."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def is_in_our_network(pid: int) -> bool:
    """Whether its ports are those of this node; a container with a network of its own is another one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == network()
    except OSError:  # of somebody else: nobody knows, and Ray would meet it where it is
        return True


def option(pid: int, name: str) -> str:
    """The value of a process's option, which it was given as --NAME=VALUE; "" where there is none."""
    found = re.search(rf"(?:^|\0)--{name}=([^\0]+)", text_of(f"/proc/{pid}/cmdline"))
    return found.group(1) if found else ""


def watched(process: "subprocess.Popen[bytes]", limit_s: float) -> bool:
    """Waits for a process, but no longer than the limit, nor than somebody waits for us; whether it ended by itself."""
    deadline = time.time() + limit_s
    while process.poll() is None:
        if time.time() > deadline or (select.select([0], [], [], 0.05)[0] and not os.read(0, 1)):
            return False
    return True


def start(asked: "dict[str, Any]") -> "dict[str, Any]":
    folder = tempfile.mkdtemp(prefix="npuenv-")
    try:
        for name, text in asked["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        beside = os.path.dirname(program(asked))
        wait_s = max(asked["limit_s"] / 2, asked["limit_s"] - LAST_WORDS_S)
        environ = dict(os.environ, NPUENV_WAIT_S=str(int(wait_s)))
        environ.update(asked.get("environ") or {})
        environ[MARK] = asked["mark"]
        environ["PATH"] = beside + os.pathsep + environ.get("PATH", os.defpath)
        if asked.get("is_multi_node"):
            environ.setdefault("NPUENV_NODES", "multi")
        said = os.path.join(folder, "said")
        with open(said, "wb") as sink:
            argv = ["sh", os.path.join(folder, asked["script"]), asked["address"]]
            script = activation(asked)
            if script:  # what Ray starts inherits its environment, and a session without a terminal has none of CANN
                # The scripts of CANN are written for bash.
                argv = [shutil.which("bash") or "sh", "-c", ACTIVATED, "sh", script, *argv]
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environ, start_new_session=True
            )
        has_ended = watched(process, asked["limit_s"])
        found = processes()
        session = [pid for pid, row in found.items() if row[1] == process.pid]
        is_up = has_ended and process.returncode == 0
        told = {"code": process.returncode, "said": text_of(said)[-6000:], "boot": boot(), "session": process.pid}
        told["left"] = 0
        if not is_up:
            told["left"] = end_all(with_children(found, session + ([] if has_ended else [process.pid])))
        told["processes"] = [[pid, found[pid][2], found[pid][3]] for pid in session] if is_up else []
        addresses = [option(pid, "node_ip_address") for pid in session if found[pid][3] == "raylet"]
        return dict(told, address=addresses[0] if is_up and addresses else "")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ours(asked: "dict[str, Any]", found: "dict[int, tuple[int, int, int, str]]") -> "list[int]":
    """The processes of a start that still run; none after a restart of the node."""
    if asked["boot"] and asked["boot"] != boot():
        return []
    known = [pid for pid, began, _ in asked["processes"] if pid in found and found[pid][2] == began]
    return known or marked(asked.get("mark") or "", found)


def marked(word: str, found: "dict[int, tuple[int, int, int, str]]") -> "list[int]":
    """The processes whose environment holds the word of a start: of one that nobody has heard the end of."""
    wanted = f"\0{MARK}={word}\0"
    return [pid for pid in found if wanted in "\0" + text_of(f"/proc/{pid}/environ") + "\0"] if word else []


def alive(asked: "dict[str, Any]") -> "dict[str, Any]":
    found = processes()
    known = ours(asked, found)
    raylets = [pid for pid in known if found[pid][3] == "raylet"]
    told: dict[str, Any] = {"running": sorted({found[pid][3] for pid in known})}
    told["stopped"] = [[pid, found[pid][3]] for pid in known if found[pid][3] in SERVERS and is_stopped(pid)]
    return dict(told, without_cann=bool(devices_here()) and any(map(is_without_cann, raylets)))


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds a process: it is there, and does nothing."""
    return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])


def is_without_cann(pid: int) -> bool:
    """Whether a process can be seen to have none of CANN's variables, which all that it starts would inherit."""
    environ = text_of(f"/proc/{pid}/environ")
    return bool(environ) and not re.search(r"(?:^|\0)(?:{})=".format("|".join(CANN)), environ)


def stop(asked: "dict[str, Any]") -> "dict[str, Any]":
    found = processes()
    known = ours(asked, found)
    # As long as one of them lives, the number of the session cannot be another's.
    sessions = {asked["session"]} if asked["session"] else {found[pid][1] for pid in known}
    session = [pid for pid, row in found.items() if known and row[1] in sessions]
    wanted = with_children(found, known + session) - {os.getpid()}
    return {"ended": len(wanted), "left": end_all(wanted), "known": len(known)}


def end_all(pids: "set[int]") -> int:
    """Asks all of them to end, then ends them; how many are left."""
    began = {pid: row[2] for pid, row in processes().items() if pid in pids}

    def living() -> "list[int]":
        now = processes()
        return [pid for pid, start in began.items() if pid in now and now[pid][2] == start]

    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in living():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.time() + GRACE_S
        while living() and time.time() < deadline:
            time.sleep(0.05)
    return len(living())


def status(asked: "dict[str, Any]") -> "dict[str, Any]":
    """What Ray says, of each thing that is asked for: `nodes`, its list of nodes; `table`, the text of `ray status`."""
    ray = program(asked)
    commands = {
        "nodes": [python_of(ray), "-c", NODES, asked["address"], "NPU"],
        "table": [ray, "status", "--address=" + asked["address"]],
    }
    ends = time.time() + asked["limit_s"]
    told = {}
    for left, name in zip(range(len(asked["what"]), 0, -1), asked["what"]):  # each has its share of what time is left
        told[name] = answer_of(commands[name], asked, max(1.0, (ends - time.time()) / left))
    return told


def answer_of(argv: "list[str]", asked: "dict[str, Any]", limit_s: float) -> "dict[str, Any]":
    environ = dict(os.environ)
    environ.update(asked.get("environ") or {})
    try:
        code, out, err = output_of(argv, environ, limit_s)
    except OSError as error:
        return {"code": None, "out": "", "err": str(error), "timed_out": False}
    if code is None:
        return {"code": None, "out": "", "err": err[-4000:], "timed_out": True}
    return {"code": code, "out": out, "err": err, "timed_out": False}


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    told = {"look": look, "start": start, "alive": alive, "stop": stop, "status": status}[asked["do"]](asked)
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(told) + "\n")
    sys.stdout.flush()


main()
