"""`doctor --from-report`: exit codes, the document, both languages, and files that cannot be read."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.app.examine import examine
from npuenv.core.errors import BadInput, ExitCode
from npuenv.matrix.error_patterns import load_error_patterns
from npuenv.terminal.options import DoctorCommand, format_from_suffix
from npuenv.terminal.output import run_doctor
from npuenv.terminal.run import Ui

if TYPE_CHECKING:
    from pathlib import Path

A_CAUSE = """\
> $ pip list | grep torch
> torch        2.7.1
> torch-npu    2.5.1
> >>> import torch_npu
> ImportError: libtorch_npu.so: undefined symbol: _ZN3c1012IValue
"""
HEALTHY = """\
INFO 11-21 10:00:00 [api_server.py:1] vLLM API server
WARNING 11-21 10:00:00 [x.py:1] Failed to import from vllm._C with ModuleNotFoundError("No module named 'vllm._C'")
INFO:     Application startup complete.
INFO:     192.0.2.1:1 - "POST /v1/completions HTTP/1.1" 200 OK
"""
NOTHING = "It does not work, please help.\n"


def written(folder: Path, text: str) -> str:
    path = folder / "report.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def diagnosed(path: str, lang: str = "en", **options: Any) -> ExitCode:
    return run_doctor(Ui(lang), DoctorCommand(report=path, **options), examine)


def document(capsys: pytest.CaptureFixture[str], path: str, lang: str = "en") -> tuple[ExitCode, dict[str, Any]]:
    code = diagnosed(path, lang, format="json")
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [
        (A_CAUSE, ExitCode.PROBLEMS, "cause"),
        (HEALTHY, ExitCode.FINE, "not-environment"),
        (NOTHING, ExitCode.UNKNOWN, "cannot-tell"),
    ],
)
def test_the_exit_code_follows_the_verdict(
    text: str, code: ExitCode, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, data = document(capsys, written(tmp_path, text))
    assert (found, data["exit"], data["verdict"]) == (code, int(code), verdict)


def test_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, data = document(capsys, written(tmp_path, A_CAUSE))
    assert list(data) == ["schema", "npuenv", "exit", "verdict", "observations", "causes", "because", "missing"]
    assert data["schema"] == "npuenv.diagnosis/1"
    first = data["causes"][0]
    assert list(first) == ["id", "confidence", "says", "line", "line_number", "fix", "separate_by"]
    assert first["id"] == "torch-torch_npu-mismatch"
    assert first["line"] == A_CAUSE.split("\n")[first["line_number"] - 1]
    assert all(isinstance(argv, list) for argv in first["fix"]["commands"])


def test_languages_differ_in_sentences_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, A_CAUSE)
    english, chinese = (document(capsys, path, lang)[1] for lang in ("en", "zh"))
    assert english["causes"][0]["says"] != chinese["causes"][0]["says"]
    assert [cause["id"] for cause in english["causes"]] == [cause["id"] for cause in chinese["causes"]]
    assert english["causes"][0]["fix"]["commands"] == chinese["causes"][0]["fix"]["commands"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(A_CAUSE.encode())))
    assert document(capsys, "-")[0] is ExitCode.PROBLEMS


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_text_quotes_the_line_and_gives_commands(
    lang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosed(written(tmp_path, A_CAUSE), lang)
    said = capsys.readouterr().out
    assert "torch-torch_npu-mismatch" in said
    assert "undefined symbol: _ZN3c10" in said


def test_commands_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosed(written(tmp_path, "AttributeError: `np.float_` was removed in the NumPy 2.0 release."))
    assert "$ pip install 'numpy<2'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("torch 2.7.1\ntorch-npu 2.5.1\nImportError: libtorch_npu.so: undefined symbol: _Z", [["torch==2.7.1+cpu"]]),
        (
            "vllm==0.9.1\nvllm-ascend==0.11.0\nImportError: cannot import name 'x' from 'vllm.v1'",
            [["npuenv", "install", "vllm-ascend-0.11.0", "--dry-run"]],  # a plain `pip install vllm` is for GPUs
        ),
        ("torch==2.7.1\ntorchvision==0.20.1\noperator torchvision::nms does not exist", [["torchvision==0.22.1"]]),
    ],
)  # fmt: skip
def test_commands_name_the_versions_that_pair(
    text: str, commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = document(capsys, written(tmp_path, text))
    given = data["causes"][0]["fix"]["commands"]
    assert len(given) == len(commands)
    assert all({*wanted} <= {*argv} for wanted, argv in zip(commands, given))


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosed(written(tmp_path, NOTHING))
    assert len(capsys.readouterr().out.split("\n")) >= 2
    assert "error" in document(capsys, written(tmp_path, NOTHING))[1]["missing"]


def test_what_is_harmless_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, data = document(capsys, written(tmp_path, HEALTHY))
    assert data["observations"]
    assert data["because"]["line_number"] in {3, 4}


@pytest.mark.parametrize("name", ["report.json", "report.txt"])
def test_a_report_into_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out" / name
    out.parent.mkdir()
    assert diagnosed(written(tmp_path, A_CAUSE), out=str(out), format=format_from_suffix(name)) is ExitCode.PROBLEMS
    text = out.read_text(encoding="utf-8")
    assert text.startswith("{") == name.endswith(".json")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["absent.txt", ".", "binary"])
def test_what_cannot_be_read_is_refused_with_advice(name: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 50)
    with pytest.raises(BadInput) as caught:
        diagnosed(str(tmp_path / name))
    assert caught.value.hint


def test_no_secret_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "hf_" + "Ab3" * 12
    _, data = document(capsys, written(tmp_path, f"{A_CAUSE}HF_TOKEN={token}\nRuntimeError: {token} EI0006\n"))
    assert token not in json.dumps(data)


NO_ROOM_FOR_THE_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "ValueError: the KV cache needed is larger than the available KV cache memory (1.2 GiB).",
)
NO_ROOM_ON_THE_CARD = (
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB",
    "ValueError: Free memory on device (20/64 GiB) on startup is less than desired",
)


@pytest.mark.parametrize("line", [*NO_ROOM_FOR_THE_CACHE, *NO_ROOM_ON_THE_CARD])
def test_a_cache_without_room_is_not_answered_by_giving_it_less(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = load_error_patterns().causes["memory-oom-config"]
    fix = row.other_fix["en"] if line in NO_ROOM_FOR_THE_CACHE else row.fix["en"]
    path = written(tmp_path, line)
    causes = {cause["id"]: cause for cause in document(capsys, path)[1]["causes"]}
    assert causes[row.id]["fix"]["says"] == fix
    diagnosed(path)
    assert fix in capsys.readouterr().out


def test_commands_that_destroy_are_marked() -> None:
    """Whatever resets, removes or kills is for a person to decide on."""
    risky = {"kill", "reboot", "rm"}
    for row in load_error_patterns().causes.values():
        words = {argv[0] for argv in row.commands} | {argv[1] for argv in row.commands if argv[0] == "sudo"}
        if words & risky:
            assert row.is_dangerous, row.id
