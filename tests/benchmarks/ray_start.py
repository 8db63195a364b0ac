"""Time of `npuenv cluster up` beside the bare `ray start` commands by hand, on the same hosts in the same minutes.

    python -m tests.benchmarks.ray_start [--hosts 3] [--repeat 3] [--ray ENVIRONMENT]

The hosts are network namespaces with an sshd and 8 fake devices each. By hand: over the same ssh, `ray start --head` on
the first one, then `ray start --address=...` on the others, one after another, and nothing else. `cluster up` besides
compares the versions before, and waits until Ray counts every node and card after; that is timed too. ENVIRONMENT is a
folder with bin/ray (default: that of this interpreter). Needs root on Linux. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.namespaces import Machines

ROOT = Path(__file__).resolve().parent.parent.parent
DEVICES = 8
LIMIT_S = 900.0
HEAD = "--head --port=6379 --dashboard-port=8265"


def by_hand(hosts: Machines, ray: Path) -> float:
    """Seconds of the bare commands, one after another."""
    config = str(hosts.ssh_config)
    script = ""
    for at, host in enumerate(hosts):
        join = HEAD if at == 0 else f"--address={hosts[0].address}:6379"
        words = f"RAY_AUTH_MODE=disabled {ray}/bin/ray start {join} --node-ip-address={host.address}"
        script += shlex.join(["ssh", "-F", config, "-T", host.name, words]) + " > /dev/null || exit 1\n"
    began = time.perf_counter()
    hosts.operator.run("sh", "-c", script, timeout_s=LIMIT_S)
    seconds = time.perf_counter() - began
    for host in hosts:
        host.run(f"{ray}/bin/ray", "stop", "--force", timeout_s=LIMIT_S)
    return seconds


def by_command(hosts: Machines, ray: Path) -> float:
    """Seconds of `npuenv cluster up`; its end, which is not timed, is `npuenv cluster down`."""
    inventory = hosts.operator.home / "hosts"
    inventory.write_text("".join(f"{host.name} address={host.address}\n" for host in hosts))
    npuenv = [sys.executable, "-m", "npuenv", "cluster"]
    where = ["--json", "--hosts", str(inventory), "--ssh-config", str(hosts.ssh_config)]
    began = time.perf_counter()
    ran = hosts.operator.run(*npuenv, "up", "--ray", str(ray), "--limit", "300", *where, timeout_s=LIMIT_S)
    seconds = time.perf_counter() - began
    cards = json.loads(ran.stdout)["resources"]["NPU"]["total"]
    assert cards == DEVICES * len(hosts), ran.stdout
    hosts.operator.run(*npuenv, "down", *where, timeout_s=LIMIT_S)
    return seconds


def main() -> None:
    """Prints both times, alternating, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ray", type=Path, default=Path(sys.prefix))
    options = parser.parse_args()
    ray = options.ray.resolve()
    from tests.support.namespaces import machines, why_not

    why = why_not(sshd=True) or (None if (ray / "bin" / "ray").exists() else f"there is no bin/ray in {ray}: --ray")
    if why:
        print(f"left out: {why}")
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.hosts} hosts")
    # The Python that the environment was made from need not be that of this program, and may lie in a hidden folder.
    asked = [str(ray / "bin" / "python"), "-c", "import sys; print(sys.base_prefix)"]
    base = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    ours, bare = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        machines(Path(folder), options.hosts, devices=DEVICES, sshd=True, keep=[ray, base]) as hosts,
    ):
        for _ in range(options.repeat):
            bare.append(by_hand(hosts, ray))
            ours.append(by_command(hosts, ray))
            print(f"  ray start by hand {bare[-1]:.1f} s, npuenv cluster up {ours[-1]:.1f} s", flush=True)
    mine, theirs = statistics.median(ours), statistics.median(bare)
    ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
    print(f"median: by hand {theirs:.1f} s, cluster up {mine:.1f} s; ratio, pair by pair, {ratio:.2f}")


if __name__ == "__main__":
    main()
