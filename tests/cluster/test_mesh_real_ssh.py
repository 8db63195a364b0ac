"""The ping mesh over real ssh, between hosts that are network namespaces. Only hccn_tool is scripted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.cluster.mesh_world import World
from tests.cluster.test_mesh_command import require_in_order
from tests.support.namespaces import Machines, machines, why_not
from tests.support.own_signals import as_from_a_terminal
from tests.support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
SHAPE, NAMES = (2, 2, 1), ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    reason = why_not(sshd=True)
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("mesh")
    path = f"{folder}:/usr/local/bin:/usr/bin:/bin"
    with machines(folder, len(SHAPE), devices=SHAPE, sshd=True, env={"WORLD": str(folder), "PATH": path}) as made:
        yield made


@pytest.fixture
def world(hosts: Machines) -> World:
    """A sound cluster with an empty log."""
    for name in ("log", "down.node1", "hold"):
        (hosts.folder / name).unlink(missing_ok=True)
    world = World(hosts.folder, SHAPE, NAMES)
    (hosts.folder / "ssh").unlink()  # the real one
    return world


def words(hosts: Machines, world: World, *more: str) -> list[str]:
    command = [sys.executable, "-m", "npuenv", "cluster", "mesh", "--hosts", str(world.hosts), "--lang", "en"]
    return [*command, "--ssh-config", str(hosts.ssh_config), *more]


def is_idle(hosts: Machines) -> bool:
    """Whether nothing but the servers runs on the nodes, whatever they call themselves at the moment."""
    return not [line for host in hosts for line in host.processes() if "/usr/sbin/sshd -D" not in line]


def test_a_dead_card_is_named_and_nothing_is_left_on_the_nodes(hosts: Machines, world: World) -> None:
    world.kill_card("node2:1")
    ran = hosts.operator.run(*words(hosts, world, "--json"), check=False, timeout_s=300)
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert [(each["kind"], each["about"]["nodes"], each["about"]["cards"]) for each in found["culprits"]] == [
        ("card", ["node2"], [1])
    ]
    assert found["summary"] == {"devices": 5, "planned": 20, "ok": 12, "lossy": 0, "failed": 8, "unknown": 0}
    require_in_order(world)
    assert until(lambda: is_idle(hosts)), "processes are left"


def test_nothing_goes_on_at_the_nodes_when_the_one_who_asked_is_killed(hosts: Machines, world: World) -> None:
    world.seconds["ok"] = 300.0
    world.plant()
    asking = hosts.operator.start(*words(hosts, world))
    assert until(lambda: len(list(hosts.folder.glob("running.*"))) == len(SHAPE)), "no ping was begun"
    hosts.operator.run("pkill", "-KILL", "-f", "npuenv cluster mesh")
    asking.wait(PATIENCE_S)
    assert until(lambda: is_idle(hosts)), "processes are left"
    for mark in hosts.folder.glob("running.*"):
        mark.unlink()


def test_a_node_whose_cable_is_pulled_is_named_and_the_others_go_on(hosts: Machines, world: World) -> None:
    world.seconds["ok"] = 0.2
    world.plant()
    hosts[2].unplug()
    try:
        ran = hosts.operator.run(*words(hosts, world, "--json"), check=False, timeout_s=300)
    finally:
        hosts[2].plug()
    found = json.loads(ran.stdout)
    assert ran.returncode == 3, ran.stderr
    assert [each["node"] for each in found["missing"]] == ["node3"]
    assert found["summary"]["ok"] == found["summary"]["planned"] == 12


@pytest.mark.long
def test_ctrl_c_over_ssh_can_be_gone_on_with(hosts: Machines, world: World, tmp_path: Path) -> None:
    world.hold_after(6)
    with (tmp_path / "said").open("wb") as log:
        asking = hosts.operator.start(*words(hosts, world), log=log, preexec_fn=as_from_a_terminal)
    assert until(lambda: len(world.made()) >= 6), "no pings"
    hosts.operator.run("pkill", "-INT", "-f", "npuenv cluster mesh")
    assert asking.wait(PATIENCE_S) == 130
    state = (tmp_path / "said").read_text().split("--resume ")[1].split()[0]
    assert until(lambda: is_idle(hosts)), "it goes on"
    for mark in hosts.folder.glob("running.*"):
        mark.unlink()
    world.let_go()
    assert "ok: 20 " in hosts.operator.run(*words(hosts, world, "--resume", state), timeout_s=300).stdout
    # At most the one ping that each node had under way is made again.
    times = Counter((ping.node, ping.source, ping.target) for ping in world.made())
    assert len(times) == 20
    twice = [node for (node, _, _), count in times.items() if count > 1]
    assert max(times.values()) <= 2 and len(twice) == len(set(twice))
    require_in_order(world)
