"""The doctor's command line: what is judged, the forms of the report, where it goes, and what contradicts."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from npuenv.cli import main
from npuenv.terminal.options import FORMATS, format_from_suffix
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import says, sentence
from tests.support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("home")
ROOT = Path(__file__).parents[2]
HOSTS = Path(__file__).parent.parent / "support" / "hosts"
HELD = str(HOSTS / "container_8020.json")
REPLAY = ("doctor", "--from", HELD, "--level", "2")


@pytest.mark.slow
def test_each_form_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "npuenv.doctor/1"
    assert main([*REPLAY, "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0" and log["runs"][0]["invocations"][0]["exitCode"] == 1
    assert main([*REPLAY, "--format", "junit"]) == 1
    assert ElementTree.fromstring(capsys.readouterr().out).tag == "testsuites"
    assert main([*REPLAY, "--format", "html", "--lang", "zh"]) == 1
    page = capsys.readouterr().out
    assert page.startswith("<!DOCTYPE html>") and "发现故障" in page
    assert main([*REPLAY, "--format", "text"]) == 1
    assert capsys.readouterr().out.startswith("npuenv doctor  Ubuntu 22.04")


def test_json_is_the_same_under_both_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    main([*REPLAY, "--json"])
    one = capsys.readouterr().out
    main([*REPLAY, "--format", "json"])
    assert capsys.readouterr().out == one


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.html", "<!DOCTYPE html>"),
        ("r.json", '{\n  "schema": "npuenv.doctor/1"'),
        ("r.xml", "<?xml"),
        ("r.sarif", '{\n  "$schema"'),
        ("r.txt", "npuenv doctor  "),
    ],
)
def test_a_files_name_chooses_the_form(
    name: str, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    assert main([*REPLAY, "-o", str(file)]) == 1
    assert file.read_text(encoding="utf-8").startswith(start)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{file} written\n")


def test_a_format_outweighs_the_files_name_and_a_dash_is_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.txt"
    assert main([*REPLAY, "--format", "html", "-o", str(file)]) == 1
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    capsys.readouterr()
    assert main([*REPLAY, "-o", "-", "--format", "junit"]) == 1
    assert capsys.readouterr().out.startswith("<?xml")


@pytest.mark.parametrize("place", ["/no/such/folder/r.html", "/"])
def test_a_report_that_cannot_be_written_is_one_sentence_before_any_looking(
    place: str, slow_tool: SlowTool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", slow_tool.path)
    assert main(["doctor", "--level", "3", "-o", place]) == 2
    assert not slow_tool.seen.exists()
    err = capsys.readouterr().err
    assert says(err, "cli.cannot-save", path=place) and len(err.splitlines()) == 2


def test_a_report_that_does_not_fit_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "--format", "html", "-o", "/dev/full"]) == 2
    reason = os.strerror(errno.ENOSPC)
    said = sentence("cli.error", message=sentence("cli.cannot-save", path="/dev/full", reason=reason))
    assert capsys.readouterr().err.startswith(f"{said}\n")


@pytest.mark.parametrize(
    "words",
    [
        ("--save", "a", "--from", "b"),
        ("--save", "a", "--from-report", "b"),
        ("--from", "a", "--from-report", "b"),
        ("--from-report", "a", "--fix"),
        ("--from-report", "a", "--python", "b"),
        ("--from-report", "a", "--stack", "cpu"),
        ("--from-report", "a", "--format", "junit"),
        ("--from-report", "a", "--level", "2"),
        ("--fix", "--from", HELD),
        ("--fix", "--save", "a"),
        ("--fix", "-o", "a"),
        ("--fix", "--format", "html"),
        ("--dry-run",),
        ("--yes",),
        ("--json", "--format", "html"),
        ("--hash", "--level", "0"),
        ("--for", "verl", "--stack", "cpu"),
        ("--save", "x.json", "-o", "x.json"),
        ("--level", "4"),
        ("--format", "pdf"),
    ],
)
def test_options_that_contradict_are_told_with_a_way_out(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    said = capsys.readouterr()
    if "--json" in words:
        assert json.loads(said.out)["error"]["hint"]
    else:
        error, hint = said.err.splitlines()
        assert error.startswith("error: ") and hint.startswith("  try: ") and said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_an_unknown_stack_names_its_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--stack", "verl-cann9.1.1"]) == 2
    assert "verl-cann9.1.0" in capsys.readouterr().err
    assert main(["doctor", "--stack", "x", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "bad-input"


@pytest.mark.parametrize("words", [("--format", "json"), ("--format=json",), ("--json",)])
def test_wrong_usage_is_a_document_too_where_one_is_asked_for(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words, "--level", "9"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["schema"] == "npuenv.error/1" and said.err == ""


def test_a_stack_decides_what_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--from", str(HOSTS / "no_card.json"), "--stack", "cpu", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert made["asked"] == {"for": "cpu", "stack": "cpu", "level": 1}
    status = {item["check"]: item["status"] for item in made["findings"]}
    assert status["cards.present"] == "skip"
    main(["doctor", "--from", str(HOSTS / "no_card.json"), "--stack", "verl-0.7.1-cann8.5.0", "--json"])
    made = json.loads(capsys.readouterr().out)
    status = {item["check"]: item["status"] for item in made["findings"]}
    assert status["cards.present"] == "fail"


def test_a_dry_run_of_a_capture_shows_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "--fix", "--dry-run", "--json"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "npuenv.fix/1" and "driver.npu-smi" in made["left"]
    assert not (Path(os.environ["XDG_DATA_HOME"]) / "npuenv").exists()


def test_a_pasted_report_is_diagnosed_in_both_forms_and_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paste = tmp_path / "paste.txt"
    paste.write_text("dcmi model initialized failed, because the device is used. ret is -8020\n", encoding="utf-8")
    code = main(["doctor", "--from-report", str(paste), "--format", "json"])
    document = capsys.readouterr().out
    assert json.loads(document)["exit"] == code
    file = tmp_path / "d.json"
    assert main(["doctor", "--from-report", str(paste), "-o", str(file)]) == code
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(document)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{file} written\n")
    assert main(["doctor", "--from-report", str(paste)]) == code
    assert "-8020" in capsys.readouterr().out


def test_quiet_says_nothing_of_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", str(HOSTS / "a2_healthy.json"), "--level", "2", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*REPLAY, "-q"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL") and not any(line.startswith(("ok", "warn", "unknown")) for line in lines)


def test_saving_and_replaying_give_the_same_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = tmp_path / "c.json"
    live = main(["doctor", "--level", "0", "--json", "--save", str(capture)])
    one = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--level", "0", "--json", "--from", str(capture)]) == live
    assert json.loads(capsys.readouterr().out) == one


@pytest.mark.parametrize("form", ["html", "json", "sarif", "junit"])
def test_a_report_to_pass_on_names_nobody(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "home" / "marialuisa" / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("gone")
    monkeypatch.setenv("USER", "marialuisa")
    monkeypatch.setenv("https_proxy", "http://marialuisa:pa55w0rd@127.0.0.1:9")
    main(["doctor", "--level", "0", "--python", str(python), "--format", form])
    out = capsys.readouterr().out
    assert len(out) > 1000 and "marialuisa" not in out and "pa55w0rd" not in out
    monkeypatch.undo()


class SlowTool:
    """A PATH on which npu-smi takes three seconds, and the file that it leaves when it has begun."""

    def __init__(self, folder: Path) -> None:
        self.seen, self.path = folder / "seen", f"{folder}:{os.environ['PATH']}"
        slow = folder / "npu-smi"
        slow.write_text(f'#!/bin/sh\ntouch "{self.seen}"\nsleep 3\necho nothing\n', encoding="utf-8")
        slow.chmod(0o755)


@pytest.fixture
def slow_tool(tmp_path: Path) -> SlowTool:
    folder = tmp_path / "tools"
    folder.mkdir()
    return SlowTool(folder)


def in_terminal(*words: str, columns: int = 100, **env: str) -> tuple[str, int]:
    """What the command shows on a terminal of its own, and its exit code."""
    parent, child = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "npuenv", *words],
        cwd=ROOT,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": str(columns), "PYTHONUTF8": "1", **env},
        stdin=child,
        stdout=child,
        stderr=child,
        close_fds=True,
    )
    os.close(child)
    shown = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(parent)
    return shown.decode("utf-8").replace("\r\n", "\n"), process.wait(PATIENCE_S)


def here_in_terminal(patch: pytest.MonkeyPatch, *words: str, columns: int = 100, **env: str) -> tuple[str, int]:
    """The same with the command in this process."""
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        patch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), **env}.items():
        patch.setenv(name, value)
    parent, child = pty.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=lambda: shown.extend(iter(partial(read_all, parent), b"")))
    reader.start()
    with open(child, "w", encoding="utf-8") as screen:
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        code = main(list(words))
        patch.undo()
    reader.join(PATIENCE_S)
    os.close(parent)
    return b"".join(shown).decode("utf-8").replace("\r\n", "\n"), code


def read_all(parent: int) -> bytes:
    """The next bytes of a terminal; none once its other end is closed."""
    try:
        return os.read(parent, 65536)
    except OSError:
        return b""


def test_a_terminal_gets_a_coloured_tree_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, code = here_in_terminal(monkeypatch, *REPLAY, columns=72)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 1 and "\x1b[1;31m" in shown and "✘ FAIL" in plain and "└── " in plain
    assert max(len(line) for line in plain.splitlines() if " $ " not in line) <= 72


@pytest.mark.parametrize("words", [("--no-color",), ()])
def test_no_color_is_obeyed_on_a_terminal(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    env: dict[str, Any] = {} if words else {"NO_COLOR": "1"}
    shown, _ = here_in_terminal(monkeypatch, *REPLAY, *words, **env)
    assert "\x1b" not in shown and "✘ FAIL" in shown


@pytest.mark.slow
def test_a_reader_that_goes_away_is_met_in_silence() -> None:
    ran = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", sys.executable, "-m", "npuenv", *REPLAY, "--format", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("{\n", "")


@pytest.mark.slow
def test_an_interrupt_ends_the_look_with_130_and_one_sentence(slow_tool: SlowTool, bare_python: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "npuenv", "doctor", "--lang", "en", "--python", bare_python],
        cwd=ROOT,
        env={**os.environ, "PATH": slow_tool.path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    assert until(slow_tool.seen.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.lstrip() == f"{sentence('cli.interrupted')}\n"


@pytest.mark.slow
def test_a_slow_look_says_on_a_terminal_what_it_waits_for(slow_tool: SlowTool, bare_python: str) -> None:
    shown, _ = in_terminal("doctor", "--lang", "en", "--python", bare_python, PATH=slow_tool.path)
    assert re.search(r"… \S*npu-smi info \(\d+ s\)", shown)
    assert "\x1b[2K" in shown
    quiet, _ = in_terminal("doctor", "-q", "--python", bare_python, PATH=slow_tool.path)
    assert "… " not in quiet


@pytest.mark.slow
def test_a_report_in_a_file_keeps_the_stand_ins_and_a_pipe_has_commands_as_typed(tmp_path: Path) -> None:
    home = tmp_path / "home" / "zacharias"  # which is not there: a failure that names it
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "npuenv", "doctor", "--level", "0"]
    with (tmp_path / "report").open("w", encoding="utf-8") as stream:
        subprocess.run(argv, env=env, stdout=stream, stderr=subprocess.DEVNULL, timeout=300, check=False)
    text = (tmp_path / "report").read_text(encoding="utf-8")
    assert "home folder" in text and "zacharias" not in text
    shown, _ = in_terminal("doctor", "--level", "0", "--no-color", columns=1000, HOME=str(home))
    assert says(shown, "check_machine.home-absent", path=str(home))


def test_quiet_with_warnings_alone_says_how_many_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = HOSTS / "a2_healthy.json"
    assert main(["doctor", "--from", str(healthy), "-q"]) == 0
    assert capsys.readouterr().out == ""
    capture = json.loads(healthy.read_text(encoding="utf-8"))
    capture["environ"]["ASCEND_RT_VISIBLE_DEVICES"] = "1,0"
    warned = tmp_path / "warned.json"
    warned.write_text(json.dumps(capture), encoding="utf-8")
    assert main(["doctor", "--from", str(warned), "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No failures · warnings: 1 ") and out.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/nope", "absent"),
        ("nonesuch-python", "absent"),
        ("/etc/passwd", "no-program"),
        ("/", "folder"),
        ("/bin/ls", "other"),
    ],
)
def test_what_is_no_python_is_refused_at_once(path: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--fix", "--yes")):
        assert main(["doctor", "--python", path, *more]) == 2
        out, err = capsys.readouterr()
        assert says(err, f"doctor.python-{key}", path=path) and "  try: " in err and out == ""


def test_a_folder_with_a_python_in_it_is_answered_with_that_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("gone")
    assert main(["doctor", "--python", str(tmp_path)]) == 2
    assert f"npuenv doctor --python {tmp_path}/bin/python" in capsys.readouterr().err
    assert main(["doctor", "--level", "0", "--python", str(tmp_path / "bin" / "python"), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["schema"] == "npuenv.doctor/1"  # a broken Python is judged


@pytest.mark.slow
def test_an_empty_report_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report"
    path.write_text(" \n\n", encoding="utf-8")
    assert main(["doctor", "--from-report", str(path)]) == 2
    assert says(capsys.readouterr().err, "doctor.empty-report", path=path)
    with path.open(encoding="utf-8") as empty, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", empty)
        assert main(["doctor", "--from-report", "-"]) == 2
        assert says(capsys.readouterr().err, "doctor.empty-report", path="-")
    argv = [sys.executable, "-m", "npuenv", "doctor", "--from-report", "-"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    full = subprocess.run(argv, env=env, input="x\n", capture_output=True, text=True, timeout=300, check=False)
    assert full.returncode == 3 and not says(full.stderr, "doctor.empty-report")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["/bin/sh", "-c", 'echo x > "$0"', str(pipe)]):
        assert main(["doctor", "--from-report", str(pipe)]) == 3  # a pipe is left to its reader


def test_a_report_taken_for_a_capture_a_capture_for_a_report_and_neither_named_say_the_right_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "log.txt"
    report.write_text("RuntimeError: boom\n", encoding="utf-8")
    assert main(["doctor", "--from", str(report)]) == 2
    assert says(capsys.readouterr().err, "host.not-json-hint", file=report)
    assert main(["doctor", "--from-report", HELD]) == 2
    err = capsys.readouterr().err
    assert says(err, "doctor.report-capture", path=HELD) and says(err, "doctor.report-capture-hint", path=HELD)
    assert main(["doctor", "n1.json"]) == 2
    assert says(capsys.readouterr().err, "doctor.extra-argument-hint", word="n1.json")


def test_a_use_of_which_nothing_is_installed_is_said_with_the_command_that_installs_it(
    bare_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    python = ["--python", bare_python]
    main(["doctor", "--for", "cpu", *python])
    assert says(capsys.readouterr().out, "doctor.nothing-of", name="cpu", command="npuenv up --for cpu")
    main(["doctor", "--for", "verl", *python])
    command = "npuenv install --host this --for verl"
    assert says(capsys.readouterr().out, "doctor.nothing-of", name="verl", command=command)
    main(["doctor", *python])
    assert not says(capsys.readouterr().out, "doctor.nothing-of")
    main(["doctor", "--for", "verl", "--from", HELD])
    assert not says(capsys.readouterr().out, "doctor.nothing-of")


def test_a_file_whose_name_promises_another_form_is_not_written_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options, form in (("x.html", ["--json"], "json"), ("r.pdf", [], "text")):
        main([*REPLAY, "-o", str(tmp_path / name), *options])
        assert says(capsys.readouterr().err, "doctor.written-as", path=tmp_path / name, format=form)
    main([*REPLAY, "-o", str(tmp_path / "x.json")])
    assert capsys.readouterr().err == f"{tmp_path}/x.json written\n"


def test_a_capture_is_refused_where_there_is_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--level", "0", "--save", str(tmp_path / "none" / "x.json")]) == 2
    path = tmp_path / "none" / "x.json"
    assert says(capsys.readouterr().err, "cli.cannot-save", path=path) and not path.parent.exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_named_after_a_form_gets_it(form: str) -> None:
    assert format_from_suffix(f"report.{form}") == form
