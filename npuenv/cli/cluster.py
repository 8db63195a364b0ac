"""`npuenv cluster`: what is done with all nodes of an inventory together."""

from __future__ import annotations

import click

from npuenv.cli.help import Group

_COMMANDS = {
    "up": ("cluster_ray:up", "Start Ray on all nodes: the head first, then the others one after another"),
    "status": (
        "cluster_ray:status",
        "Say how the cluster is that `npuenv cluster up` has started: each node, and what Ray says of itself",
    ),
    "down": ("cluster_ray:down", "End what `npuenv cluster up` has started, and nothing else"),
    "mesh": (
        "cluster_mesh",
        "Ping between the device addresses of all cards of a cluster, and name the fewest culprits",
    ),
}


@click.group("cluster", cls=Group, lazy=_COMMANDS)
def command() -> None:
    """Manage all nodes of an inventory over ssh."""
