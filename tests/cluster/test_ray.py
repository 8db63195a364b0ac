"""Ray's processes on a node: started, found again and ended, over real ssh too; and a real Ray.

What the commands refuse and say is in `test_ray_command.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from npuenv.cluster import ray
from npuenv.cluster.inventory import Node
from npuenv.cluster.parallel_ssh import Transport
from npuenv.install.environments import default_environment
from tests.support.namespaces import Machine, Machines, listens, machines, why_not
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import says, sentence
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = ray.NodeState(Node("node1", "node1"), ray="/env/bin/ray", version="2.50.1", python="3.11.7", cards=8)


def started(name: str, cards: int = 8) -> ray.StartedNode:
    processes = ((77, 1, "sh"), (80, 2, "raylet"))
    return ray.StartedNode(Node(name, name, port=22), "boot", 77, processes, cards, "word", f"10.0.0.{name[-1]}")


class Local:
    """This machine as the node, for the program that runs there."""

    def __init__(self, folder: Path) -> None:
        client = folder / "client"
        client.write_text('#!/bin/sh\nfor last; do :; done\nexec 3<&0\nsetsid sh -c "$last" <&3 3<&- &\nwait $!\n')
        client.chmod(0o755)
        self.way = Transport(client=(str(client),))
        self.node = Node("here", "here", python=sys.executable)


def fake_ray(folder: Path, text: str) -> Path:
    """An environment's folder with a program `ray` in it."""
    path = folder / "env" / "bin" / "ray"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder / "env"


@contextlib.contextmanager
def listener(host: Machine, port: int) -> Iterator[None]:
    """Somebody who listens there, as Ray's head would."""
    code = f"import socket; s = socket.create_server(('', {port}))\nwhile True: s.accept()[0].close()"
    process = host.start(sys.executable, "-c", code)
    listens(host, port)
    yield
    host.run("pkill", "-f", "create_server")
    process.wait(PATIENCE_S)


def run_plan(
    local: Local, folder: Path, limit_s: float = 30.0, begun: list[ray.StartedNode] | None = None
) -> ray.StartedNode | ray.StartFailure:
    plan = ray.StartPlan((replace(local.node, address="127.0.0.1"),), ray=str(folder), limit_s=limit_s)
    here = replace(HERE, node=plan.nodes[0], cards=0)
    (result,) = ray.start(plan, [here], local.way, begun.append if begun is not None else lambda _: None)
    return result


@pytest.mark.slow
def test_only_what_was_started_is_ended(tmp_path: Path) -> None:
    """A daemon that leaves its group belongs to the start; a process of the same name does not."""
    if why_not_local():
        pytest.skip(why_not_local())
    local = Local(tmp_path)
    folder = fake_ray(tmp_path, f"sleep 611 & echo $! > {tmp_path}/pid; exit 0")
    stranger = subprocess.Popen(["sleep", "611"])
    try:
        up = run_plan(local, folder)
        assert isinstance(up, ray.StartedNode), up
        pid = int((tmp_path / "pid").read_text())
        assert pid in [number for number, _, _ in up.processes]
        cluster = ray.Cluster("127.0.0.1:6379", str(folder), (up,), "here")
        heard = ray.stop(cluster, local.way)["here"]
        assert heard.answer is not None and heard.answer["left"] == 0 and heard.answer["ended"] >= 1
        assert until(lambda: is_gone(pid))
        assert stranger.poll() is None
        again = ray.stop(cluster, local.way)["here"]
        assert again.answer is not None and (again.answer["ended"], again.answer["left"]) == (0, 0)
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.slow
def test_a_start_that_nobody_has_heard_the_end_of_is_found_by_its_word(tmp_path: Path) -> None:
    if why_not_local():
        pytest.skip(why_not_local())
    local, begun = Local(tmp_path), list[ray.StartedNode]()
    text = f"sleep 613 & echo $! > {tmp_path}/pid; until [ $(cat /proc/$!/comm) = sleep ]; do :; done; exit 0"
    folder = fake_ray(tmp_path, text)
    stranger = subprocess.Popen(["sleep", "613"], env={**os.environ, "NPUENV_RAY_START": "another"})
    try:
        assert isinstance(run_plan(local, folder, begun=begun), ray.StartedNode)
        pid = int((tmp_path / "pid").read_text())
        cluster = ray.Cluster("127.0.0.1:6379", str(folder), tuple(begun), "here")
        heard = ray.query_processes(cluster, local.way)["here"]
        assert heard.answer is not None and heard.answer["running"] == ["sleep"]
        heard = ray.stop(cluster, local.way)["here"]
        assert heard.answer is not None and (heard.answer["ended"], heard.answer["left"]) == (1, 0)
        assert until(lambda: is_gone(pid))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_number_that_is_in_use_again_is_left_alone(tmp_path: Path) -> None:
    local = Local(tmp_path)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        known = ray.StartedNode(local.node, boot, stranger.pid, ((stranger.pid, 1, "raylet"),), 0)
        heard = ray.stop(ray.Cluster("127.0.0.1:6379", "", (known,), "here"), local.way)["here"]
        assert heard.answer is not None and heard.answer["ended"] == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(("text", "is_timed_out"), [("exec sleep 600", True), ("echo table; exit 0", False)])
