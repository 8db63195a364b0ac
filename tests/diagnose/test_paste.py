"""Reading a paste: what is stripped, what is kept, where lines stand, and what no text may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.errors import BadInput
from npuenv.diagnose import Verdict, diagnose
from npuenv.host.redact import Redactor
from npuenv.host.report import MAX_LINE, blocks, read_paste, typed_command
from npuenv.report.diagnosis import document, lines

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("> RuntimeError: x", "RuntimeError: x"),
        ("> > RuntimeError: x", "RuntimeError: x"),
        ("\x1b[36m(TaskRunner pid=1)\x1b[0m RuntimeError: x", "RuntimeError: x"),
        ("(WorkerDict pid=7, ip=192.0.2.1) RuntimeError: x", "RuntimeError: x"),
        ("[rank3]: RuntimeError: x", "RuntimeError: x"),
        ("[default0]:RuntimeError: x", "RuntimeError: x"),
        ("(EngineCore_0 pid=3) ERROR 11-21 10:00:00 [core.py:700] RuntimeError: x", "RuntimeError: x"),
        ("2025-11-21T10:00:00.123Z RuntimeError: x", "RuntimeError: x"),
        ("trainer-1  | RuntimeError: x", "RuntimeError: x"),
        ("RuntimeError: x\r", "RuntimeError: x"),
        ("| 0  910B3 | OK |", "| 0  910B3 | OK |"),
        ("[ERROR] HCCL(1,python3):2025", "[ERROR] HCCL(1,python3):2025"),
        (">>> import torch", "import torch"),
    ],
)
def test_what_stands_before_a_line_is_taken_off(line: str, text: str) -> None:
    assert read_paste(line.encode()).lines[0].text == text


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING 11-21 10:00:00 [x.py:1] y", "warning"),
        ("[ERROR] HCCL(1)", "error"),
        ("[W1121 10:00:00 x.cpp:1] y", "warning"),
        ("(W pid=1) INFO 11-21 10:00:00 [x.py:1] y", "info"),
        ("RuntimeError: y", ""),
    ],
)
def test_the_level_of_a_line(line: str, level: str) -> None:
    assert read_paste(line.encode()).lines[0].level == level


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("[root@host1 ~]# npu-smi info", "npu-smi info"),
        ("$ pip list", "pip list"),
        ("(base) me@host:~/work$ env", "env"),
        ("root@a1b2:/# id", "id"),
        ("# a heading", "a heading"),
        ("torch==2.7.1", None),
        ("cost: 5$ each", None),
    ],
)
def test_what_was_typed(line: str, command: str | None) -> None:
    assert typed_command(line) == command


def test_a_paste_is_cut_at_prompts() -> None:
    found = list(blocks(read_paste(b"before\n$ a\n1\n2\n$ b\n3\n").lines))
    assert [(block.command, [line.text for line in block.lines]) for block in found] == [
        (None, ["before"]),
        ("a", ["$ a", "1", "2"]),
        ("b", ["$ b", "3"]),
    ]


def test_an_escaped_log_keeps_its_lines_and_its_number() -> None:
    escaped = "x" * MAX_LINE + "\\nRuntimeError: y\\nz"
    found = read_paste(f"first\n{escaped}\n".encode()).lines
    assert [(line.number, line.text[:16]) for line in found[-2:]] == [(2, "RuntimeError: y"), (2, "z")]


def test_repeats_are_dropped_and_counted() -> None:
    data = b"".join(b"step %d of 9\n" % at for at in range(50_000)) + b"the end\n"
    paste = read_paste(data)
    assert paste.total == 50_001
    assert paste.dropped > 48_000
    assert paste.lines[-1].number == 50_001


@pytest.mark.parametrize("count", [10, 3_000, 450_000])
def test_numbers_are_those_of_an_editor(count: int) -> None:
    data = b"\n" * (count - 1) + b"RuntimeError: here"
    assert read_paste(data).lines[-1].number == count


def test_chinese_consoles_and_utf_16() -> None:
    assert read_paste("驱动版本".encode("gb18030")).lines[0].text == "驱动版本"
    assert read_paste("驱动 RuntimeError".encode("utf-16")).lines[0].text == "驱动 RuntimeError"


def test_secrets_are_gone_before_anything_looks() -> None:
    paste = read_paste(b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\n", Redactor().text)
    assert not any("hf_abcdefg" in line.shown + line.text for line in paste.lines)


@pytest.mark.parametrize(
    "data", [b"\x7fELF" + bytes(range(256)) * 40, b"\x00" * 5000, b"PK\x03\x04" + b"\x00\x01\x02" * 99]
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        read_paste(data)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\n", b" ", b"\n\n\n", "\ufeff".encode()])
def test_nothing_cannot_be_judged(data: bytes) -> None:
    assert diagnose(read_paste(data)).verdict is Verdict.CANNOT_TELL


PIECES = st.sampled_from(
    (
        "Traceback (most recent call last):", "RuntimeError: ", "EI0006: ", "version=", "8.1.RC1", "torch==", "2.7.1",
        "| 0  910B3 | OK | 90.0 |", "npu-smi 24.1 Version: 24.1.rc1", "docker run -v ", "--device=", "'", '"', "\\",
        "$ env | grep -c ASCEND", "> ", "\x1b[31m", "\r", "[rank0]: ", "Package Version", "pip check", "|", "+----+",
        "vllm-ascend 0.11.0rc1", "uid=65534(", "/dev/davinci0", "CANN: ", "export A=", "ret is -", "9" * 400, "\u2028",
    )
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=30)), max_size=60), st.sampled_from(("", " ", "\n")))
def test_no_text_raises(pieces: list[str], between: str) -> None:
    text = between.join(pieces).encode("utf-8", errors="surrogatepass")
    try:
        paste = read_paste(text, Redactor().text)
    except BadInput:  # more control characters than letters
        return
    found = diagnose(paste)
    for lang in ("en", "zh"):
        assert document(found, lang=lang)["verdict"] == found.verdict.value
        assert lines(found, paste, lang=lang, is_verbose=True)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        paste = read_paste(data)
    except BadInput:
        return
    diagnose(paste)


LONG: dict[str, Callable[[int], bytes]] = {  # by how many bytes it is to have
    "one line": lambda size: b"a" * size,
    "dashes": lambda size: b"a-" * (size // 2),
    "dots": lambda size: b"1." * (size // 2),
    "spaces": lambda size: b" " * size,
    "line ends": lambda size: b"\n" * size,
    "bars": lambda size: b"|\n" * (size // 2),
    "slashes": lambda size: b"a/" * (size // 2),
    "a line again and again": lambda size: b"RuntimeError: something failed with error code is 507033\n" * (size // 57),
    "dots after what was mended": lambda _: b"$ pytest\nImportError: libhccl.so: cannot open shared object file\n" * 4
    + b"$ source /usr/local/Ascend/ascend-toolkit/set_env.sh\n$ pytest\n"
    + b"".join(b"." * (290 - at % 9) + b" [%3d%%]\n" % at for at in range(100)),
    "distinct lines": lambda size: b"".join(
        b"(Worker pid=%d) ERROR 11-21 10:00:00 [a.py:1] %s failed: ret[9]\n" % (at, b"abcdefghij"[at % 9 :] * (at % 13))
        for at in range(size // 90)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "megabytes",
    [0.1, pytest.param(1, marks=pytest.mark.slow), pytest.param(10, marks=[pytest.mark.slow, pytest.mark.long])],
)
@pytest.mark.parametrize("kind", LONG)
def test_a_long_paste_takes_a_time_that_grows_with_its_length(kind: str, megabytes: float) -> None:
    """With the square of it, one megabyte would take longer than a test may."""
    paste = read_paste(LONG[kind](round(megabytes * 1_000_000)), Redactor().text)
    diagnose(paste)
    assert len(paste.lines) < 12_000
