"""Times of asking many nodes at once, with a scripted client and with real ssh, beside a bare parallel loop.

    python -m tests.benchmarks.fanout_times [--real 8] [--repeat 3]

Scripted: 64 and 256 nodes of which one in twenty hangs or dies half way; each gives a capture, as `doctor --hosts`
collects it, and every one that does not must be named. Real: an sshd in as many network namespaces, one `true` on each,
and beside it the same client started by xargs with as many at once, each in a session of its own. Wall seconds;
memory is the largest resident set of the asking process. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HANG_LIMIT_S = 2.0
TROUBLED = ("hangs", "half", "closed")


def scripted(count: int, folder: Path) -> tuple[float, int, int]:
    """(seconds, nodes that are planted to fail, those of them that are named) of one collection."""
    from npuenv.bundle.zipapp import content
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.node_results import collect_captures
    from npuenv.cluster.parallel_ssh import Transport
    from tests.cluster.scripted import capture_text
    from tests.support.scripted_ssh import install

    captures = folder / "captures"
    captures.mkdir(exist_ok=True)
    names = [f"node{number:03}" for number in range(1, count + 1)]
    text = capture_text(1)
    for name in names:
        (captures / f"{name}.json").write_text(text, encoding="utf-8")
    kinds = {name: TROUBLED[at // 20 % len(TROUBLED)] for at, name in enumerate(names) if at % 20 == 7}
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"nodes": kinds, "captures": str(captures)}))
    os.environ["SCRIPTED_SSH"] = str(plan)
    client, program = (str(install(folder) / "ssh"),), content()
    began = time.perf_counter()
    nodes = [Node(name, name) for name in names]
    silent = {
        got.node.name
        for got in collect_captures(nodes, program, [], limit_s=HANG_LIMIT_S, transport=Transport(client=client))
        if got.failure
    }
    return time.perf_counter() - began, len(kinds), len(silent & set(kinds)) - len(silent - set(kinds))


def ask_here(hosts: list[str], config: str, parallel: int) -> None:
    """Runs in the operator's namespace: one round of `ask`, whose seconds it prints."""
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import ask
    from npuenv.cluster.ssh import Options

    began = time.perf_counter()
    nodes = [Node(name, name) for name in hosts]
    answers = list(ask(nodes, ("true",), limit_s=60, parallel=parallel, options=Options(config=config)))
    assert all(answer.code == 0 for answer in answers), answers
    print(time.perf_counter() - began)


def real(count: int, repeat: int) -> None:
    """Prints the times of both sides, alternating."""
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.ssh import Options, argv_for
    from tests.support.namespaces import machines, why_not

    why = why_not(sshd=True)
    if why:
        print(f"real ssh: left out, {why}")
        return
    with tempfile.TemporaryDirectory() as place, machines(Path(place), count, sshd=True) as hosts:
        names, config = [host.name for host in hosts], str(hosts.ssh_config)
        asking = [sys.executable, str(Path(__file__).resolve()), "--ask", json.dumps([names, config, count])]
        argv = argv_for(Node("{}", "{}"), ("true",), options=Options(config=config))
        loop = f"printf '%s\\n' {' '.join(names)} | xargs -P {count} -I{{}} setsid -w {shlex.join(argv)}"
        ours, bare = [], []
        for _ in range(repeat):
            ours.append(float(hosts.operator.run(*asking).stdout))
            began = "import subprocess, sys, time; t = time.perf_counter(); subprocess.run(sys.argv[1], shell=True, "
            timed = began + "check=True); print(time.perf_counter() - t)"
            bare.append(float(hosts.operator.run(sys.executable, "-c", timed, loop).stdout))
    mine, theirs = statistics.median(ours), statistics.median(bare)
    print(f"real ssh, {count} nodes: ask {mine:.2f} s, xargs {theirs:.2f} s, ratio {mine / theirs:.2f}", end="   ")
    print("each:", " ".join(f"{one:.2f}/{other:.2f}" for one, other in zip(ours, bare, strict=True)))


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=8, help="nodes with a real sshd; 0 leaves them out")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask_here(*json.loads(options.ask))
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for count in (64, 256):
        with tempfile.TemporaryDirectory() as folder:
            runs = [scripted(count, Path(folder)) for _ in range(options.repeat)]
        seconds = sorted(run[0] for run in runs)
        planted, named = runs[0][1], min(run[2] for run in runs)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"scripted, {count} nodes: median {statistics.median(seconds):.2f} s, {seconds[0]:.2f} to {seconds[-1]:.2f}"
        )
        print(f"    {named} of {planted} planted troubles named and nobody else, {memory:.0f} MiB")
    if options.real:
        real(options.real, options.repeat)


if __name__ == "__main__":
    main()
