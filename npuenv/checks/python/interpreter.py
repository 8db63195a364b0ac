"""Checks of the target interpreter, and of broken entries in its package folders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import FRAMEWORKS, Check, fail, fix_for, given, numbers_in, ok, skip, unknown, warn
from npuenv.checks.python.installed import CORE, accepts, install_here, restore, where
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.python.interpreter import Python
    from npuenv.facts.python.packages import Packages

_OLDEST = (3, 10)
_SHOWN = 5
# How a Python that cannot start ends: a signal, or an error of Python or the loader.
_SAYS_WHY = re.compile(r"^ended by signal|Error\b|error while loading|not found|could not|cannot|Permission denied")


def _found(context: Context) -> CheckResult:
    """Whether there is a working Python, and if not, why."""
    fact, broken = context.facts.python.interpreter, context.facts.python.broken.value
    if not was_asked(fact):
        return skip("skip-level", level="1")
    if fact.value is not None:
        python = fact.value
        says = {"version": python.version, "executable": python.executable, "kind": python.kind}
        return ok("python.python-found-ok", *fact.evidence, **says)
    evidence = (*context.facts.python.broken.evidence, *fact.evidence)
    if broken is not None and broken.what == "garbled":
        return unknown("python.python-found-garbled", *fact.evidence, path=broken.path)
    if broken is not None:
        name = "python.python-version" if broken.what == "too-old" else "python.python-broken"
        fix, says = fix_for(name, install_here(context)), {"path": broken.path}
        if broken.what == "hook":
            fix, says["line"] = fix_for("python.hook", ("mv", broken.path, f"{broken.path}.off")), evidence[0].line
        return fail(f"python.python-found-{broken.what}", *evidence, fix=fix, **says)
    line = fact.evidence[0].line if fact.evidence else ""
    if fact.state is State.UNKNOWN and _SAYS_WHY.search(line):
        fix = fix_for("python.python-broken", install_here(context))
        return fail("python.python-found-crash", *fact.evidence, fix=fix, line=line)
    if fact.state is State.UNKNOWN:
        return unknown("python.python-found-mute", *fact.evidence, line=line or "-")
    return fail("python.python-found-fail", *fact.evidence, fix="python.python-install")


@given(lambda context: context.python, "no-python")
def _supported(context: Context, python: Python) -> CheckResult:
    numbers = numbers_in(python.version)[:2]
    short = ".".join(map(str, numbers))
    if context.framework == "cpu":
        return _supported_by_torch(context, numbers, short)
    arch = context.facts.machine.arch.value or "aarch64"
    row = context.matrix.torch_npu_row((context.version("torch-npu") or "").split("+")[0])
    rows = (row,) if row is not None and row.pythons(arch) else context.matrix.torch_npu
    all_ = {item for row in rows for item in row.pythons(arch)}
    offered = sorted((item for item in all_ if numbers_in(item) >= _OLDEST), key=numbers_in)
    if numbers < _OLDEST or (offered and short not in offered):
        fix = fix_for("python.python-version", install_here(context))
        return fail("python.python-version-fail", fix=fix, version=short, offered=tuple(offered))
    return ok("python.python-version-ok", version=short)


def _supported_by_torch(context: Context, numbers: tuple[int, ...], short: str) -> CheckResult:
    """Without NPUs torch's own wheels decide, from the first Python of a CPU stack on."""
    offered = {item for recipe in context.matrix.recipes if recipe.framework == "cpu" for item in recipe.python}
    if numbers >= min(map(numbers_in, offered), default=_OLDEST):
        return ok("python.python-version-ok", version=short)
    fix = fix_for("python.python-version", ("npuenv", "install", "--for", "cpu"))
    return fail("python.python-version-cpu", fix=fix, version=short, offered=tuple(sorted(offered, key=numbers_in)))