@pytest.mark.slow
def test_a_status_ends_in_time_whatever_it_leaves_behind(tmp_path: Path, text: str, is_timed_out: bool) -> None:
    """A child that keeps the outputs open is not waited for, and of one that hangs the whole session is ended."""
    local = Local(tmp_path)
    folder = fake_ray(tmp_path, f"sleep 612 & echo $! > {tmp_path}/pid; {text}")
    cluster = ray.Cluster("127.0.0.1:6379", str(folder), (replace(started("here"), node=local.node),), "here")
    began = time.monotonic()
    heard = ray.query_ray(cluster, 3.0 if is_timed_out else 60.0, local.way)
    child = int((tmp_path / "pid").read_text())
    try:
        assert time.monotonic() - began < PATIENCE_S
        assert heard.answer is not None
        table = heard.answer["table"]
        assert (table["timed_out"], table["code"]) == ((True, None) if is_timed_out else (False, 0))
        assert table["out"] == ("" if is_timed_out else "table\n")
        assert heard.answer["nodes"]["out"] == "", "of a script of another kind nobody knows the interpreter"
        if is_timed_out:
            assert until(lambda: is_gone(child))
    finally:
        if not is_timed_out:
            psutil.Process(child).kill()


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_start_leaves_nothing_running_and_says_what_makes_sure(tmp_path: Path) -> None:
    """Over real ssh, where node2's `ray start` never comes to an end. What node1 has started stays, and is named."""
    why = why_not(sshd=True)
    if why:
        pytest.skip(why)
    text = (
        '[ $1 = start ] || { echo ray 2.50.1; exit; }; case "$*" in *--head*) sleep 615 & exit;; esac; exec sleep 614'
    )
    folder = fake_ray(tmp_path, text)
    inventory = tmp_path / "hosts"
    inventory.write_text("node1 address=10.77.0.1 cards=1\nnode2 address=10.77.0.2 cards=1\n")
    with machines(tmp_path, 2, sshd=True) as hosts, listener(hosts[0], 6379):
        where = ["--hosts", str(inventory), "--ssh-config", str(hosts.ssh_config), "--lang", "en"]
        npuenv = [sys.executable, "-m", "npuenv", "cluster"]
        log = tmp_path / "log"
        with log.open("wb") as sink:
            up = [*npuenv, "up", "--ray", str(folder), *where]
            command = hosts.operator.start(*up, log=sink, preexec_fn=as_from_a_terminal)
        assert until(lambda: any("sleep 614" in line for line in hosts[1].processes())), log.read_text()
        asking = hosts.operator.run("pgrep", "-f", "npuenv cluster").stdout.split()
        hosts.operator.run("kill", "-INT", *asking, check=False)
        assert command.wait(PATIENCE_S) == 130
        down = "npuenv cluster down " + " ".join(where[:4])
        both = {"names": "node1", "begun": "node2", "down": down}
        assert says(log.read_text(), "cluster.ray-broken-both", **both), log.read_text()
        assert until(lambda: not [line for line in hosts[1].processes() if "sshd" not in line])
        ran = hosts.operator.run(*npuenv, "down", *where, timeout_s=300)
        assert sentence("cluster.ray-node-down", name="node1", ended=1) in ran.stdout
        assert sentence("cluster.ray-node-down", name="node2", ended=0) in ran.stdout
        assert until(lambda: not [line for line in hosts[0].processes() if "sshd" not in line and "python" not in line])


