"""Ray start scripts, run for real with stand-ins for `ray`, `ip`, `getent` and a card folder of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.preflight.memory.types import Cards
from npuenv.render.variables import RAY_FILES, render_ray
from tests.render.conftest import make_stack, pin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npuenv.resolve.types import Stack

HEAD, WORKER = "10.0.0.1", "10.0.0.2"
# What `ip -o route get` prints (iproute2 6.1): towards another host, and towards an address of one's own.
ROUTE = "10.0.0.1 dev enp194s0f0 src 10.0.0.2 uid 0 \\    cache"
ROUTE_BEHIND = "10.0.0.1 via 10.0.9.254 dev bond0.7 src 10.0.9.2 uid 0 \\    cache"
ROUTE_SELF = "local 10.0.0.1 dev lo src 10.0.0.1 uid 0 \\    cache <local>"
ADDRESS = "3: enp194s0f0    inet 10.0.0.1/24 brd 10.0.0.255 scope global enp194s0f0\\       valid_lft forever"
ADDRESS_VETH = "3: eth0@if9    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0\\       valid_lft forever"
# `ray status` of Ray 2.50.1, shortened: two nodes with eight cards each.
STATUS = """======== Autoscaler status: 2026-11-22 02:00:00.000000 ========
Node status
---------------------------------------------------------------
Active:
 1 node_0a1b2c
 1 node_3d4e5f
Pending:
 (no pending nodes)
Recent failures:
 (no failures)

Resources
---------------------------------------------------------------
Total Usage:
 0.0/32.0 CPU
 0.0/16.0 NPU
 0B/100.00GiB memory

Pending Demands:
 (no resource demands)
"""
RAY = """#!/bin/sh
if [ "$1" = status ]; then
    cat "$STAND/status" 2>/dev/null
    exit 0
