"""Containers of one image on all nodes: what can be read inside tells another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.facts.machine.storage import Mount
from tests.cluster.uniform import cluster
from tests.cluster.voting import changed, odd, same, told, words
from tests.support.changes import both, put

if TYPE_CHECKING:
    from tests.support.changes import Change

DOCKER, PODMAN = "/var/lib/docker/overlay2/l", "/var/lib/containers/storage/overlay/l"
CONTAINERD = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"


def layered(folder: str, count: int, node: int, *, one_by_one: bool = False) -> Change:
    """A container whose root has so many layers, under names that are the node's own, as a store makes them."""
    names = [f"{folder}/{node}{layer}" for layer in range(count)]
    lower = [f"lowerdir+={name}" for name in names] if one_by_one else [f"lowerdir={':'.join(names)}"]
    upper = f"upperdir={folder}/c{node}/diff"
    rows = (Mount("/", "overlay", ("rw", *lower, upper)), Mount("/proc", "proc", ("rw",)))
    return put(container="docker", mounts=rows)


def stacked(node: int, stack: str | None, count: int = 12) -> Change:
    environ = {"NPUENV_STACK": stack} if stack else {}
    return both(layered(DOCKER, count, node), put(environment=environ))


def test_another_stack_in_an_image_is_named() -> None:
    nodes = changed(3, {at: stacked(at, "roll-guide" if at == 2 else "verl-0.7.1-cann8.5.0") for at in (1, 2, 3)})
    says = "NPUENV_STACK: " + odd("node02: roll-guide", 2, "verl-0.7.1-cann8.5.0")
    assert told("image", nodes) == ("warn", says)
    assert told("container", nodes) == ("ok", same("docker", 3))


def test_an_image_that_names_no_stack_is_another_one() -> None:
    nodes = changed(3, {at: stacked(at, None if at == 3 else "verl-0.7.1-cann8.5.0") for at in (1, 2, 3)})
    says = "NPUENV_STACK: " + odd(f"node03: {words('word-none')}", 2, "verl-0.7.1-cann8.5.0")
    assert told("image", nodes) == ("warn", says)


@pytest.mark.parametrize("folder", [DOCKER, PODMAN, CONTAINERD])
def test_another_number_of_layers_is_another_image(folder: str) -> None:
    nodes = changed(3, {at: layered(folder, 14 if at == 1 else 15, at, one_by_one=at == 3) for at in (1, 2, 3)})
    status, says = told("image", nodes)
    assert status == "warn" and odd("node01: 14", 2, "15") in says


def test_one_image_is_no_alarm_whatever_a_store_calls_its_folders() -> None:
    same = {at: stacked(at, "verl-0.7.1-cann8.5.0") for at in (1, 2, 3)}
    assert told("image", changed(3, same))[0] == "ok"


def test_layers_are_not_compared_between_stores() -> None:
    nodes = changed(3, {1: layered(DOCKER, 15, 1), 2: layered(DOCKER, 15, 2), 3: layered(CONTAINERD, 14, 3)})
    assert told("image", nodes)[0] == "ok"


def test_hosts_have_no_image_and_one_container_among_them_is_another_matter() -> None:
    assert told("image", cluster("a2-b3-host-roll", 3))[0] == "skip"
    nodes = changed(3, {2: stacked(2, "verl-0.7.1-cann8.5.0")})
    assert told("container", nodes)[0] == "warn"
    assert told("image", nodes)[0] in ("ok", "skip")


def test_a_root_that_is_no_overlay_says_nothing_of_layers() -> None:
    plain = put(container="docker", mounts=(Mount("/", "ext4", ("rw",)),))
    assert told("image", changed(2, {1: plain, 2: plain}))[0] == "skip"
