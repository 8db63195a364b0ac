"""Stands for hccn_tool: prints what real ones print (success, loss, no answer, no address), as faults are planted.

It writes down when it began and ended, and it notices where it runs twice at once for a node. As a program it is called
with the cluster's folder in WORLD; `run` is one call of it in this process. It is called some hundred times, so it
imports nothing that takes long to load: json and typing take longer than the interpreter itself.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def run(world: str, node: str, words: list[str], out: TextIO, err: TextIO) -> int:
    """One call on a node; gives the exit code."""
    with open(world + "/faults.json") as file:
        faults = eval(file.read(), {"null": None, "true": True, "false": False})
    card = words[words.index("-i") + 1]
    own = faults["addresses"].get(node + ":" + card)
    if node in faults["refusals"]:
        return _refused(faults["refusals"][node], err)
    if "-ip" in words:
        if own is None:
            return _refused("Get ipconf failed, because no ip was preset there!", err)
        out.write("ipaddr:" + own + "\nnetmask:" + faults["netmask"] + "\n")
        return 0
    target, began = words[words.index("address") + 1], time.time()
    mark = world + "/running." + node
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        twice = False
    except FileExistsError:
        twice = True
    how = faults["pings"].get(own + " " + target, "ok")
    if how == "cold":  # the first packet of all is lost
        met = world + "/met." + own + "." + target
        how = "ok" if os.path.exists(met) else "lossy"
        open(met, "w").close()
    out.write("device " + card + " PING " + target + "\n")
    while _is_held(world):
        time.sleep(0.02)
    time.sleep(faults["seconds"].get(how, 0))
    ok, lossy, weak = ["0.181", "0.055", "0.048"], ["out", "0.097", "0.066"], ["out", "out", "0.066"]
    rows = {"ok": ok, "lossy": lossy, "weak": weak, "silent": []}.get(how, ["out"] * 3)
    for number, row in enumerate(rows):
        out.write(f"recv time out seq={number}\n" if row == "out" else f"recv seq={number},time={row}000ms\n")
    count = sum(row != "out" for row in rows)
    if rows:
        lost = f"{100 * (3 - count) / 3:.2f}%"
        out.write(f"3 packets transmitted, {count} received, {lost} packet loss\n")
    line = f'["{node}", "{own}", "{target}", {began}, {time.time()}, {str(twice).lower()}]\n'
    with open(world + "/log", "a") as log:
        log.write(line)
    if not twice:
        os.remove(mark)
    if how == "failed":
        err.write("Command execute failed!\n")
    return 0


def _is_held(world: str) -> bool:
    hold, log = world + "/hold", world + "/log"
    if not os.path.exists(hold) or not os.path.exists(log):
        return False
    with open(hold) as most, open(log) as done:
        return done.read().count("\n") >= int(most.read())


def _refused(text: str, err: TextIO) -> int:
    err.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(
        run(os.environ["WORLD"], os.environ.get("NODE") or os.uname().nodename, sys.argv[1:], sys.stdout, sys.stderr)
    )
