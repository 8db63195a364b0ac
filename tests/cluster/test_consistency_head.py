"""Ray's ports on the node that is to run its head: whoever holds them is told, and Ray itself is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.cluster.consistency import check_consistency
from npuenv.core.finding import Status
from npuenv.facts.machine import Process
from npuenv.facts.network.interfaces import Listener
from tests.cluster.voting import NAMES, changed
from tests.support.changes import both, lost, part, put

if TYPE_CHECKING:
    from tests.support.changes import Change

HEAD, OTHER = NAMES[0], NAMES[1]


def listens(port: int, owner: str) -> Change:
    return put(listeners=(Listener("0.0.0.0", port, owner),))


def runs(name: str) -> Change:
    return part("processes", init="systemd", ours=(Process(77, 1, "Sl", name),))


@pytest.mark.parametrize(
    ("change", "status", "key"),
    [
        (listens(6379, "redis-server"), Status.FAIL, "held"),
        (listens(6379, "python3"), Status.FAIL, "held"),  # Ray's server is a program of its own
        (listens(6379, "gcs_server"), Status.OK, "free"),
        (listens(8265, "nginx"), Status.WARN, "held"),
        (listens(8265, "python"), Status.OK, "free"),
        (listens(7000, "nginx"), Status.OK, "free"),
        (both(listens(6379, ""), runs("python")), Status.FAIL, "held-unnamed"),
        (both(listens(6379, ""), runs("gcs_server")), Status.OK, "free"),
        (both(listens(6379, ""), lost("processes")), Status.OK, "free"),  # it may be Ray's
    ],
)
def test_a_stranger_on_the_ports_of_rays_head_is_told(change: Change, status: Status, key: str) -> None:
    (found,) = (
        each for each in check_consistency(changed(3, {1: change}), head=HEAD) if each.check == "agree.ray-head"
    )
    assert (found.status, found.says.key) == (status, f"agree.ray-head-{key}")
    assert found.says.args["node"] == HEAD
    assert (found.fix is not None) == (status is not Status.OK)


def test_ports_that_cannot_be_listed_are_unknown() -> None:
    nodes = changed(3, {1: lost("listeners")})
    (found,) = (each for each in check_consistency(nodes, head=HEAD) if each.check == "agree.ray-head")
    assert found.status is Status.UNKNOWN


def test_only_the_head_is_asked_for_its_ports_and_only_where_it_answered() -> None:
    nodes = changed(3, {1: listens(6379, "redis-server")})
    found = {each.check: each.status for each in check_consistency(nodes, head=OTHER)}
    assert found["agree.ray-head"] is Status.OK
    assert "agree.ray-head" not in {each.check for each in check_consistency(nodes, head="node09")}
    assert "agree.ray-head" not in {each.check for each in check_consistency(nodes)}


def test_a_container_does_not_see_the_ray_of_its_host() -> None:
    nodes = changed(3, {1: both(both(listens(6379, ""), runs("python")), put(container="docker"))})
    (found,) = (each for each in check_consistency(nodes, head=HEAD) if each.check == "agree.ray-head")
    assert found.status is Status.OK
