"""What collectors of logs put around lines changes nothing: prefixes, numbers, records, lines cut or glued together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.toml_input import load_file
from npuenv.diagnose import Verdict, diagnose
from npuenv.diagnose.log_prefixes import bare
from npuenv.diagnose.search import is_supposed
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


def texts(paste: str) -> list[str]:
    return [line.text for line in bare(read_paste(paste.encode()).lines)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Nov 02 08:11:25 node7 vllm[90121]: ImportError: x", "ImportError: x"),
        ("2025-11-02T10:00:00.123456789Z stderr F ImportError: x", "ImportError: x"),
        ("[pod/trainer-0/main] ImportError: x", "ImportError: x"),
        ("[pod/trainer-0/main] (WorkerDict pid=7) ImportError: x", "ImportError: x"),
        ("[2025-11-02 10:00:00,123] [ERROR] [engine.py:12:run] ImportError: x", "ImportError: x"),
        ("2025-11-02 10:00:00.123 | ERROR    | __main__:run:12 - ImportError: x", "ImportError: x"),
        ("#11 38.21 ImportError: x", "ImportError: x"),
        (json.dumps({"log": "ImportError: x\n", "stream": "stderr"}), "ImportError: x"),
        ('{"log":"a line that was cut', '{"log":"a line that was cut'),
        ("ImportError: x", "ImportError: x"),
        ("torch                     2.7.1", "torch                     2.7.1"),
    ],
)
def test_what_stands_before_a_line_is_taken_off(line: str, text: str) -> None:
    assert texts(line) == [text]


def test_running_numbers_are_taken_off_and_others_are_not() -> None:
    assert texts("  1  a\n  2  b\n  3\n  4  d") == ["a", "b", "", "d"]
    assert texts("1  a\n5  b\n6  c") == ["1  a", "5  b", "6  c"]
    assert texts("1  a\n2  b") == ["1  a", "2  b"]


def test_a_line_cut_at_the_last_column_goes_on_in_the_next() -> None:
    whole = "OSError: /usr/local/python3.11/site-packages/torch_npu/lib/libop_plugin_atb.so: undefined symbol: _ZN3atb9"
    cut = f"{whole[:80]}\n{whole[80:]}"
    assert texts(cut) == [whole, whole[80:]]
    assert texts(f"{whole[:77]}\n{whole[77:]}")[0] == whole[:77]


def test_rows_of_a_table_are_never_joined() -> None:
    row = "| 0     910B3     | OK            | 95.0        36                0    / 0     |"
    assert len(row) == 80
    assert texts("\n".join([row] * 4)) == [row] * 4


def test_glued_lines_come_apart_and_keep_their_number() -> None:
    glued = "detail: " + "x" * 300 + " EE1001: The argument is invalid. RuntimeError: device id error"
    lines = bare(read_paste(f"first\n{glued}".encode()).lines)
    assert [line.text for line in lines][2:] == ["EE1001: The argument is invalid.", "RuntimeError: device id error"]
    assert {line.number for line in lines[1:]} == {2}
    assert texts(r"Dispatch error\n[ERROR] a\nE30006: b") == ["Dispatch error", "[ERROR] a", "E30006: b"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('Without it users get "libatb.so: cannot open shared object file".', True),
        ("Can expandable_segments:True stay on, and should I set HCCL_IF_IP?", True),
        ("- Fix `NPU out of memory` in sleep mode.", True),
        ("如果不安装 NNAL 会报 libatb.so 找不到", True),
        ("- torch==2.7.1", False),
        ("ImportError: libatb.so: cannot open shared object file: No such file or directory", False),
        ("Please check that the nnal package is installed.", False),
        ("启动就报错 libatb.so: cannot open shared object file", False),
    ],
)
def test_sentences_about_what_would_happen(text: str, is_one: bool) -> None:
    assert is_supposed(text) is is_one


def journald(line: str) -> str:
    return f"Nov 02 08:11:25 node7 vllm[90121]: {line}"


def container_runtime(line: str) -> str:
    return f"2025-11-02T10:00:00.123456789Z stderr F {line}"


def logger(line: str) -> str:
    return f"2025-11-02 10:00:00.123 | ERROR    | __main__:run:12 - {line}"


def docker_file(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr"})


COLLECTORS = (journald, container_runtime, logger, docker_file)


def wrongly_diagnosed(paths: Sequence[Path], collected: Callable[[str], str]) -> list[str]:
    wrong = []
    for path in paths:
        case = load_file(path)
        report = "\n".join(map(collected, case["report"].split("\n")))
        found = diagnose(read_paste(report.encode(), Redactor().text))
        is_cause = found.verdict is Verdict.CAUSE
        accepted = {case["cause"], *case.get("also_acceptable", ())}
        if is_cause is (case["kind"] == "healthy") or (is_cause and found.causes[0].id not in accepted):
            wrong.append(path.stem)
    return wrong


@pytest.mark.parametrize("collected", COLLECTORS)
def test_a_collector_of_logs_changes_no_verdict(collected: Callable[[str], str]) -> None:
    assert wrongly_diagnosed(CASES[2 * COLLECTORS.index(collected) :: 2 * len(COLLECTORS)], collected) == []


@pytest.mark.slow
@pytest.mark.parametrize("collected", COLLECTORS)
def test_a_collector_of_logs_changes_no_verdict_of_any_second_case(collected: Callable[[str], str]) -> None:
    assert wrongly_diagnosed(CASES[::2], collected) == []
