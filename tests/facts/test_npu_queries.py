"""The readers of npu-smi's answers about single cards, of installers and of the kernel: recorded texts, and noise."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.documents import load_toml
from npuenv.facts import npu
from npuenv.facts.collect import plain
from npuenv.facts.npu import driver, queries

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent / "cases"
SHARED = Path(__file__).parents[2].parent / "shared" / "transcripts"
# Folder of cases -> its reader.
READERS: dict[str, Callable[[str], Any]] = {
    "npu_health": queries.parse_health,
    "npu_ecc": queries.parse_ecc,
    "npu_board": queries.parse_board,
    "npu_spod": queries.parse_spod,
    "npu_map": queries.parse_map,
    "npu_topology": queries.parse_topology,
    "npu_events": queries.parse_events,
    "npu_refusal": queries.refusal,
    "npu_installer": driver.parse_installer,
    "npu_kernel": npu.parse_kernel_log,
    "npu_claims": npu.parse_claims,
    "npu_lspci": driver.parse_lspci,
    "npu_dmi": lambda text: npu.parse_dmi(text, 0),
}
CASES = sorted(path for name in READERS for path in (HERE / name).glob("*.toml"))


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_answer_reads_as_expected(path: Path) -> None:
    case = load_toml(path)
    read = READERS[path.parent.name](case["output"])
    expected = case["expected"]
    if expected.get("is_none"):
        assert read is None
    else:
        assert _without_none(plain(read)) == expected["value"]


# Answers to what the doctor does not ask.
UNREAD = ("common_", "help_", "info_l_", "memory_", "proc_mem_", "usages_", "version_", "watch_")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared transcripts are not here")
@pytest.mark.parametrize("folder", ["npu-smi", "installer", "host"])
def test_every_shared_transcript_of_the_cards_is_a_case(folder: str) -> None:
    cases = {path.stem for path in [*CASES, *(HERE / "smi").glob("*.toml")]}
    printed = {path.stem for path in (SHARED / folder).glob("*.txt") if not path.stem.startswith(UNREAD)}
    assert printed - cases == set()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared transcripts are not here")
@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_case_named_after_a_transcript_holds_its_text(path: Path) -> None:
    found = list(SHARED.glob(f"*/{path.stem}.txt"))
    if not found:
        pytest.skip("a case of our own")
    assert load_toml(path)["output"].split() == found[0].read_text(encoding="utf-8").split()


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_colours_line_ends_and_prefixes_of_logs_change_nothing(path: Path) -> None:
    text = load_toml(path)["output"]
    read = READERS[path.parent.name]
    lines = text.splitlines()
    assert read(text.replace("\n", "\r\n")) == read(text)
    assert read("\n".join(f"\x1b[1;32m{line}\x1b[0m" for line in lines) + "\n") == read(text)
    if path.parent.name not in UNPREFIXED:
        assert read("\n".join(f"2026-03-04T05:06:07 node | {line}" for line in lines) + "\n") == read(text)


# What reads words at the start of a line or of a column, as `lspci` has them.
UNPREFIXED = {"npu_refusal", "npu_dmi", "npu_health", "npu_claims", "npu_lspci", "npu_kernel"}


def _words(value: Any) -> list[str]:
    """Every text and number of a value."""
    if isinstance(value, dict):
        return [word for item in value.values() for word in _words(item)]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    if value is None or isinstance(value, bool):
        return []
    return [f"{value:g}"] if isinstance(value, float) and value < 1e6 else [str(value)]


NOISE = st.lists(st.text(alphabet=":%()/-. 0123456789ABCDEFNPUIDChiphealt\t\x1b[m中\r", max_size=50), max_size=8)
OURS = {"installed", "failed", "unfinished", "driver", "firmware", "unsupported", "invalid-card"}
OURS |= {"conflict", "abnormal", "exception", "0", "0000"}


@given(case=st.sampled_from(CASES), noise=NOISE, at=st.integers(0, 30), cut=st.integers(0, 3000), ends=st.booleans())
@settings(deadline=None)
def test_no_noise_raises_or_invents_a_value(case: Path, noise: list[str], at: int, cut: int, ends: bool) -> None:
    text = load_toml(case)["output"]
    lines = text.splitlines()
    mixed = "\n".join([*lines[:at], *noise, *lines[at:]])[: cut if ends else None]
    read = plain(READERS[case.parent.name](mixed))
    printed = mixed.casefold()
    for word in (line for text in _words(read) for line in text.splitlines()):
        assert word in OURS or word.casefold().removeprefix("0000:").removesuffix(".0") in printed, word


@given(text=st.text(max_size=400))
@settings(deadline=None)
def test_no_text_raises(text: str) -> None:
    for read in READERS.values():
        read(text)


def test_a_number_that_was_cut_is_not_read() -> None:
    whole = "SDID : 16777216\nSuper Pod Size : 384\n"
    read = queries.parse_spod(whole[:-2])
    assert read is not None and (read.sdid, read.size) == (16777216, None)


def test_two_chips_of_one_card_stay_apart_wherever_their_number_stands() -> None:
    bad = "HBM Double Bit Error Count"
    last = f"NPU ID : 3\nChip Count : 2\n\n{bad} : 0\nChip ID : 0\n\n{bad} : 7\nChip ID : 1\n"
    first = f"NPU ID : 3\nChip Count : 2\nChip ID : 0\n{bad} : 0\nChip ID : 1\n{bad} : 7\n"
    for text in (last, first):
        assert [(item.npu, item.chip, item.counts[bad]) for item in queries.parse_ecc(text)] == [(3, 0, 0), (3, 1, 7)]


def test_a_label_with_two_values_in_one_block_is_left_out() -> None:
    text = (
        "NPU ID : 0\nHBM Double Bit Error Count : 0\nHBM Double Bit Error Count : 9\nHBM Single Bit Error Count : 1\n"
    )
    (read,) = queries.parse_ecc(text)
    assert read.counts == {"HBM Single Bit Error Count": 1}


MANY = 20_000
LONG_LINES = (
    "1" + " " * MANY + "x",
    "Failed to execute npu-smi " + "ret is " * MANY,
    "[Driver] [" * MANY,
    "01:00.0 Processing accelerators: Huawei" + " a" * MANY,
    "dcmi module initialize failed" * MANY,
    "event id=0x" * MANY,
)


@pytest.mark.parametrize("line", LONG_LINES, ids=lambda line: line[:12])
def test_a_long_line_takes_no_time(line: str) -> None:
    started = time.process_time()  # whatever else the machine does meanwhile
    for read in READERS.values():
        read(line + "\n")
    assert time.process_time() - started < 5
