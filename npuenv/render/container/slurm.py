"""A container as a batch script for Slurm with the pyxis plugin (enroot).

The job takes whole nodes and asks for all their cards, so that the numbers of its cards are the ones described: a step
gets what was asked for, cards of Slurm's own choice, and nothing that came with `--exclusive` alone. enroot then shows
only the device nodes that are mounted.
Source: pyxis wiki, Usage; enroot, ENROOT_RESTRICT_DEV in conf/enroot.conf; Slurm, sbatch `--exclusive`, srun `--gres`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.render.container import parts
from npuenv.render.container.apptainer import file_image
from npuenv.render.container.parts import has_registry, is_of_podman

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.render.container.description import Container, Mount
    from npuenv.render.container.parts import Say

# A batch job has no terminal to wait at: without a command it shows the cards and ends.
_SHOW = ("npu-smi", "info")
_CONTAINER = '--container-image="$image" --container-mounts="$mounts" --no-container-mount-home'


def render(container: Container, version: str, say: Say) -> str:
    """The script's text. What follows its name after `sbatch` is the command."""
    notes = [say("note-slurm"), say("note-gres", count=container.node_cards)]
    if container.nodes > 1:
        notes.append(say("note-cluster", nodes=container.nodes))
    if not container.has_host_ipc:
        notes.append(say("note-no-shm-limit"))
    text = [
        *parts.opening(container, version, say, *notes, shell="/bin/bash"),
        *_directives(container),
        "set -eu",
        "",
        *parts.check(container, say, runner=(*_step(container.nodes),)),
        *parts.open_files(container, say),
        "",
        *_image(container, say),
        "export ENROOT_RESTRICT_DEV=y",
        *(f"export {name}={shlex.quote(value)}" for name, value in container.environment.items()),
        f"mounts={shlex.quote(','.join(_listed(mount) for mount in parts.required(container)))}",
        *_where_there(container),
        parts.default_command(container.command or _SHOW),
        *(_one_node(container) if container.nodes == 1 else _nodes(container, say)),
    ]
    return "\n".join(text) + "\n"


def _directives(container: Container) -> list[str]:
    return [
        f"#SBATCH --job-name={container.name}",
        f"#SBATCH --nodes={container.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        f"#SBATCH --gres=npu:{container.node_cards}",
        "#SBATCH --mem=0",  # all of the node's: --exclusive gives no more memory than was asked for
    ]


def _where_there(container: Container) -> Iterator[str]:
    """Asked on the first node, for all: nodes of one job are alike."""
    for mount in parts.optional(container):
        more = shlex.quote(f",{_listed(mount)}")
        yield f'if [ -e {shlex.quote(mount.source)} ]; then mounts="$mounts"{more}; fi'


def _listed(mount: Mount) -> str:
    """pyxis makes a line of fstab of it, which enroot reads with getmntent: a blank has to be written in octal there.

    Source: pyxis args.c, add_mount; enroot bin/enroot-mount.c, mount_fstab.
    """
    return parts.triple(mount).replace(" ", "\\040")


def _one_node(container: Container) -> list[str]:
    return [f'exec {" ".join(_step(1))} {_CONTAINER} {shlex.join(container.entrypoint)} "$@"']


def _nodes(container: Container, say: Say) -> list[str]:
    """Workers first, in the background: they wait for the head. The head's command decides about the job."""
    entry = shlex.join(container.entrypoint)
    _, *settings = parts.lead(container, say, "")
    _, *sentences = parts.follow(say, "")
    join = f'"$head:{parts.RAY_PORT}" {shlex.join(sentences)}'
    lead, follow = " ".join(_step(1)), " ".join(_step(container.nodes - 1))
    return [
        "",
        *parts.program("lead", parts.LEAD),
        *parts.program("follow", parts.FOLLOW),
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f'{follow} --relative=1 {_CONTAINER} {entry} sh -c "$follow" follow {join} &',
        "workers=$!",
        "code=0",
        f'{lead} --relative=0 {_CONTAINER} {entry} sh -c "$lead" lead "$head" {shlex.join(settings)} "$@" || code=$?',
        'kill "$workers" 2>/dev/null || :',
        'exit "$code"',
    ]


def _step(nodes: int) -> tuple[str, ...]:
    return ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")


def _image(container: Container, say: Say) -> list[str]:
    """pyxis parts the registry off with `#`; an image without one is a file beside the caller."""
    if has_registry(container.image):
        registry, _, rest = container.image.partition("/")
        return [f"image={shlex.quote(f'{registry}#{rest}')}"]
    file = f"{container.name}.sqsh"
    source = "podman" if is_of_podman(container.image) else "dockerd"
    how = f"enroot import -o {file} {source}://{container.image}"
    return file_image(file, say("no-image-file", file=file, how=how))
