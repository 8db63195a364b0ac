"""Completes a request from a host and checks its names.

A misspelt name is an error with the nearest accepted name, never ignored. Of a host's facts, `filled_from_host` takes
architecture, hardware, system, driver and CANN, `with_hardware_of_cards` the cards only. Values that the user gave
stay. Values that the host does not show stay open and are reported, never guessed.
"""

from __future__ import annotations

import datetime
import difflib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.matrix.keys import known_releases
from npuenv.matrix.release_stacks import all_recipes, recipe_named

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from npuenv.core.fact import Evidence, Fact
    from npuenv.facts.collect import Facts
    from npuenv.facts.npu.smi import SmiTable
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Request


FRAMEWORKS = (
    "verl", "roll", "vllm-ascend", "torch-npu", "cpu", "sglang", "veomni", "vime", "ms-swift", "llama-factory",
)  # fmt: skip
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64"}
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Systems of recipes and images, and others that users request.
_MORE_SYSTEMS = ("ubuntu20.04", "ubuntu24.04", "debian12", "openeuler22.03", "openeuler24.03")
_MOST_NAMED = 8
_MISSPELT = 0.8  # "tensordct" is 0.95 like tensordict, "flask" 0.6 like its nearest
_LEADING_V = re.compile(r"^\s*[vV](?=\d)")  # as in a tag
_OLDEST_DRIVER = 20  # drivers are numbered by year; CANN has never come near
_OWN_OPTION = {"cann": "--cann", "python": "--python", "driver": "--driver"}


def checked(request: Request, matrix: Matrix) -> Request:
    """The request with normalised names. Raises: BadInput for an unknown name or version, with the nearest one."""
    if not says_something(request):
        raise BadInput(Message("resolve.nothing-asked"), Message("resolve.hint-ask", {"has": FRAMEWORKS}))
    return in_normal_form(request, matrix)


def in_normal_form(request: Request, matrix: Matrix) -> Request:
    """Like `checked`, but accepts a request without any field."""
    request = _without_v(_with_release(request, matrix))
    if request.stack in FRAMEWORKS and request.stack not in stack_names(matrix):
        raise BadInput(
            Message("resolve.stack-is-framework", {"name": request.stack}),
            Message("resolve.hint-framework", {"name": request.stack}),
        )
    request = replace(
        request,
        stack=_known_stack(request.stack, matrix),
        framework=_one_of(request.framework, FRAMEWORKS, "framework"),
        hardware=_known_hardware(request.hardware, matrix),
        arch=ARCHITECTURES.get(_one_of(request.arch, ARCHITECTURES, "arch") or ""),
        python=_one_of(_minor_python(request.python), PYTHONS, "python"),
        cann=_known_cann(request.cann, matrix),
        pins={versions.normalised(name): version.strip() for name, version in request.pins.items()},
    )
    if request.os is not None:
        systems = {name for row in matrix.images for name in row.os} | set(_MORE_SYSTEMS)
        request = replace(request, os=_one_of(request.os, sorted(systems), "os"))
    _check_driver(request)
    _check_pins(request, matrix)
    return request


def says_something(request: Request) -> bool:
    """Whether a request names enough to choose by: architecture or driver alone do not."""
    return any((request.stack, request.framework, request.hardware, request.cann, request.pins))


def _with_release(request: Request, matrix: Matrix) -> Request:
    """The request with `framework = "verl==0.7.1"` split, and the release spelt as in the tables. Raises: BadInput."""
    framework, separator, version = (request.framework or "").replace("_", "-").partition("==")
    if separator:
        request = replace(request, framework=framework.strip(), release=version.strip())
    elif request.framework is not None:
        request = replace(request, framework=framework)
    if request.as_of is not None:
        request = replace(request, as_of=_day(request.as_of))
    if request.release is None:
        return request
    name = _one_of(request.framework, FRAMEWORKS, "framework")
    if name is None:
        raise BadInput(Message("resolve.release-of-nothing", {"release": request.release}))
    known = dict.fromkeys(recipe.release for recipe in all_recipes(matrix) if recipe.framework == name)
    wanted = request.release.removeprefix("v")
    found = next((each for each in known if each in (request.release, wanted) or _is_equal(each, wanted)), None)
    if found is None:
        error = _unknown(request.release, tuple(known), "release")
        # Of verl, releases without a stack are recorded too, in a table of their own.
        if name == "verl" and any(_is_equal(each, wanted) for each in known_releases(name)):
            args = {"framework": name, "release": wanted}
            raise BadInput(Message("resolve.release-without-stack", args), error.hint)
        raise error
    return replace(request, release=found)


def _is_equal(one: str, other: str) -> bool:
    """Whether two texts are the same version; False if one is not a version."""
    try:
        return versions.python_version(one) == versions.python_version(other)
    except BadInput:
        return False


