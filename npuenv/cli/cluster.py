"""`npuenv cluster`: what is done with all nodes of an inventory together."""

from __future__ import annotations

import click

from npuenv.cli.common import HelpfulGroup

_COMMANDS = {
    "up": ("cluster_ray:up", "Start Ray on all nodes: first the head, then the others one by one"),
    "status": (
        "cluster_ray:status",
        "Show the state of the cluster that `npuenv cluster up` started: each node, and Ray's own view",
    ),
    "down": ("cluster_ray:down", "Stop what `npuenv cluster up` started, and nothing else"),
    "mesh": ("cluster_mesh", "Ping between the device addresses of all cards and report the smallest set of suspects"),
}


@click.group("cluster", cls=HelpfulGroup, lazy=_COMMANDS)
def command() -> None:
    """Manage all nodes of an inventory over ssh."""
