"""Ray on the nodes: started by each node of a launcher, its variables and errors, whether it responds, who uses it.

RANK, WORLD_SIZE and MASTER_ADDR identify the nodes of a launcher that starts this program on each. The first node's
process is the head and runs the training. The others join it with their resources and end as it does: it sends them the
result of the run; if the head vanishes, they end and report that. Everything that was started here ends here, even if
this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer import launch
from trainer.device import cores
from trainer.launch import end_with_parent, exit_code, wait_for_child
from trainer.metrics import records
from trainer.placement import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

# Of a Ray that a run starts. On a busy node agents take long to come, and a raylet that does not see its agent ends
# itself. A node that is gone is to be known within three quarters of a minute, and one whose link is down for twenty
# seconds is not gone.
RAY_VARIABLES: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "6",
}


def ray_error_line(error: BaseException) -> str:
    """An error of Ray, whose texts may hold whole logs. Example: `ConnectionError: ray client connection timeout`."""
    return records.one_line(error, longest=400)


def answers(address: str, limit_s: float) -> str | None:
    """Why nothing answers at `HOST:PORT`; None where something does."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return f"{address!r} is no HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s):
            return None
    except TimeoutError:
        return f"nothing answered within {limit_s:g} s"
    except socket.gaierror:
        return f"the name {host} is not known here"
    except (OSError, OverflowError) as error:
        return f"the connection failed ({getattr(error, 'strerror', None) or error})"


# A process whose node may be about to be found gone; more is known a little later.
OUT_OF_REACH = "cannot be reached"
# Parts of Ray's messages about a lost actor, and their meaning; the first match counts.
_LOSSES = (
    ("temporarily unavailable", OUT_OF_REACH),
    ("ray.kill", "was ended"),
    ("SIGKILL", "was killed by SIGKILL"),
    ("out of memory", "was killed because memory ran out"),
    ("node has died", "was lost with its node"),
    ("node was terminated", "was lost with its node"),
    ("node died", "was lost with its node"),
    ("connection error code 2", "was killed"),
    ("End of file", "was killed"),
)


def how_lost(error: BaseException) -> str:
    """Ray's reason for the loss of an actor, in short. Example: `was killed`."""
    text = " ".join(str(error).split())
    return next((meaning for words, meaning in _LOSSES if words in text), f"was lost ({text[:300]})")


_LONGEST = 100  # characters of a command line in a message
# A job's number in hexadecimal, with which the numbers of its placement groups end.
_JOB = 8


def holders(nodes: Collection[str]) -> str:
    """Other jobs with actors or placement groups on some nodes, by Ray's names for these; empty if none is known.

    Tasks are not included. Example: `job 01000000 (python train.py, process 6511 on 10.0.0.1): 3 actors`
    """
    import ray
    from ray._private import state  # no public API lists actors and jobs without the dashboard
    from ray.util import placement_group_table

    try:
        jobs, actors = state.state.job_table(), list(state.actors().values())
        groups = list(placement_group_table().values())
        own = ray.get_runtime_context().get_job_id()
    except Exception:  # missing information is left out; the wait itself is reported
        return ""
    return list_jobs(jobs, held(actors, groups, nodes), own=own)


def held(
    actors: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]], nodes: Collection[str]
) -> dict[str, Counter[str]]:
    """How many living actors and placement groups each job has on the nodes."""
    found: dict[str, Counter[str]] = {}
    for actor in actors:
        if actor.get("State") == "ALIVE" and actor.get("Address", {}).get("NodeID") in nodes:
            found.setdefault(str(actor.get("JobID")), Counter())["actor"] += 1
    for group in groups:
        places = group.get("bundles_to_node_id", {}).values()
        if group.get("state") == "CREATED" and any(place in nodes for place in places):
            found.setdefault(str(group["placement_group_id"])[-_JOB:], Counter())["placement group"] += 1
    return found


def list_jobs(jobs: Sequence[Mapping[str, Any]], by_job: Mapping[str, Counter[str]], *, own: str) -> str:
    """The same as text."""
    known = {str(each.get("JobID")): each for each in jobs}
    rows = []
    for job in sorted(by_job):
        if job == own:
            continue
        what = " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in sorted(by_job[job].items()))
        rows.append(f"job {job}{_whose(known.get(job))}: {what}")
    return "; ".join(rows)


def _whose(job: Mapping[str, Any] | None) -> str:
    if job is None:
        return ""
    if job.get("IsDead"):
        return ", whose program has ended"
    words = " ".join(str(job.get("Entrypoint") or "").split())
    short = f"{words[:_LONGEST]}..., " if len(words) > _LONGEST else f"{words}, " if words else ""
    return f" ({short}process {job.get('DriverPid')} on {job.get('DriverIPAddress')})"


# Names, on a node that has joined, the file that the head has written when it ends.
LAST_WORD = "TRAINER_LAST_WORD"
_PORT = "6379"
_END_S = 10.0
# How long the connection to the head may be down; if its node refuses the connection, the head has ended.
_OUTAGE_S = 60.0
_REFUSED = os.strerror(errno.ECONNREFUSED)
_PR_SET_CHILD_SUBREAPER = 36


