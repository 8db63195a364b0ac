"""The doctor in one file: what is in it, and that it answers like the installed one on every Python there is here."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv import __version__
from npuenv.bundle import zipapp
from npuenv.cli import main
from npuenv.core.errors import BadInput
from npuenv.facts.collect import collect
from npuenv.host.recorded import RecordingHost
from tests.support.forked import program
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator

    from tests.support.forked import Ended, Program

TESTS = Path(__file__).parent.parent
HOSTS = TESTS / "support" / "hosts"
CAPTURES = sorted(path.name for path in HOSTS.glob("*.json"))
# The oldest that may run the file is always tried, the newest by `.ci/run`, all by `.ci/run --all`.
MINORS = [
    pytest.param(9),
    *(pytest.param(minor, marks=[pytest.mark.slow, pytest.mark.long]) for minor in range(10, 14)),
    pytest.param(14, marks=pytest.mark.slow),
]
PASTE = "Traceback (most recent call last):\nImportError: libhccl.so: cannot open shared object file\n"
LACKING = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.11/site-packages/vllm/engine/llm.py", line 10, in a\n'
    "ImportError: cannot import name 'f' from 'transformers' (/usr/lib/python3.11/site-packages/transformers/a.py)\n"
)


def python_of(minor: int) -> str | None:
    """An interpreter of that version on PATH or below pyenv; None where there is none that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python3.{minor}"), *map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python")))]
    probe = "import sys; print(sys.version_info[1], sys.executable)"
    for place in filter(None, places):
        ran = subprocess.run([place, "-c", probe], capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode == 0 and ran.stdout.startswith(f"{minor} "):
            return ran.stdout.split(maxsplit=1)[1].strip()
    return None


@pytest.fixture(scope="session", params=MINORS, ids=lambda minor: f"3.{minor}")
def python(request: pytest.FixtureRequest) -> str:
    """Each Python that may run the file."""
    minor: int = request.param
    if sys.version_info[1] == minor:
        return sys.executable
    found = python_of(minor)
    if found is None:
        pytest.skip(f"there is no Python 3.{minor} here")
    return found


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed file."""
    path = tmp_path_factory.mktemp("packed") / "npuenv-doctor.pyz"
    assert zipapp.build(path) == path.stat().st_size
    return path


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture of a described machine, whose versions are looked up among the published stacks."""
    from tests.support.machines.composed import machine
    from tests.support.machines.simulated import SimulatedHost

    recording = RecordingHost(SimulatedHost(machine("310p-host-npu6")))
    collect(recording, level=2)
    path = tmp_path_factory.mktemp("described") / "host.json"
    path.write_text(recording.capture_text(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def packed(python: str, pyz: Path) -> Iterator[Program]:
    """The file, imported by each Python, isolated from everything that is installed."""
    with waiting(python, pyz) as program:
        yield program


@pytest.fixture(scope="session")
def packed_here(pyz: Path) -> Iterator[Program]:
    """The same with the Python of the tests."""
    with waiting(sys.executable, pyz) as program:
        yield program


def waiting(python: str, pyz: Path) -> contextlib.AbstractContextManager[Program]:
    start = f"import sys; sys.path.insert(0, {str(pyz)!r}); from npuenv_start import main"
    return program([python, "-I"], start, str(pyz), ("--from", str(HOSTS / "a2_healthy.json"), "--level", "2"))


def run(packed: Program, *words: str, stdin: str = "") -> Ended:
    """One run of the file."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NO_COLOR", "LC_ALL")}
    return packed.run(words, cwd=os.getcwd(), env={**clean, "LANG": "C.UTF-8"}, stdin=stdin)


def code_in(pyz: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every module in the file."""
    with zipfile.ZipFile(pyz) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                yield name, archive.read(name).decode("utf-8")


def imported_at_run_time(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports when it runs, at any depth."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        yield from imported_at_run_time(node)


def test_it_is_one_small_executable_file_with_the_licenses(pyz: Path) -> None:
    assert pyz.stat().st_size < 3_000_000
    assert pyz.stat().st_mode & stat.S_IXUSR
    assert pyz.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(pyz) as archive:
        names = archive.namelist()
    assert {Path(name).suffix for name in names if not name.startswith("licenses/")} == {".py", ".toml"}
    licensed = {name.split("/")[1] for name in names if name.startswith("licenses/")}
    assert licensed == {"npuenv", *zipapp.LIBRARIES}


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(pyz: Path) -> None:
    assert zipapp.content.__wrapped__() == pyz.read_bytes()


@pytest.mark.slow
def test_all_of_it_can_be_parsed_by_the_oldest_python(pyz: Path) -> None:
    zipapp.require_grammar((name, text.encode()) for name, text in code_in(pyz))


@pytest.mark.slow
def test_what_it_imports_it_holds(pyz: Path) -> None:
    """Modules of ours and libraries."""
    imports = {
        name: set(imported_at_run_time(ast.parse(text))) for name, text in code_in(pyz) if name.startswith("npuenv/")
    }
    there = {name[:-3].replace("/", ".").removesuffix(".__init__") for name in imports}
    assert {
        f"{name} -> {module}"
        for name, modules in imports.items()
        for module in modules
        if module.partition(".")[0] == "npuenv" and module not in there
    } == set()
    held = {*zipapp.LIBRARIES.values(), "npuenv", *sys.stdlib_module_names}
    # Programs for the judged interpreter ask whether these are there; they are never imported by the doctor.
    others = {
        module.partition(".")[0]
        for name, modules in imports.items()
        if not name.startswith("npuenv/facts/target/")
        for module in modules
    }
    assert others - held == set()


def test_code_that_the_oldest_python_cannot_read_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "newer"
    package.mkdir()
    (package / "fine.py").write_text("x: int | None = None\n", encoding="utf-8")
    zipapp.require_grammar(zipapp._files(package, package))
    (package / "of_today.py").write_text("match 1:\n    case 1:\n        pass\n", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        zipapp.require_grammar(zipapp._files(package, package))
    assert caught.value.message.args["name"] == "newer/of_today.py"


def test_the_command_writes_it_and_says_how_to_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.pyz"
    assert main(["pack-doctor", "-o", str(file)]) == 0
    assert says(capsys.readouterr().out, "doctor.packed", path=file)
    assert main(["pack-doctor", "-o", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"schema": "npuenv.pack/1", "path": str(file), "bytes": file.stat().st_size}
    assert main(["pack-doctor", "-o", "/no/such/folder/d.pyz"]) == 2
    assert says(capsys.readouterr().err, "cli.cannot-save", path="/no/such/folder/d.pyz")


def words_of_captures(described: Path) -> Iterator[tuple[str, ...]]:
    """Command lines that judge a capture: each host, each other form, and what needs the published stacks."""
    for capture in CAPTURES:
        yield ("--from", str(HOSTS / capture), "--level", "2", "--for", "verl", "--json")
    for form in ("html", "junit", "sarif", "text"):
        yield ("--from", str(HOSTS / "container_8020.json"), "--format", form, "--lang", "zh")
    yield ("--from", str(described), "--level", "2", "--json")


@pytest.mark.slow
def test_captures_give_the_installed_doctors_documents_byte_for_byte(
    packed: Program, pyz: Path, described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in words_of_captures(described):
        code = main(["doctor", *words])
        expected = capsys.readouterr().out
        ran = run(packed, *words)
        assert (ran.returncode, ran.stdout.replace(f"python3 {pyz}", "npuenv doctor")) == (code, expected), words
        assert "--save" in ran.stderr and len(ran.stderr.splitlines()) == 1, words
    assert says(expected, "check_python.torch-npu-cann-released")  # found among the published stacks
    file = tmp_path / "report"
    ran = run(packed, *words, "-o", str(file))
    assert (ran.returncode, ran.stdout, file.read_text(encoding="utf-8")) == (code, "", expected)


def test_what_it_saves_is_judged_alike_by_the_installed_doctor(
    packed: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "here.json"
    ran = run(packed, "--level", "0", "--json", "--save", str(capture))
    assert ran.returncode in (0, 1), ran.stderr
    assert main(["doctor", "--level", "0", "--json", "--from", str(capture)]) == ran.returncode
    assert capsys.readouterr().out == ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("text", [PASTE, LACKING])
def test_a_pasted_report_is_diagnosed_alike(
    packed: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    paste = tmp_path / "paste.txt"
    paste.write_text(text, encoding="utf-8")
    for form in ("json", "text"):
        code = main(["doctor", "--from-report", str(paste), "--format", form])
        ran = run(packed, "--from-report", "-", "--format", form, stdin=text)
        assert (ran.returncode, ran.stdout, ran.stderr) == (code, capsys.readouterr().out, "")


@pytest.mark.slow
def test_an_empty_home_and_a_folder_that_may_not_be_written_to_are_enough(
    python: str, pyz: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sealed"
    folder.mkdir()
    file = folder / "d.pyz"
    shutil.copy(pyz, file)
    folder.chmod(0o555)
    ran = subprocess.run(
        [python, "-I", str(file), "--json"],
        cwd=folder,
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    folder.chmod(0o755)
    document = json.loads(ran.stdout)
    assert document["schema"] == "npuenv.doctor/1" and ran.returncode == document["exit"]
    broken = [item["check"] for item in document["findings"] if "itself failed" in item["says"]]
    assert broken == [] and [path.name for path in folder.iterdir()] == ["d.pyz"]


def test_it_says_its_version_and_what_it_leaves_out(packed: Program) -> None:
    assert run(packed, "--version").stdout == f"npuenv, version {__version__}\n"
    told = run(packed, "--help")
    assert told.returncode == 0 and ": --stack, --fix, --hosts." in told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "way"),
    [
        (("--stack", "cpu"), "`npuenv doctor --from here.json --stack NAME`"),
        (("--stack=cpu",), "`npuenv doctor --from here.json --stack NAME`"),
        (("--fix",), "`npuenv doctor --fix`"),
        (("--yes",), "`npuenv doctor --fix`"),
        (("--hosts", "f"), "`npuenv doctor --hosts FILE`"),
    ],
)
def test_an_option_it_does_not_have_is_answered_with_the_way_to_it(
    words: tuple[str, ...], way: str, packed_here: Program
) -> None:
    ran = run(packed_here, *words, "--lang", "en")
    error, hint = ran.stderr.splitlines()
    option = words[0].partition("=")[0]
    assert ran.returncode == 2 and ran.stdout == ""
    assert says(error, "doctor.left-out", option=option)
    assert way in hint


@pytest.mark.parametrize(
    "words",
    [
        ("--level", "4"),
        ("--level", "x"),
        ("--format", "pdf"),
        ("--no-such-option",),
        ("stray",),
        ("",),
        ("--save", "a", "--from", "b"),
        ("--from-report", "a", "--level", "2"),
        ("--hash", "--level", "0"),
        ("--from", "/no/such/capture.json"),
        ("-o", "/no/such/folder/r.html"),
    ],
)
def test_wrong_usage_is_one_sentence_and_a_way_out(words: tuple[str, ...], packed_here: Program) -> None:
    ran = run(packed_here, *words)
    error, hint = ran.stderr.splitlines()
    assert ran.returncode == 2 and ran.stdout == ""
    assert error.startswith("error: ") and hint.startswith("  try: ")


def test_wrong_usage_is_a_document_where_one_is_asked_for(packed_here: Program) -> None:
    ran = run(packed_here, "--json", "--level", "9")
    assert ran.returncode == 2 and ran.stderr == ""
    assert json.loads(ran.stdout)["error"]["kind"] == "bad-input"


def test_quiet_says_nothing_of_a_healthy_machine(packed_here: Program) -> None:
    ran = run(packed_here, "--from", str(HOSTS / "a2_healthy.json"), "--level", "2", "-q")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.slow
def test_an_interrupt_ends_it_with_130_and_one_sentence(pyz: Path, tmp_path: Path) -> None:
    slow, begun = tmp_path / "npu-smi", tmp_path / "begun"
    slow.write_text(f"#!/bin/sh\n: >'{begun}'\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-I", str(pyz), "--lang", "en"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    ends = time.monotonic() + 120
    while not begun.exists() and time.monotonic() < ends:  # it is at work, however long it takes to start
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert begun.exists()
    assert (process.returncode, out) == (130, "")
    assert err.strip() == sentence("cli.interrupted")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_met_in_silence(pyz: Path) -> None:
    words = [sys.executable, "-I", str(pyz), "--from", str(HOSTS / "a2_healthy.json"), "--json", "-q"]
    ran = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout, ran.stderr) == ("{\n", "")


@pytest.mark.parametrize("name", ["2.7", "3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_gets_a_sentence_instead_of_a_traceback(pyz: Path, name: str) -> None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    python = next((str(path) for path in sorted(pyenv.glob(f"{name}.*/bin/python"))), shutil.which(f"python{name}"))
    if python is None:
        pytest.skip(f"there is no Python {name} here")
    ran = subprocess.run([python, str(pyz)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith("npuenv-doctor.pyz needs Python 3.9 or newer; this is ")
    assert ran.stderr.count("\n") == 1
