"""`npuenv render-launch`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import Ui, common_options, request_options, tell_basis
from npuenv.cli.help import Command
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.render.launch.generate import FIRST_RECIPE, FRAMEWORKS, Launch, LaunchOptions, launch, recipes
from npuenv.render.launch.job import parse_overrides, unknown, written_cards
from npuenv.render.launch.ray import FILES
from npuenv.render.launch.releases import refuse_contradiction
from npuenv.render.launch.roll_recipe import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.resolve.types import Request

_SCRIPT_MODE, _FILE_MODE = 0o755, 0o644


@click.command("render-launch", cls=Command)
@request_options
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Output folder.")
@click.option("--recipe", metavar="NAME", help="Published run to start from; see --list.")
@click.option("--list", "is_list", is_flag=True, help="With --for: list the recipes and exit.")
@click.option("--release", metavar="V", help="Framework release or commit (default: the stack's).")
@click.option("--model", metavar="PATH|NAME", help="Model folder, or its name on a hub.")
@click.option(
    "--cards-per-node", type=int, metavar="N", help="Cards per node (default: the recipe's, at most the host's)."
)
@click.option("--nodes", type=int, metavar="N", help="Number of nodes (default: the recipe's).")
@click.option("--train-cards", "train", metavar="L", help="Training cards, e.g. 0-3,8-11.")
@click.option("--infer-cards", "infer", metavar="L", help="Generating cards.")
@click.option("--reference-cards", "reference", metavar="L", help="Reference model cards.")
@click.option(
    "--layout", type=click.Choice(("split", "colocated")), help="Train and generate on separate or on the same cards."
)
@click.option("--card-memory", "card_memory_gib", type=float, metavar="GIB", help="Memory per card (default: 64).")
@click.option("--head", default="", metavar="ADDR", help="Address of the head node.")
@click.option(
    "--allow-local-code", "allows_local_code", is_flag=True, help="Let rewards run model-written code on the nodes."
)
@click.option("--force", is_flag=True, help="Write even if it does not fit; overwrite files that differ.")
@common_options
def command(
    ui: Ui, *, request: Request, settings: tuple[str, ...], out: Path | None, is_list: bool, force: bool, **said: Any
) -> int:
    """Render the files that start a training run: verl overrides and YAML or ROLL YAML, and start scripts.

    A recipe is a published run; KEY=VALUE changes its values. Cards are assigned as published, as listed, or as
    planned. The memory is estimated, and a run that does not fit is not written (exit 1).
    """
    if request.stack is not None and "=" in request.stack:
        settings = (request.stack, *settings)
        request = replace(request, stack=None)
    framework = _framework(request)
    if is_list:
        return _list(ui, framework)
    if out is None:
        raise BadInput(Message("launch_roll.no-out"), Message("launch_roll.no-out-hint"))
    return _render(ui, request, framework, settings, out, force=force, said=said)


def _render(
    ui: Ui,
    request: Request,
    framework: str,
    settings: tuple[str, ...],
    out: Path,
    *,
    force: bool,
    said: dict[str, Any],
) -> int:
    recipe, release = said.pop("recipe") or FIRST_RECIPE[framework], said.pop("release")
    request, release = _with_release(request, framework, release)
    # The files of a release that is named may be meant for wherever that runs.
    of_host = request if release else app.resolution.for_this_host(request)
    host = click.get_current_context().params["host"] or ("this" if of_host is not request else None)
    request = of_host
    stack = app.resolve(request)
    tell_basis(ui, request, stack)
    release = release or _release_of_stack(stack.name)
    there = app.resolution.num_cards(host) if host and said["cards_per_node"] is None else None
    asked = LaunchOptions(
        framework, recipe, release, overrides=parse_overrides(settings), cards_of_host=there or None, **said
    )
    made = launch(asked, stack, lang=ui.lang)
    is_refused = made.estimate.verdict == "infeasible" and not force
    written, removed = ((), ()) if is_refused else _write(made.files, out, force=force)
    code = ExitCode.PROBLEMS if is_refused else ExitCode.FINE
    if ui.is_json:
        ui.print_json(_document(made, asked, stack.name, (written, removed), ui.lang, int(code)))
    else:
        _tell(ui, made, asked, stack.name, out, is_refused=is_refused, written=written)
        if removed:
            ui.say(Message("launch_roll.removed", {"folder": str(out), "files": removed}))
    return int(code)


def _framework(request: Request) -> str:
    """verl or roll: what --for says, else the framework of the stack. Raises: BadInput."""
    if request.framework:
        name = request.framework.partition("==")[0].strip()
        if name not in FRAMEWORKS:
            raise unknown(name, FRAMEWORKS, "framework")
        return name
    row = next((row for row in load_matrix().recipes if row.id == request.stack), None)
    if row is not None and row.framework in FRAMEWORKS:
        return row.framework
    if request.stack and row is None:
        raise unknown(request.stack, (row.id for row in load_matrix().recipes), "stack")
    raise BadInput(Message("launch_roll.no-framework"), Message("launch_roll.no-framework-hint"))


def _with_release(request: Request, framework: str, release: str | None) -> tuple[Request, str | None]:
    """The request of a stack that goes with the release, and the release: of a launch it may be any commit."""
    named = (request.framework or "").partition("==")[2].strip()
    release = release or named or None
    _refuse_contradiction(request, release)
    request = replace(request, framework=None if request.stack else framework)
    if release is None or request.stack:
        return request, release
    if framework == "roll":
        return replace(request, stack=release_of(release, load_matrix().roll_releases).stack), release
    return _with_verl_release(request, release), release


def _refuse_contradiction(request: Request, release: str | None) -> None:
    """Refuses a --for or a --release that is not the named stack's, and two different releases. Raises: BadInput."""
    name, _, named = (request.framework or "").partition("==")
    if named.strip() and named.strip() != release:
        args = {"first": named.strip(), "second": release or "-"}
        raise BadInput(Message("launch.two-releases", args), Message("launch.two-releases-hint"))
    row = next((row for row in load_matrix().recipes if row.id == request.stack), None)
    if row is not None:
        refuse_contradiction(row, name.strip() or None, release)


