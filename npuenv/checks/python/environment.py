"""Checks of the environment as it lies on the disk: the interpreter, broken entries in its package folders, and the
installed files against the records of their packages.

`cause_of` attributes a failed import or a library that is not found to the damaged package, so that one damaged file
gives one problem.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import FRAMEWORKS, Check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.checks.python.installed import CORE, accepts, install_here, put_in, repair, restore, where
from npuenv.core import versions
from npuenv.core.fact import Evidence, State
from npuenv.core.versions import numbers_in
from npuenv.facts.collector import was_asked
from npuenv.facts.manifest import DAMAGED, LOCK, VERIFIED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.manifest import Described
    from npuenv.facts.python import Import, Python
    from npuenv.facts.python.packages import Files, Hashes, Owned, Packages


_OLDEST = (3, 10)
_SHOWN = 5
# How a Python that cannot start ends: a signal, or an error of Python or the loader.
_SAYS_WHY = re.compile(r"^ended by signal|Error\b|error while loading|not found|could not|cannot|Permission denied")
_TRITONS = {"triton", "triton-ascend"}
# Packages whose files are never edited by hand; published images do patch vllm, transformers, ray and verl.
_UNTOUCHED = {"torch", "torch-npu", "torchvision", "torchaudio", "triton-ascend", "numpy", "pyarrow", "tensordict"}
_FILE = re.compile(r"[\w+-]+\.so\b|No module named")
_MODULE = re.compile(r"No module named '([\w.]+)'")
_TOOLS = {"pip", "setuptools", "wheel"}  # never edited either, and needed for any fix
_SPARE = {"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks"}


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
        is_conda, fix = name == "CONDA_PREFIX", fix_for("python.activate", ("source", f"{folder}/activate"))
        fix = fix_for("python.activate-conda") if is_conda else fix
        return warn("python.active-behind", evidence, fix=fix, folder=folder, other=others[0])
    return ok("python.active-ok", folder=folder)


@given(lambda context: context.facts.python.packages.value, "no-python")
def _readable(context: Context, packages: Packages) -> CheckResult:
    files = context.facts.python.files.value
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
    fix, verdict = restore(context, names), fail if set(names) & CORE else warn
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
    foreign = dict(sorted({**packages.foreign_extensions, **packages.foreign_wheels}.items()))
    if foreign:
        evidence = [Evidence(where(context), f"{name}: {what}") for name, what in foreign.items()]
        names, fix = tuple(foreign), restore(context, foreign)
        return fail("python.abi-fail", *evidence, fix=fix, packages=names[:_SHOWN], version=python.version)
    refused = {name: spec for name, spec in packages.requires_python.items() if accepts(spec, python.version) is False}
    if refused:
        evidence = [Evidence(where(context), f"{name}: Requires-Python {spec}") for name, spec in refused.items()]
        return warn("python.abi-refused", *evidence, packages=tuple(refused)[:_SHOWN], version=python.version)
    return ok("python.abi-ok", version=python.version)


@given(lambda context: context.facts.python.made.value, "python.made-elsewhere")
def _made(context: Context, made: Described) -> CheckResult:
    """Fails for an unfinished environment of npuenv's, warns about an unverified or modified one."""
    evidence = context.facts.python.made.evidence
    fix = fix_for("python.made", ("npuenv", "install", made.stack, "--target", made.root))
    args = {"stack": made.stack, "lock": made.lock}
    if made.status not in ("complete", DAMAGED):
        return fail("python.made-unfinished", *evidence, fix=fix, **args)
    if made.status == "complete" and (not made.is_proven or made.verified is None):
        unproven = Evidence(f"{made.root}/{VERIFIED}", "not there, of another lock, or altered")
        return warn("python.made-unproven", *evidence, unproven, fix=fix, **args)
    if made.lost:
        evidence = tuple(Evidence(f"{made.root}/{name}", "not there, or not as npuenv wrote it") for name in made.lost)
        needs_anew = LOCK in made.lost  # the file that a repair would restore from
        return warn("python.made-lost", *evidence, fix=fix if needs_anew else repair(made), **args, files=made.lost)
    if made.hooks:
        evidence = tuple(Evidence(f"{made.root}/{name}", "belongs to no package") for name in made.hooks)
        return warn("python.made-hooks", *evidence, fix=repair(made, "python.hooks"), **args, files=made.hooks)
    assert made.verified is not None
    return ok("python.made-ok", *evidence, **args, at=made.verified.at or "-", packages=made.verified.packages)


