"""The activation scripts of an environment.

One for bash, zsh and every POSIX shell, one for fish, one for tcsh. They evaluate what the program `entering.py`
prints, which lies in the environment beside the data that it reads, and says how the way back is kept. The scripts
print nothing, and no file holds a proxy.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.files import folder_of
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.install.plan.cann import cann_scripts, compiler_scripts
from npuenv.matrix import load_matrix
from npuenv.render.activation_program import CSH_END, csh_quoted, fish_quoted, sh_quoted
from npuenv.render.template import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix.rows import Setting
    from npuenv.resolve.types import Stack

ROLES = ("build", "rollout", "train")


def render_activations(stack: Stack, root: str) -> Mapping[str, str]:
    """The files for an environment at `root`: path below it -> text. Pure and deterministic.

    To be sourced are `activate.sh`, `activate.fish` and `activate.csh`; the others belong to them.
    """
    usage = fill("activation_usage.j2", stack=stack.name, roles=" | ".join(ROLES), nodes="multi | single").rstrip()
    place = root.encode("utf-8", "surrogateescape")
    quoted = {"sh": sh_quoted(place), "fish": fish_quoted(place), "csh": csh_quoted(place)}
    return {
        **{
            f"activate.{shell}": fill(
                f"activation.{shell}.j2",
                root=word.decode("utf-8", "surrogateescape"),
                usage=usage,
                end=CSH_END.decode(),
            )
            for shell, word in quoted.items()
        },
        ".npuenv/activation.json": json.dumps(_data(stack, root), indent=1, sort_keys=True) + "\n",
        ".npuenv/entering.py": (folder_of(__file__) / "activation_program.py").read_text(encoding="utf-8"),
    }


def settings_of(stack: Stack, role: str) -> Mapping[str, str]:
    """The matrix's settings for one role of the stack's processes, those its vllm-ascend reads."""
    rows = load_matrix().settings
    return {row.name: row.value for row in rows if row.role == role and _applies(row, stack)}


def outlived(stack: Stack) -> Mapping[str, str]:
    """The framework's settings that vllm-ascend has stopped reading by the stack's release of it."""
    rows = [row for row in load_matrix().settings if stack.framework in row.frameworks and row.until]
    pin = stack.pin("vllm-ascend")
    if pin is None:
        return {}
    return {row.name: row.value for row in rows if versions.accepts(f">={row.until}", pin.version)}


def _data(stack: Stack, root: str) -> dict[str, object]:
    """What `entering.py` reads. `{cache}` in a value stands for npuenv's folder in the user's cache."""
    run = settings_of(stack, "run")
    cann, nnal = cann_scripts(stack)
    compiler = compiler_scripts(stack)
    return {
        "stack": stack.name,
        "root": root,
        "scripts": [cann, *compiler, nnal] if stack.cann_root else [],
        "may_lack": list(compiler),
        "on_path": [f"{root}/src/{source.name}" for source in stack.git_sources if source.how == "pythonpath"],
        "settings": dict(stack.env),
        "nodes": {"single": run, "multi": {**run, **settings_of(stack, "multi-node")}},
        "roles": {role: settings_of(stack, role) for role in ROLES},
        "texts": {lang: {key: say(message, lang) for key, message in _TEXTS.items()} for lang in LANGUAGES},
    }


def _applies(row: Setting, stack: Stack) -> bool:
    """Whether a setting is for the stack's framework, and read by its vllm-ascend where that is what reads it."""
    if stack.framework not in row.frameworks:
        return False
    pin = stack.pin("vllm-ascend")
    if pin is None:
        return not row.since
    return not (row.since and not versions.accepts(f">={row.since}", pin.version)) and not (
        row.until and versions.accepts(f">={row.until}", pin.version)
    )


def _kept(*names: str) -> dict[str, object]:
    """Placeholders that stand for themselves: the program in the environment fills them."""
    return {name: f"{{{name}}}" for name in names}


_TEXTS = {
    "choice": Message("stack.activate-choice", _kept("variable", "value", "known")),
    "no-profile": Message("stack.activate-no-profile", _kept("stack")),
    "no-script": Message("stack.activate-no-script", _kept("path")),
    "no-bash": Message("stack.activate-no-bash", _kept("why")),
    "ended": Message("stack.activate-ended", _kept("paths", "code")),
    "no-proxy": Message("stack.activate-no-proxy"),
    "unsourced": Message("stack.activate-unsourced", _kept("command")),
}
