"""Checks of requirements between packages: declared but unmet, undeclared, of the CANN version, and of the stack."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from npuenv.checks.base import FRAMEWORKS, NPU_FRAMEWORKS, Check, fail, fix_for, given, message, ok, skip, unknown, warn
from npuenv.checks.python.installed import (
    CORE,
    accepts,
    gap,
    install_here,
    lines,
    pip,
    pip_fix,
    public,
    published_as,
    reinstall,
    safe_install,
    split,
    vllm_ascend_row,
    where,
)
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.facts.python import Python
    from npuenv.matrix.rows import Limit, Recipe, RecipeOverride, Unsupported


_NPU = ("torch", "torch-npu", "numpy")
_RL = ("ray", "tensordict", "transformers", "datasets", "hydra-core", "codetiming")
_PARTS = {
    "verl": (*_NPU, *_RL),
    "roll": (*_NPU, *_RL),
    "vllm-ascend": (*_NPU, "transformers", "vllm", "vllm-ascend"),
    "cpu": ("torch", "numpy"),
}
_NAMED_AFTER = ("verl", "roll")  # frameworks whose parts do not include the framework's own distribution
# One of these shows that the environment is for the framework; without any it is just empty.
_SIGNS = {
    "verl": ("verl", "torch-npu"),
    "roll": ("torch-npu",),
    "vllm-ascend": ("vllm-ascend", "vllm", "torch-npu"),
    "cpu": ("torch",),
}
_SHOWN = 5
# Needed by CUDA builds only; vllm's and others' metadata require it on every platform.
_FOR_CUDA = re.compile(
    r"nvidia-.+|cuda-.+|cupy.*|xformers|flashinfer.*|flash-attn.*|triton|pytorch-triton.*|fastsafetensors|.+-cu1\d"
)
# Pairs with checks of their own, which give better advice.
_JUDGED = {"torch-npu": {"torch"}, "torchvision": {"torch"}, "torchaudio": {"torch"}, "triton-ascend": {"triton"}}


def missing_parts(context: Context) -> tuple[str, ...]:
    """The missing distributions, without those that another check reports."""
    framework = _framework(context)
    if framework is None or not _is_begun(context, framework):
        return ()
    missing = [name for name in _PARTS[framework] if context.version(name) is None]
    elsewhere = {"torch": "torch-npu", "vllm": "vllm-ascend", "vllm-ascend": "vllm"}
    missing = [name for name in missing if name not in elsewhere or context.version(elsewhere[name]) is None]
    return tuple(name for name in missing if name != "torch-npu" or context.is_for_npu)


def _framework(context: Context) -> str | None:
    """The framework of the environment: the given one, else the installed one."""
    if context.framework in _PARTS:
        return context.framework
    return next((name for name in ("verl", "vllm-ascend") if context.version(name) is not None), None)


def _is_begun(context: Context, framework: str) -> bool:
    return any(context.version(name) is not None for name in _SIGNS[framework])


@given(_framework, "python.parts-skip")
def _parts(context: Context, framework: str) -> CheckResult:
    if not _is_begun(context, framework):
        return skip("python.parts-none", framework=framework)
    missing = missing_parts(context)
    if missing:
        fix = _install(context, missing)
        return fail("python.parts-fail", *lines(context, *missing), fix=fix, framework=framework, packages=missing)
    if framework not in _NAMED_AFTER or context.version(framework) is not None:
        return ok("python.parts-ok", framework=framework)
    # ROLL is started from its source tree, which is not a package: its absence is normal.
    return (ok if framework == "roll" else unknown)("python.parts-without", framework=framework)


def _install(context: Context, missing: tuple[str, ...]) -> Fix:
    """Installs single packages, as in a published stack that this resembles; without torch the complete set."""
    if {"torch", "torch-npu", "vllm"} & set(missing):
        return fix_for("python.whole", install_here(context))
    known = [name for name in ("torch-npu", "vllm-ascend") if context.version(name) is not None]
    recipes = list(published_as(context, *known)) if known else []
    pins = [{pin.name: pin.version for pin in recipe.pin} for recipe in recipes]
    found = {name: next((each[name] for each in pins if name in each), None) for name in missing}
    words = (f"{name}=={version}" if version else name for name, version in found.items())
    return pip_fix(context, "python.parts", install=tuple(words))


class _Unmet(NamedTuple):
    owner: str
    name: str
    needs: str  # "torch==2.7.1"
    has: str  # "" if not installed


def numpy_era(context: Context) -> CheckResult:
    numpy, cann = context.version("numpy"), context.cann
    if numpy is None or cann is None:
        return skip("no-numpy" if numpy is None else "no-cann")
    try:
        row = context.matrix.cann_row(cann.version)
    except BadInput:
        row = None
    evidence, says = lines(context, "numpy"), {"numpy": numpy, "cann": cann.version}
    if row is None or not row.numpy:
        return ok("python.numpy-free", *evidence, **says)
    if versions.accepts(row.numpy, numpy):
        return ok("python.numpy-ok", *evidence, **says)
    return fail("python.numpy-fail", *evidence, fix=reinstall(context, f"numpy{row.numpy}"), **says, needs=row.numpy)


def broken_limits(context: Context) -> list[tuple[str, str]]:
    """The two package names of each undeclared limit that an installed version violates."""
    python = context.python
    broken = [row for row in _broken(context, python) if not _is_absent(python, row)] if python else []
    return [(split(row.when)[0], split(row.needs)[0]) for row in broken]


def _broken(context: Context, python: Python) -> list[Limit]:
    minor = ".".join(python.version.split(".")[:2])
    rows = [row for row in (*context.matrix.limits, *context.matrix.clashes) if not row.python or minor in row.python]
    applied = [row for row in rows if _holds(python, row.when) is True]
    return [row for row in applied if _holds(python, row.needs) is False or _is_absent(python, row)]


def _is_absent(python: Python, row: Limit) -> bool:
    """Whether a package is missing that another one imports."""
    return row.is_imported and split(row.needs)[0] not in python.distributions


@given(lambda context: context.python, "no-python")
def _limits(context: Context, python: Python) -> CheckResult:
    """Requirements that no metadata declares: if `when` is installed, `needs` must hold."""
    broken = _broken(context, python)
    if not broken:
        return ok("python.limits-ok", count=len(context.matrix.limits) + len(context.matrix.clashes))
    names = [split(text)[0] for row in broken for text in (row.when, row.needs)]
    fix = safe_install(context, "python.reinstall", *_strictest(context, [row.needs for row in broken]))
    pairs = tuple(
        message(f"python.limit-{'absent' if _is_absent(python, row) else 'broken'}", when=row.when, needs=row.needs)
        for row in broken
    )
    return fail("python.limits-fail", *lines(context, *dict.fromkeys(names)), fix=fix, limits=pairs)


def _strictest(context: Context, needs: Iterable[str]) -> Iterator[str]:
    """One requirement per package with all bounds, including that of the installed vllm-ascend."""
    specs: dict[str, dict[str, None]] = {}
    for requirement in needs:
        name, spec = split(requirement)
        specs.setdefault(name, {})[spec] = None
    row = vllm_ascend_row(context)
    if row is not None and row.requirement("transformers") and "transformers" in specs:
        specs["transformers"][row.requirement("transformers")] = None
    for name, bounds in specs.items():
        below = sorted((each for each in bounds if re.fullmatch(r"<[0-9.]+", each)), key=versions.numbers_in)
        kept = [each for each in bounds if each and each not in below[1:]]
        yield f"{name}{','.join(kept)}"


def _holds(python: Python, requirement: str) -> bool | None:
    """Whether the installed version satisfies a requirement; None if there is none, or it is unreadable."""
    name, specifier = split(requirement)
    version = python.distributions.get(name)
    return None if version is None else accepts(specifier, version)


def _requirements(context: Context) -> CheckResult:
    """The result of `pip check`, without requirements that a published stack overrides."""
    python, packages = context.python, context.facts.python.packages.value
    if python is None or packages is None:
        return skip("no-python")
    unmet = [item for owner, texts in packages.requires.items() for item in _unmet(python, owner, texts)]
    unmet = [item for item in unmet if not _is_elsewhere(context, item)]
    recipes = _like_this(context) if unmet else []
    unmet = [item for item in unmet if not _is_overruled(context, item, recipes)]
    if not unmet:
        return ok("python.requirements-ok", count=len(packages.requires))
    unmet.sort(key=lambda item: (not _is_grave(item), item.owner, item.name))
    rows = (f"{i.owner} {context.version(i.owner)}: {i.needs}, {i.has or 'not installed'}" for i in unmet)
    evidence = [Evidence(where(context), row) for row in rows]
    fix = safe_install(context, "python.requirements", *list(dict.fromkeys(item.needs for item in unmet))[:_SHOWN])
    fix = replace(fix, is_automatic=False, undo=())  # a proposal: it may help one package and break another
    verdict = fail if _is_grave(unmet[0]) else warn
    shown = tuple(message("python.asks", owner=item.owner, what=gap(item.needs, item.has)) for item in unmet[:_SHOWN])
    return verdict("python.requirements-unmet", *evidence, fix=fix, count=len(unmet), requirements=shown)


def _is_grave(item: _Unmet) -> bool:
    return item.owner in CORE and item.name in CORE


def _unmet(python: Python, owner: str, texts: tuple[str, ...]) -> Iterator[_Unmet]:
    """The unmet requirements of one distribution; unreadable ones are ignored."""
    for text in texts:
        name, spec = split(text)
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            continue
        has = python.distributions.get(name)
        if has is not None and (not spec or spec.startswith("@") or accepts(spec, has) is not False):
            continue
        if _applies(text.partition(";")[2].strip(), python.version, python.machine):
            yield _Unmet(owner, name, f"{name}{spec}", has or "")


@functools.lru_cache(maxsize=2048)
def _applies(marker: str, version: str, machine: str) -> bool:
    if not marker:
        return True
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    environment = versions.marker_environment(machine, ".".join(version.split(".")[:2]), version)
    try:
        return Marker(marker).evaluate(environment)
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return False


def _is_elsewhere(context: Context, item: _Unmet) -> bool:
    """Whether another check reports it, or nothing on an NPU needs it."""
    if item.name in _JUDGED.get(item.owner, ()):
        return True
    triton = context.matrix.triton_ascend_row(public(context.version("triton-ascend") or ""))
    if item.owner == "triton-ascend" and triton is not None and triton.requires:
        return True  # installed without its requirements, as `python.triton` reports
    if item.owner == "vllm-ascend" and vllm_ascend_row(context) is not None:
        return True
    # If the two contradict each other (opencv, fastapi), vllm-ascend wins: images install it last.
    if item.owner == "vllm" and item.has and _takes(context, "vllm-ascend", item.name, item.has):
        return True
    if context.is_for_npu and (_FOR_CUDA.fullmatch(item.name) or item.owner.startswith("nvidia-")):
        return True
    if context.is_for_npu and item.owner == "vllm" and item.name in ("torch", "torchvision", "torchaudio"):
        return True  # its wheel pins the torch it was compiled for; on NPUs nothing compiled is used
    if not item.has and item.name in missing_parts(context):
        return True
    if item.name == "numpy" and numpy_era(context).status is Status.FAIL:
        return True
    limits = {name for pair in broken_limits(context) for name in pair}
    return {item.owner, item.name} <= limits


def _takes(context: Context, owner: str, name: str, version: str) -> bool:
    """Whether a distribution requires another one and accepts this version of it."""
    packages = context.facts.python.packages.value
    wanted = [split(text) for text in (packages.requires.get(owner, ()) if packages is not None else ())]
    specs = [spec for other, spec in wanted if other == name and spec]
    return bool(specs) and all(accepts(spec, version) is True for spec in specs)


def _like_this(context: Context) -> list[Recipe]:
    """The published stacks that this environment resembles."""
    names = [name for name in ("torch", "torch-npu", "vllm-ascend") if context.version(name) is not None]
    return list(published_as(context, *names)) if "torch-npu" in names else []


def _is_overruled(context: Context, item: _Unmet, recipes: list[Recipe]) -> bool:
    """Whether the given stack, or a published one that this environment resembles, overrides the requirement."""
    stack = context.stack
    if stack is not None:
        named = {pin.name for pin in stack.pins} | {versions.normalised(each.name) for each in stack.git_sources}
        overruled = {versions.requirement_name(each.requirement) for each in stack.overrides}
        if item.name in named | overruled:
            return True
    return any(_is_published(context, item, recipe) for recipe in recipes)


def _is_published(context: Context, item: _Unmet, recipe: Recipe) -> bool:
    """Whether a published stack pins both versions as installed, overrides this, or builds one of them."""
    pins = {pin.name: pin.version for pin in recipe.pin}
    built = {versions.normalised(each.name) for each in recipe.git}
    owner = context.version(item.owner) or ""
    is_owner_chosen = pins.get(item.owner) == public(owner) or item.owner in built
    if is_owner_chosen and (pins.get(item.name) == public(item.has) or not item.has):
        return True
    return any(_is_overridden(item, each) for each in recipe.override)


def _is_overridden(item: _Unmet, override: RecipeOverride) -> bool:
    """Whether a stack excludes this package, or overrides it with the installed version for this owner or all."""
    name, spec = split(override.requirement)
    if override.does == "exclude":
        return item.name in (name, override.package)
    if override.does == "constrain":
        return item.name == name and bool(accepts(spec, item.has)) and not _can_both(split(item.needs)[1], spec)
    is_intended = item.name == name and override.package in (item.owner, item.name)
    # The stack fills in `torch=={torch}` with its own torch, which is the installed one.
    return is_intended and bool(item.has) and ("{" in spec or accepts(spec, item.has) is not False)


def _can_both(one: str, other: str) -> bool:
    """Whether some version satisfies both; tries those that they name, and the lowest."""
    numbers = {"0", *re.findall(r"[0-9]+(?:\.[0-9]+)*", f"{one},{other}")}
    return any(accepts(one, number) and accepts(other, number) for number in numbers)


def _unsupported(context: Context) -> CheckResult:
    """Installed packages that do not support NPUs, by the frameworks' own documents."""
    python = context.python
    if python is None or not context.is_for_npu:
        return skip("python.build-skip")
    chips = set(context.chip_generations)
    found: dict[str, Unsupported] = {}
    for row in context.matrix.unsupported:
        is_intended = not row.frameworks or context.framework is None or context.framework in row.frameworks
        is_here = row.package in python.distributions and row.package not in ("", "triton")
        on_chip = not row.hardware or bool(chips & set(row.hardware))
        if row.kind == "package" and row.believe and not row.until and is_intended and is_here and on_chip:
            found.setdefault(row.package, row)
    if found:  # a published stack may contain a package that its guide later calls unsupported
        brought = {versions.requirement_name(text) for recipe in _like_this(context) for text in recipe.requirements}
        found = {name: row for name, row in found.items() if name not in brought}
    if not found:
        return ok("python.unsupported-ok")
    evidence = tuple(Evidence(row.source, f"{name} {python.distributions[name]}") for name, row in found.items())
    instead = tuple(dict.fromkeys(row.instead for row in found.values() if row.instead)) or ("-",)
    # Not automatic, as it may break another package.
    fix = fix_for("python.unsupported", pip(context, "uninstall", *found), instead=instead)
    return warn("python.unsupported-warn", *evidence, fix=fix, packages=tuple(found))


