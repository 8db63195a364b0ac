"""The doctor as a whole: the same findings live and replayed, the JSON document, the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import check_all
from npuenv.core.shell import shell_line
from npuenv.facts.collect import collect
from npuenv.host.local import LocalHost
from npuenv.host.recorded import RecordingHost, load_capture, parse_capture
from npuenv.report.doctor import document
from npuenv.report.terminal import Manner, Page, render_report
from tests.support.scripted_host import ScriptedHost, inventory, plain_machine, with_cann, with_cards
from tests.support.sentences import says

if TYPE_CHECKING:
    from npuenv.host import Host

HOSTS = Path(__file__).parent.parent / "support" / "hosts"
INFO = "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\npath=/usr/local/Ascend/cann-8.5.0\n"


def _document(host: Host, *, lang: str = "en", level: int = 2, python: str | None = None) -> str:
    facts = collect(host, level=level, python=python)
    return json.dumps(document(check_all(facts, level=level), facts, lang=lang), ensure_ascii=False, indent=1)


def _text(name: str, *, lang: str = "en", width: int = 100, is_terminal: bool = False, is_verbose: bool = False) -> str:
    facts = collect(load_capture(HOSTS / f"{name}.json"), level=2)
    page, manner = Page(width, is_terminal), Manner(lang, is_verbose=is_verbose)
    return render_report(check_all(facts, level=2), facts, page, manner)


def private_host() -> ScriptedHost:
    """A host full of things that must not leave it, with a problem in each corner."""
    host = plain_machine(ScriptedHost(name="train-07.lab.example"))
    host.variables.update(
        {
            "USER": "marialuisa",
            "HOME": "/home/marialuisa",
            "VIRTUAL_ENV": "/home/marialuisa/env",
            "http_proxy": "http://marialuisa:pa55word@10.0.0.1:3128",
            "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
        }
    )
    python = "/home/marialuisa/env/bin/python"
    host.answers(f"{python} inventory", inventory({"torch": "2.8.0"}, executable=python, prefix="/home/marialuisa/env"))
    errors = ["ImportError: /home/marialuisa/env/lib/libtorch.so: cannot open shared object file"]
    host.answers(f"{python} imports torch", {"ok": False, "version": "", "errors": errors})
    host.answers(f"{python} listens 10.0.0.1 3128", {"listens": False, "why": "refused for marialuisa on train-07"})
    host.commands["df -kP /home/marialuisa"] = (
        "Filesystem 1 2 3 4 5\nnfs:/marialuisa 99999999 1 2097152 98% /home/marialuisa\n"
    )
    return host


def test_live_and_replayed_findings_are_equal_byte_for_byte() -> None:
    recording = RecordingHost(private_host())
    live = _document(recording)
    assert _document(parse_capture(recording.capture_text(), Path("x"))) == live
    assert '"status": "fail"' in live and "user1" in live
    assert [word for word in ("marialuisa", "train-07", "pa55word", "hf_abc") if word in live] == []


def test_live_and_replayed_findings_of_this_machine_are_equal() -> None:
    recording = RecordingHost(LocalHost())
    live = _document(recording, level=0)
    assert _document(parse_capture(recording.capture_text(), Path("x")), level=0) == live


def test_a_replay_at_a_higher_level_or_of_another_python_is_unknown_and_never_a_crash() -> None:
    recording = RecordingHost(private_host())
    collect(recording, level=0)
    replay = parse_capture(recording.capture_text(), Path("x"))
    found = json.loads(_document(replay, level=2))
    by_check = {item["check"]: item for item in found["findings"]}
    assert by_check["python.found"]["status"] == "unknown"
    assert by_check["python.found"]["evidence"][0]["line"].endswith("the capture")
    assert by_check["python.torch-imports"]["status"] == "skip"  # told once, by the check of the interpreter
    other = json.loads(_document(replay, level=1, python="/other/python"))
    assert {item["status"] for item in other["findings"] if item["check"] == "python.found"} == {"unknown"}


def test_commands_can_be_typed_on_the_live_host_and_secrets_stay_hidden() -> None:
    host = private_host()
    host.folder("/home/marialuisa/Ascend/cann", "aarch64-linux", "compiler", "opp", "runtime")
    host.folder("/home/marialuisa/Ascend/cann/aarch64-linux", "ascend_toolkit_install.info")
    host.file("/home/marialuisa/Ascend/cann/aarch64-linux/ascend_toolkit_install.info", INFO)
    host.file("/home/marialuisa/Ascend/cann/set_env.sh", "#")
    host.file("/usr/local/Ascend/driver/version.info", "Version=25.5.1\n")
    recording = RecordingHost(host)
    facts = collect(recording, level=1)
    text = render_report(check_all(facts), facts, Page(), Manner(restore=recording.restore))
    assert "$ source /home/marialuisa/Ascend/cann/set_env.sh" in text
    assert "pa55word" not in text and "hf_abc" not in text


def test_an_interpreter_named_by_its_real_path_is_not_given_away() -> None:
    recording = RecordingHost(private_host())
    live = _document(recording, level=1, python="/home/marialuisa/env/bin/python")
    assert "marialuisa" not in live and '"version": "3.11.14"' in live
    assert _document(parse_capture(recording.capture_text(), Path("x")), level=1) == live


def test_a_home_folder_that_is_called_home_hides_nothing_else() -> None:
    host = private_host()
    host.variables["HOME"] = "/data/home"
    recording = RecordingHost(host)
    live = _document(recording, level=1)
    assert "/data/home/Ascend" in live
    assert _document(parse_capture(recording.capture_text(), Path("x")), level=1) == live


def test_a_capture_made_for_another_python_is_replayed_for_that_one() -> None:
    host = private_host()
    host.answers("/other/python inventory", inventory({"torch": "2.7.1"}, executable="/other/python"))
    recording = RecordingHost(host)
    live = _document(recording, level=1, python="/other/python")
    assert _document(parse_capture(recording.capture_text(), Path("x")), level=1) == live
    assert '"executable": "/other/python"' in live


def test_the_document_has_the_agreed_keys_and_does_not_change_with_the_language() -> None:
    host = load_capture(HOSTS / "container_8020.json")
    english, chinese = (json.loads(_document(host, lang=lang, level=1)) for lang in ("en", "zh"))
    assert list(english) == ["schema", "npuenv", "exit", "asked", "summary", "facts", "findings"]
    assert english["schema"] == "npuenv.doctor/1" and english["exit"] == 1
    assert list(english["summary"]) == ["ok", "warn", "fail", "unknown", "skip"]
    assert sum(english["summary"].values()) == len(english["findings"])
    assert [list(item) for item in english["findings"]] == [
        ["check", "status", "says", "evidence", "source", "fix"]
    ] * len(english["findings"])
    bad = next(item for item in english["findings"] if item["status"] == "fail")
    assert list(bad["fix"]) == ["says", "commands", "dangerous", "automatic", "needs_root"]
    assert list(bad["evidence"][0]) == ["command", "line"]
    assert english["facts"]["npu"]["smi"]["state"] == "unknown" and english["facts"]["npu"]["smi"]["value"] is None
    for one, other in zip(english["findings"], chinese["findings"], strict=True):
        assert {**one, "says": "", "fix": None} == {**other, "says": "", "fix": None}
    assert english["facts"] == chinese["facts"]
    assert english["findings"] != chinese["findings"]


def test_a_healthy_host_fits_on_a_screen_and_ends_in_one_verdict() -> None:
    for name in ("a2_healthy", "a3_healthy"):
        lines = _text(name).splitlines()
        assert len(lines) <= 24
        assert lines[-1].startswith("No failure")
        assert "Ubuntu 22.04" in lines[0] and "aarch64" in lines[0]


def test_the_worst_comes_first_with_its_evidence_and_its_command() -> None:
    lines = _text("no_card").splitlines()
    assert lines[1].startswith("FAIL") and "cards:" in lines[1]
    assert any("npu-smi info ->" in line for line in lines[2:6])
    assert "$ npuenv up --for cpu" in "\n".join(lines[2:8])
    assert lines[-2].startswith("Problems: 1") and says(lines[-1], "doctor.next-mend")


def test_a_pipe_gets_plain_unfolded_lines_and_a_terminal_a_tree() -> None:
    plain = _text("no_card", width=40)
    assert max(map(len, plain.splitlines())) > 80 and "├" not in plain and "\x1b" not in plain
    tree = _text("no_card", width=60, is_terminal=True)
    assert "├── " in tree and "└── " in tree
    assert max(len(line) for line in tree.splitlines()) <= 60


def test_verbose_shows_every_check_with_its_id_and_source() -> None:
    text = _text("a2_healthy", is_verbose=True)
    assert all(f"[{name}]" in text for name in ("machine.arch", "cann.driver", "devices.computes", "python.numpy"))
    assert "source:" in text


@pytest.mark.parametrize("name", ["a2_healthy", "no_card", "container_8020"])
def test_chinese_reports_have_no_english_sentence_left(name: str) -> None:
    text = _text(name, lang="zh", is_verbose=True)
    assert "fix:" not in text and "source:" not in text and "FAIL" not in text
    assert "依据" in text


def test_commands_are_shown_as_one_would_type_them() -> None:
    assert shell_line(("export", "LD_LIBRARY_PATH=/a b:/c")) == "export LD_LIBRARY_PATH='/a b:/c'"
    assert shell_line(("source", "/opt/my cann/set_env.sh")) == "source '/opt/my cann/set_env.sh'"
    assert shell_line(("pip", "install", "numpy<2")) == "pip install 'numpy<2'"


def test_commands_on_one_host_run_one_after_the_other_and_all_within_a_timeout() -> None:
    class Timed(ScriptedHost):
        def run(self, argv, *, timeout_s=10.0, env=None):  # type: ignore[no-untyped-def]
            assert 0 < timeout_s <= 120
            return super().run(argv, timeout_s=timeout_s, env=env)

    table = (
        "| npu-smi 25.5.1   Version: 25.5.1 |\n| NPU   Name | Health | Power(W) |\n"
        "| Chip  | Bus-Id | AICore(%)  Memory-Usage(MB)  HBM-Usage(MB) |\n"
        "| 0     910B2 | OK | 91.1  49   0    / 0 |\n| 0  | 0000:C1:00.0  | 0  0    / 0   3372 / 65536 |\n+====+\n"
    )
    host = with_cann(with_cards(plain_machine(Timed()), table, [0], "25.5.1"), INFO, "8.5.0")
    facts = collect(host, level=2)
    assert facts.npu.smi.value is not None and len(facts.npu.smi.value.cards) == 1
    assert host.asked.count("npu-smi info") == 1
