"""Training launches for people and for programs: the files that start one, and what a preflight found in one.

A preflight is shown as text, JSON, SARIF and JUnit XML, without secrets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from npuenv import __version__
from npuenv.core.finding import Status
from npuenv.core.messages import Message, clean, say
from npuenv.host.secrets import SECRET, without_secrets
from npuenv.preflight.memory.types import written_cards
from npuenv.preflight.rules import RULES
from npuenv.report.ci import Case, junit, sarif_log, sarif_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from npuenv.core.finding import Location
    from npuenv.preflight.fixing import Fixed, PreflightResult
    from npuenv.preflight.launch import Change, Launch, LaunchFinding, LaunchSetting
    from npuenv.render.files import WrittenFiles
    from npuenv.render.launch.job import LaunchFiles


def files_json(made: LaunchFiles, written: WrittenFiles, lang: str, code: int) -> dict[str, object]:
    """The `npuenv.launch/1` document."""
    found = made.estimate
    return {
        "schema": "npuenv.launch/1",
        "exit": code,
        "framework": made.stack.framework,
        "recipe": made.options.recipe,
        "release": made.options.release,
        "stack": made.stack.name,
        "cards": {"per_node": made.job.cards.per_node, "nodes": made.job.cards.nodes, "because": made.because.key},
        "placement": {
            "layout": made.placement.layout,
            "train": list(made.placement.train),
            "infer": list(made.placement.infer),
            "reference": list(made.placement.reference),
        },
        "estimate": {
            "verdict": found.verdict,
            "peak_gib": round(found.peak_gib, 1),
            "memory_gib": found.memory_gib,
            "shares": [{"role": each.role, "what": each.what, "gib": round(each.gib, 2)} for each in found.shares],
            "says": [say(each, lang) for each in found.says],
            "advice": [say(each, lang) for each in found.advice],
        },
        "notes": [say(each, lang) for each in made.notes],
        "files": sorted(made.files),
        "written": sorted(written.files),
        "removed": sorted(written.removed),
    }


def files_head(made: LaunchFiles) -> Iterator[Message]:
    """What the run is made of, where it goes, and what to know about it."""
    placed = made.placement
    cards = {
        "train": written_cards(placed.train),
        "infer": written_cards(placed.infer) or "-",
        "reference": written_cards(placed.reference) or "-",
    }
    took = {"framework": made.stack.framework, "stack": made.stack.name}
    took |= {"recipe": made.options.recipe, "release": made.options.release}
    yield Message("launch_roll.took", took)
    yield made.because
    yield Message("launch_roll.placed", cards)
    yield from made.notes


def files_estimate(made: LaunchFiles, *, is_whole: bool) -> Iterator[Message]:
    """Whether the run fits into memory and what would help; `is_whole`: with all that the estimate rests on."""
    yield from made.estimate.says if is_whole else made.estimate.says[:1]
    for message in made.estimate.advice:
        yield Message("launch_roll.advice", {"what": message})


PREFLIGHT_SCHEMA = "npuenv.preflight/1"
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_SECRET_NAME = re.compile(
    r"(?:.*[._])?(?:.*(?:api|access|private|secret)_?key|.*secret.*|.*passw(?:or)?d.*|(?:\w+_)?token|.*credentials?)",
    re.IGNORECASE,
)
_SHORTEST = 4  # a shorter value would be found inside of ordinary words
_LONGEST = 400  # characters of a written value that are shown


class Veil:
    """Takes secrets out of texts: what looks like one, and the values of settings that are named like one."""

    def __init__(self, *launches: Launch) -> None:
        tables = [table for launch in launches for table in (launch.settings, launch.environ)]
        named = [each for table in tables for each in table.values()]
        words = {word for each in named if _is_secret(each.key) for word in (str(each.value), each.text)}
        self._words = sorted((word for word in words if len(word) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, SECRET)
        return clean(without_secrets(text))

    def setting(self, setting: LaunchSetting) -> str:
        """A written value, cut where it is very long."""
        if _is_secret(setting.key) and setting.text:
            return SECRET
        text = self(setting.text)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

    def value(self, key: str, value: Any) -> Any:
        """A value of a correction as plain data."""
        if _is_secret(key) and value is not None:
            return SECRET
        return self(value) if isinstance(value, str) else value


def _is_secret(key: str) -> bool:
    return bool(_SECRET_NAME.fullmatch(key.rpartition(".")[2]))


def show_preflight(found: PreflightResult, console: Console, lang: str, *, is_quiet: bool = False) -> None:
    """One block per problem: where, what is wrong, how the line reads when it is right, and where the rule comes from.

    Quiet: errors only. Then the corrected copy, where one was asked for.
    """
    from rich.text import Text

    veil = Veil(found.launch, *found.others)
    for problem in found.problems:
        if is_quiet and problem.status is not Status.FAIL:
            continue
        head = f"{_where(problem, found, lang)}: {_say(problem.severity, lang)} {problem.check}"
        console.print(Text(head, _STYLES[problem.severity]), soft_wrap=True)
        for line in _problem_lines(problem, veil, lang):
            console.print(Text(f"    {line}"), soft_wrap=True)
        console.print(Text(f"      {_say('source', lang, source=problem.source)}", "dim"), soft_wrap=True)
    if not is_quiet:
        for note in found.notes:
            console.print(Text(say(note, lang)), soft_wrap=True)
        console.print(Text(_summary(found, lang), "bold"), soft_wrap=True)
    if found.fixed is not None:
        _show_fix(found.fixed, found, console, lang)


def _problem_lines(problem: LaunchFinding, veil: Veil, lang: str) -> Iterator[str]:
    """What is wrong, what was written, and how the lines read when they are right."""
    yield veil(say(problem.says, lang))
    for setting in problem.settings:
        yield _say("written", lang, what=_as_written(setting, veil))
    for line in problem.corrected:
        yield _say("corrected", lang, line=veil(line))
    if problem.changes and not problem.corrected:
        yield _say("corrected", lang, line="; ".join(_change_line(each, veil, lang) for each in problem.changes))


def _as_written(setting: LaunchSetting, veil: Veil) -> str:
    """`key=value`, or the key alone where nothing was written behind it."""
    text = veil.setting(setting)
    return _named(setting) if setting.value is None and not text else f"{_named(setting)}={text}"


def _named(setting: LaunchSetting) -> str:
    return f"{setting.mark}{setting.key}"


def _change_line(change: Change, veil: Veil, lang: str) -> str:
    """A correction that could not be put into the text, as words."""
    if change.value is None and not change.renames:
        return _say("take-out", lang, key=change.key)
    return f"{change.key}={veil.value(change.key, change.value)}"


def _where(problem: LaunchFinding, found: PreflightResult, lang: str) -> str:
    """`run.sh:12`, the position of a word of a command line, or the whole launch."""
    at = problem.location
    if at is None:
        return clean(found.path) or _say("command", lang)
    if at.path:
        return f"{clean(at.path)}:{at.line}"
    return _say("word", lang, word=at.word) if at.word else _say("command", lang)


def _summary(found: PreflightResult, lang: str) -> str:
    launch = found.launch
    args = {**found.counts, "framework": launch.framework, "count": len(launch.settings)}
    release = launch.release or Message("preflight.some-release")
    return _say("summary" if found.problems else "clean", lang, release=release, **args)


def _show_fix(fixed: Fixed, found: PreflightResult, console: Console, lang: str) -> None:
    """The diff of the corrected copy, and what is left to the user."""
    from rich.text import Text

    to, veil = found.written, Veil(found.launch, *found.others)
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in _diff_lines(fixed, found, veil):
        # Into a file or a pipe go the bytes that `patch` needs.
        shown = clean(line) if console.is_terminal else line
        console.print(Text(shown, styles.get(line[:1], "")), soft_wrap=True)
    key = "nothing-to-fix" if not fixed.changes else "fixed" if to else "fixed-words"
    console.print(Text(_say(key, lang, count=len(fixed.changes), path=to)), soft_wrap=True)
    if fixed.left:
        console.print(Text(_say("left", lang, count=len(fixed.left)), "bold"), soft_wrap=True)
    for problem in fixed.left:
        where = _where(problem, found, lang)
        if to and found.path:
            where = where.replace(found.path, to, 1)  # its lines are counted in the copy
        line = f"  {where}: {_say(problem.severity, lang)} {problem.check}: "
        console.print(Text(line + veil(say(problem.says, lang)), _STYLES[problem.severity]), soft_wrap=True)


def _diff_lines(fixed: Fixed, found: PreflightResult, veil: Veil) -> list[str]:
    """A unified diff with its header, secrets taken out; empty where nothing changed."""
    if not fixed.diff:
        return []
    return [f"--- {found.path or '-'}", f"+++ {found.written or '-'}", *(_kept(line, veil) for line in fixed.diff)]


def _kept(line: str, veil: Veil) -> str:
    """A line of a diff, its mark and blanks kept."""
    start = len(line) - len(line[1:].lstrip(" \t")) if line[1:].strip() else len(line)
    return line[:start] + veil(line[start:])


def preflight_json(found: PreflightResult, lang: str) -> dict[str, Any]:
    """The `npuenv.preflight/1` document. Keys and ids do not depend on the language, sentences do."""
    veil = Veil(found.launch, *found.others)
    launch = found.launch
    return {
        "schema": PREFLIGHT_SCHEMA,
        "npuenv": __version__,
        "exit": int(found.exit_code),
        "framework": launch.framework,
        "release": launch.release,
        "source": launch.source,
        "path": found.path or None,
        "machine": {
            "hardware": launch.machine.hardware,
            "cards_per_node": launch.machine.cards_per_node,
            "nodes": launch.machine.nodes,
            "memory_gib": launch.machine.memory_gib,
            "here": launch.machine.is_here,
        },
        "settings": len(launch.settings),
        "open": [setting.key for setting in launch.settings.values() if setting.is_open],
        "missing_files": list(launch.missing_files),
        "summary": found.counts,
        "problems": [_problem_json(problem, veil, lang) for problem in found.problems],
        "notes": [say(note, lang) for note in found.notes],
        "fix": _fix_json(found.fixed, found, veil, lang) if found.fixed is not None else None,
    }


def _problem_json(problem: LaunchFinding, veil: Veil, lang: str) -> dict[str, Any]:
    return {
        "rule": problem.check,
        "severity": problem.severity,
        "says": veil(say(problem.says, lang)),
        "place": _place_json(problem.location) if problem.location else None,
        "settings": [
            {"key": _named(each), "text": veil.setting(each), "open": each.is_open, "place": _place_json(each.place)}
            for each in problem.settings
        ],
        "source": problem.source,
        "corrected": [veil(line) for line in problem.corrected],
        "changes": [_change_json(each, veil) for each in problem.changes],
    }


def _place_json(place: Location) -> dict[str, Any]:
    return {"path": place.path or None, "line": place.line, "word": place.word or None}


def _change_json(change: Change, veil: Veil) -> dict[str, Any]:
    value = veil.value(change.key, change.value)
    return {"key": change.key, "value": value, "variable": change.is_variable, "renames": change.renames}


def _fix_json(fixed: Fixed, found: PreflightResult, veil: Veil, lang: str) -> dict[str, Any]:
    return {
        "written": found.written or None,
        "changes": [_change_json(each, veil) for each in fixed.changes],
        "diff": _diff_lines(fixed, found, veil),
        "left": [_problem_json(each, veil, lang) for each in fixed.left],
    }


def preflight_sarif(found: PreflightResult, lang: str) -> dict[str, Any]:
    """The SARIF log with one run: each rule that spoke, each problem a result at its line."""
    veil = Veil(found.launch, *found.others)

    def describe(problem: LaunchFinding) -> dict[str, Any]:
        result: dict[str, Any] = {"message": {"text": "\n".join(_problem_lines(problem, veil, lang))}}
        at = problem.location
        if at is not None and at.path:
            where = {"artifactLocation": {"uri": quote(at.path)}, "region": {"startLine": at.line}}
            result["locations"] = [{"physicalLocation": where}]
        return result

    sources = {problem.check: problem.source for problem in found.problems}
    rules = ({"id": rule, "help": {"text": source}} for rule, source in sources.items())
    code = int(found.exit_code)
    return sarif_log(sarif_run("npuenv preflight", found.problems, code=code, rules=rules, describe=describe))


def preflight_junit(found: PreflightResult, lang: str) -> str:
    """The JUnit document with a case for each problem and for each of the framework's rules that had nothing to say.

    An error fails its case; a warning or a note is its output.
    """
    veil = Veil(found.launch, *found.others)

    def case(problem: LaunchFinding) -> Case:
        where = _where(problem, found, lang)
        name, body = f"{problem.check} {where}", "\n".join((where, *_problem_lines(problem, veil, lang)))
        if problem.status is Status.FAIL:
            return Case(name, "failure", problem.severity, veil(say(problem.says, lang)), body)
        return Case(name, "system-out", body=f"{problem.severity}: {body}")

    spoke = {problem.check for problem in found.problems}
    rules = dict.fromkeys(rule.id for rule in RULES if found.launch.framework in rule.frameworks)
    silent = [Case(rule) for rule in rules if rule not in spoke]
    suite = [*map(case, found.problems), *silent]
    return junit("npuenv preflight", {found.path or _say("command", lang): suite})


def _say(name: str, lang: str, **args: object) -> str:
    return say(Message(f"preflight.{name}", args), lang)
