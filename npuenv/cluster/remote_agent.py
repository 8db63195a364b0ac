"""Runs the doctor on a node for one capture, and leaves neither files nor processes behind, whether the doctor ends,
dies or takes too long, or the connection is closed.

It is sent as text to whatever Python the node has (`npuenv.cluster.node_results`). So it is written in the grammar of
Python 2 as well, and reports by itself if that Python is too old.

Input: a line of JSON with limit_s, size, words; then a program of `size` bytes; then it stays open.
Output: MARK and JSON with `result`, and `body` (base64): the capture compressed, or why there is none.
"""
# mypy: ignore-errors
# ruff: noqa: SIM105, UP024, UP031

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

MARK = "\nNPUENV-ANSWER "  # a login shell may have printed something before
OLDEST = (3, 9)
STOP_S = 4.0  # for ending the doctor: SIGTERM, then SIGKILL for it and its children


def answer(result, body):
    line = {"result": result, "body": base64.b64encode(body).decode("ascii")}
    sys.stdout.write(MARK + json.dumps(line) + "\n")
    sys.stdout.flush()


def end(number, frame):
    sys.exit(1)


def content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except (IOError, OSError):
        return b""


def processes():
    # Number -> (parent, session, time of start in ticks, state) of every running process.
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        row = content("/proc/%s/stat" % name).rpartition(b")")[2].split() if name.isdigit() else []
        if len(row) > 19 and row[0] not in (b"Z", b"X"):
            found[int(name)] = (int(row[1]), int(row[3]), int(row[19]), row[0].decode("ascii"))
    return found


def family(pid):
    # A process and its descendants, with their start times, because numbers are reused.
    found, line = processes(), [pid]
    for each in line:
        line.extend(child for child, row in found.items() if row[0] == each)
    return {(each, found[each][2]) for each in line if each in found}


def gone(doctor, seconds):
    deadline = time.time() + seconds
    while doctor.poll() is None and time.time() < deadline:
        time.sleep(0.02)
    return doctor.poll() is not None


def stop(doctor):
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if doctor.poll() is None:
        end_family(doctor)
    try:
        os.killpg(doctor.pid, signal.SIGKILL)
    except OSError:
        pass


def end_family(doctor):
    # Its children have sessions of their own, and another parent once the doctor has ended.
    left = family(doctor.pid)
    os.kill(doctor.pid, signal.SIGTERM)
    gone(doctor, STOP_S / 2)
    left |= family(doctor.pid)
    now = processes()
    for pid, start in left:
        if pid in now and now[pid][2] == start:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    # One that hangs in the kernel is left alone.
    gone(doctor, STOP_S / 2)


def running_command(doctor):
    # The command that the doctor waits for, and for how long; without one the doctor itself.
    now = processes()
    known = now.get(doctor.pid, (0, 0, 0, ""))
    # The programs that it runs are session leaders.
    children = [(row[2], pid) for pid, row in now.items() if row[0] == doctor.pid and row[1] == pid]
    start, pid = max(children) if children else (known[2], doctor.pid)
    line = b" ".join(content("/proc/%d/cmdline" % pid).replace(b"\0", b" ").split())[:200]
    up = content("/proc/uptime").split()
    seconds = float(up[0]) - start / float(os.sysconf("SC_CLK_TCK")) if up else 0
    state = ", state D" if now.get(pid, known)[3] == "D" else ""
    return line + (" (%d s%s)" % (seconds, state)).encode("ascii")


def run_doctor(folder, request, program):
    path, capture, errors = [os.path.join(folder, name) for name in ("npuenv-doctor.pyz", "capture.json", "errors")]
    with open(path, "wb") as file:
        file.write(program)
    with open(errors, "wb") as sink, open(os.devnull, "r+b") as nothing:
        words = [sys.executable, path] + request["words"] + ["--save", capture]
        doctor = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=sink, start_new_session=True)
        try:
            deadline = time.time() + request["limit_s"]
            while doctor.poll() is None:
                if time.time() > deadline:
                    return answer("timed-out", running_command(doctor))
                if select.select([0], [], [], 0.05)[0] and not os.read(0, 1):
                    return None
        finally:
            stop(doctor)
    if os.path.exists(capture):
        with open(capture, "rb") as file:
            return answer("capture", zlib.compress(file.read()))
    with open(errors, "rb") as file:
        why = file.read()[-4000:]
    return answer("died", why.strip() or ("exit code %d" % doctor.returncode).encode("ascii"))


def run():
    source = getattr(sys.stdin, "buffer", sys.stdin)
    request = json.loads(source.readline().decode("utf-8"))
    if sys.version_info < OLDEST:
        return answer("too-old", sys.version.split()[0].encode("ascii"))
    program = source.read(request["size"])
    if len(program) < request["size"]:
        return None
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        folder = tempfile.mkdtemp(prefix="npuenv-")
    except (IOError, OSError) as error:
        return answer("no-room", str(error).encode("utf-8"))
    try:
        return run_doctor(folder, request, program)
    except (IOError, OSError) as error:
        return answer("no-room", str(error).encode("utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run()