def test_a_worker_that_does_not_reach_the_head_says_why_within_its_limit(tmp_path: Path) -> None:
    if why_not_local():
        pytest.skip(why_not_local())
    local = Local(tmp_path)
    folder, head = str(fake_ray(tmp_path, "exit 0")), Node("head", "127.0.0.1")
    with socket.socket() as held:  # nobody listens there, and nobody else can begin to
        held.bind((own_address(), 0))
        port = held.getsockname()[1]
        plan = ray.StartPlan((head, local.node), ray=folder, port=port, limit_s=4, address=own_address())
        (result,) = ray.start(plan, [replace(HERE, node=local.node, cards=1)], local.way, lambda _: None)
    assert isinstance(result, ray.StartFailure)
    assert f"nobody listens at {own_address()}, port {port}, after 2 s" in result.said


@pytest.mark.parametrize("named", ["env", "env/bin/ray", ""])
def test_ray_starts_with_what_the_activation_of_its_environment_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """What Ray starts inherits from it, and a session without a terminal has nothing of CANN."""
    if why_not_local():
        pytest.skip(why_not_local())
    local, folder = Local(tmp_path), fake_ray(tmp_path, f"env > {tmp_path}/environ; exit 0")
    (folder / "activate.sh").write_text(
        f"export ASCEND_HOME_PATH=/cann NPUENV_SEEN=$NPUENV_NODES PATH={folder}:$PATH\n"
    )
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    nodes = (replace(local.node, address=own_address()), Node("other", "other"))
    plan = ray.StartPlan(nodes, ray=str(tmp_path / named) if named else "", limit_s=30)
    ray_node = replace(HERE, node=plan.nodes[0], cards=0)
    (result,) = ray.start(plan, [ray_node], local.way, lambda _: None)
    assert isinstance(result, ray.StartFailure) and f"sh ray_worker.sh {own_address()}\n" in result.said, result
    seen = dict(line.split("=", 1) for line in (tmp_path / "environ").read_text().splitlines() if "=" in line)
    assert (seen["ASCEND_HOME_PATH"], seen["NPUENV_SEEN"]) == ("/cann", "multi")
    assert "NPUENV_RAY_START" in seen


def test_an_environment_that_cannot_be_activated_is_not_started_without_it(tmp_path: Path) -> None:
    local, folder = Local(tmp_path), fake_ray(tmp_path, f"touch {tmp_path}/begun; exit 0")
    (folder / "activate.sh").write_text("echo no CANN here >&2; eval false\n")
    result = run_plan(local, folder)
    assert isinstance(result, ray.StartFailure) and result.said == "no CANN here"
    assert not (tmp_path / "begun").exists()


def own_address() -> str:
    """An address of this machine that is no loopback; skips where it has none."""
    for rows in psutil.net_if_addrs().values():
        for row in rows:
            if row.family == socket.AF_INET and not row.address.startswith("127."):
                return str(row.address)
    pytest.skip("this machine has no address but loopback")


@pytest.mark.parametrize("connection", ["own", "127.0.0.1", "198.51.100.7", "fd00::1", ""])
@pytest.mark.slow
def test_the_address_of_a_login_counts_where_it_is_the_nodes_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    address = own_address() if connection == "own" else connection
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.1 50000 {address} 22" if address else "")
    (here,) = ray.survey([Local(tmp_path).node], "/no/ray", Local(tmp_path).way)
    assert not here.is_own, "a name is none"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        with contextlib.suppress(PermissionError):
            taken.bind((own_address(), 1))  # an address is the node's own whatever port of it is taken
        (named,) = ray.survey([replace(Local(tmp_path).node, address=own_address())], "/no/ray", Local(tmp_path).way)
    assert named.is_own
    assert here.boot and here.network == os.readlink("/proc/self/ns/net")
    assert (here.why_not, here.login) == ("", address if connection == "own" else "")


