"""What a user can get wrong: one clear sentence, the next step, the documented exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

CASES = [
    # (words, exit code, what the sentence must name)
    (["docter"], 2, ["docter", "npuenv doctor"]),
    (["verison"], 2, ["verison", "npuenv --version"]),
    (["env", "lst"], 2, ["env lst", "npuenv env list"]),
    (["env", "show", "cpu"], 2, ["npuenv install cpu"]),
    (["env", "show", "cpuu"], 2, ["npuenv env list"]),
    (["doctor", "--jason"], 2, ["--jason"]),
    (["doctor", "--level", "7"], 2, ["7"]),
    (["doctor", "--for", "vrl"], 2, ["vrl", "verl"]),
    (["doctor", "--from", "missing.json"], 2, ["missing.json"]),
    (["doctor", "--save", "a", "--from", "b"], 2, ["--save"]),
    (["resolve"], 2, []),
    (["resolve", "verl-0.7.1-cann8.5.O"], 2, ["verl-0.7.1-cann8.5.0"]),
    (["resolve", "--for", "vrl"], 2, ["vrl"]),
    (["resolve", "verl"], 2, ["--for verl"]),
    (["resolve", "cpu", "--hardware", "a7"], 2, ["a7"]),
    (["resolve", "--hardware", "910A"], 2, ["a2"]),
    (["resolve", "--for", "verl==0.7.3"], 2, ["'0.7.3'", "0.7.1"]),
    (["resolve", "cpu", "--pin", "torch[opt]==2.8.0"], 2, ["torch[opt]==2.8.0"]),
    (["resolve", "cpu", "--pin", "torch=2.8"], 2, ["torch=2.8", "PACKAGE==VERSION"]),
    (["resolve", "cpu", "--pin", "torch==banana"], 2, ["torch==banana"]),
    (["resolve", "cpu", "--pin", "trch==2.13.0"], 2, ["trch", "torch"]),
    (["resolve", "cpu", "--pin", "torch==2.8.0", "--pin", "torch==2.9.0"], 2, ["2.8.0", "2.9.0"]),
    (["resolve", "verl-0.7.1-cann8.5.0", "--pin", "torch==2.9.0"], 4, ["torch==2.9.0"]),
    (["install", "cpuu"], 2, ["cpuu", "cpu"]),
    (["install", "cpu", "--only-step", "a", "--from-step", "b"], 2, ["--only-step"]),
    (["render-docker", "verl-0.7.1-cann8.5.0"], 2, ["-o DIR"]),
    (["render-docker", "cpu", "-o", "x"], 2, ["cpu"]),
    (["render-launch", "--nodes", "2", "--model"], 2, ["npuenv render-launch --help"]),
    (["render-launch", "--for", "verl", "-o", "x", "--card-memory", "65536"], 2, ["'65536'", "GiB", "4096"]),
    (["preflight", "x.yaml", "--card-memory", "lots"], 2, ["'lots'", "GiB", "4096"]),
    (["preflight", "x.yaml", "--card-memory", "nan"], 2, ["'nan'", "GiB", "4096"]),
    (["doctor", "--from"], 2, ["npuenv doctor --help"]),
    (["cluster", "mesh", "--hosts"], 2, ["npuenv cluster mesh --help"]),
    (["smoke-train", "steps"], 2, ["steps", "KEY=VALUE"]),
    (["smoke-train", "--target", "nowhere"], 2, ["nowhere"]),
    (["up"], 2, ["npuenv up --for cpu --yes"]),
]


def test_a_word_that_resembles_no_command_suggests_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 2
    assert "try:" not in capsys.readouterr().err


ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b1m\u202eback"
# What a file says, the command that reads it.
FILES = {
    "schema": (json.dumps({"schema": ESCAPES}), ["doctor", "--from"]),
    "digits": ('{"schema": "npuenv.capture/1", "host": ' + "1" * 100_000 + "}", ["doctor", "--from"]),
    "depth": ("[" * 100_000, ["doctor", "--from"]),
    "inventory": (f"{ESCAPES}=1\n", ["doctor", "--hosts"]),
    "node": (f"node{ESCAPES}\n", ["doctor", "--hosts"]),
    "lock": (f'stack = "{"1" * 10}"\n{ESCAPES} = 1\n', ["lock", "--verify"]),
    "lock-digits": (f"schema = {'1' * 100_000}\n", ["lock", "--verify"]),
    "lock-hex": (f"schema = 0x{'1' * 100_000}\n", ["lock", "--verify"]),
    "yaml": (f'"{ESCAPES[4:8]}\\e[2J": [1\n', ["preflight"]),
    "aliases": ("a: &a [x,x]\n" + "".join(f"a{n}: &a [*a,*a]\n" for n in range(50)), ["preflight"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_hostile_file_is_one_sentence_without_escapes(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = FILES[case]
    path = tmp_path / ("job.yaml" if words == ["preflight"] else "input")
    path.write_text(text, encoding="utf-8")
    assert main([*words, str(path)]) == 2
    said = capsys.readouterr()
    assert [each for each in said.out + said.err if not each.isprintable() and each != "\n"] == []
    assert path.name in said.err and "Traceback" not in said.err and len(said.err.splitlines()) <= 3


@pytest.mark.parametrize(("words", "code", "named"), CASES, ids=[" ".join(words) for words, _, _ in CASES])
def test_bad_input_is_one_sentence_with_the_right_code(
    words: list[str], code: int, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    said = capsys.readouterr()
    text = said.out + said.err if code == 4 else said.err
    assert "Traceback" not in text
    assert [name for name in named if name not in text] == []
    if code == 2:
        assert text.startswith("error: ")
        assert said.out == ""


@pytest.mark.parametrize("words", [words for words, code, _ in CASES if code == 2], ids=" ".join)
def test_with_json_an_error_is_a_document(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit"]) == ("npuenv.error/1", 2)
    assert document["error"]["message"]


def test_errors_speak_chinese_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "cpuu", "--lang", "zh"]) == 2
    assert capsys.readouterr().err.startswith("错误：")


def test_without_a_terminal_and_without_yes_the_plan_is_printed_and_nothing_done(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        # Without the wheel of torch in reach there is no plan to ask about, but then the code is 4.
        code = main(["install", "cpu", "--target", str(home / "env")])
    said = capsys.readouterr()
    assert code in (2, 4)
    assert not (home / "env").exists()
    if code == 2:
        assert "--yes" in said.err
        assert "venv" in said.out


def test_without_torch_in_reach_install_names_the_index_and_takes_no_other_build(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The discard port answers nobody: the index is out of reach whatever the machine's network is."""
    monkeypatch.setenv("PIP_PROXY", "http://127.0.0.1:9")
    assert main(["install", "cpu", "--yes", "--target", str(home / "env")]) == 4
    said = capsys.readouterr().err
    assert "pytorch-cpu" in said
    assert "torch 2.13.0+cpu" in said
    assert not (home / "env" / "bin").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "npuenv.capture/9"}', "\x00\xff"])