@given(lambda context: context.facts.python.files.value, "no-python")
def _files(context: Context, files: Files) -> CheckResult:
    """Recorded files of a distribution that are missing or empty.

    Images omit headers, tests and documents to save space: these count only if npuenv installed them.
    """
    spared = tuple(item for item in files.spared if item.owner in put_in(context))
    bad = (*files.missing, *files.emptied, *spared)
    if not bad:
        return ok("python.files-ok", count=files.looked)
    evidence = _lines((*files.missing, *spared), "missing") + _lines(files.emptied, "empty")
    names = tuple(dict.fromkeys(item.owner for item in bad))
    verdict, fix = fail if _gone(context) else warn, restore(context, names)
    return verdict("python.files-fail", *evidence, fix=fix, count=_sum(bad), packages=names[:_SHOWN])


def _gone(context: Context) -> list[Owned]:
    """The packages with missing or empty files that are required."""
    files = context.facts.python.files.value
    if files is None:
        return []
    bad = [item for item in (*files.missing, *files.emptied) if item.native or item.owner in CORE]
    return bad + [item for item in files.missing if item not in bad and _lacks_modules(item)]


def _lacks_modules(item: Owned) -> bool:
    """Whether modules of a package are damaged; images remove tests and examples to save space."""
    paths = (path.split(" (")[0] for path in item.examples)
    return any(path.endswith(".py") and not _SPARE & set(path.split("/")) for path in paths)


@given(lambda context: context.facts.python.files.value, "no-python")
def _altered(context: Context, files: Files) -> CheckResult:
    """Files of another size than recorded: of packages that are never edited, and shared libraries of any package.

    Packages that npuenv installed count completely: they were as recorded when they were verified.
    """
    bad = _that_count(context, files.altered)
    linked = [item for item in files.linked if item.owner in put_in(context)]
    if linked and not bad:
        return _damage(context, warn, "python.altered-linked", linked, "behind a link")
    if not bad:
        return ok("python.altered-ok", *_lines(files.altered, "of another size"), count=_sum(files.altered))
    make = fail if _breaks_something(context, bad) else warn
    return _damage(context, make, "python.altered-fail", bad, "of another size")


def _damage(
    context: Context, make: Callable[..., CheckResult], says: str, items: Collection[Owned], how: str
) -> CheckResult:
    """The result for damaged files, whose packages are installed again."""
    names = tuple(item.owner for item in items)
    return make(says, *_lines(items, how), fix=restore(context, names), count=_sum(items), packages=names[:_SHOWN])


def _breaks_something(context: Context, altered: Iterable[Owned]) -> bool:
    """Whether a library is altered, or a module of a package that a failing import is built on."""
    python = context.facts.python
    failing = [each for each in (python.import_torch.value, python.import_torch_npu.value) if each and not each.is_ok]
    needed = {name for each in failing if not _is_about_a_file(each) for name in _built_on(context, each.module)}
    return any(item.native or (item.owner in needed and _lacks_modules(item)) for item in altered)


def _has_both_tritons(context: Context) -> bool:
    return all(context.version(name) is not None for name in _TRITONS)


@given(lambda context: context.facts.python.hashes.value, "no-python")
def _hashes(context: Context, hashes: Hashes) -> CheckResult:
    """Contents against the recorded hashes, for files of the recorded size; the others are already reported."""
    bad = _that_count(context, hashes.altered)
    if not bad:
        is_told = _has_both_tritons(context) and any(item.owner in _TRITONS for item in hashes.altered)
        return skip("python.because", cause="python.triton") if is_told else _as_recorded(hashes)
    is_grave = any(item.native or item.owner in _UNTOUCHED for item in bad)
    return _damage(context, fail if is_grave else warn, "python.hashes-fail", bad, "of other content")


def _as_recorded(hashes: Hashes) -> CheckResult:
    """The result if no altered file counts; edited ones are not reported as unchanged."""
    if not hashes.altered:
        return ok("python.hashes-ok" if hashes.is_complete else "python.hashes-part", count=hashes.looked)
    names = tuple(item.owner for item in hashes.altered)
    name, edited = "python.hashes-edited" if hashes.is_complete else "python.hashes-part-edited", _sum(hashes.altered)
    shown = _lines(hashes.altered, "of other content")
    return ok(name, *shown, count=hashes.looked, edited=edited, packages=names[:_SHOWN])


def _that_count(context: Context, items: Iterable[Owned]) -> list[Owned]:
    """The altered files that need attention; python.triton reports which of two tritons is present."""
    counted = _UNTOUCHED | _TOOLS | put_in(context)
    ignored = _TRITONS if _has_both_tritons(context) else set()
    return [item for item in items if (item.native or item.owner in counted) and item.owner not in ignored]


def _lines(items: Iterable[Owned], how: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"RECORD of {item.owner}", f"{item.count} {how}: {item.examples[0]}") for item in items)


