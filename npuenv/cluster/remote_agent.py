"""The agent: runs the doctor on a node for as long as one capture takes, and leaves neither files nor processes behind,
whether the doctor ends, dies or takes too long, or the caller is gone.

It is sent as text to whatever Python the node has (`npuenv.cluster.captures`). So it is written in the grammar of
Python 2 as well, and reports by itself if that Python is too old.

Input: a line of JSON with limit_s, size, words; then as many bytes of a program as `size` says; then it stays open.
Output: MARK, a word, a number of bytes, a line end, and those bytes: the capture compressed, or why there is none.
"""
# mypy: ignore-errors
# ruff: noqa: SIM105, UP024, UP031

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

MARK = b"\0npuenv-answer "  # before the answer: a login shell may say something of its own first
OLDEST = (3, 9)
STOP_S = 4.0  # how long the end of a doctor can last: it is asked to end, then killed with all that it has started


def answer(word, body):
    out = getattr(sys.stdout, "buffer", sys.stdout)
    out.write(MARK + ("%s %d\n" % (word, len(body))).encode("ascii") + body)
    out.flush()


def end(number, frame):
    sys.exit(1)


def content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except (IOError, OSError):
        return b""


def processes():
    # Number -> (parent, session, time of start in ticks, state) of all that has not ended.
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        row = content("/proc/%s/stat" % name).rpartition(b")")[2].split() if name.isdigit() else []
        if len(row) > 19 and row[0] not in (b"Z", b"X"):
            found[int(name)] = (int(row[1]), int(row[3]), int(row[19]), row[0].decode("ascii"))
    return found


def family(pid):
    # A process and all that descend from it, with the times of their starts: a number may be another's later.
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
    # What it runs has sessions of its own, and no parent that leads here once the doctor has ended.
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
    # One that hangs in the kernel is left to it.
    gone(doctor, STOP_S / 2)


def under_way(doctor):
    # What the doctor waits for, and for how long; its own line where it waits for nobody.
    now = processes()
    known = now.get(doctor.pid, (0, 0, 0, ""))
    # The programs that it runs lead sessions of their own.
    asked = [(row[2], pid) for pid, row in now.items() if row[0] == doctor.pid and row[1] == pid]
    start, pid = max(asked) if asked else (known[2], doctor.pid)
    line = b" ".join(content("/proc/%d/cmdline" % pid).replace(b"\0", b" ").split())[:200]
    up = content("/proc/uptime").split()
    seconds = float(up[0]) - start / float(os.sysconf("SC_CLK_TCK")) if up else 0
    state = ", state D" if now.get(pid, known)[3] == "D" else ""
    return line + (" (%d s%s)" % (seconds, state)).encode("ascii")


def look(folder, asked, program):
    path, capture, said = [os.path.join(folder, name) for name in ("npuenv-doctor.pyz", "capture.json", "said")]
    with open(path, "wb") as file:
        file.write(program)
    with open(said, "wb") as sink, open(os.devnull, "r+b") as nothing:
        words = [sys.executable, path] + asked["words"] + ["--save", capture]
        doctor = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=sink, start_new_session=True)
        try:
            deadline = time.time() + asked["limit_s"]
            while doctor.poll() is None:
                if time.time() > deadline:
                    return answer("timed-out", under_way(doctor))
                if select.select([0], [], [], 0.05)[0] and not os.read(0, 1):
                    return None
        finally:
            stop(doctor)
    if os.path.exists(capture):
        with open(capture, "rb") as file:
            return answer("capture", zlib.compress(file.read()))
    with open(said, "rb") as file:
        why = file.read()[-4000:]
    return answer("died", why.strip() or ("exit code %d" % doctor.returncode).encode("ascii"))


def run():
    source = getattr(sys.stdin, "buffer", sys.stdin)
    asked = json.loads(source.readline().decode("utf-8"))
    if sys.version_info < OLDEST:
        return answer("too-old", sys.version.split()[0].encode("ascii"))
    program = source.read(asked["size"])
    if len(program) < asked["size"]:
        return None
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        folder = tempfile.mkdtemp(prefix="npuenv-")
    except (IOError, OSError) as error:
        return answer("no-room", str(error).encode("utf-8"))
    try:
        return look(folder, asked, program)
    except (IOError, OSError) as error:
        return answer("no-room", str(error).encode("utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run()
