"""A Stack or a Conflict for people and for programs: `show_table`, `show_reasons` and `show` write to a rich console,
`as_json` gives plain data.

Nothing is cut at sixty columns; colour and emphasis are the console's business and vanish where it is not a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.report.lines import Lines, sources_line
from npuenv.resolve.types import Conflict, GitSource, Override, Pin, Reason, Stack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import Console

    from npuenv.matrix.rows import PublicRun

STACK_SCHEMA = "npuenv.stack/1"
CONFLICT_SCHEMA = "npuenv.conflict/1"


def show(result: Stack | Conflict, console: Console, lang: str = "en") -> None:
    """Prints everything about a stack, or a conflict with its ways out."""
    lines = Lines(console, lang, "stack")
    if isinstance(result, Stack):
        _show_stack(result, lines)
    else:
        _show_conflict(result, lines)


def show_table(
    stack: Stack, console: Console, lang: str = "en", *, following: Sequence[Message] = (), said: Collection[str] = ()
) -> None:
    """Prints a stack on one screen: what it is for, each version with its standing, what to do next.

    `said`: keys of notes that were said already.
    """
    lines = Lines(console, lang, "stack")
    _show_head(stack, lines)
    for note in stack.notes:
        if note.key.startswith("resolve.note-") and note.key not in said:  # those of the recipe are among the reasons
            lines.line(f"- {lines.say(note)}")
    from rich.cells import cell_len, set_cell_size

    rows = [*(_pin_row(stack, pin, lines) for pin in stack.pins), *_source_rows(stack, lines)]
    heads = tuple(lines.word(f"column-{name}") for name in ("package", "version", "standing", "origin"))
    widths = [max(cell_len(row[at]) for row in (heads, *rows)) + 2 for at in range(3)]
    lines.console.print()
    for row, style in ((heads, "bold"), *((row, None) for row in rows)):
        cells = (set_cell_size(text, width) for text, width in zip(row, widths))
        lines.line(f"{''.join(cells)}{row[3]}".rstrip(), style=style)
    lines.console.print()
    for message in following:
        lines.line(lines.say(message))


def show_reasons(stack: Stack, console: Console, lang: str = "en", *, package: str | None = None) -> None:
    """Prints why each version was chosen and which requirements are overruled; of one package alone where it is named.

    Raises BadInput for a package that the stack does not speak of.
    """
    package = versions.normalised(package) if package else None
    lines = Lines(console, lang, "stack")
    pins = [pin for pin in stack.pins if package in (None, pin.name)]
    overrides = [
        each for each in stack.overrides if package in (None, each.package, versions.requirement_name(each.requirement))
    ]
    sources = [git for git in stack.git_sources if package in (None, git.name)]
    if not (pins or overrides or sources):
        known = tuple(dict.fromkeys((*(pin.name for pin in stack.pins), *(git.name for git in stack.git_sources))))
        said = {"package": package, "stack": stack.name}
        raise BadInput(Message("stack.why-nothing", said), Message("stack.why-nothing-hint", {"known": known}))
    for pin in pins:
        _show_pin(stack, pin, lines)
    if package is not None:
        _show_sources(sources, lines)
    _show_overrides(overrides, lines)
    if package is None:
        _show_notes(stack, lines)


def _pin_row(stack: Stack, pin: Pin, lines: Lines) -> tuple[str, str, str, str]:
    origin = lines.word("git") if _is_built(pin) else pin.index or ""
    return pin.name, pin.version, pin.strength, _wheel_word(stack, pin, lines) or origin


def _wheel_word(stack: Stack, pin: Pin, lines: Lines) -> str:
    """That an installation takes the package from its wheel for the hardware; "" if not."""
    git = next((git for git in stack.git_sources if git.name == pin.name), None)
    return lines.word("wheel", hardware=git.wheel.hardware) if git and git.wheel and git.wheel.sha256 else ""


def _source_rows(stack: Stack, lines: Lines) -> Iterator[tuple[str, str, str, str]]:
    """What is built from a repository and is no pin: the framework itself, and what it needs."""
    for git in stack.git_sources:
        if stack.pin(git.name) is None:
            yield git.name, git.ref[:16], lines.word("moves" if git.is_moving else "fixed"), lines.word("git")


def as_json(result: Stack | Conflict, lang: str = "en") -> dict[str, Any]:
    """Data that `json.dumps` takes. Keys and ids do not change with the language, sentences do."""
    return _stack_json(result, lang) if isinstance(result, Stack) else _conflict_json(result, lang)


def _show_head(stack: Stack, lines: Lines) -> None:
    lines.line(_title(stack, lines), style="bold")
    lines.line(lines.word(f"verified-{stack.verified_by}"))
    if stack.platform.hardware is not None:
        lines.line(lines.word("image", image=stack.image) if stack.image else lines.word("image-none"))
        lines.line(_run_line(stack.public_run, lines))
    if stack.sources_read is not None:
        lines.line(lines.say(sources_line(*stack.sources_read)))


def _run_line(run: PublicRun | None, lines: Lines) -> str:
    if run is None:
        return lines.word("run-none")
    key = "run-failed" if run.failed else "run"
    return lines.word(key, chip=run.chip, date=run.date, address=run.source, failed=run.failed)


def _show_stack(stack: Stack, lines: Lines) -> None:
    _show_head(stack, lines)
    lines.head(lines.word("head-pins"))
    for pin in stack.pins:
        _show_pin(stack, pin, lines)
    _show_overrides(stack.overrides, lines)
    _show_rest(stack, lines)


def _title(stack: Stack, lines: Lines) -> str:
    platform = stack.platform
    args = {"name": stack.name, "framework": stack.framework, "arch": platform.arch, "python": platform.python}
    if platform.hardware is None:
        return lines.word("title", **args)
    cann = stack.pin("cann")
    return lines.word(
        "title-npu", **args, hardware=platform.hardware, os=platform.os, cann=cann.version if cann else "-"
    )


def _show_pin(stack: Stack, pin: Pin, lines: Lines) -> None:
    origin = _wheel_word(stack, pin, lines) or _origin(pin, lines)
    lines.line(" · ".join(filter(None, (f"{pin.name} {pin.version}", pin.strength, origin))), 2, "bold")
    _show_reason("because", pin.because, lines)
    _show_reason("why-not-newer", pin.why_not_newer, lines)


def _is_built(pin: Pin) -> bool:
    return not pin.is_python and pin.name not in ("cann", "python")


def _origin(pin: Pin, lines: Lines) -> str:
    if _is_built(pin):
        return lines.word("built")
    return lines.word("from-index", index=pin.index) if pin.index else ""


def _show_reason(label: str, reason: Reason, lines: Lines) -> None:
    lines.line(f"{lines.word(label)}: {lines.say(reason.says)}", 4)
    lines.line(f"{lines.word('source')}: {_unique(reason.sources)}", 6, "dim")


def _unique(sources: Iterable[str]) -> str:
    """Each source once, in order; a row's source may name several."""
    return "; ".join(dict.fromkeys(part for source in sources for part in source.split("; ")))