def _sum(items: Iterable[Owned]) -> int:
    return sum(item.count for item in items)


def cause_of(context: Context, found: Import) -> str | None:
    """The id of the check that reports the damage that breaks a module's import; None if there is none.

    An error that names a file or module is attributed to that one. One that names none, such as a signal, is attributed
    to the damage of the module's dependencies.
    """
    last = found.innermost
    for check, item in damaged(context):
        libraries = "|".join(map(re.escape, _libraries_of(item)))
        if (libraries and re.search(rf"(?<![\w.-])(?:{libraries})(?![\w.-])", last)) or _is_part(last, item):
            return check
    if _is_about_a_file(found):
        return None
    built_on = _built_on(context, found.module)
    below = ((check, item) for check, item in damaged(context) if item.owner in built_on)
    return next((check for check, item in below if item.native or _lacks_modules(item)), None)


def _is_about_a_file(found: Import) -> bool:
    return _FILE.search(found.innermost) is not None and "undefined symbol" not in found.innermost


def damaged(context: Context) -> Iterator[tuple[str, Owned]]:
    """The packages with missing or altered files, each with the id of the check that reports it as a failure."""
    files, hashes = context.facts.python.files.value, context.facts.python.hashes.value
    yield from (("python.files", item) for item in _gone(context))
    altered = _that_count(context, files.altered) if files is not None else []
    if _breaks_something(context, altered):
        yield from (("python.altered", item) for item in altered)
    contents = _that_count(context, hashes.altered) if hashes is not None else []
    if any(item.native or item.owner in _UNTOUCHED for item in contents):
        yield from (("python.hashes", item) for item in contents)


def cause_of_library(context: Context, library: str) -> str | None:
    """The id of the check that reports a damaged library of a package; None if it is intact or of no package."""
    return next((check for check, item in damaged(context) if library in _libraries_of(item)), None)


def _libraries_of(item: Owned) -> set[str]:
    """The names of its damaged libraries."""
    return {path.split(" (")[0].rpartition("/")[2] for path in item.examples[: item.native]}


def _is_part(text: str, item: Owned) -> bool:
    """Whether an error reports a missing module of this package."""
    match = _MODULE.search(text)
    return match is not None and versions.requirement_name(match.group(1).partition(".")[0]) == item.owner


def _built_on(context: Context, module: str) -> set[str]:
    """The distributions that a module needs, including its own and those that torch loads by itself.

    torch loads numpy if it is installed, and does not declare it.
    """
    packages, waiting = context.facts.python.packages.value, [versions.requirement_name(module), "torch-npu", "numpy"]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found and context.version(name) is not None:
            found.add(name)
            lines = packages.requires.get(name, ()) if packages is not None else ()
            waiting += map(versions.requirement_name, lines)
    return found


_FOLDERS = ("python.interpreter", "python.packages")
_RECORDS = ("python.interpreter", "python.files")
_VERSION = "matrix torch_npu: wheels that exist; Ascend/pytorch#38"
_ABI = "WHEEL tags and names of extensions; undefined PyObject_GetOptionalAttr: an Ascend RL environment guide"
CHECKS = (
    Check("python.found", (), "PATH, VIRTUAL_ENV, CONDA_PREFIX, --python; pyvenv.cfg", _found, required_for=FRAMEWORKS),
    Check("python.version", ("python.interpreter",), _VERSION, _supported, required_for=FRAMEWORKS),
    Check("python.active", ("environment",), "PATH, VIRTUAL_ENV, CONDA_PREFIX", _active),
    Check("python.readable", _FOLDERS, "the folders of sys.path", _readable),
    Check("python.metadata", _FOLDERS, "METADATA and RECORD of each distribution", _metadata),
    Check("python.leftovers", _FOLDERS, "pip's own names for what it is removing (~NAME)", _leftovers),
    Check("python.editable", _FOLDERS, "direct_url.json and .pth files", _editable),
    Check("python.shadowed", _FOLDERS, "Ascend/pytorch#24; vllm-project/vllm-ascend#5497", _shadowed),
    Check("python.user-site", _FOLDERS, "Python documentation, module site: ENABLE_USER_SITE", _user_site),
    Check("python.abi", _FOLDERS, _ABI, _abi),
    Check("python.made", ("python.made",), "npuenv: what it writes down when it installs", _made),
    Check("python.files", _RECORDS, "RECORD of the installed distributions", _files),
    Check("python.altered", _RECORDS, "sizes in RECORD", _altered),
    Check("python.hashes", ("python.interpreter", "python.hashes"), "SHA-256 in RECORD", _hashes),
)
