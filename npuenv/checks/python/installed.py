"""Helpers for the checks of the target's packages: versions, evidence, and commands that change an environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import Context, fix_for, message
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence
from npuenv.matrix.release_stacks import all_recipes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.core.finding import Fix
    from npuenv.core.messages import Message
    from npuenv.facts.manifest import Described
    from npuenv.matrix.rows import Recipe, VllmAscend

# Packages that a training run requires; problems of any other package are notes.
CORE = frozenset(
    "torch torch-npu torchvision torchaudio vllm vllm-ascend triton-ascend triton ray tensordict"  # noqa: SIM905
    " transformers numpy pyarrow verl mindspeed accelerate".split()
)
# Without a version these install the newest torch, on x86_64 with CUDA.
_BRINGS_TORCH = frozenset({"torch-npu", "torchvision", "torchaudio", "vllm-ascend"})
_BESIDE_TORCH = frozenset({"torchvision", "torchaudio"})  # these install a torch of their own unless prevented
# Built for the machine from source, with settings that a plain command lacks.
_BUILT = frozenset({"vllm", "vllm-ascend", "sgl-kernel-npu", "apex", "megatron-core", "mindspeed"})
_OF_THE_SYSTEM = ("/usr", "/")  # a Python built into /usr/local, as in the CANN images, is the user's own
_REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[\w,.-]+\])?(?:[=<>!~]=?=?[\w.*+!-]+,?)*")


def gap(wanted: str, has: str | None) -> Message:
    """The required and the installed version, for a list of differences."""
    return message("python.has-other", wanted=wanted, has=has) if has else message("python.has-none", wanted=wanted)


def where(context: Context) -> str:
    """The inventory query, as evidence names it."""
    python = context.python
    return f"{python.executable} (inventory)" if python else "-"


def lines(context: Context, *names: str) -> tuple[Evidence, ...]:
    """The installed versions as evidence."""
    asked = where(context)
    return tuple(Evidence(asked, f"{name} {context.version(name) or 'not installed'}") for name in names)


def release(version: str) -> str:
    """ "2.8.0.post2+git1" -> "2.8.0"."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return match.group() if match else version


def public(version: str) -> str:
    """ "v0.13.0+empty" -> "0.13.0"."""
    return version.removeprefix("v").split("+")[0]


def accepts(spec: str, version: str) -> bool | None:
    """Whether a specifier accepts a version; None if one of them cannot be parsed."""
    try:
        return versions.accepts(spec, version)
    except BadInput:
        return None


def vllm_ascend_row(context: Context) -> VllmAscend | None:
    """The release of the installed vllm-ascend; None without one that is known."""
    return context.matrix.vllm_ascend_row(public(context.version("vllm-ascend") or ""))


def pip(context: Context, verb: str, *words: str) -> tuple[str, ...]:
    """A command line for this environment: its own pip, or uv if pip is damaged or missing."""
    python = context.python
    executable = python.executable if python else "python3"
    files = context.facts.python.files.value
    changed = (*files.missing, *files.emptied, *files.altered) if files is not None else ()
    is_broken = any(item.owner == "pip" for item in changed)
    if python is not None and (is_broken or "pip" not in python.distributions):
        return ("uv", "pip", verb, "--python", executable, *words)
    return (executable, "-m", "pip", verb, *(("-y",) if verb == "uninstall" else ()), *words)


def pip_fix(
    context: Context,
    name: str,
    *,
    remove: tuple[str, ...] = (),
    install: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    **args: Any,
) -> Fix:
    """Removes packages, then installs others; automatic, with its undo, unless that could harm the environment.

    The undo restores the present versions of the named packages; other packages that an installation added stay.
    """
    commands = [pip(context, "uninstall", *remove)] if remove else []
    commands += [pip(context, "install", *options, *install)] if install else []
    python = context.python
    is_own = python is not None and python.prefix not in _OF_THE_SYSTEM
    if not is_own or not all(_is_harmless(text, options) for text in install):
        return fix_for(name, *commands, **args)
    touched = dict.fromkeys((*remove, *(split(text)[0] for text in install)))
    return fix_for(name, *commands, is_automatic=True, undo=_undo(context, touched), **args)


def _is_harmless(requirement: str, options: tuple[str, ...]) -> bool:
    """Whether pip may install it unattended: nothing that is built here, nothing that brings CUDA."""
    name, spec = split(requirement)
    is_plain = _REQUIREMENT.fullmatch(requirement) is not None
    if not is_plain or name in _BUILT or "None" in spec:  # a version that could not be read
        return False
    if name == "torch":  # without a label it is a CUDA build
        return re.fullmatch(r"==[\w.]+\+cpu", spec) is not None
    return name not in _BESIDE_TORCH or "--no-deps" in options


