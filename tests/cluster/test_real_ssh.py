"""`npuenv doctor --hosts` over real ssh servers, each in a host of its own: network, processes, files and home."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.namespaces import Machine, Machines, machines, why_not
from tests.support.own_signals import as_from_a_terminal
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Five nodes: node3 lets nobody in, node4 has another key than it had, node5 a key that nobody knows."""
    why = why_not(sshd=True)
    if why:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("hosts")
    with machines(folder, 5, devices=[8, 8, 0, 0, 0], sshd=True) as made:
        (folder / "node3" / "authorized_keys").write_text("")
        known = made.operator.home / "known_hosts"
        lines = known.read_text().splitlines()
        other_key = lines[0].split(" ", 1)[1]
        lines[3] = f"{lines[3].split(' ', 1)[0]} {other_key}"
        known.write_text("\n".join(lines[:4]) + "\n")
        yield made


def doctor(hosts: Machines, inventory: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of a run in the operator's place."""
    file = hosts.folder / "inventory"
    file.write_text(inventory)
    argv = [sys.executable, "-m", "npuenv", "doctor", "--hosts", str(file), "--ssh-config", str(hosts.ssh_config)]
    ran = hosts.operator.run(*argv, "--json", *words, check=False, timeout_s=300)
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def is_idle(host: Machine) -> bool:
    """Whether nothing but the server itself runs there, and nothing was left in its folder for temporary files."""
    running = [line for line in host.processes() if "[listener]" not in line]
    # The checkout and the interpreter are lent to the hosts at their own places, which may lie in such a folder.
    lent = (str(ROOT), sys.prefix)
    names = [name for name in host.run("ls", "/tmp").stdout.split() if name.startswith("npuenv")]
    left = [name for name in names if not any(place.startswith(f"/tmp/{name}/") for place in lent)]
    return not running and not left


def test_every_trouble_of_real_ssh_is_named(hosts: Machines) -> None:
    inventory = """
        node1
        node2 jump=node1
        node[3-5]
        closed address=10.77.0.1 port=2222
        absent address=10.77.0.99
        nowhere
    """
    code, document = doctor(hosts, inventory)
    troubles = {name: node["trouble"] and node["trouble"]["kind"] for name, node in document["nodes"].items()}
    assert troubles == {
        "node1": None,
        "node2": None,
        "node3": "denied",
        "node4": "host-key-changed",
        "node5": "host-key",
        "closed": "refused",
        "absent": "unreachable",
        "nowhere": "not-found",
    }
    assert (code, document["summary"]["silent"]) == (1, 6)
    found = {each["check"]: each for each in document["agreement"]["findings"]}
    assert found["agree.hostname"]["status"] == found["agree.clock"]["status"] == "ok"
    through = (hosts.folder / "node2" / "sshd.22.log").read_text()
    assert "from 10.77.0.1 port" in through and "from 10.77.0.254 port" not in through
    assert all(until(partial(is_idle, host)) for host in hosts)


def test_a_node_that_hangs_is_named_at_its_limit_and_an_old_python_is_not_run(hosts: Machines) -> None:
    hang = hosts.folder / "python-that-hangs"
    hang.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    hang.chmod(0o755)
    began = time.monotonic()
    code, document = doctor(hosts, f"node1 python={hang}\nnode2 python=/no/such/python3", "--limit", "8")
    assert {name: node["trouble"]["kind"] for name, node in document["nodes"].items()} == {
        "node1": "timed-out",
        "node2": "no-python",
    }
    assert code == 1 and time.monotonic() - began < 8 + PATIENCE_S


def test_an_interrupt_ends_what_runs_on_the_nodes(hosts: Machines) -> None:
    inventory = hosts.folder / "inventory"
    slow = hosts.folder / "slow-python"
    # The doctor itself takes its time; what starts it is a usual Python.
    slow.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        "if sys.argv[1] != '-c':\n    time.sleep(600)\n"
        "sys.executable, code, sys.argv = os.path.abspath(sys.argv[0]), sys.argv[2], ['-c']\nexec(code)\n"
    )
    slow.chmod(0o755)
    inventory.write_text(f"node[1-2] python={slow}\n")
    argv = [sys.executable, "-m", "npuenv", "doctor", "--hosts", str(inventory), "--ssh-config", str(hosts.ssh_config)]
    process = hosts.operator.start(*argv, preexec_fn=as_from_a_terminal)
    pair = hosts[0], hosts[1]
    assert until(lambda: all(any("npuenv-doctor.pyz" in line for line in host.processes()) for host in pair))
    asking = [line.split()[0] for line in hosts.operator.run("pgrep", "-f", "npuenv doctor").stdout.splitlines()]
    hosts.operator.run("kill", "-INT", *asking, check=False)
    assert process.wait(PATIENCE_S) == 130
    assert all(until(partial(is_idle, host)) for host in pair)
    assert until(lambda: not [line for line in hosts.operator.processes() if "ssh" in line])


@pytest.mark.long
def test_ports_and_a_shared_folder_are_tried(hosts: Machines) -> None:
    """The hosts see the same files below the test's folder, and each has a /tmp of its own."""
    code, document = doctor(hosts, "node[1-2]", "--level", "2", "--shared", str(hosts.folder))
    found = {each["check"]: each["status"] for each in document["agreement"]["findings"]}
    assert (found["agree.ports"], found["agree.storage"]) == ("ok", "ok")
    assert code in (0, 1)
    _, document = doctor(hosts, "node[1-2]", "--level", "0", "--shared", "/tmp")
    apart = {each["check"]: each["status"] for each in document["agreement"]["findings"]}
    assert apart["agree.storage"] == "fail"


def test_a_cluster_without_a_route_is_unreachable(hosts: Machines) -> None:
    hosts[1].unplug()
    try:
        _, document = doctor(hosts, "node2", "--limit", "10")
    finally:
        hosts[1].plug()
    assert document["nodes"]["node2"]["trouble"]["kind"] in ("unreachable", "timed-out")


def test_hosts_end_with_all_that_runs_there(tmp_path: Path) -> None:
    why = why_not()
    if why:
        pytest.skip(why)
    with machines(tmp_path, 2, devices=3) as made:
        assert made[0].run("sh", "-c", "ls /dev | grep -c davinci").stdout == "3\n"
        assert made[0].run("hostname").stdout == "node1\n"
        sleeper = made[1].start("sleep", "600")
        pid = made[1].pid
    sleeper.wait(PATIENCE_S)
    assert sleeper.returncode != 0
    assert is_gone(pid)
