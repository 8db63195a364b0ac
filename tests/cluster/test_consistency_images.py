"""Containers of one image on all nodes: what can be read inside tells another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.uniform import cluster
from tests.cluster.voting import changed, odd, same, told, words
from tests.support.changes import both, put

if TYPE_CHECKING:
    from tests.support.changes import Change


def stacked(stack: str | None) -> Change:
    environ = {"NPUENV_STACK": stack} if stack else {}
    return both(put(container="docker"), put(environment=environ))


def test_another_stack_in_an_image_is_named() -> None:
    nodes = changed(3, {at: stacked("roll-guide" if at == 2 else "verl-0.7.1-cann8.5.0") for at in (1, 2, 3)})
    says = "NPUENV_STACK: " + odd("node02: roll-guide", 2, "verl-0.7.1-cann8.5.0")
    assert told("image", nodes) == ("warn", says)
    assert told("container", nodes) == ("ok", same("docker", 3))


def test_an_image_that_names_no_stack_is_another_one() -> None:
    nodes = changed(3, {at: stacked(None if at == 3 else "verl-0.7.1-cann8.5.0") for at in (1, 2, 3)})
    says = "NPUENV_STACK: " + odd(f"node03: {words('word-none')}", 2, "verl-0.7.1-cann8.5.0")
    assert told("image", nodes) == ("warn", says)


def test_one_image_is_no_alarm() -> None:
    same = {at: stacked("verl-0.7.1-cann8.5.0") for at in (1, 2, 3)}
    assert told("image", changed(3, same))[0] == "ok"


def test_hosts_have_no_image_and_one_container_among_them_is_another_matter() -> None:
    assert told("image", cluster("a2-b3-host-roll", 3))[0] == "skip"
    nodes = changed(3, {2: stacked("verl-0.7.1-cann8.5.0")})
    assert told("container", nodes)[0] == "warn"
    assert told("image", nodes)[0] in ("ok", "skip")