def _with_verl_release(request: Request, release: str) -> Request:
    """The stack of that release where one is published; else the newest stack, whose settings then serve."""
    known = {row.release for row in load_matrix().recipes if row.framework == "verl"}
    return replace(request, release=release) if release.removeprefix("v") in known else request


def _release_of_stack(name: str) -> str:
    row = next((row for row in load_matrix().recipes if name.startswith(row.id)), None)
    if row is None:
        raise BadInput(Message("launch_roll.no-release", {"stack": name}), Message("launch_roll.no-release-hint"))
    return row.release


def _list(ui: Ui, framework: str) -> int:
    found = {
        name: about if isinstance(about, str) else say(about, ui.lang) for name, about in recipes(framework).items()
    }
    if ui.is_json:
        document = {"schema": "npuenv.launch-recipes/1", "exit": 0, "framework": framework, "recipes": found}
        ui.print_json(document)
    for name, about in found.items():
        ui.say(Message("launch_roll.listed", {"name": name, "about": about}))
    return int(ExitCode.FINE)


def _write(files: Mapping[str, str], out: Path, *, force: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that were written, and those of an earlier run on several nodes that were removed.

    Files with the same text are left alone. Raises: BadInput before the first write.
    """
    try:
        changed = {name: text for name, text in files.items() if not _holds(out / name, text)}
        stale = [name for name in FILES if name not in files and _is_ours(out / name)]
        taken = [*(name for name in changed if (out / name).exists() or (out / name).is_symlink()), *stale]
        if taken and not force:
            args = {"folder": str(out), "files": tuple(taken)}
            raise BadInput(Message("launch_roll.exists", args), Message("launch_roll.exists-hint"))
        out.mkdir(parents=True, exist_ok=True)
        for name, text in changed.items():
            (out / name).write_bytes(text.encode())
            (out / name).chmod(_SCRIPT_MODE if name.endswith(".sh") else _FILE_MODE)
        for name in stale:
            (out / name).unlink()
    except OSError as error:
        args = {"path": str(error.filename or out), "reason": error.strerror or str(error)}
        raise BadInput(Message("render.cannot-write", args), Message("render.cannot-write-hint")) from error
    return tuple(changed), tuple(stale)


def _is_ours(path: Path) -> bool:
    """Whether a file is one that this command wrote: its second line says so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\n# npuenv " in file.read(200)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _document(
    made: Launch,
    asked: LaunchOptions,
    stack: str,
    changed: tuple[tuple[str, ...], tuple[str, ...]],
    lang: str,
    code: int,
) -> dict[str, object]:
    found = made.estimate
    return {
        "schema": "npuenv.launch/1",
        "exit": code,
        "framework": asked.framework,
        "recipe": asked.recipe,
        "release": asked.release,
        "stack": stack,
        "cards": {"per_node": made.job.cards.per_node, "nodes": made.job.cards.nodes, "because": made.because.key},
        "placement": {
            "layout": made.placement.layout,
            "train": list(made.placement.train),
            "infer": list(made.placement.infer),
            "reference": list(made.placement.reference),
        },
        "estimate": {
            "verdict": found.verdict,
            "peak_gib": round(found.peak_gib, 1),
            "memory_gib": found.memory_gib,
            "shares": [{"role": each.role, "what": each.what, "gib": round(each.gib, 2)} for each in found.shares],
            "says": [say(each, lang) for each in found.says],
            "advice": [say(each, lang) for each in found.advice],
        },
        "notes": [say(each, lang) for each in made.notes],
        "files": sorted(made.files),
        "written": sorted(changed[0]),
        "removed": sorted(changed[1]),
    }


def _tell(
    ui: Ui, made: Launch, asked: LaunchOptions, stack: str, out: Path, *, is_refused: bool, written: tuple[str, ...]
) -> None:
    placed = made.placement
    cards = {
        "train": written_cards(placed.train),
        "infer": written_cards(placed.infer) or "-",
        "reference": written_cards(placed.reference) or "-",
    }
    took = {"framework": asked.framework, "recipe": asked.recipe, "release": asked.release, "stack": stack}
    ui.say(Message("launch_roll.took", took))
    ui.say(made.because)
    ui.say(Message("launch_roll.placed", cards))
    for note in made.notes:
        ui.say(note)
    for message in made.estimate.says if is_refused or ui.is_verbose else made.estimate.says[:1]:
        ui.say(message, err=is_refused)
    for message in made.estimate.advice:
        ui.say(Message("launch_roll.advice", {"what": message}), err=is_refused)
    if is_refused:
        ui.say(Message("launch_roll.refused"), err=True)
        return
    key = "launch_roll.written" if written else "launch_roll.was-written"
    ui.say(Message(key, {"folder": str(out), "files": tuple(sorted(written or made.files))}))
