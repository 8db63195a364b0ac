"""What collectors of logs put around lines changes nothing: prefixes and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.documents import load_toml
from npuenv.diagnose import Verdict, diagnose
from npuenv.diagnose.text import strip_prefixes
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


def texts(paste: str) -> list[str]:
    return [line.text for line in strip_prefixes(read_paste(paste.encode()).lines)]


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
        case = load_toml(path)
        report = "\n".join(map(collected, case["report"].split("\n")))
        found = diagnose(read_paste(report.encode(), Redactor().text))
        is_cause = found.verdict is Verdict.CAUSE
        accepted = {case["cause"], *case.get("also_acceptable", ())}
        if is_cause is (case["kind"] == "healthy") or (is_cause and found.causes[0].id not in accepted):
            wrong.append(path.stem)
    return wrong


@pytest.mark.parametrize("collected", COLLECTORS)
@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_collector_of_logs_changes_no_verdict(collected: Callable[[str], str]) -> None:
    assert wrongly_diagnosed(CASES[2 * COLLECTORS.index(collected) :: 2 * len(COLLECTORS)], collected) == []


@pytest.mark.slow
@pytest.mark.parametrize("collected", COLLECTORS)
@pytest.mark.one_in(4)
def test_a_collector_of_logs_changes_no_verdict_of_any_second_case(collected: Callable[[str], str]) -> None:
    assert wrongly_diagnosed(CASES[::2], collected) == []