def _day(text: str) -> str:
    """A day as YYYY-MM-DD. Raises: BadInput."""
    try:
        return datetime.date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        raise BadInput(Message("resolve.not-a-day", {"text": text}), Message("resolve.hint-day")) from None


def stack_names(matrix: Matrix) -> tuple[str, ...]:
    """The names of the stacks, in the table's order."""
    return tuple(recipe.id for recipe in all_recipes(matrix))


def _known_stack(name: str | None, matrix: Matrix) -> str | None:
    """The name of a stack that exists. Raises: BadInput with similar names, or with one per use if none is similar."""
    if name is None or recipe_named(name, matrix) is not None:  # the usual case, without building all names
        return name
    if name.strip().casefold() in {each.casefold() for each in stack_names(matrix)}:
        return _one_of(name, stack_names(matrix), "stack")
    error = _unknown(name, stack_names(matrix), "stack")
    use = difflib.get_close_matches(name.casefold(), FRAMEWORKS, n=1, cutoff=_MISSPELT)
    if use and not name.casefold().startswith(f"{use[0]}-"):
        raise BadInput(error.message, Message("resolve.hint-framework", {"name": use[0]}))
    if error.hint is not None and error.hint.key == "resolve.hint-near":
        raise error
    of_use: dict[str, list[str]] = {}
    for recipe in all_recipes(matrix):
        of_use.setdefault(recipe.framework, []).append(recipe.id)
    alike = [difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.0)[0] for names in of_use.values()]
    raise BadInput(error.message, Message("resolve.hint-stack", {"has": (*alike, "…"), "uses": FRAMEWORKS}))


def _one_of(name: str | None, accepted: Iterable[str], what: str) -> str | None:
    """The accepted name that equals the given one, ignoring case. Raises: BadInput."""
    if name is None:
        return None
    names = tuple(accepted)
    found = next((each for each in names if each.casefold() == name.strip().casefold()), None)
    if found is None:
        raise _unknown(name, names, what)
    return found


def _unknown(name: str, names: Iterable[str], what: str) -> BadInput:
    accepted = tuple(names)
    by_fold = {each.casefold(): each for each in accepted}
    begun = [each for each in by_fold if name and each.startswith(name.casefold())]
    near = begun or difflib.get_close_matches(name.casefold(), list(by_fold), n=1, cutoff=0.6)
    message = Message("resolve.unknown", {"what": Message(f"resolve.what-{what}"), "name": name})
    if len(accepted) > _MOST_NAMED:
        # Too many names to list: those with the same beginning, then the most similar ones.
        alike = [*begun, *difflib.get_close_matches(name.casefold(), list(by_fold), n=_MOST_NAMED, cutoff=0.0)]
        accepted = (*(by_fold[each] for each in list(dict.fromkeys(alike))[:_MOST_NAMED]), "…")
    if near:
        return BadInput(message, Message("resolve.hint-near", {"near": by_fold[near[0]], "has": accepted}))
    return BadInput(message, Message("resolve.hint-accepted", {"has": accepted}))


def _known_hardware(name: str | None, matrix: Matrix) -> str | None:
    """The generation for its name or a chip's name: `910B3` gives a2. Raises: BadInput."""
    if name is None:
        return None
    row = matrix.hardware_asked_for(name)
    accepted = tuple(each.id for each in matrix.hardware if each.accepted)
    if row is None:
        raise _unknown(name, accepted, "hardware")
    if not row.accepted:
        message = Message("resolve.hardware-not-accepted", {"name": name, "title": row.title})
        raise BadInput(message, Message("resolve.hint-not-accepted", {"has": accepted}))
    return row.id


def _minor_python(text: str | None) -> str | None:
    """The minor version: `3.11.14` gives 3.11, because wheels do not depend on the patch release."""
    return ".".join(text.strip().split(".")[:2]) if text is not None else None


def _without_v(request: Request) -> Request:
    """The request without the `v` that tags put before a version: `v8.5.0` gives 8.5.0."""
    texts = {name: getattr(request, name) for name in ("cann", "driver", "python")}
    bare: dict[str, Any] = {name: _LEADING_V.sub("", text) for name, text in texts.items() if text is not None}
    return replace(request, **bare, pins={name: _LEADING_V.sub("", text) for name, text in request.pins.items()})


def _check_driver(request: Request) -> None:
    """Refuses a driver that is none, or a CANN version where the user typed it. Raises: BadInput."""
    if request.driver is None:
        return
    major = versions.driver(request.driver).series[0]
    if major < _OLDEST_DRIVER and "driver" not in request.origins:
        args = {"driver": request.driver}
        raise BadInput(Message("resolve.driver-is-cann", args), Message("resolve.hint-driver-is-cann", args))


def _known_cann(text: str | None, matrix: Matrix) -> str | None:
    """A CANN version in the vendor's spelling, as in its file names: `8.3.rc1` gives 8.3.RC1."""
    row = matrix.cann_row(text) if text is not None else None
    if text is not None and row is None:
        raise _unknown(text, [each.version for each in matrix.cann], "cann")
    return row.version if row else None