@given(lambda context: context.python, "no-python")
def _stack(context: Context, python: Python) -> CheckResult:
    """The installed versions against the pins of the given stack."""
    stack = context.stack
    if stack is None:
        return skip("python.no-stack")
    pins = [pin for pin in stack.pins if pin.is_python and pin.name != "python"]
    gaps = [(pin, python.distributions.get(pin.name)) for pin in pins]
    wrong = [(pin, has) for pin, has in gaps if has is None or accepts(f"=={public(pin.version)}", has) is False]
    if not wrong:
        return ok("python.stack-ok", stack=stack.name, count=len(pins))
    rows = (f"{pin.name} {has or 'not installed'}; {stack.name}: {pin.version}" for pin, has in wrong)
    evidence = [Evidence(where(context), row) for row in rows]
    shown = tuple(gap(f"{pin.name} {pin.version}", has) for pin, has in wrong[:_SHOWN])
    fix = fix_for("python.stack", ("npuenv", "install", stack.name))
    return fail("python.stack-differs", *evidence, fix=fix, stack=stack.name, count=len(wrong), packages=shown)


def _mindspeed(context: Context) -> CheckResult:
    """MindSpeed follows Megatron core releases; verl's models need the one for core 0.12 or later."""
    has, verl = context.version("mindspeed"), context.version("verl")
    match = re.search(r"core_r(\d+)\.(\d+)", has or "") or re.match(r"(0)\.(\d+)", has or "")
    if has is None or match is None or (context.framework != "verl" and verl is None):
        return skip("python.mindspeed-skip")
    if (int(match.group(1)), int(match.group(2))) >= (0, 12):
        return ok("python.mindspeed-ok", mindspeed=has)
    return warn("python.mindspeed-old", *lines(context, "mindspeed", "verl"), fix="python.mindspeed", mindspeed=has)