def _show_overrides(overrides: Iterable[Override], lines: Lines) -> None:
    """One line per override; those with the same reason share it."""
    by_reason: dict[str, list[Override]] = {}
    for each in overrides:
        by_reason.setdefault(lines.say(each.because.says), []).append(each)
    if by_reason:
        lines.head(lines.word("head-overrides"))
    for reason, group in by_reason.items():
        for each in group:
            lines.line(lines.word(f"does-{each.does}", package=each.package, requirement=each.requirement), 2)
        lines.line(reason, 4)
        sources = [source for each in group for source in each.because.sources]
        lines.line(f"{lines.word('source')}: {_unique(sources)}", 6, "dim")


def _show_rest(stack: Stack, lines: Lines) -> None:
    _show_sources(stack.git_sources, lines)
    if stack.requirements:
        lines.head(lines.word("head-requirements"))
        lines.line(", ".join(stack.requirements), 2)
    lines.head(lines.word("head-order"))
    for number, step in enumerate(stack.order, 1):
        lines.line(f"{number}. {step.id}: {lines.say(step.why)}", 2)
    if stack.env:
        lines.head(lines.word("head-env"))
    for name, value in stack.env.items():
        lines.line(f"{name}={value}", 2)
    _show_notes(stack, lines)
    lines.head(lines.word("head-sources"))
    for source in stack.sources:
        lines.line(source, 2, "dim")


def _show_sources(sources: Sequence[GitSource], lines: Lines) -> None:
    built = [git for git in sources if not (git.wheel and git.wheel.sha256)]
    if built:
        lines.head(lines.word("head-git"))
    for git in built:
        moving = f" ({lines.word('moving')})" if git.is_moving else ""
        lines.line(f"{git.name}: {git.repo} @ {git.ref}{moving}", 2)