def test_an_unreadable_capture_is_named(content: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = home / "capture.json"
    capture.write_text(content, encoding="utf-8")
    assert main(["doctor", "--from", str(capture)]) == 2
    said = capsys.readouterr().err
    assert str(capture) in said
    assert "Traceback" not in said


def test_a_target_with_something_else_in_it_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "thesis.tex").write_text("words")
    assert main(["install", "cpu", "--yes", "--target", str(home / "mine")]) == 2
    assert str(home / "mine") in capsys.readouterr().err
    assert [path.name for path in (home / "mine").iterdir()] == ["thesis.tex"]


def test_a_file_as_output_folder_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "file").write_text("")
    words = ["render-docker", "verl-0.7.1-cann8.5.0", "--hardware", "a2", "-o", str(home / "file")]
    assert main(words) == 2
    assert str(home / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["resolve", "verl-cann9.1.0"], pytest.param(["lock", "verl-0.7.1-cann8.5.0"], marks=pytest.mark.slow)],
    ids="-".join,
)
def test_a_reader_that_goes_away_causes_no_noise(words: list[str]) -> None:
    """`npuenv resolve ... | head -1`: the pipe breaks while we write."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "npuenv", *words, "--arch", "aarch64", "--hardware", "a2"]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(write)
    assert ran.stderr == ""
    assert ran.returncode == 141