fi
{ printf '%s|' "$@"; printf '\\n'; } >>"$STAND/started"
{ env; } >"$STAND/environ"
exit "${RAY_CODE:-0}"
"""


class Nodes:
    """Folders with the rendered scripts, the stand-ins and the devices of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = STATUS
        self.route, self.address = ROUTE_SELF, ADDRESS
        self.devices = 8
        (folder / "stand").mkdir()
        (folder / "dev").mkdir()

    def write(self, *, head: str | None = None, nodes: int = 2, **options: Any) -> None:
        options = {"framework": "verl", "stack": None} | options
        for name, text in render_ray(Cards("a2", 8, nodes), head=head, **options).items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, script: str, *words: str, shell: str = "sh", **environ: str) -> subprocess.CompletedProcess[str]:
        stand = self.folder / "stand"
        (stand / "status").write_text(self.status)
        for name, text in self._programs().items():
            (stand / name).write_text(text)
            (stand / name).chmod(0o755)
        for number in range(self.devices):
            (self.folder / "dev" / f"davinci{number}").touch()
        (self.folder / "dev" / "davinci_manager").touch()
        base = {
            "PATH": f"{stand}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "STAND": str(stand),
            "NPUENV_DEVICES": str(self.folder / "dev"),
            "NPUENV_WAIT_S": "100",  # also bounds the stand-in for ray, which a busy machine starts late
        }
        return subprocess.run(
            [shell, str(self.folder / script), *words],
            env=base | environ, capture_output=True, text=True, timeout=240, check=False, cwd="/",
        )  # fmt: skip

    def _programs(self) -> dict[str, str]:
        ip = f"#!/bin/sh\ncase \"$2\" in\nroute) echo '{self.route}' ;;\naddr) echo '{self.address}' ;;\nesac\n"
        # The names resolve to themselves: a stand-in answers with the address asked for.
        getent = "#!/bin/sh\ncase \"$2\" in\nnowhere) exit 2 ;;\nhead-node) echo '10.0.0.1 STREAM head-node' ;;\n"
        getent += '*) echo "$2 STREAM $2" ;;\nesac\n'
        return {"ip": ip, "getent": getent, "ray": RAY}

    @property
    def started(self) -> list[list[str]]:
        """The words of each `ray start`."""
        path = self.folder / "stand" / "started"
        return [line.rstrip("|").split("|") for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def environ(self) -> dict[str, str]:
        lines = (self.folder / "stand" / "environ").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.fixture
def listener() -> Iterator[str]:
    """A port of this machine where somebody listens: what a worker waits for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@pytest.fixture
def closed_port() -> Iterator[str]:
    """A port where nobody listens, and nobody else can meanwhile: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield str(taken.getsockname()[1])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_rank_0_starts_the_head_waits_for_all_and_runs_the_command(nodes: Nodes, shell: str) -> None:
    nodes.write()
    ran = nodes.run("ray_auto.sh", "echo", "now training", shell=shell, RANK="0", WORLD_SIZE="2", MASTER_ADDR=HEAD)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert nodes.started == [["start", "--head", "--node-ip-address=10.0.0.1", "--port=6379", "--dashboard-port=8265"]]
    assert ran.stdout.splitlines() == ["npuenv: 2 nodes are there, with 16 NPUs", "now training"]
    # The way to one's own address leads over lo: the interface that holds the address is meant.
    assert nodes.environ["HCCL_SOCKET_IFNAME"] == "=enp194s0f0"
    assert nodes.environ["GLOO_SOCKET_IFNAME"] == nodes.environ["TP_SOCKET_IFNAME"] == "enp194s0f0"
    assert nodes.environ["HCCL_IF_IP"] == HEAD


def test_the_ports_of_the_environment_count(nodes: Nodes) -> None:
    nodes.write(head=HEAD, port=7000, dashboard_port=7001)
    assert nodes.run("ray_auto.sh", RANK="0").returncode == 0
    assert nodes.run("ray_auto.sh", RANK="0", MASTER_PORT="6400", DASHBOARD_PORT="8300").returncode == 0
    assert [words[-2:] for words in nodes.started] == [
        ["--port=7000", "--dashboard-port=7001"],
        ["--port=6400", "--dashboard-port=8300"],
    ]


@pytest.mark.parametrize("script", ["ray_auto.sh", "ray_worker.sh"])
def test_a_worker_joins_and_ends_with_0(nodes: Nodes, listener: str, script: str) -> None:
    nodes.write(port=int(listener))
    nodes.route = "127.0.0.1 dev eth1 src 10.0.0.2 uid 0"
    words = ("127.0.0.1",) if script == "ray_worker.sh" else ()
    ran = nodes.run(script, *words, RANK="1", MASTER_ADDR="127.0.0.1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert nodes.started == [["start", f"--address=127.0.0.1:{listener}", "--node-ip-address=10.0.0.2"]]
    assert nodes.environ["HCCL_SOCKET_IFNAME"] == "=eth1"
    assert nodes.environ["HCCL_IF_IP"] == WORKER


@pytest.mark.parametrize("script", ["ray_auto.sh", "ray_worker.sh"])
@pytest.mark.slow
def test_a_head_that_never_comes_ends_the_wait(nodes: Nodes, closed_port: str, script: str) -> None:
    nodes.write(port=int(closed_port))
    nodes.route = "127.0.0.1 dev eth1 src 10.0.0.2 uid 0"
    words = ("127.0.0.1",) if script == "ray_worker.sh" else ()
    ran = nodes.run(script, *words, RANK="1", MASTER_ADDR="127.0.0.1", NPUENV_WAIT_S="1")
    assert ran.returncode == 1
    assert f"nobody listens at 127.0.0.1, port {closed_port}, after 1 s" in ran.stderr
    assert nodes.started == []


def test_a_join_that_fails_is_said(nodes: Nodes, listener: str) -> None:
    nodes.write(port=int(listener))
    nodes.route = "127.0.0.1 dev eth1 src 10.0.0.2 uid 0"
    ran = nodes.run("ray_worker.sh", "127.0.0.1", RAY_CODE="1")
    assert ran.returncode == 1
    assert "did not join" in ran.stderr


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (STATUS.replace(" 1 node_3d4e5f\n", "").replace("16.0", "8.0"), "1 of 2 nodes with 8 of 16 NPUs after 1 s"),
        # The second node came without its cards.
        (STATUS.replace("16.0 NPU", "8.0 NPU"), "2 of 2 nodes with 8 of 16 NPUs after 1 s"),
        (STATUS.replace("NPU", "GPU"), "2 of 2 nodes with 0 of 16 NPUs after 1 s"),
        ("", "0 of 2 nodes with 0 of 16 NPUs after 1 s"),
    ],
)
@pytest.mark.slow
def test_the_head_does_not_wait_for_ever(nodes: Nodes, status: str, said: str) -> None:
    nodes.write()
    nodes.status = status
    ran = nodes.run("ray_auto.sh", "echo", "training", RANK="0", MASTER_ADDR=HEAD, NPUENV_WAIT_S="1")
    assert ran.returncode == 1
    assert said in ran.stderr
    assert "training" not in ran.stdout


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "2"}, "RANK is 2, with 2 nodes it lies between 0 and 1"),
        ({}, "RANK is ''"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "node1"}, "RANK is 'node1'"),
        ({"RANK": "99999999999999999999"}, "at most six digits"),
        (
            {"RANK": "1", "WORLD_SIZE": "16"},
            "WORLD_SIZE is 16, these files are for 2 nodes: it counts nodes, not cards",
        ),
        ({"RANK": "1", "MASTER_PORT": "0"}, "MASTER_PORT is 0"),
        ({"RANK": "1", "DASHBOARD_PORT": "65536"}, "DASHBOARD_PORT is 65536"),
        ({"RANK": "1", "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"RANK": "1", "NPUENV_WAIT_S": "soon"}, "NPUENV_WAIT_S is 'soon'"),
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "loopback"),
    ],
)
def test_wrong_variables_are_refused_before_anything_starts(nodes: Nodes, environ: dict[str, str], said: str) -> None:
    nodes.write()
    if environ.get("MASTER_ADDR") == "127.0.0.1":
        nodes.route, nodes.address = "local 127.0.0.1 dev lo src 127.0.0.1", "1: lo    inet 127.0.0.1/8 scope host lo"
    ran = nodes.run("ray_auto.sh", **({"MASTER_ADDR": HEAD} | environ))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert nodes.started == []