def is_one_of_several() -> bool:
    """Whether a launcher has started this program on several nodes."""
    return launch.is_rank() and "MASTER_ADDR" in os.environ


def joined_node() -> bool:
    """Whether this node only joins the run of the first one."""
    return is_one_of_several() and launch.rank() != 0


def head_address() -> str:
    """The head's location: MASTER_ADDR and MASTER_PORT."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', _PORT)}"


@contextlib.contextmanager
def started_head(num_seats: int, *, limit_s: float) -> Iterator[str]:
    """Ray's head on this node while the block runs; gives its address. Raises PlacementError."""
    address = head_address()
    if answers(address, 1.0) is None:
        raise PlacementError(
            f"something listens at {address} already, where Ray's head is to be: give another MASTER_PORT"
        )
    host, _, port = address.rpartition(":")
    words = ["--head", f"--port={port}", f"--node-ip-address={_own_address(host)}", "--include-dashboard=false"]
    if not _has_cards():
        words.append(f"--num-cpus={max(cores(), num_seats)}")
    with _ray(words) as (process, _):
        _until_it_answers(process, address, limit_s)
        yield address


def follow_head(num_seats: int, say: Callable[[str], object], *, limit_s: float) -> int:
    """Joins the head with this node; the exit code of the run when that has ended. Raises PlacementError."""
    address, began = head_address(), time.monotonic()
    while (trouble := answers(address, 2.0)) is not None:
        if time.monotonic() - began > limit_s:
            raise PlacementError(f"the head at {address} is not there after {limit_s:g} s: {trouble}")
        time.sleep(0.3)
    words = [f"--address={address}", f"--node-ip-address={_facing(address)}"]
    if not _has_cards():
        words.append(f"--num-cpus={max(cores(), num_seats)}")
    with _nothing_left(), _ray(words) as (process, last_word):
        say(f"has joined the Ray at {address}; works for it until its end")
        code, reason = _end_of_run(process, address, last_word)
        if reason:
            say(reason)
        return code


def _end_of_run(process: subprocess.Popen[bytes], address: str, last_word: str) -> tuple[int, str]:
    """Waits for the end of the run: its exit code and the reason. Without a message from the head, the local ones."""
    silent_since: float | None = None
    while True:
        has_ended = exit_code(process) is not None
        trouble = answers(address, 2.0)
        if os.path.exists(last_word):
            with open(last_word, encoding="utf-8") as file:
                result = json.load(file)
            return int(result["code"]), str(result["reason"])
        now = time.monotonic()
        silent_since = None if trouble is None else silent_since or now
        limit_s = _OUTAGE_S if trouble is not None and _REFUSED not in trouble else _END_S
        if silent_since is not None and (has_ended or now - silent_since > limit_s):
            return launch.BROKE, f"the head at {address} is gone without a word, and the run with it: {trouble}"
        if has_ended:
            code = exit_code(process)
            return launch.BROKE, f"Ray ended on this node with {code} while the head at {address} is there"
        time.sleep(1.0)


@contextlib.contextmanager
def _ray(words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`ray start --block` with these arguments, as a process group that ends with the block, and the file of its final
    message.
    """
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    last_word = os.path.join(folder, "last-word")
    environ = {**RAY_VARIABLES, "RAY_AUTH_MODE": "disabled", **os.environ, LAST_WORD: last_word}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_ADDRESS"):
        environ.pop(name, None)
    where = [f"--temp-dir={folder}"] if "--head" in words else []
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *where, "--block", "--disable-usage-stats"]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = stack.enter_context(open(os.path.join(folder, "start.log"), "wb"))
        process = subprocess.Popen(
            argv,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )
        stack.callback(_end, process)
        yield process, last_word


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """Ends the processes that were started within the block, including orphans, which this process adopts.

    Ray's processes end within seconds of their node's, but not one that is stopped.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        deadline = time.monotonic() + _END_S
        while (left := _children()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)


def _children() -> list[int]:
    """The processes whose parent this one is."""
    found = []
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # a thread that has ended meanwhile
            found += [int(each) for each in file.read().split()]
    return found


def _until_it_answers(process: subprocess.Popen[bytes], address: str, limit_s: float) -> None:
    began = time.monotonic()
    while (trouble := answers(address, 1.0)) is not None:
        if (code := exit_code(process)) is not None:
            raise PlacementError(f"`ray start --head` at {address} ended with {code}")
        if time.monotonic() - began > limit_s:
            raise PlacementError(f"`ray start --head` does not answer at {address} after {limit_s:g} s: {trouble}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Requests the end, then kills the group: all that Ray has started on this node is in it, or ends with it."""
    process.send_signal(signal.SIGTERM)
    wait_for_child(process, _END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _own_address(host: str) -> str:
    """The address of a name of this node."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise PlacementError(f"MASTER_ADDR={host} is not known here: {error}") from error


def _facing(address: str) -> str:
    """This node's address on the way to another. Nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, int(port)))
        return str(asked.getsockname()[0])


def _has_cards() -> bool:
    """Whether Ray will detect cards here: then CPUs do not replace cards."""
    return bool(glob.glob("/dev/davinci[0-9]*") or glob.glob("/dev/nvidia[0-9]*"))
