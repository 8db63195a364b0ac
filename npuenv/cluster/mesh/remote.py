"""Runs commands of hccn_tool one after another on a node, and prints a JSON line for each.

This is sent to the node as text and runs there with the standard library of any Python from 3.6 on. It reads one line
of JSON and ends as soon as its input or output is closed. The tool refuses to run twice at a time: a command that it
refuses as busy is repeated.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_PAUSES_S = (0.3, 1.0, 3.0)  # before a command that the tool refused as busy is repeated
_MOST_TEXT = 4000  # characters of a command's output that are reported


class Stuck(Exception):
    """A command does not end when it is killed, because it waits in the driver. No other one may be started."""


class Gone(Exception):
    """The input or output was closed."""


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    signal.signal(signal.SIGTERM, leave)
    sys.stdout.write("\n")  # a login shell may have printed something without a line end
    tool = next((path for path in map(shutil.which, request["tools"]) if path), None)
    if tool is None:
        say({"refused": "not-allowed" if any(map(is_there, request["tools"])) else "no-tool"})
        return
    say({"tool": tool})
    try:
        if request.get("cards_in") is not None:
            survey(request, tool)
        else:
            work(request, tool)
    except Stuck:
        say({"refused": "stuck"})
    else:
        say({"end": True})


def is_there(name: str) -> bool:
    """Whether there is such a file, or a folder in which this user may not look for it."""
    if "/" not in name:
        return any(os.path.isfile(os.path.join(folder, name)) for folder in os.get_exec_path())
    try:
        os.stat(name)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def survey(request: "dict[str, Any]", tool: str) -> None:
    """Prints the cards of this machine, the table of npu-smi, and the address of each card."""
    names = os.listdir(request["cards_in"]) if os.path.isdir(request["cards_in"]) else []
    cards = sorted(int(name[7:]) for name in names if re.match(r"davinci[0-9]+$", name))
    smi = next((path for path in map(shutil.which, request["smi"]) if path), None)
    text = run([smi, "info"], request["smi_s"], request["kill_s"])["out"] if smi else ""
    say({"cards": cards, "smi": text[:200000]})
    for card in cards or request["otherwise"]:
        result = answer([tool, *(word.format(card=card) for word in request["words"])], request)
        say(dict(result, card=card))
        if result["stuck"]:
            raise Stuck


def work(request: "dict[str, Any]", tool: str) -> None:
    """Makes the pings in order, until the time is over or an answer holds for all of them. Raises Stuck."""
    ends = time.monotonic() + request["budget_s"]
    for number, (card, ip) in enumerate(request["jobs"]):
        if time.monotonic() >= ends:
            break
        result = answer([tool, *(word.format(card=card, ip=ip) for word in request["words"])], request)
        say(dict(result, job=number))
        if result["stuck"]:
            raise Stuck
        if has_any(result, request["stop"]):
            break


def answer(argv: "list[str]", request: "dict[str, Any]") -> "dict[str, Any]":
    """The output of a command of the tool, repeated while the tool is busy with another command."""
    for pause_s in (*_PAUSES_S, None):
        result = run(argv, request["limit_s"], request["kill_s"])
        if pause_s is None or result["stuck"] or not has_any(result, request["again"]):
            break
        look_up(pause_s)
    return result


def has_any(result: "dict[str, Any]", texts: "list[str]") -> bool:
    lower = (result["out"] + result["err"]).lower()
    return any(text in lower for text in texts)


def run(argv: "list[str]", limit_s: float, kill_s: float) -> "dict[str, Any]":
    """Runs one command; kills it and its children at the limit, or when the input or output is closed.

    stuck: it has not ended within `kill_s` after it was killed.
    """
    began = time.monotonic()
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        return {"code": None, "out": "", "err": str(error), "late": False, "stuck": False, "s": 0.0}
    assert process.stdout and process.stderr
    texts = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    out, err = texts
    in_time = False
    try:
        in_time = listen(texts, began + limit_s) and waited(process, began + limit_s)
    finally:
        if not in_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        is_over = over(process, kill_s)
        process.stdout.close()
        process.stderr.close()
    seconds = time.monotonic() - began
    return {
        "code": process.returncode if in_time else None,
        "out": texts[out].decode("utf-8", "replace"),
        "err": texts[err].decode("utf-8", "replace"),
        "late": not in_time,
        "stuck": not is_over,
        "s": round(seconds, 4),
    }


def over(process: "subprocess.Popen[bytes]", limit_s: float) -> bool:
    """Whether a process that is ending has ended within that time: one that waits in the driver hears no signal."""
    ends = time.monotonic() + limit_s
    while process.poll() is None:
        if time.monotonic() >= ends:
            return False
        time.sleep(0.002)
    return True


def listen(texts: "dict[int, bytes]", ends: float) -> bool:
    """Reads until both ends are closed; whether that was in time."""
    open_ones = set(texts)
    while open_ones:
        left = ends - time.monotonic()
        if left <= 0:
            return False
        for number in look_up(left, open_ones):
            chunk = os.read(number, 65536)
            if chunk:
                texts[number] = (texts[number] + chunk)[: 64 * _MOST_TEXT]
            else:
                open_ones.discard(number)
    return True


def waited(process: "subprocess.Popen[bytes]", ends: float) -> bool:
    """Whether a process that has closed its ends also ended in time."""
    while process.poll() is None:
        if time.monotonic() >= ends:
            return False
        look_up(0.005)
    return True


def look_up(wait_s: float, numbers: "Iterable[int]" = ()) -> "list[int]":
    """The descriptors that become readable within that time. Raises Gone when the input or output is closed."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    poll.register(0, select.POLLIN)
    poll.register(1, 0)  # only whether the other end is gone
    ready = [number for number, _ in poll.poll(max(0, int(wait_s * 1000) + 1))]
    if 1 in ready and 1 not in numbers:
        raise Gone
    if 0 in ready and not os.read(0, 4096):
        raise Gone
    return [number for number in ready if number in numbers]


def say(line: "dict[str, Any]") -> None:
    for name in ("out", "err"):
        if name in line:
            line[name] = line[name][:_MOST_TEXT]
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ConnectionResetError):
        raise Gone from None


def leave(number: int, frame: object) -> None:
    raise Gone


if __name__ == "__main__":
    try:
        main()
    except Gone:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what is still to be flushed goes nowhere
        sys.exit(1)
