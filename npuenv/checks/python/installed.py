"""What the checks of the target's packages share: versions, evidence, and the commands that change an environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv import versions
from npuenv.checks.base import Context, Fix, fix
from npuenv.errors import BadInput
from npuenv.facts.base import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.facts.python.interpreter import Python
    from npuenv.matrix.rows import Recipe

# What a training run stands or falls with; trouble in any other package is a remark.
CORE = frozenset(
    "torch torch-npu torchvision torchaudio vllm vllm-ascend triton-ascend triton ray tensordict"  # noqa: SIM905
    " transformers numpy pyarrow verl mindspeed accelerate".split()
)


def python_of(context: Context) -> Python | None:
    """The interpreter that is judged."""
    return context.facts.python.interpreter.value


def version_of(context: Context, name: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    python = python_of(context)
    return python.distributions.get(name) if python else None


def is_for_npu(context: Context) -> bool:
    """Whether the environment is meant for NPUs: by what it is for, else because torch_npu is in it."""
    return context.framework != "cpu" and (
        context.framework is not None or version_of(context, "torch-npu") is not None
    )


def where(context: Context) -> str:
    """The question that the inventory answers, as evidence names it."""
    python = python_of(context)
    return f"{python.executable} (inventory)" if python else "-"


def lines(context: Context, *names: str) -> tuple[Evidence, ...]:
    """The installed versions as evidence."""
    asked = where(context)
    return tuple(Evidence(asked, f"{name} {version_of(context, name) or 'not installed'}") for name in names)


def release(version: str) -> str:
    """ "2.8.0.post2+git1" -> "2.8.0"."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return match.group() if match else version


def public(version: str) -> str:
    """ "v0.13.0+empty" -> "0.13.0"."""
    return version.removeprefix("v").split("+")[0]


def accepts(spec: str, version: str) -> bool | None:
    """Whether a specifier takes a version; None where one of them cannot be read."""
    try:
        return versions.accepts(spec, version)
    except BadInput:
        return None


def pip(context: Context, verb: str, *words: str) -> tuple[str, ...]:
    """A command line for this environment: its own pip, or uv where it has none (as every environment that uv made)."""
    python = python_of(context)
    executable = python.executable if python else "python3"
    if python is not None and "pip" not in python.distributions:
        return ("uv", "pip", verb, "--python", executable, *words)
    return (executable, "-m", "pip", verb, *(("-y",) if verb == "uninstall" else ()), *words)


def reinstall(context: Context, *requirements: str, options: tuple[str, ...] = ()) -> Fix:
    """Installs these, whatever is there."""
    command = pip(context, "install", *options, *requirements)
    return fix("python.reinstall", command, requirement=" ".join(requirements))


def torch_fix(context: Context, version: str, *others: str) -> Fix:
    """torch without CUDA: the `+cpu` build from its own index, where a plain name would fetch gigabytes of CUDA."""
    row = context.matrix.index_row("pytorch-cpu")
    words = (f"torch=={release(version)}+cpu", *others)
    more = ("--extra-index-url", row.url) if row is not None else ()
    return fix("python.reinstall", pip(context, "install", *more, *words), requirement=" ".join(words))


def split(requirement: str) -> tuple[str, str]:
    """ "numpy<2" -> ("numpy", "<2")."""
    return versions.requirement_name(requirement), versions.requirement_spec(requirement)


def is_for_gpus(version: str) -> bool:
    """A local label names another accelerator: "2.8.0+cu128". One without a label may be either."""
    return re.search(r"\+(cu[0-9]|rocm|xpu)", version) is not None


def published_as(context: Context, *names: str) -> Iterator[Recipe]:
    """The published stacks that pin these packages exactly as they are installed here (labels and posts included)."""
    from npuenv.resolve.derived import all_recipes  # reading every stack costs tens of milliseconds: only when needed

    have = {name: version_of(context, name) for name in names}
    for recipe in all_recipes(context.matrix):
        pins = {pin.name: pin.version for pin in recipe.pin}
        if all(has is not None and pins.get(name) == public(has) for name, has in have.items()):
            yield recipe


def chip_generations(context: Context) -> Mapping[str, str]:
    """The generations of the cards here, with a chip name of each; {} where no table was read."""
    table = context.facts.npu.smi.value
    found: dict[str, str] = {}
    for card in table.cards if table is not None else ():
        row = context.matrix.hardware_of_chip(card.name) if card.name else None
        if row is not None:
            found.setdefault(row.id, card.name or "")
    return found