def test_rank_0_on_another_node_than_the_head_is_refused(nodes: Nodes) -> None:
    nodes.write()
    nodes.route = ROUTE
    ran = nodes.run("ray_auto.sh", RANK="0", MASTER_ADDR=HEAD)
    assert (ran.returncode, nodes.started) == (2, [])
    assert "is not this node's, which has 10.0.0.2" in ran.stderr


@pytest.mark.parametrize(
    ("devices", "environ", "resources"),
    [
        (8, {}, None),
        (0, {}, '--resources={"NPU": 8}'),
        (0, {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, '--resources={"NPU": 8}'),
        (16, {"ASCEND_RT_VISIBLE_DEVICES": "8,9,10,11,12,13,14,15"}, None),
    ],
)
def test_ray_is_told_the_cards_only_where_it_cannot_see_them(
    nodes: Nodes, devices: int, environ: dict[str, str], resources: str | None
) -> None:
    nodes.write(head=HEAD)
    nodes.devices = devices
    ran = nodes.run("ray_head.sh", **environ)
    assert (ran.returncode, ran.stderr) == (0, "")
    [words] = nodes.started
    assert [word for word in words if word.startswith("--resources")] == ([resources] if resources else [])
    assert not [word for word in words if "gpus" in word]


@pytest.mark.parametrize(
    ("devices", "environ", "said"),
    [
        (4, {}, "only 4 cards are visible"),
        (16, {}, "16 cards are visible"),
        (8, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "names 2 cards, this run needs 8"),
        (8, {"ASCEND_RT_VISIBLE_DEVICES": ""}, "names 0 cards, this run needs 8"),
    ],
)
def test_a_node_with_another_number_of_cards_does_not_join_silently(
    nodes: Nodes, devices: int, environ: dict[str, str], said: str
) -> None:
    nodes.write(head=HEAD)
    nodes.devices = devices
    ran = nodes.run("ray_head.sh", **environ)
    assert (ran.returncode, nodes.started) == (1, [])
    assert said in ran.stderr


def test_the_interface_behind_a_gateway_and_a_name_for_the_head_are_found(nodes: Nodes, listener: str) -> None:
    nodes.write()
    nodes.route = ROUTE_BEHIND
    script = f'. "{nodes.folder}/network.sh"; npuenv_network head-node; echo "$HCCL_SOCKET_IFNAME $HCCL_IF_IP"'
    (nodes.folder / "ask.sh").write_text(script)
    assert nodes.run("ask.sh").stdout == "=bond0.7 10.0.9.2\n"
    nodes.route, nodes.address = ROUTE_SELF, ADDRESS_VETH
    assert nodes.run("ask.sh").stdout == "=eth0 10.0.0.1\n"
    # What the user has set stays.
    assert nodes.run("ask.sh", HCCL_SOCKET_IFNAME="=ib0", HCCL_IF_IP="10.9.9.9").stdout == "=ib0 10.9.9.9\n"


@pytest.mark.parametrize(
    ("route", "name", "said"),
    [(ROUTE, "nowhere", "has no IPv4 address here"), ("", HEAD, "was not found")],
)
def test_a_head_that_cannot_be_reached_by_name_or_route_is_said(nodes: Nodes, route: str, name: str, said: str) -> None:
    nodes.write()
    nodes.route = route
    ran = nodes.run("ray_head.sh", name)
    assert (ran.returncode, nodes.started) == (1, [])
    assert said in ran.stderr


def test_a_script_without_an_address_says_so(nodes: Nodes) -> None:
    nodes.write()
    for script in ("ray_head.sh", "ray_worker.sh"):
        ran = nodes.run(script)
        assert (ran.returncode, nodes.started) == (2, [])
        assert f"sh {script} ADDRESS" in ran.stderr


def test_processes_get_the_settings_of_a_run_and_the_users_own_win(nodes: Nodes) -> None:
    nodes.write(head=HEAD)
    assert nodes.run("ray_head.sh", HCCL_CONNECT_TIMEOUT="900", ATB_LOG_LEVEL="").returncode == 0
    found = nodes.environ
    expected = {
        "HCCL_CONNECT_TIMEOUT": "900",
        "ATB_LOG_LEVEL": "",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "HCCL_IF_BASE_PORT": "23456",
        "RAY_AUTH_MODE": "disabled",
        "ACL_OP_COMPILER_CACHE_DIR": f"{nodes.folder}/.cache/npuenv/operators",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert {"PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE"} & set(found) == set()


def test_one_node_has_no_settings_for_many(nodes: Nodes) -> None:
    nodes.write(head=HEAD, nodes=1)
    nodes.status = STATUS.replace(" 1 node_3d4e5f\n", "").replace("16.0", "8.0")
    assert nodes.run("ray_auto.sh", RANK="0").returncode == 0
    assert "HCCL_IF_BASE_PORT" not in nodes.environ


def with_ray(version: str) -> Stack:
    return make_stack(pins=(*make_stack().pins, pin("ray", version)))


@pytest.mark.parametrize(("ray", "is_set"), [("2.48.0", False), ("2.58.1", False), ("2.59.0", True), ("2.60.0", True)])
def test_the_stacks_ray_decides_about_the_token(ray: str, is_set: bool) -> None:
    network = render_ray(Cards("a2", 8, 2), head=None, framework="verl", stack=with_ray(ray))["network.sh"]
    assert ('export RAY_AUTH_MODE="${RAY_AUTH_MODE-disabled}"' in network) is is_set


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"head": "10.0.0.1;reboot"}, "launch.no-address"),
        ({"head": "$(reboot)"}, "launch.no-address"),
        ({"head": "a b"}, "launch.no-address"),
        ({"head": "-h"}, "launch.no-address"),
        ({"head": "10.0.0.1\n"}, "launch.no-address"),
        ({"head": ""}, "launch.no-address"),
        ({"port": 0}, "launch.no-port"),
        ({"dashboard_port": 65536}, "launch.no-port"),
    ],
)
def test_addresses_and_ports_that_are_none_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(BadInput) as error:
        render_ray(Cards("a2", 8, 2), framework="verl", stack=None, **({"head": None} | options))
    assert error.value.message.key == key
    assert say(error.value.message, "en") != say(error.value.message, "zh")


@pytest.mark.parametrize("head", [None, HEAD])
@pytest.mark.parametrize("framework", ["verl", "roll"])
def test_every_script_is_clean_posix_shell_and_repeats(tmp_path: Path, framework: str, head: str | None) -> None:
    for count in (1, 2):
        stack = make_stack(framework=framework)
        files, again = (
            render_ray(Cards("a3", 16, count), head=head, framework=framework, stack=stack) for _ in range(2)
        )
        assert (tuple(files), files) == (RAY_FILES, again)
        for name, text in files.items():
            assert text.splitlines()[1].startswith("# npuenv ")
            assert "sample-1.0" in text.splitlines()[1]
            (tmp_path / f"{count}-{name}").write_text(text, encoding="utf-8")
    scripts = sorted(str(path) for path in tmp_path.iterdir())
    for script in scripts:
        assert subprocess.run(["sh", "-n", script], capture_output=True, timeout=120, check=False).stderr == b""
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("there is no shellcheck on PATH; sh -n was content")
    found = subprocess.run([shellcheck, "-s", "sh", *scripts], capture_output=True, text=True, timeout=240, check=False)
    assert found.stdout == ""
