"""Writes, looks for or removes one small file in a folder that nodes share. For any Python from 3.6 on.

Input: a line of JSON with `do` (write, find, remove), `path`, `word` (its content) and `limit_s`. Output: one marked
JSON line with `said`: written, found, other, missing, removed, or an error's words; and where the folder is mounted.
"""

import contextlib
import json
import os
import sys
import time

AGAIN_S = 0.2


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


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
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
    folder = os.path.realpath(os.path.dirname(path))
    told = {"said": said, "mount": mount_of(folder)}
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(told) + "\n")
    sys.stdout.flush()


main()