def _undo(context: Context, touched: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The commands that restore the packages."""
    new = [name for name in touched if name not in context.installed]
    here = [f"{name}=={context.version(name)}" for name in touched if name in context.installed]
    commands = [pip(context, "uninstall", *new)] if new else []
    commands += [pip(context, "install", "--no-deps", "--force-reinstall", *here)] if here else []
    return tuple(commands)


def reinstall(context: Context, *requirements: str, options: tuple[str, ...] = ()) -> Fix:
    """Reinstalls these packages."""
    says = " ".join(requirements)
    return pip_fix(context, "python.reinstall", install=requirements, options=options, requirement=says)


def put_in(context: Context) -> frozenset[str]:
    """The packages that npuenv installed and verified; unknown for an environment of another tool."""
    made = context.facts.python.made.value
    return frozenset(made.verified.named if made is not None and made.is_proven and made.verified is not None else ())


def repair(made: Described, says: str = "python.restore") -> Fix:
    """Restores missing files of an environment that npuenv made."""
    return fix_for(says, ("npuenv", "install", "--repair", "--target", made.root))


def restore(context: Context, names: Iterable[str]) -> Fix:
    """Reinstalls these packages in their recorded version, if there is one."""
    made, names = context.facts.python.made.value, tuple(names)
    if made is not None and not put_in(context).isdisjoint(names):
        return repair(made)
    wanted = [f"{name}=={version}" if (version := context.version(name)) else name for name in names]
    return safe_install(context, "python.again", *wanted[:5], options=("--force-reinstall", "--no-deps"))


def torch_fix(context: Context, version: str, *others: str) -> Fix:
    """Installs torch without CUDA: the `+cpu` build from its own index; the default index has gigabytes of CUDA."""
    row = context.matrix.index_row("pytorch-cpu")
    options = ("--extra-index-url", row.url) if row is not None else ()
    return reinstall(context, f"torch=={release(version)}+cpu", *others, options=options)


def safe_install(context: Context, name: str, *requirements: str, options: tuple[str, ...] = ()) -> Fix:
    """Installs these packages, with the message `name`, without the mistakes of a plain command on NPUs.

    torch is installed as its `+cpu` build; if the requirement leaves the version open, in that of the installed
    torch_npu. vllm is built from source, so there is a message but no command; if no torch is known the complete set is
    named.
    """
    named = {split(text)[0]: text for text in requirements}
    if "vllm" in named and (context.is_for_npu or context.version("vllm-ascend") is not None):
        name_, spec = split(named["vllm"])
        return fix_for("python.vllm-plain", wanted=name_ + (f"=={public(spec[2:])}" if spec.startswith("==") else spec))
    is_open = any(each in _BRINGS_TORCH and not split(text)[1] for each, text in named.items())
    if is_open and "--no-deps" not in options:
        return fix_for("python.whole", install_here(context))
    is_gpu_wanted = "torch" in named and is_for_gpus(named["torch"]) and context.framework is None
    if "torch" in named and (context.is_for_npu or not is_gpu_wanted):
        version = _torch_version(context, split(named["torch"])[1])
        row = context.matrix.index_row("pytorch-cpu")
        if version is None or row is None:
            return fix_for("python.whole", install_here(context))
        named["torch"] = f"torch=={version}+cpu"
        options = (*options, "--extra-index-url", row.url)
    install = tuple(named.values())
    return pip_fix(context, name, install=install, options=options, requirement=" ".join(install))


def _torch_version(context: Context, spec: str) -> str | None:
    """The release of torch to install: the given one, else that of the installed torch_npu; None without either."""
    exact = re.fullmatch(r"={2,3}([0-9][\w.]*)(\+\w+)?", spec)
    if exact is not None:
        return exact[1]
    torch_npu = context.version("torch-npu")
    if torch_npu is None:
        return None
    row = context.matrix.torch_npu_row(public(torch_npu))
    version = release(row.torch if row is not None else torch_npu)
    return version if not spec or accepts(spec, version) else None


def _meant_for(context: Context) -> str:
    """The framework for --for in npuenv commands: the given one, else judged by packages or cards."""
    if context.framework is not None:
        return context.framework
    found = next((name for name in ("verl", "vllm-ascend", "torch-npu") if context.version(name) is not None), None)
    nodes, table = context.facts.npu.nodes.value, context.facts.npu.smi.value
    has_cards = (nodes is not None and bool(nodes.cards)) or (table is not None and bool(table.cards))
    return found or ("torch-npu" if has_cards else "cpu")


def install_here(context: Context) -> tuple[str, ...]:
    """The command that installs a complete set for this machine."""
    name = _meant_for(context)
    return ("npuenv", "install", *(("--host", "this") if name != "cpu" else ()), "--for", name)


def resolve_here(context: Context) -> tuple[str, ...]:
    """The command that resolves the versions for this machine."""
    name = _meant_for(context)
    return ("npuenv", "resolve", "--host", "this", "--for", name if name != "cpu" else "torch-npu")


def split(requirement: str) -> tuple[str, str]:
    """ "numpy<2" -> ("numpy", "<2")."""
    return versions.requirement_name(requirement), versions.requirement_spec(requirement)


def is_for_gpus(version: str) -> bool:
    """Whether a local label names another accelerator: "2.8.0+cu128". A version without a label may be either."""
    return re.search(r"\+(cu[0-9]|rocm|xpu)", version) is not None


def published_as(context: Context, *names: str) -> Iterator[Recipe]:
    """The published stacks with exactly these installed versions (labels and posts included)."""
    have = {name: context.version(name) for name in names}
    for recipe in all_recipes(context.matrix):
        pins = {pin.name: pin.version for pin in recipe.pin}
        if all(has is not None and pins.get(name) == public(has) for name, has in have.items()):
            yield recipe
