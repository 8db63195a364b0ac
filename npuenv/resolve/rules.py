"""The clashes of a candidate with the request and with the matrix, each a `Clash` with its row and source.

A stated pairing or requirement that is not met is a clash. A recommendation that is not met is none; it lowers the
confidence level of the stack (`stack.verified_by`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import all_recipes, paired_with, pairing, partner_overrides
from npuenv.resolve.types import OPTIONS, Candidate, Clash, Request, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.matrix import Matrix
    from npuenv.matrix.load import Row
    from npuenv.matrix.rows import Built, Cann, VllmAscend

_PYTHON_MARKER = re.compile(r' python_version (>=|<=|==|!=|<|>) "([0-9.]+)"')
_OF_THE_RECIPE = ("release", "as_of")
# Fields without meaning for a CPU stack: any value is accepted once the user has requested one.
_NPU_ONLY = ("hardware", "cann", "driver", "os")
# The requirements of vllm-ascend that a stack may overrule by name.
_OF_VLLM_ASCEND = ("torch", "torch-npu", "triton-ascend", "numpy", "transformers", "fastapi", "opencv-python-headless")


def unmet_requests(candidate: Candidate, request: Request) -> Iterator[Clash]:
    """A clash for each field and pin of the request that a candidate does not meet."""
    recipe = candidate.recipe
    if request.stack is not None and recipe.id != request.stack:
        yield _unmet(request.stack, "stack")
    if request.release is not None and recipe.release != request.release:
        yield _unmet(f"--for {request.framework}=={request.release}", "release")
    if request.as_of is not None and recipe.date > request.as_of:
        yield _unmet(f"--as-of {request.as_of}", "as_of")
    is_cpu_wanted = recipe.framework == "cpu" and (request.framework == "cpu" or request.stack is not None)
    for field, option in OPTIONS.items():
        requested: str | None = getattr(request, field)
        if requested is None or field in _OF_THE_RECIPE or (is_cpu_wanted and field in _NPU_ONLY):
            continue
        has = recipe.framework if field == "framework" else getattr(candidate, field)
        if not same(has, requested):
            yield _unmet(f"{option} {requested}", field, request.origins.get(field, ""))
    for name, version in sorted(request.pins.items()):
        if not _has(candidate, name, f"=={version}"):
            yield _unmet(f"--pin {name}=={version}", f"pin.{name}", request.origins.get(name, ""))


def _unmet(option: str, field: str, origin: str = "") -> Clash:
    """The clash with a request: its `field`, and as `origin` the file or host the value was read from, if any."""
    key = "resolve.read" if origin else "resolve.asked"
    return Clash("request", Message(key, {"option": option, "field": field}), origin or option)


def _has(candidate: Candidate, name: str, spec: str) -> bool:
    """Whether a candidate has a package in a version that a specifier accepts."""
    version = candidate.versions.get(name)
    return version is not None and versions.accepts(spec, version)


def matrix_conflicts(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    """The conflicts of a candidate with the matrix, independent of the request."""
    yield from _platform(candidate)
    recipe = candidate.recipe
    if recipe.lacks:  # not usable as a stack, so further conflicts add nothing
        yield _clash(recipe, "resolve.stack-lacks", stack=recipe.id, lacks=recipe.lacks)
        return
    of_platform = (_belongs, _system, _cann, _driver)
    of_packages = (_torch_npu, _companions, _pythons, _vllm_ascend, _built, _triton_ascend)
    of_versions = (_ranges, _limits, _unsupported)
    for rule in (*of_platform, *of_packages, *of_versions):
        yield from rule(candidate, matrix)


def _clash(row: Row, key: str, /, **args: object) -> Clash:
    return Clash(row.id, Message(key, args), row.source)


def _platform(candidate: Candidate) -> Iterator[Clash]:
    recipe, hardware, arch = candidate.recipe, candidate.hardware, candidate.arch
    framework = recipe.framework
    if recipe.hardware and hardware not in recipe.hardware:
        args = {"stack": recipe.id, "has": recipe.hardware, "hardware": hardware, "framework": framework}
        yield _clash(recipe, "resolve.stack-hardware", **args)
    if arch not in recipe.arch:
        yield _clash(recipe, "resolve.stack-arch", stack=recipe.id, has=recipe.arch, arch=arch, framework=framework)
    if not recipe.hardware and candidate.python not in recipe.python:
        has = tuple(sorted(recipe.python))
        yield _clash(recipe, "resolve.stack-python", stack=recipe.id, has=has, python=candidate.python)


def _belongs(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    """Pinned packages that belong to other stacks only. Any other extra package is left to the lock."""
    recipe = candidate.recipe
    more = candidate.versions.keys() - {pin.name for pin in recipe.pin}
    for name in sorted(more - recipe.packages) if more else ():
        if name in _identifying_packages(matrix, has_npu=bool(recipe.hardware)):
            yield _clash(recipe, "resolve.stack-package", stack=recipe.id, package=name, framework=recipe.framework)


@functools.lru_cache(maxsize=8)
def _identifying_packages(matrix: Matrix, *, has_npu: bool) -> frozenset[str]:
    """The distribution names that identify an NPU stack: those built from repositories, and those for the NPU. For CPU
    stacks, which have neither: all that any of them requires as well.
    """
    recipes = [recipe for recipe in all_recipes(matrix) if bool(recipe.hardware) is has_npu]
    if not has_npu:
        own = frozenset(name for recipe in recipes for name in recipe.packages)
        return own | _identifying_packages(matrix, has_npu=True)
    return frozenset(git.name for recipe in recipes for git in recipe.git) | {"torch-npu", "triton-ascend", "vllm"}


def _system(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    row = matrix.system_row(candidate.os) if candidate.os else None
    recipe = candidate.recipe
    if row and versions.python_version(row.glibc) < versions.python_version(recipe.glibc):
        yield _clash(row, "resolve.system-glibc", os=row.id, has=row.glibc, needs=recipe.glibc, stack=recipe.id)


def _cann(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    recipe, cann = candidate.recipe, candidate.cann
    if cann is None:
        return
    if versions.cann(cann).series != versions.cann(recipe.cann).series:
        framework = recipe.framework
        yield _clash(recipe, "resolve.stack-cann", stack=recipe.id, has=recipe.cann, cann=cann, framework=framework)
    row = matrix.cann_row(cann)
    numpy = candidate.versions.get("numpy")
    if row and row.numpy and numpy and not versions.accepts(row.numpy, numpy):
        yield _clash(row, "resolve.cann-numpy", cann=row.version, needs=f"numpy{row.numpy}", numpy=numpy)


def _driver(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    driver = candidate.driver
    row = matrix.cann_row(candidate.cann) if candidate.cann and driver else None
    if row is not None and driver is not None and driver_is_too_old(row, driver, candidate.hardware):
        yield _clash(row, "resolve.cann-driver", cann=row.version, since=row.driver_since, driver=driver)


def driver_is_too_old(row: Cann, driver: str, hardware: str | None) -> bool:
    """Whether a driver is below the oldest series a CANN names. Never on 950: its drivers are numbered differently."""
    if not row.driver_since or hardware == "950":
        return False
    return versions.driver(driver).series < versions.driver(row.driver_since).series


def _torch_npu(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    version, cann, arch = candidate.versions.get("torch-npu"), candidate.cann, candidate.arch
    if version is None or cann is None:
        return
    row = matrix.torch_npu_row(version)
    if row is None:
        yield _no_row("torch-npu", version, "Ascend/pytorch COMPATIBILITY.en.md")
        return
    if pairing(row, cann, matrix) is None and not _is_the_release_itself(candidate):
        yield _clash(row, "resolve.torch-npu-cann", version=version, cann=cann, has=paired_with(row))
    chip = matrix.hardware_row(candidate.hardware or "") if candidate.hardware in candidate.recipe.hardware else None
    if chip and chip.torch_npu and not versions.accepts(chip.torch_npu, version):
        needs = f"torch-npu{chip.torch_npu}"
        yield _clash(chip, "resolve.torch-npu-hardware", version=version, needs=needs, hardware=chip.id)
    pythons = row.pythons(arch)
    # The wheels of an index that could not be listed are unknown: no conflict.
    if candidate.python not in pythons and (pythons or row.index in ("", "default")):
        key = "resolve.wheel-python" if pythons else "resolve.wheel-none"
        args = {"package": "torch-npu", "version": version, "python": candidate.python, "arch": arch, "has": pythons}
        yield _clash(row, key, **args)
    wanted = row.torch_requirement(arch) or f"=={row.torch}"
    torch = candidate.versions.get("torch", "")
    if torch and not versions.accepts(wanted.replace("+cpu", ""), torch):
        yield _clash(row, "resolve.torch-npu-torch", version=version, asks=f"torch{wanted}", torch=torch, arch=arch)


def _no_row(package: str, version: str, source: str) -> Clash:
    says = Message("resolve.no-row", {"package": package, "version": version})
    return Clash(f"{package.replace('-', '_')}.toml", says, source)


def _is_the_release_itself(candidate: Candidate) -> bool:
    """Whether CANN and torch_npu are those of the vllm-ascend release's own image, which need no pairing in a table."""
    recipe = candidate.recipe
    own = next((pin.version for pin in recipe.pin if pin.name == "torch-npu"), None)
    is_own = recipe.framework == "vllm-ascend" and own == candidate.versions.get("torch-npu")
    return is_own and same(candidate.cann, recipe.cann)