def _check_pins(request: Request, matrix: Matrix) -> None:
    """Rejects a pinned package whose name is almost that of a package of the stacks: a misspelling. Raises: BadInput.

    Any other package is an additional one; the lock decides whether it fits.
    """
    if not request.pins:
        return
    every, stack, framework = all_recipes(matrix), request.stack, request.framework
    meant = [each for each in every if stack in (None, each.id) and framework in (None, each.framework)] or every
    known = {name for recipe in meant for name in recipe.packages}
    known |= {row.package for row in matrix.unsupported if row.package}
    known |= {versions.requirement_name(text) for row in matrix.built for text in row.requires}
    for name, version in request.pins.items():
        if name in _OWN_OPTION:
            raise BadInput(Message("resolve.pin-has-option", {"name": name, "option": _OWN_OPTION[name]}))
        versions.python_version(version)
        if name in known or name in request.origins:  # names from a file were written by pip, not typed
            continue
        if difflib.get_close_matches(name, sorted(known), n=1, cutoff=_MISSPELT):
            raise _unknown(name, sorted(known), "package")


def filled_from_host(
    request: Request, facts: Facts, matrix: Matrix, *, only: Collection[str] | None = None
) -> tuple[Request, tuple[Message, ...]]:
    """The request with its open fields filled from a host's facts, and notes about those that stay open.

    `only`: the fields that may be filled; None: all of them.
    `origins` records the line each value was read from, so that a conflict can show it.
    Raises: CannotTell for a host with cards of several generations, unless the request names one.
    """
    is_for_cpu = (request.framework or "").startswith("cpu")
    notes: list[Message] = []
    for field, read in _READ_FROM_HOST.items():
        if only is not None and field not in only:
            continue
        if getattr(request, field) is not None or (is_for_cpu and field != "arch"):
            continue
        value, evidence = read(facts, matrix)
        if value is None:
            notes.append(
                Message("resolve.host-untold", {"what": Message(f"resolve.what-{field}"), "line": _line(evidence)})
            )
            continue
        changes: dict[str, Any] = {field: value, "origins": {**request.origins, field: _line(evidence)}}
        request = replace(request, **changes)
    return request, tuple(notes)


_Found = tuple["str | None", "tuple[Evidence, ...]"]  # a value (None: unknown) and where it was read


def with_hardware_of_cards(request: Request, smi: Fact[SmiTable], matrix: Matrix) -> Request:
    """The request with the generation of a host's cards as its hardware; unchanged if no card could be read.

    Raises: CannotTell for cards of several generations.
    """
    value, evidence = _of_cards(smi, matrix)
    if value is None:
        return request
    return replace(request, hardware=value, origins={**request.origins, "hardware": _line(evidence)})


def _host_system(facts: Facts, matrix: Matrix) -> _Found:
    system = facts.machine.system.value
    name = f"{system.id}{system.version.split()[0]}".lower() if system and system.version else ""
    return name if matrix.system_row(name) else None, facts.machine.system.evidence


def _host_driver(facts: Facts, matrix: Matrix) -> _Found:
    if facts.npu.driver.value is None and facts.npu.smi.value and facts.npu.smi.value.driver:
        return facts.npu.smi.value.driver, facts.npu.smi.evidence
    return facts.npu.driver.value.version if facts.npu.driver.value else None, facts.npu.driver.evidence


def _host_cann(facts: Facts, matrix: Matrix) -> _Found:
    cann = facts.cann.toolkit.value.version if facts.cann.toolkit.value else None
    is_listed = cann is not None and versions.is_cann(cann) and matrix.cann_row(cann) is not None
    return cann if is_listed else None, facts.cann.toolkit.evidence


def _of_cards(smi: Fact[SmiTable], matrix: Matrix) -> _Found:
    """The generation of the host's cards; None if no card could be read."""
    names = {card.name for card in smi.value.cards if card.name} if smi.value else set()
    rows = {name: matrix.hardware_of_chip(name) for name in sorted(names)}
    found = {row.id for row in rows.values() if row is not None}
    if len(found) > 1:
        raise CannotTell(
            Message("resolve.host-mixed", {"names": tuple(sorted(names))}), Message("resolve.name-hardware")
        )
    return found.pop() if found else None, smi.evidence


_READ_FROM_HOST: dict[str, Callable[[Facts, Matrix], _Found]] = {
    "arch": lambda facts, _: (facts.machine.arch.value, facts.machine.arch.evidence),
    "hardware": lambda facts, matrix: _of_cards(facts.npu.smi, matrix),
    "os": _host_system,
    "driver": _host_driver,
    "cann": _host_cann,
}


def _line(evidence: tuple[Evidence, ...]) -> str:
    return f"{evidence[0].command}: {evidence[0].line}" if evidence else "-"