def _show_notes(stack: Stack, lines: Lines) -> None:
    if stack.notes:
        lines.head(lines.word("head-notes"))
    for note in stack.notes:
        lines.line(f"- {lines.say(note)}", 2)


def _show_conflict(conflict: Conflict, lines: Lines) -> None:
    import shlex

    title = "conflict-title" if len(conflict.clashes) > 1 else "conflict-title-one"
    lines.line(lines.word(title), style="bold")
    for number, clash in enumerate(conflict.clashes, 1):
        lines.line(f"{number}. {lines.say(clash.says)}", 2)
        source = clash.source if clash.rule == "request" else f"{clash.rule} · {clash.source}"
        if clash.source == clash.says.args.get("option"):
            source = lines.word("from-you")
        lines.line(f"{lines.word('source')}: {source}", 6, "dim")
    lines.head(lines.word("ways-out") if conflict.ways_out else lines.word("ways-out-none"))
    for number, way in enumerate(conflict.ways_out, 1):
        lines.line(f"{number}. {lines.say(way.says)}", 2)
        lines.line(shlex.join(way.command), 6, "bold")


def _stack_json(stack: Stack, lang: str) -> dict[str, Any]:
    platform = stack.platform
    return {
        "schema": STACK_SCHEMA,
        "name": stack.name,
        "framework": stack.framework,
        "platform": {
            "arch": platform.arch,
            "python": platform.python,
            "hardware": platform.hardware,
            "os": platform.os,
        },
        "verified_by": stack.verified_by,
        "public_run": _run_json(stack.public_run) if stack.public_run else None,
        "sources_read": list(stack.sources_read) if stack.sources_read else None,
        "image": stack.image,
        "cann_root": stack.cann_root,
        "soc_version": stack.soc_version,
        "pins": [_pin_json(pin, lang) for pin in stack.pins],
        "requirements": list(stack.requirements),
        "overrides": [
            {
                "package": each.package,
                "does": each.does,
                "requirement": each.requirement,
                "because": _reason_json(each.because, lang),
            }
            for each in stack.overrides
        ],
        "git": [_git_json(git) for git in stack.git_sources],
        "order": [
            {"id": step.id, "does": step.does, "what": list(step.what), "why": say(step.why, lang)}
            for step in stack.order
        ],
        "env": dict(stack.env),
        "system_packages": list(stack.system_packages),
        "notes": [say(note, lang) for note in stack.notes],
        "sources": list(stack.sources),
    }


def _run_json(run: PublicRun) -> dict[str, Any]:
    return {
        "chip": run.chip,
        "cards": run.cards or None,
        "cann": run.cann,
        "driver": run.driver or None,
        "packages": dict(run.packages),
        "what": run.what,
        "failed": run.failed or None,
        "date": run.date,
        "address": run.source,
    }


def _pin_json(pin: Pin, lang: str) -> dict[str, Any]:
    return {
        "name": pin.name,
        "version": pin.version,
        "strength": pin.strength,
        "index": pin.index,
        "is_python": pin.is_python,
        "because": _reason_json(pin.because, lang),
        "why_not_newer": _reason_json(pin.why_not_newer, lang),
    }


def _reason_json(reason: Reason, lang: str) -> dict[str, Any]:
    return {"says": say(reason.says, lang), "rules": list(reason.rules), "sources": list(reason.sources)}


def _git_json(git: GitSource) -> dict[str, Any]:
    wheel = git.wheel if git.wheel and git.wheel.sha256 else None  # what an installation takes instead of a build
    named = wheel and {"file": wheel.id, "sha256": wheel.sha256, "index": wheel.index, "hardware": wheel.hardware}
    return {
        "name": git.name,
        "repo": git.repo,
        "ref": git.ref,
        "is_moving": git.is_moving,
        "how": git.how,
        "build_env": dict(git.build_env),
        "requires": list(git.requires),
        **({"wheel": named} if named else {}),
    }


def _conflict_json(conflict: Conflict, lang: str) -> dict[str, Any]:
    return {
        "schema": CONFLICT_SCHEMA,
        "clashes": [
            {"rule": each.rule, "says": say(each.says, lang), "source": each.source} for each in conflict.clashes
        ],
        "ways_out": [{"says": say(each.says, lang), "command": list(each.command)} for each in conflict.ways_out],
    }
