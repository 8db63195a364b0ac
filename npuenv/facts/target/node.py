"""Says which machine this is, or sees to one small file in a folder that nodes share. For any Python from 3.6 on.

Input: a line of JSON, one of

    names, limit_s            what other nodes' names lead to here, within the limit for all of them; with it the answer
                              says which machine this is, and what time it has, before the work and after it, so that
                              the asker knows what lies between
    do, path, word, limit_s   `do`: write, find, remove; `word`: the content of the file. The answer is `said`: written,
                              found, other, missing, removed, or an error's words; and where the folder is mounted

Output: one marked JSON line.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from typing import Any

ADDRESS = re.compile(r"^\d+:\s+(\S+?)(?:@\S+)?\s+inet6?\s+([0-9a-fA-F.:]+)/", re.MULTILINE)
AGAIN_S = 0.2


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def addresses() -> "list[str]":
    """All that `ip -o addr` lists but loopback and link-local ones, or without it, what the kernel's table has."""
    try:
        ran = subprocess.run(["ip", "-o", "addr"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=5)
        found = ADDRESS.findall(ran.stdout.decode("utf-8", "replace"))
    except (OSError, subprocess.SubprocessError):
        leaves = re.findall(r"\|--\s+([0-9.]+)\s*\n\s*/32 host LOCAL", text_of("/proc/net/fib_trie"))
        found = [("", address) for address in leaves]
    kept = [address for name, address in found if name != "lo" and not address.lower().startswith(("fe80", "127."))]
    return sorted(set(kept), key=kept.index)


def look_up(name: str, into: "dict[str, list[str]]") -> None:
    try:
        rows = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.args[0] in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", -5)):
            into[name] = []
        return
    except (OSError, UnicodeError):
        return
    into[name] = sorted({str(row[4][0]) for row in rows})


def look_up_all(names: "list[str]", limit_s: float) -> "dict[str, list[str]]":
    """What each name leads to. A name that nobody answered for in time is left out: that is not the same as none."""
    found: dict[str, list[str]] = {}
    ends = time.monotonic() + limit_s
    threads = [threading.Thread(target=look_up, args=(name, found), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return dict(found)


def introduced(asked: "dict[str, Any]", began: float) -> "dict[str, Any]":
    connection = os.environ.get("SSH_CONNECTION", "").split()
    told = {
        "began": began,
        "hostname": text_of("/proc/sys/kernel/hostname") or socket.gethostname(),
        "boot": text_of("/proc/sys/kernel/random/boot_id"),
        "addresses": addresses(),
        "login": connection[2] if len(connection) > 3 else "",
        "sees": look_up_all(asked["names"], asked["limit_s"]),
    }
    return dict(told, ended=time.time())


def mount_of(path: str) -> str:
    """Place, kind and source of the file system that holds a path; "" where the table cannot be read."""
    best = ("", "", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
            for line in table:
                own, _, behind = line.partition(" - ")
                words, rest = own.split(), behind.split()
                if len(words) < 5 or len(rest) < 2:
                    continue
                place = words[4].replace("\\040", " ")
                is_above = path == place or path.startswith(place.rstrip("/") + "/")
                if is_above and len(place) >= len(best[0]):
                    best = (place, rest[0], rest[1])
    except OSError:
        return ""
    return " ".join(best)


def write(path: str, word: str) -> str:
    # Never over a file that is there, nor through a link that somebody put there.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(word)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a full disk: what there is of the file is ours, and nobody would find its word in it
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return "written"


def find(path: str, word: str, limit_s: float) -> str:
    """Looks until the file is there with its content: network file systems show new files late."""
    said, ends = "missing", time.monotonic() + limit_s
    while True:
        try:
            os.listdir(os.path.dirname(path))  # makes NFS ask its server anew
            with open(path) as file:
                said = "found" if file.read(256) == word else "other"
        except FileNotFoundError:
            said = "missing" if os.path.isdir(os.path.dirname(path)) else "no-folder"
        if said == "found" or time.monotonic() >= ends:
            return said
        time.sleep(AGAIN_S)


def remove(path: str, word: str) -> str:
    """Removes the file, but no other one of its name."""
    with open(path) as file:
        if file.read(256) != word:
            return "other"
    os.remove(path)
    return "removed"


def shared(asked: "dict[str, Any]") -> "dict[str, Any]":
    path, word = asked["path"], asked["word"]
    try:
        if asked["do"] == "write":
            said = write(path, word)
        elif asked["do"] == "find":
            said = find(path, word, asked["limit_s"])
        else:
            said = remove(path, word)
    except OSError as error:
        said = error.strerror or str(error)
    return {"said": said, "mount": mount_of(os.path.realpath(os.path.dirname(path)))}


def main() -> None:
    began = time.time()
    asked = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    told = shared(asked) if "do" in asked else introduced(asked, began)
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a look-up that hangs is not waited for


main()
