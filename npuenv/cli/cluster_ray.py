"""`npuenv cluster up|status|down`: Ray on the nodes of an inventory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from npuenv.app.ray_nodes import RayOptions, RayStartOptions, ray_nodes_status, start_ray, stop_ray
from npuenv.cli.common import HelpfulCommand, Ui, common_options
from npuenv.cli.progress import report_pending
from npuenv.core.errors import ExitCode
from npuenv.report.ray_cluster import document, lines, refused_document, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.app.ray_nodes import RayResult

_FRAMEWORKS = ("verl", "roll", "vllm-ascend")


def _node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that name the nodes and how they are reached."""
    for option in (
        click.option("--ssh-config", metavar="FILE", help="ssh configuration to use instead of your own."),
        click.option("--hosts", metavar="FILE|-", help="Inventory file, as for `npuenv doctor --hosts`."),
    ):
        command = option(command)
    return command


@click.command("up", cls=HelpfulCommand)
@_node_options
@click.option("--head", metavar="NAME", help="Head node (default: the first in the inventory).")
@click.option(
    "--ray",
    metavar="PATH",
    default="",
    help="The ray program on the nodes, or its environment's folder (default: from PATH).",
)
@click.option("--port", type=click.IntRange(1, 65535), default=6379, show_default=True, help="Port of the head.")
@click.option(
    "--dashboard-port", type=click.IntRange(1, 65535), default=8265, show_default=True, help="Port of the dashboard."
)
@click.option(
    "--for", "framework", type=click.Choice(_FRAMEWORKS), default="verl", help="Framework that will run on it."
)
@click.option("--stack", metavar="NAME", help="Use the settings of a published stack.")
@click.option(
    "--limit", "limit_s", type=click.FloatRange(min=5), default=120.0, metavar="SECONDS", help="Time limit per node."
)
@common_options
def up(ui: Ui, **options: Any) -> int:
    """Start Ray on all nodes: first the head, then the others one by one.

    Versions and cards are compared before anything is started. Ray counts the cards it can detect; otherwise it gets
    the number from the inventory (cards=). If the environment of --ray has an activate.sh, as those made by npuenv do,
    Ray starts with its settings. A Ray that is already running is reported and left alone. Running the command again
    starts only the missing nodes.
    """
    return _print(ui, start_ray(RayStartOptions(**options), report_pending(ui), partial(ui.say, err=True)))


@click.command("status", cls=HelpfulCommand)
@_node_options
@common_options
def status(ui: Ui, **options: Any) -> int:
    """Show the state of the cluster that `npuenv cluster up` started: each node, and Ray's own view.

    If it started none on these nodes, show whether someone else's Ray is running there.
    """
    return _print(ui, ray_nodes_status(RayOptions(**options), report_pending(ui)))


@click.command("down", cls=HelpfulCommand)
@_node_options
@common_options
def down(ui: Ui, **options: Any) -> int:
    """Stop what `npuenv cluster up` started, and nothing else."""
    return _print(ui, stop_ray(RayOptions(**options), report_pending(ui)))


def _print(ui: Ui, result: RayResult) -> int:
    code, picture = int(result.exit_code), result.picture
    if ui.is_json:
        conflicts = refused_document(result.conflicts, code, ui.lang)
        ui.print_json(document(picture, code, ui.lang) if picture else conflicts)
    elif picture is None:
        print("\n".join(refused_lines(result.conflicts, ui.lang)))
    elif not (ui.is_quiet and result.exit_code is ExitCode.FINE and not picture.warned):
        print("\n".join(lines(picture, ui.lang)))
    return code
