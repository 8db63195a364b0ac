"""The public contract, frozen: commands with their options, exit codes, and the JSON documents of recorded runs.

What a command line takes and what a program reads of its answer stays as it is, whatever happens inside; sentences may
change, and stand in the documents as `<sentence>`. `python -m pytest tests/golden --regenerate` writes the documents
anew: a change that `git diff tests/golden/documents` then shows is a change for every program that uses npuenv.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from npuenv.cli import main
from npuenv.cli.app import npuenv as npuenv_command
from npuenv.core.documents import load_toml
from npuenv.core.errors import ExitCode
from npuenv.facts.collect import collect
from npuenv.host.recorded import RecordingHost
from tests.golden.test_golden import LOCALE, ROOT, forget_help_options, plain
from tests.support.machines.composed import machine, names
from tests.support.machines.simulated import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
KEPT = HERE / "documents"
SENTENCE = "<sentence>"
DEEPEST, WIDEST = 4, 160
CASES = ROOT / "tests/diagnose/cases"
RUNS: dict[str, str] = load_toml(HERE / "documents.toml")["runs"]
# Each machine of tests/support is looked at; some reports of tests/diagnose are read.
RUNS |= {f"doctor-{name}": f"doctor --from {{captures}}/{name}.json --level 2" for name in names()}
RUNS |= {
    f"diagnosis-{name}": f"doctor --from-report {{reports}}/{name}.log"
    for name in load_toml(HERE / "documents.toml")["reports"]
}


def write_inputs(line: str, places: dict[str, Path]) -> None:
    """The capture of a machine, or the text of a report, that a command line names."""
    for word in line.split():
        path = Path(word.format(**places))
        if word.startswith("{captures}"):
            described = machine(path.stem)
            host = RecordingHost(SimulatedHost(described))
            collect(host, python=described["python"]["executable"], level=2, framework=described["framework"])
            path.write_text(host.capture_text(), encoding="utf-8")
        elif word.startswith("{reports}"):
            path.write_text(load_toml(CASES / f"{path.stem}.toml")["report"], encoding="utf-8")


def document(line: str, places: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a command line answers with --json, and its exit code."""
    capfd.readouterr()
    code = main([*(word.format(**places) for word in line.split()), "--json"])
    return {"exit": code, "document": everywhere(json.loads(capfd.readouterr().out), places)}


def everywhere(value: Any, places: dict[str, Path]) -> Any:
    """A document without what differs from machine to machine."""
    if isinstance(value, dict):
        return {plain(key, places): everywhere(each, places) for key, each in value.items()}
    if isinstance(value, list):
        return [everywhere(each, places) for each in value]
    return plain(value, places) if isinstance(value, str) else value


def masked(one: Any, other: Any) -> Any:
    """A document in which each text that another language says otherwise is left open."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: masked(one[key], other[key]) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [masked(*pair) for pair in zip(one, other)]
    return one if one == other else SENTENCE


def differences(kept: Any, found: Any, at: str = "") -> Iterator[str]:
    """Where a document is not what was kept; a sentence may be any text that is not empty."""
    if kept == SENTENCE:
        if not isinstance(found, str) or not found:
            yield f"{at}: no sentence: {found!r}"
    elif isinstance(kept, dict) and isinstance(found, dict):
        for key in [*kept, *(key for key in found if key not in kept)]:
            if key not in found or key not in kept:
                yield f"{at}.{key}: {'is gone' if key in kept else 'is new'}"
            else:
                yield from differences(kept[key], found[key], f"{at}.{key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (one, other) in enumerate(zip(kept, found)):
            yield from differences(one, other, f"{at}[{number}]")
    elif kept != found:
        yield f"{at}: {found!r} instead of {kept!r}"


def in_lines(value: Any, depth: int = 0) -> str:
    """JSON in which a finding, a fact's evidence or a step is one line, so that a diff names it."""
    text = json.dumps(value, ensure_ascii=False)
    if depth > DEEPEST or len(text) < WIDEST or not isinstance(value, (dict, list)):
        return text
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        return f"[{','.join(pad + in_lines(each, depth + 1) for each in value)}{end}]"
    pairs = (f"{pad}{json.dumps(key, ensure_ascii=False)}: {in_lines(each, depth + 1)}" for key, each in value.items())
    return f"{{{','.join(pairs)}{end}}}"


