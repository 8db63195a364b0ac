"""Checks of installed files against the records of their packages, and the effects of damaged ones.

`cause_of` attributes a failed import or a library that is not found to the damaged package, so that one damaged file
gives one problem.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, fail, fix_for, given, ok, skip, warn
from npuenv.checks.python.installed import CORE, put_in, repair, restore
from npuenv.core import versions
from npuenv.core.fact import Evidence
from npuenv.facts.manifest import DAMAGED, LOCK, VERIFIED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from npuenv.facts.manifest import Described
    from npuenv.facts.python.interpreter import Import
    from npuenv.facts.python.packages import Files, Hashes, Owned


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


_SHOWN = 5
_TRITONS = {"triton", "triton-ascend"}
# Packages whose files are never edited by hand; published images do patch vllm, transformers, ray and verl.
_UNTOUCHED = {"torch", "torch-npu", "torchvision", "torchaudio", "triton-ascend", "numpy", "pyarrow", "tensordict"}
_FILE = re.compile(r"[\w+-]+\.so\b|No module named")
_MODULE = re.compile(r"No module named '([\w.]+)'")
_TOOLS = {"pip", "setuptools", "wheel"}  # never edited either, and needed for any fix
_SPARE = {"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks"}


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
    verdict = fail if _gone(context) else warn
    fix = restore(context, names)
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
        libraries = "|".join(map(re.escape, libraries_of(item)))
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
    return next((check for check, item in damaged(context) if library in libraries_of(item)), None)


def libraries_of(item: Owned) -> set[str]:
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


_INVENTORY = ("python.interpreter", "python.files")
CHECKS = (
    Check("python.made", ("python.made",), "npuenv: what it writes down when it installs", _made),
    Check("python.files", _INVENTORY, "RECORD of the installed distributions", _files),
    Check("python.altered", _INVENTORY, "sizes in RECORD", _altered),
    Check("python.hashes", ("python.interpreter", "python.hashes"), "SHA-256 in RECORD", _hashes),
)