def _active(context: Context) -> CheckResult:
    """Whether `python` in this shell belongs to the environment that the shell shows as active."""
    environment = context.environment
    path = [entry.rstrip("/") for entry in environment.get("PATH", "").split(":") if entry]
    active = {
        name: f"{environment[name].rstrip('/')}/bin"
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if environment.get(name)
    }
    if not active or not path:
        return skip("python.active-skip")
    name, folder = next(iter(active.items()))
    others = [each for each in active.values() if each != folder and each in path]
    if folder not in path:
        # Tools start programs with the variable only; the inspected environment is the one it names.
        return ok("python.active-off", context.line(name), variable=name, folder=folder)
    if others and path.index(others[0]) < path.index(folder):
        evidence = Evidence("environment", f"PATH: {others[0]} before {folder}")
        fix = fix_for("python.activate", ("source", f"{folder}/activate"))
        if name == "CONDA_PREFIX":
            fix = fix_for("python.activate-conda")
        return warn("python.active-behind", evidence, fix=fix, folder=folder, other=others[0])
    return ok("python.active-ok", folder=folder)


def _readable(context: Context) -> CheckResult:
    packages, files = context.facts.python.packages.value, context.facts.python.files.value
    if packages is None:
        return skip("no-python")
    if packages.no_settings:
        file, base = packages.no_settings
        fix = fix_for("python.no-settings", (base, "-m", "venv", "--without-pip", file.rpartition("/")[0]))
        return fail("python.readable-no-settings", Evidence(file, "not there"), fix=fix, file=file)
    shut = [Evidence(location, why) for location, why in packages.unreadable.items()]
    shut += [Evidence(location, "not readable") for location in (files.unreadable if files is not None else ())]
    if not shut:
        return ok("python.readable-ok", count=len(packages.path))
    locations = tuple(item.command for item in shut[:_SHOWN])
    return fail("python.readable-fail", *shut, fix="python.readable", folders=locations)


@given(lambda context: context.facts.python.packages.value, "no-python")
def _metadata(context: Context, packages: Packages) -> CheckResult:
    """Distributions without valid metadata: half removed, copied by hand, or written to a full disk."""
    if not packages.trouble:
        return ok("python.metadata-ok")
    evidence = tuple(Evidence(each.entry, each.what) for each in packages.trouble)
    names = tuple(dict.fromkeys(each.name for each in packages.trouble))
    fix = restore(context, names)
    verdict = fail if set(names) & CORE else warn
    entries = tuple(each.entry for each in packages.trouble[:_SHOWN])
    return verdict("python.metadata-fail", *evidence, fix=fix, packages=entries)


@given(lambda context: context.facts.python.packages.value, "no-python")
def _leftovers(_: Context, packages: Packages) -> CheckResult:
    if not packages.leftovers:
        return ok("python.leftovers-ok")
    evidence = tuple(Evidence(path, "left by an installation that broke off") for path in packages.leftovers)
    names = tuple(path.rpartition("/")[2] for path in packages.leftovers[:_SHOWN])
    fix = fix_for("python.leftovers", ("rm", "-r", "--", *packages.leftovers[:_SHOWN]))
    return warn("python.leftovers-warn", *evidence, fix=fix, names=names)


@given(lambda context: context.facts.python.packages.value, "no-python")
def _editable(_: Context, packages: Packages) -> CheckResult:
    """Editable installations: their source folder has to exist, in the container too."""
    gone = [Evidence(name, f"{folder} is not there") for name, folder in packages.gone_sources.items()]
    gone += [Evidence(link.file, f"{folder} is not there") for link in packages.links for folder in link.gone]
    if not gone:
        return ok("python.editable-ok", count=sum(each.is_editable for each in packages.origins.values()))
    names = tuple(dict.fromkeys(item.command for item in gone))
    verdict = fail if packages.gone_sources else warn
    return verdict("python.editable-gone", *gone, fix="python.editable", packages=names[:_SHOWN])


