"""Check of the packages that a framework's own modules import at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, CheckResult, Context, fail, fix_for, given, ok, skip, unknown
from npuenv.checks.python.installed import install_here, is_for_npu, lines, pip, published_as, version_of

if TYPE_CHECKING:
    from npuenv.core.finding import Fix

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


def missing_parts(context: Context) -> tuple[str, ...]:
    """The missing distributions, without those that another check reports."""
    framework = _framework(context)
    if framework is None or not _is_begun(context, framework):
        return ()
    missing = [name for name in _PARTS[framework] if version_of(context, name) is None]
    elsewhere = {"torch": "torch-npu", "vllm": "vllm-ascend", "vllm-ascend": "vllm"}
    missing = [name for name in missing if name not in elsewhere or version_of(context, elsewhere[name]) is None]
    return tuple(name for name in missing if name != "torch-npu" or is_for_npu(context))


def _framework(context: Context) -> str | None:
    """The framework of the environment: the given one, else the installed one."""
    if context.framework in _PARTS:
        return context.framework
    return next((name for name in ("verl", "vllm-ascend") if version_of(context, name) is not None), None)


def _is_begun(context: Context, framework: str) -> bool:
    return any(version_of(context, name) is not None for name in _SIGNS[framework])


@given(_framework, "python.parts-skip")
def _parts(context: Context, framework: str) -> CheckResult:
    if not _is_begun(context, framework):
        return skip("python.parts-none", framework=framework)
    missing = missing_parts(context)
    if not missing:
        return _complete(context, framework)
    evidence = lines(context, *missing)
    fix = _install(context, framework, missing)
    return fail("python.parts-fail", *evidence, fix=fix, framework=framework, packages=missing)


def _complete(context: Context, framework: str) -> CheckResult:
    if framework not in _NAMED_AFTER or version_of(context, framework) is not None:
        return ok("python.parts-ok", framework=framework)
    # ROLL is started from its source tree, which is not a package: its absence is normal.
    return (ok if framework == "roll" else unknown)("python.parts-without", framework=framework)


def _install(context: Context, framework: str, missing: tuple[str, ...]) -> Fix:
    """Installs single packages, as in a published stack that this resembles; without torch the complete set."""
    if {"torch", "torch-npu", "vllm"} & set(missing):
        return fix_for("python.whole", install_here(context))
    known = [name for name in ("torch-npu", "vllm-ascend") if version_of(context, name) is not None]
    recipes = published_as(context, *known) if known else iter(())
    pins = [{pin.name: pin.version for pin in recipe.pin} for recipe in recipes]
    found = {name: next((each[name] for each in pins if name in each), None) for name in missing}
    words = (f"{name}=={version}" if version else name for name, version in found.items())
    return fix_for("python.parts", pip(context, "install", *words))


CHECKS = (
    Check(
        "python.framework-parts",
        ("python.interpreter",),
        "verl 0.9.1 metadata, verl/trainer/main_ppo.py; alibaba/ROLL requirements_common.txt; vllm-ascend metadata",
        _parts,
        required_for=NPU_FRAMEWORKS,
    ),
)