def check(name: str, found: Any, other: Any, *, is_written: bool) -> None:
    path = KEPT / f"{name}.json"
    if is_written:
        path.write_text(in_lines(masked(found, other)) + "\n", encoding="utf-8")
        return
    assert list(differences(json.loads(path.read_text(encoding="utf-8")), found)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_answers_with_the_document_that_was_kept(
    name: str,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    places = {"hosts": ROOT / "tests/support/hosts", "scripts": HERE / "scripts", "home": home}
    for each in ("work", "captures", "reports"):
        places[each] = tmp_path / each
        places[each].mkdir()
    write_inputs(RUNS[name], places)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    is_written = request.config.getoption("--regenerate")
    found: dict[str, Any] = {}
    for lang in ("en", "zh") if is_written else ("en",):
        monkeypatch.setenv("LANG", LOCALE[lang])
        monkeypatch.chdir(places["work"])
        found[lang] = document(RUNS[name].replace("{work}", f"{{work}}/{lang}"), places, capfd)
    found = json.loads(json.dumps(found).replace("<work>/zh", "<work>/en"))
    check(name, found["en"], found.get("zh"), is_written=is_written)


def taken_by(command: click.Command) -> dict[str, Any]:
    """What a command takes: its options with their values, and its arguments."""
    context = click.Context(command)
    options = {}
    for each in command.get_params(context):
        kind = each.type
        values = list(kind.choices) if isinstance(kind, click.Choice) else kind.name
        about: dict[str, Any] = {"values": values, "several": each.multiple or each.nargs != 1}
        if each.required:
            about["required"] = True
        if isinstance(each, click.Option):
            if each.is_flag:
                about = {}
            if each.secondary_opts:
                about["off"] = each.secondary_opts
            if each.hidden:
                about["hidden"] = True
        options[", ".join(each.opts)] = about
    return dict(sorted(options.items()))


def commands(command: click.Command, name: str = "npuenv") -> Iterator[tuple[str, dict[str, Any]]]:
    yield name, taken_by(command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in sorted(command.list_commands(context)):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands(found, f"{name} {each}")


def test_every_command_takes_the_options_that_were_kept(request: pytest.FixtureRequest) -> None:
    forget_help_options(npuenv_command)
    found = json.loads(json.dumps(dict(commands(npuenv_command))))
    check("commands", found, found, is_written=request.config.getoption("--regenerate"))


def test_the_exit_codes_are_those_that_were_kept(request: pytest.FixtureRequest) -> None:
    found = {each.name: int(each) for each in ExitCode}
    check("exit-codes", found, found, is_written=request.config.getoption("--regenerate"))


def test_at_least_forty_runs_are_kept_and_nothing_else_lies_there() -> None:
    assert len(RUNS) >= 40
    assert {path.stem for path in KEPT.iterdir()} == {*RUNS, "commands", "exit-codes"}


def test_a_difference_is_named_by_its_place_and_a_sentence_is_left_open() -> None:
    kept = masked({"a": [1, {"say": "well"}], "b": "x"}, {"a": [1, {"say": "ok"}], "b": "x"})
    assert kept == {"a": [1, {"say": SENTENCE}], "b": "x"}
    assert list(differences(kept, {"a": [1, {"say": "fine"}], "b": "x"})) == []
    wrong = {"a": [2, {"say": ""}], "c": "x"}
    assert list(differences(kept, wrong)) == [
        ".a[0]: 2 instead of 1", ".a[1].say: no sentence: ''", ".b: is gone", ".c: is new",
    ]  # fmt: skip
