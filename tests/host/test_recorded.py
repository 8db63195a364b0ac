"""Captures: redaction before anybody sees an answer, replay, and captures that are not right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.host import Looked, NotRecorded, PathState, Ran
from npuenv.host.recorded import RecordingHost, load_capture, parse_capture
from tests.support.scripted_host import ScriptedHost

SECRETS = {
    "USER": "marialuisa",
    "HOME": "/home/marialuisa",
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
    "WANDB_API_KEY": "0123456789abcdef",
    "https_proxy": "http://marialuisa:pa55word@proxy.example:3128",
    "VIRTUAL_ENV": "/home/marialuisa/env",
    "MY_APP_SETTING": "private",
}


def _recording() -> tuple[ScriptedHost, RecordingHost]:
    host = ScriptedHost(name="gpu-node-17.lab.example", variables=dict(SECRETS))
    return host, RecordingHost(host)


def test_nothing_private_reaches_the_reader_or_the_capture() -> None:
    host, recording = _recording()
    host.commands["/home/marialuisa/env/bin/tool"] = (
        "ran by marialuisa on gpu-node-17 with 0123456789abcdef\n"
        "Authorization: Bearer abcdef0123456789abcdef\napi_key=9876543210\n/home/bert/data\n"
    )
    host.file("/home/marialuisa/.config", "token: hf_abcdefghijklmnopqrstuvwx\nsk-abcdefghijklmnop1234\n")
    host.folder("/home", "marialuisa", "bert")
    recording.run(["/home/marialuisa/env/bin/tool"])
    recording.look("/home/marialuisa/.config")
    recording.look("/home")
    text = recording.capture_text()
    private = (
        "marialuisa",
        "gpu-node-17",
        "hf_abc",
        "0123456789abcdef",
        "pa55word",
        "abcdef0123",
        "9876543210",
        "sk-abc",
        "MY_APP_SETTING",
    )
    assert [word for word in private if word in text] == []
    assert "/home/bert" not in text
    assert json.loads(text)["environ"]["https_proxy"] == "http://***@proxy.example:3128"
    assert json.loads(text)["environ"]["HF_TOKEN"] == "***"
    assert json.loads(text)["host"] == "host1"


def test_a_path_seen_with_a_stand_in_can_be_asked_for() -> None:
    host, recording = _recording()
    host.file("/home/marialuisa/env/pyvenv.cfg", "version = 3.11.14\n")
    home = recording.environ()["HOME"]
    assert home == "/home/user1"
    assert recording.look(f"{home}/env/pyvenv.cfg").text == "version = 3.11.14\n"
    assert host.asked[-1] == "/home/marialuisa/env/pyvenv.cfg"
    recording.run([f"{home}/env/bin/python"])
    assert host.asked[-1] == "/home/marialuisa/env/bin/python"


def test_common_user_names_are_replaced_in_paths_alone() -> None:
    host = ScriptedHost(name="localhost", variables={"USER": "test", "HOME": "/home/test"})
    host.commands["tool"] = "a test of /home/test/x on localhost\n"
    assert RecordingHost(host).run(["tool"]).out == "a test of /home/user1/x on localhost\n"


def test_redacting_twice_changes_nothing() -> None:
    host, recording = _recording()
    host.file("/etc/note", "marialuisa on gpu-node-17: /home/bert\n")
    once = recording.look("/etc/note").text
    again = ScriptedHost(name="host1", variables=dict(recording.environ()))
    again.file("/etc/note", once)
    second = RecordingHost(again)
    assert second.look("/etc/note").text == once
    assert second.environ() == recording.environ()


def test_a_capture_answers_what_was_recorded_and_refuses_the_rest() -> None:
    host, recording = _recording()
    host.fails("tool --version", err="broken\n", code=5)
    host.fails("slow", timed_out=True)
    host.device("/dev/davinci0", error="Permission denied")
    recorded = [recording.run(["tool", "--version"]), recording.run(["slow"]), recording.run(["absent"])]
    node = recording.look("/dev/davinci0")
    replay = parse_capture(recording.capture_text(), Path("x.json"))
    assert [replay.run(["tool", "--version"]), replay.run(["slow"]), replay.run(["absent"])] == recorded
    assert replay.look("/dev/davinci0") == node == Looked("/dev/davinci0", PathState.DEVICE, error="Permission denied")
    assert recorded[2] == Ran(("absent",), None, "", "No such file or directory")
    assert (replay.name, replay.environ()) == (recording.name, recording.environ())
    with pytest.raises(NotRecorded, match="never asked"):
        replay.run(["never", "asked"])
    with pytest.raises(NotRecorded, match="/never"):
        replay.look("/never")


GOOD = '{"schema": "npuenv.capture/1", "npuenv": "0", "host": "h", "environ": {}, "commands": [], "paths": {}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n  broken", ("line 2, column 3",)),
        ("[]", ("schema is list", "npuenv.capture/1")),
        ('{"schema": "npuenv.capture/9"}', ("npuenv.capture/9",)),
        (GOOD.replace('"environ": {}', '"environ": {"A": 1}'), ("environ.A",)),
        (GOOD.replace('"commands": []', '"commands": 3'), ("commands",)),
        (
            GOOD.replace('"commands": []', '"commands": [{"argv": ["x"], "code": "0", "out": "", "err": ""}]'),
            ("commands[0].code",),
        ),
        (GOOD.replace('"commands": []', '"commands": [{"argv": ["x"], "out": "", "err": ""}]'), ("commands[0].code",)),
        (GOOD.replace('"commands": []', '"commands": [7]'), ("commands[0].argv",)),
        (GOOD.replace('"paths": {}', '"paths": {"/x": {"state": "gone"}}'), ("paths./x", "gone")),
        (GOOD.replace('"paths": {}', '"paths": {"/x": {"state": "folder", "names": [1]}}'), ("paths./x.names",)),
        ("[" * 100000, ("nested",)),
        (GOOD.replace('"commands": []', '"commands": ' + "1" * 100000), ("300 digits",)),
    ],
)
def test_a_capture_that_is_not_right_names_the_place(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "capture.json"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_capture(path)
    for lang in ("en", "zh"):
        sentence = say(caught.value.message, lang)
        assert str(path) in sentence
        assert caught.value.hint is not None and "--save" in say(caught.value.hint, lang)
    assert all(word in say(caught.value.message) for word in words), say(caught.value.message)


def test_a_capture_that_is_missing_or_no_text_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_capture(tmp_path / "nowhere.json")
    assert "No such file" in say(caught.value.message)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput) as caught:
        load_capture(tmp_path / "binary")
    assert "byte 0" in say(caught.value.message)


def test_a_right_capture_loads() -> None:
    assert parse_capture(GOOD, Path("x")).name == "h"
