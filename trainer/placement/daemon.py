"""Ray on the nodes of a launcher that starts this program on each: RANK, WORLD_SIZE and MASTER_ADDR identify them.

The first node's process is the head and runs the training. The others join it with their resources and end as it does:
it sends them the result of the run; if the head vanishes, they end and report that. Everything that was started here
ends here, even if this process is killed.
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
from functools import partial
from typing import TYPE_CHECKING

from trainer import launch
from trainer.children import end_with_parent, exit_code, wait
from trainer.device import cores
from trainer.placement.cards import PlacementError
from trainer.placement.reach import OWN, answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


def place() -> str:
    """The head's location: MASTER_ADDR and MASTER_PORT."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', _PORT)}"


@contextlib.contextmanager
def head(num_seats: int, *, limit_s: float) -> Iterator[str]:
    """Ray's head on this node while the block runs; gives its address. Raises PlacementError."""
    address = place()
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


def follow(num_seats: int, say: Callable[[str], object], *, limit_s: float) -> int:
    """Joins the head with this node; the exit code of the run when that has ended. Raises PlacementError."""
    address, began = place(), time.monotonic()
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
    environ = {**OWN, "RAY_AUTH_MODE": "disabled", **os.environ, LAST_WORD: last_word}
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
    wait(process, _END_S)
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