@given(lambda context: context.version("ray"), "python.no-ray")
def _ray(context: Context, ray: str) -> CheckResult:
    """Reported only if the session's variables name several nodes: a single one needs no token."""
    is_decided = context.framework == "cpu" or "RAY_AUTH_MODE" in context.environment
    if versions.accepts(">=2.59", ray) and not is_decided and context.spans_nodes:
        fix = fix_for("python.ray-token", ("export", "RAY_AUTH_MODE=disabled"))
        return warn("python.ray-token", *lines(context, "ray"), fix=fix, ray=ray)
    return ok("python.ray-ok", *lines(context, "ray"), ray=ray)


_FRAMEWORK_PARTS = (
    "verl 0.9.1 metadata, verl/trainer/main_ppo.py; alibaba/ROLL requirements_common.txt; vllm-ascend metadata"
)
_NUMPY = "matrix cann: numpy"
_REQUIREMENTS = "Requires-Dist of what is installed; vllm-project/vllm-ascend#7587"
_MINDSPEED = "verl-project/verl docs/ascend_tutorial/faq/faq.rst: q_layernorm weights need 2.3.0_core_r0.12.1"
CHECKS = (
    Check("python.framework-parts", ("python.interpreter",), _FRAMEWORK_PARTS, _parts, required_for=NPU_FRAMEWORKS),
    Check("python.numpy", ("python.interpreter", "cann.toolkit"), _NUMPY, numpy_era, required_for=NPU_FRAMEWORKS),
    Check("python.limits", ("python.interpreter",), "matrix limits, clashes", _limits, required_for=FRAMEWORKS),
    Check("python.requirements", ("python.interpreter", "python.packages"), _REQUIREMENTS, _requirements),
    Check("python.unsupported", ("python.interpreter",), "matrix unsupported", _unsupported),
    Check("python.stack", ("python.interpreter",), "the pins of the stack that is judged", _stack),
    Check("python.mindspeed", ("python.interpreter",), _MINDSPEED, _mindspeed),
)
_RAY_TOKEN = "measured with Ray 2.59: ray.init() writes ~/.ray/auth_token"
RAY_TOKEN = (Check("python.ray-token", ("python.interpreter",), _RAY_TOKEN, _ray),)