def _companions(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    row = matrix.companion_row(candidate.versions.get("torch", ""))
    for name in ("torchvision", "torchaudio"):
        version = candidate.versions.get(name)
        if row and version and not versions.accepts(f"=={getattr(row, name)}", version):
            needs = getattr(row, name)
            yield _clash(row, "resolve.companion", torch=row.torch, package=name, needs=needs, version=version)


def _vllm_ascend(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    version = candidate.versions.get("vllm-ascend")
    if version is None:
        return
    row = matrix.vllm_ascend_row(version)
    if row is None:
        source = "vllm-project/vllm-ascend docs/source/community/versioning_policy.md"
        yield _no_row("vllm-ascend", version, source)
        return
    vllm = candidate.versions.get("vllm")
    if vllm is not None and not versions.accepts(f"=={row.vllm}", vllm):
        yield _clash(row, "resolve.vllm-pair", version=version, needs=row.vllm, vllm=vllm)
    if row.python and not versions.accepts(row.python, candidate.python):
        python = candidate.python
        yield _clash(row, "resolve.vllm-ascend-python", version=version, needs=row.python, python=python)
    yield from _vllm_ascend_requires(candidate, row)


def _vllm_ascend_requires(candidate: Candidate, row: VllmAscend) -> Iterator[Clash]:
    """The requirements of vllm-ascend, except those that the recipe overrides."""
    overridden = {
        versions.requirement_name(each.requirement): each.requirement
        for each in candidate.recipe.override
        if each.package == "vllm-ascend" and each.does == "replace"
    }
    for name in _OF_VLLM_ASCEND:
        wanted = overridden[name].removeprefix(name) if name in overridden else row.requirement(name)
        yield from _required(row, f"vllm-ascend {row.version}", name, wanted, candidate)


def _required(row: Row, who: str, name: str, spec: str, candidate: Candidate) -> Iterator[Clash]:
    """The clash with a requirement, if the candidate has the package in another version."""
    version = candidate.versions.get(name)
    if version is not None and spec and not versions.accepts(spec, version):
        yield _clash(row, "resolve.requires", who=who, needs=f"{name}{spec}", version=version)


def _built(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    """The requirements of components that are built from repositories, except those that the recipe overrides.

    A version that the recipe pins counts as an override: its publisher installs it despite the requirement.
    """
    recipe = candidate.recipe
    published = {pin.name: pin.version for pin in recipe.pin}
    other = {name for name, version in candidate.versions.items() if published.get(name) != version}
    if not other:
        return
    overrides = (*recipe.override, *partner_overrides(recipe, matrix))
    other -= {versions.requirement_name(each.requirement) for each in overrides if each.does == "replace"}
    for row, requires in _built_requirements(candidate, matrix):
        of_its_row = _OF_VLLM_ASCEND if row.name == "vllm-ascend" else ()
        for name in sorted(requires.keys() & other - set(of_its_row)):
            for text in requires[name]:
                who = f"{row.name} {row.version}"
                found = _required(row, who, name, versions.requirement_spec(text), candidate)
                yield from (clash for clash in found if _holds_on(text, candidate.python))


def _built_requirements(candidate: Candidate, matrix: Matrix) -> Iterator[tuple[Built, Mapping[str, list[str]]]]:
    """For each component that is built from a repository: its row, and the bounds it puts on other packages."""
    for git in candidate.recipe.git:
        row = matrix.built_row(git.name, candidate.versions.get(git.name) or git.ref.removeprefix("v"))
        if row is not None:
            yield row, _bounds(row)


@functools.cache
def _bounds(row: Built) -> Mapping[str, list[str]]:
    """The requirements of a component by distribution name."""
    found: dict[str, list[str]] = {}
    for text in row.requires:
        found.setdefault(versions.requirement_name(text), []).append(text)
    return found


@functools.lru_cache(maxsize=1024)
def _holds_on(text: str, python: str) -> bool:
    """Whether a requirement's marker holds on a Python."""
    if ";" not in text:
        return True
    plain = _PYTHON_MARKER.fullmatch(text.partition(";")[2])
    if plain:
        return versions.accepts(f"{plain[1]}{plain[2]}", python)
    from packaging.requirements import Requirement  # 10 ms, needed by few candidates

    marker = Requirement(text).marker
    return marker is None or marker.evaluate({"python_version": python, "extra": ""})


def _triton_ascend(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    version = candidate.versions.get("triton-ascend")
    if version is None:
        return
    row = matrix.triton_ascend_row(version)
    if row is None:
        yield _no_row("triton-ascend", version, "triton-lang/triton-ascend README.md")
        return
    if candidate.python not in row.python or candidate.arch not in row.arch:
        args = {"package": "triton-ascend", "version": version, "python": candidate.python, "arch": candidate.arch}
        yield _clash(row, "resolve.wheel-python", **args, has=row.python)
    if candidate.hardware not in row.hardware:
        hardware = candidate.hardware
        yield _clash(row, "resolve.triton-hardware", version=version, has=row.hardware, hardware=hardware)


def _ranges(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    """The recipe's own bounds: those of its requirement files, and those of its further requirements."""
    recipe = candidate.recipe
    for each in recipe.range:
        found = _required(recipe, recipe.id, each.name, each.spec, candidate)
        yield from (replace(clash, source=each.source) for clash in found)
    for text in recipe.requirements:
        name, spec = versions.requirement_name(text), versions.requirement_spec(text)
        yield from _required(recipe, recipe.id, name, spec, candidate)


def _limits(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    for row in matrix.limits:
        when, needed = versions.requirement_name(row.when), versions.requirement_name(row.needs)
        applies = _has(candidate, when, row.when.removeprefix(when))
        if not applies or (row.python and candidate.python not in row.python):
            continue
        version = candidate.versions.get(needed)
        if version is not None and not versions.accepts(row.needs.removeprefix(needed), version):
            why = Message(row.why)
            yield _clash(row, "resolve.limit", when=row.when, needs=row.needs, version=version, why=why)


def _pythons(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    """The Pythons that pinned packages state, where the recipe's publisher did not use the candidate's."""
    python = candidate.python
    for row in matrix.requires_python if python not in candidate.recipe.python else ():
        name = versions.requirement_name(row.package)
        version = candidate.versions.get(name)
        is_one = version is not None and versions.accepts(row.package.removeprefix(name), version)
        if is_one and not versions.accepts(row.python, python):
            yield _clash(row, "resolve.package-python", package=name, version=version, needs=row.python, python=python)


def _unsupported(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
    recipe = candidate.recipe
    for row in matrix.unsupported if recipe.hardware else ():
        applies = not row.frameworks or recipe.framework in row.frameworks
        if applies and row.package in candidate.versions and row.believe and not row.until:
            instead = row.instead or "-"
            yield _clash(row, "resolve.unsupported", what=row.what, instead=instead, package=row.package)


# The choices that can remove each conflict. "pin" is any pin of the user's. Where a recipe pins different versions for
# different architectures, the architecture can remove any of them (see `search`).
_RELAXABLE_BY = {
    "resolve.stack-lacks": (),
    "resolve.stack-hardware": ("hardware",),
    "resolve.stack-arch": ("arch",),
    "resolve.stack-python": ("python",),
    "resolve.stack-package": ("pin", "python"),
    "resolve.system-glibc": ("os",),
    "resolve.stack-cann": ("cann",),
    "resolve.cann-numpy": ("cann", "pin"),
    "resolve.cann-driver": ("cann", "driver", "hardware"),
    "resolve.torch-npu-cann": ("cann", "pin"),
    "resolve.torch-npu-hardware": ("hardware", "pin"),
    "resolve.wheel-python": ("python", "arch", "pin"),
    "resolve.wheel-none": ("python", "arch", "pin"),
    "resolve.torch-npu-torch": ("arch", "pin"),
    "resolve.companion": ("pin",),
    "resolve.no-row": ("pin",),
    "resolve.vllm-pair": ("pin",),
    "resolve.vllm-ascend-python": ("python", "pin"),
    "resolve.package-python": ("python", "pin"),
    "resolve.requires": ("pin", "python"),
    "resolve.triton-hardware": ("hardware", "pin"),
    "resolve.limit": ("pin", "python"),
    "resolve.unsupported": ("pin",),
}
# Packages whose versions cause a conflict without being named in its message arguments.
_INVOLVED = {
    "resolve.torch-npu-cann": ("torch-npu",),
    "resolve.torch-npu-hardware": ("torch-npu",),
    "resolve.torch-npu-torch": ("torch-npu", "torch"),
    "resolve.companion": ("torch",),
    "resolve.vllm-pair": ("vllm", "vllm-ascend"),
    "resolve.vllm-ascend-python": ("vllm-ascend",),
    "resolve.triton-hardware": ("triton-ascend",),
}


def relaxable_by(clash: Clash, names: tuple[str, ...]) -> list[str]:
    """The names of the choices that could remove a conflict; of the pins, those of the packages involved."""
    roots = _RELAXABLE_BY[clash.says.key]
    pins = {f"pin.{name}" for name in _involved_packages(clash)} if "pin" in roots else set()
    return [name for name in names if name in pins or (name in roots and not name.startswith("pin."))]


def _involved_packages(clash: Clash) -> set[str]:
    """The packages whose versions cause a conflict."""
    args = clash.says.args
    names = {str(args.get("who", "")).partition(" ")[0], *_INVOLVED.get(clash.says.key, ())}
    names |= {
        versions.requirement_name(str(args[each])) for each in ("package", "needs", "when", "asks") if each in args
    }
    return names | {"torch"} if names & {"torchvision", "torchaudio"} else names