@pytest.mark.slow
def test_a_start_that_hangs_or_fails_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    if why_not_local():
        pytest.skip(why_not_local())
    local = Local(tmp_path)
    folder = fake_ray(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    for limit_s in (1.5, PATIENCE_S):  # more where this machine is too busy to come to it in time
        result = run_plan(local, folder, limit_s=limit_s)
        assert isinstance(result, ray.StartFailure)
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    assert until(lambda: is_gone(pid))
    (folder / "bin" / "ray").write_text("#!/bin/sh\necho RuntimeError: Version mismatch >&2\nexit 1\n")
    failed = run_plan(local, folder)
    assert isinstance(failed, ray.StartFailure) and failed.said.endswith("RuntimeError: Version mismatch")


def why_not_local() -> str:
    """Why the scripts that start Ray cannot run here; "" where they can."""
    missing = [name for name in ("ip", "getent", "awk") if shutil.which(name) is None]
    return f"there is no {missing[0]} here" if missing else ""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, Path]]:
    """Two hosts with an sshd each, and the folder of an environment with Ray."""
    named = os.environ.get("NPUENV_TEST_RAY")
    places = [Path(named)] if named else [default_environment("cpu-full"), Path(sys.prefix)]
    folder = next((place for place in places if (place / "bin" / "ray").exists()), None)
    why = why_not(sshd=True) or (None if folder else "no environment with Ray here: npuenv install cpu-full --yes")
    if why:
        pytest.skip(why)
    assert folder is not None
    folder = folder.resolve()
    with machines(tmp_path_factory.mktemp("ray"), 2, devices=[8, 0], sshd=True, keep=[folder]) as hosts:
        yield hosts, folder


@pytest.mark.slow
def test_a_real_ray_comes_up_is_explained_and_goes_down(real: tuple[Machines, Path]) -> None:
    """Node 1 sees its devices, node 2 is told its number; then node 2's raylet is killed, and all of it is ended."""
    hosts, folder = real
    inventory = hosts.operator.home / "hosts"
    inventory.write_text("node1 address=10.77.0.1\nnode2 address=10.77.0.2 cards=4\n")

    def cluster(*words: str) -> tuple[int, dict[str, Any]]:
        argv = [sys.executable, "-m", "npuenv", "cluster", *words, "--json", "--hosts", str(inventory)]
        ran = hosts.operator.run(*argv, "--ssh-config", str(hosts.ssh_config), check=False, timeout_s=400)
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)

    code, document = cluster("up", "--ray", str(folder), "--limit", "150")
    assert code == 0, document
    (warning,) = document["warnings"]
    assert says(warning, "cluster.ray-without-cann", names="node1"), warning
    assert document["resources"]["NPU"] == {"used": 0, "total": 12}
    assert "GPU" not in document["resources"]
    rows = document["nodes"]
    assert [(row["address"], row["ray"]["alive"]) for row in rows.values()] == [
        ("10.77.0.1", True),
        ("10.77.0.2", True),
    ]
    assert [row["resources"]["NPU"]["total"] for row in rows.values()] == [8, 4]
    code, document = cluster("up", "--ray", str(folder))
    assert (code, document["address"]) == (0, "10.77.0.1:6379"), "it is up already, and left as it is"
    start = f'import ray; ray.init("{document["address"]}", namespace="a"); '
    held = "h = ray.remote(num_cpus=0, resources={'NPU': 2})(type('Held', (), {'ping': lambda self: 1})); "
    held += "ray.get(h.options(name='kept', lifetime='detached').remote().ping.remote())"
    hosts[0].run(str(folder / "bin" / "python"), "-c", start + held)
    warning = cluster("status")[1]["warnings"][-1]
    assert says(warning, "cluster.ray-left-actor", name="kept", count="2"), warning
    command = shlex.split(warning[warning.index("`") + 1 : warning.rindex("`")])
    hosts[0].run(str(folder / "bin" / "python"), *command[1:])
    assert len(cluster("status")[1]["warnings"]) == 1
    hosts[1].run("pkill", "-9", "raylet")
    code, document = cluster("status")
    assert (code, document["nodes"]["node1"]["is_up"], document["nodes"]["node2"]["is_up"]) == (1, True, False)
    assert any("node2" in line for line in document["explained"]), "Ray has lost it, or still counts it"
    code, document = cluster("down")
    assert (code, [row["is_down"] for row in document["nodes"].values()]) == (0, [True, True])
    for host in hosts:
        assert until(lambda host=host: not [line for line in host.processes() if "sshd" not in line])  # type: ignore[misc]