@given(lambda context: context.facts.python.packages.value, "no-python")
def _shadowed(_: Context, packages: Packages) -> CheckResult:
    """A folder or file of the same name is imported instead of the installed package."""
    shadows = [each for each in packages.shadows if each.over or each.kind == "package"]
    if not shadows:
        return ok("python.shadowed-ok")
    evidence = [Evidence(f"{each.place}/{each.module}", each.over or "no distribution owns it") for each in shadows]
    first = min(shadows, key=lambda each: (not each.over, each.module))
    says = {"modules": tuple(dict.fromkeys(each.module for each in shadows)), "place": first.place}
    if not first.over:
        return warn("python.shadowed-unowned", *evidence, fix="python.unowned", **says)
    if first.kind.startswith("cwd-"):
        return fail("python.shadowed-fail", *evidence, fix=fix_for("python.leave-folder", ("cd", "/")), **says)
    return fail("python.shadowed-fail", *evidence, fix=fix_for("python.pythonpath", ("unset", "PYTHONPATH")), **says)


def _user_site(context: Context) -> CheckResult:
    """A conda environment also uses the user's own package folder, which every environment shares."""
    python, packages = context.python, context.facts.python.packages.value
    if python is None or packages is None or python.kind != "conda":
        return skip("python.user-site-skip")
    found = sorted(CORE & set(packages.in_user_site))
    if not found:
        return ok("python.user-site-ok")
    evidence = tuple(Evidence(packages.user_site, f"{name} {python.distributions.get(name, '-')}") for name in found)
    fix = fix_for("python.user-site", ("export", "PYTHONNOUSERSITE=1"))
    return warn("python.user-site-warn", *evidence, fix=fix, packages=tuple(found), folder=packages.user_site)


def _abi(context: Context) -> CheckResult:
    """Wheels and extensions for another Python or another machine, and packages that reject this Python."""
    python, packages = context.python, context.facts.python.packages.value
    if python is None or packages is None:
        return skip("no-python")
    foreign = {**packages.foreign_extensions, **packages.foreign_wheels}
    evidence = [Evidence(where(context), f"{name}: {what}") for name, what in sorted(foreign.items())]
    if foreign:
        names = tuple(sorted(foreign))
        fix = restore(context, names)
        return fail("python.abi-fail", *evidence, fix=fix, packages=names[:_SHOWN], version=python.version)
    refused = [name for name, spec in packages.requires_python.items() if accepts(spec, python.version) is False]
    if refused:
        evidence = [
            Evidence(where(context), f"{name}: Requires-Python {packages.requires_python[name]}") for name in refused
        ]
        return warn("python.abi-refused", *evidence, packages=tuple(refused[:_SHOWN]), version=python.version)
    return ok("python.abi-ok", version=python.version)


_INVENTORY = ("python.interpreter", "python.packages")
_VERSION = "matrix torch_npu: wheels that exist; Ascend/pytorch#38"
_ABI = "WHEEL tags and names of extensions; undefined PyObject_GetOptionalAttr: an Ascend RL environment guide"
CHECKS = (
    Check("python.found", (), "PATH, VIRTUAL_ENV, CONDA_PREFIX, --python; pyvenv.cfg", _found, required_for=FRAMEWORKS),
    Check("python.version", ("python.interpreter",), _VERSION, _supported, required_for=FRAMEWORKS),
    Check("python.active", ("environment",), "PATH, VIRTUAL_ENV, CONDA_PREFIX", _active),
    Check("python.readable", _INVENTORY, "the folders of sys.path", _readable),
    Check("python.metadata", _INVENTORY, "METADATA and RECORD of each distribution", _metadata),
    Check("python.leftovers", _INVENTORY, "pip's own names for what it is removing (~NAME)", _leftovers),
    Check("python.editable", _INVENTORY, "direct_url.json and .pth files", _editable),
    Check("python.shadowed", _INVENTORY, "Ascend/pytorch#24; vllm-project/vllm-ascend#5497", _shadowed),
    Check("python.user-site", _INVENTORY, "Python documentation, module site: ENABLE_USER_SITE", _user_site),
    Check("python.abi", _INVENTORY, _ABI, _abi),
)
