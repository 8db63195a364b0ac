"""The reader of `npu-smi info`: five layouts, the failure texts, and what broken text must not do."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.documents import load_toml
from npuenv.facts.npu.failures import SmiFailure, SmiTrouble
from npuenv.facts.npu.smi import Layout, SmiTable, parse_info

CASES = sorted((Path(__file__).parent / "cases" / "smi").glob("*.toml"))
TRANSCRIPTS = Path(__file__).parents[2].parent / "shared" / "transcripts" / "npu-smi"
EXPECTED_CHIPS = {
    "info_310P3_22.0.0_tool_driver_differ": 1,
    "info_310P3_22.0.4_vm": 1,
    "info_310P3_25.3.rc1_npu6": 1,
    "info_310P3_duo_25.2.0": 2,
    "info_310P3_vnpu_container_25.5.1": 1,
    "info_910A_ellipsis_23.0.5": 2,
    "info_910B1_24.1.0": 2,
    "info_910B2C_24.1.0": 16,
    "info_910B2_24.1.0_idle8": 8,
    "info_910B3_24.1.rc1.b030": 8,
    "info_910B3_25.0.rc1.b010_busy": 8,
    "info_910B3_25.2.0_one_proc": 8,
    "info_910B3_26.0_process_table": 5,
    "info_910B4_23.0.rc3": 2,
    "info_910B4_25.5.2_npu5": 1,
    "info_910B4_26.0.rc1_wide": 1,
    "info_910B_22.0.4.1": 1,
    "info_910B_ddr_25.5.2": 2,
    "info_950PR_25.7.rc1_alarm": 3,
    "info_950_doc": 1,
    "info_A3_25.3.rc1_16chips_busy": 16,
    "info_A3_25.5.0": 1,
    "info_hugepages_23.0.rc3": 8,
}
NO_TABLE = {"info_l_950_doc", "info_m_910A_23.0.5", "info_m_910B3_mcu"}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_recorded_output_reads_as_expected(path: Path) -> None:
    case = load_toml(path)
    read = parse_info(case["output"])
    expected = case["expected"]
    if "trouble" in expected:
        assert isinstance(read, SmiTrouble)
        assert (read.kind.value, read.ret, read.library) == (
            expected["trouble"],
            expected.get("ret"),
            expected.get("library"),
        )
        return
    assert isinstance(read, SmiTable)
    assert (read.layout.value if read.layout else "none") == expected["layout"]
    assert (read.tool, read.driver) == (expected.get("tool"), expected.get("driver"))
    assert read.is_complete == expected.get("is_complete", True)
    assert read.is_install_incomplete == expected.get("is_install_incomplete", False)
    rows = [[card.npu, card.chip, card.name or "", card.health or "", card.hbm_used_mib or 0] for card in read.cards]
    assert rows == expected["cards"]
    assert [[item.npu, item.pid] for item in read.processes] == expected.get("processes", [])
    if "details" in expected:
        details = [
            [-1 if card.power_w is None else card.power_w, card.temperature_c, card.busy_percent, card.bus_id or ""]
            for card in read.cards
        ]
        assert details == expected["details"]
    if "listed" in expected:
        assert list(read.listed) == expected["listed"]


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the shared transcripts are not here")
@pytest.mark.parametrize("name", sorted({*EXPECTED_CHIPS, *NO_TABLE}))
def test_every_shared_transcript_of_info_reads(name: str) -> None:
    path = TRANSCRIPTS / f"{name}.txt"
    read = parse_info(path.read_text(encoding="utf-8"))
    if name in NO_TABLE:
        assert isinstance(read, SmiTrouble) and read.kind is SmiFailure.UNREADABLE
    else:
        assert isinstance(read, SmiTable) and len(read.cards) == EXPECTED_CHIPS[name]


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the shared transcripts are not here")
def test_no_shared_transcript_of_info_is_forgotten() -> None:
    names = {path.stem for path in TRANSCRIPTS.glob("info*.txt")}
    assert names == {*EXPECTED_CHIPS, *NO_TABLE}
    assert names - NO_TABLE <= {path.stem for path in CASES}


def _outputs() -> list[str]:
    return [case["output"] for case in map(load_toml, CASES) if "layout" in case["expected"]]


def _broken(text: str, chance: random.Random) -> str:
    """One of the ways in which terminals, logs and people break an output."""
    lines = text.splitlines()
    way = chance.randrange(6)
    if way == 0:
        return text[: chance.randrange(len(text))]
    if way == 1:
        at = chance.randrange(len(lines))
        return "\n".join([*lines[:at], "[WARNING] tool of another terminal", *lines[at:]])
    if way == 2:
        return text.replace("\n", "\r\n")
    if way == 3:
        return "\n".join(f"\x1b[3{chance.randrange(8)}m{line}\x1b[0m" for line in lines)
    if way == 4:
        return "\n".join(f"2026-03-04T05:06:07 | node | {line}" for line in lines)
    return "\n".join(line[: chance.randrange(len(line) + 1)] if chance.random() < 0.1 else line for line in lines)


def test_broken_outputs_never_raise_and_never_invent_a_card() -> None:
    chance = random.Random(7)
    for text in _outputs():
        whole = parse_info(text)
        assert isinstance(whole, SmiTable)
        for _ in range(50):
            read = parse_info(_broken(text, chance))
            if isinstance(read, SmiTable):
                known = {(card.npu, card.chip, card.name, card.health) for card in whole.cards}
                assert {(card.npu, card.chip, card.name, card.health) for card in read.cards} <= known


def test_harmless_changes_lose_no_card() -> None:
    for text in _outputs():
        whole = parse_info(text)
        lines = text.splitlines()
        prefixed = "\n".join(f"10:11:12 node | {line}" for line in lines)
        for changed in (text.replace("\n", "\r\n"), "\n".join(f"\x1b[1m{line}\x1b[0m  " for line in lines), prefixed):
            read = parse_info(changed)
            assert isinstance(read, SmiTable) and isinstance(whole, SmiTable)
            assert read.cards == whole.cards and read.layout == whole.layout


def test_an_old_chip_whose_name_is_a_number_is_still_a_card() -> None:
    text = (
        "| npu-smi 22.0.0                       Version: 22.0.2 |\n"
        "| NPU     Name      | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |\n"
        "| Chip    Device    | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |\n"
        "| 0       310       | OK              | 12.8         45                0    / 0              |\n"
        "| 0       0         | 0000:5E:00.0    | 0            931  / 21534                            |\n"
        "+===================+=================+======================================================+\n"
    )
    read = parse_info(text)
    assert isinstance(read, SmiTable)
    assert [(card.name, card.health) for card in read.cards] == [("310", "OK")]
    assert read.layout is Layout.P310


def test_a_chip_of_a3_has_the_number_of_its_device_node() -> None:
    read = parse_info(load_toml(CASES[0].parent / "info_A3_25.3.rc1_16chips_busy.toml")["output"])
    assert isinstance(read, SmiTable)
    assert [card.physical for card in read.cards] == list(range(16))


def test_a_cut_table_says_that_it_is_not_complete() -> None:
    text = next(text for text in _outputs() if "910B2 " in text)
    rows = text.splitlines()
    read = parse_info("\n".join(rows[:10]))  # the upper row of the second card, its lower row missing
    assert isinstance(read, SmiTable)
    assert len(read.cards) == 1 and not read.is_complete


def test_two_halves_of_two_cards_are_not_one() -> None:
    lines = load_toml(CASES[0].parent / "info_910B2_24.1.0_idle8.toml")["output"].splitlines()
    at = next(number for number, line in enumerate(lines) if "0000:" in line)
    for cut in (lambda line: None, lambda line: line[:40]):  # lost, and cut off at the edge of a terminal
        broken = [cut(line) if number in (at, at + 2) else line for number, line in enumerate(lines)]
        read = parse_info("\n".join(line for line in broken if line is not None))
        assert isinstance(read, SmiTable) and not read.is_complete
        assert [card.npu for card in read.cards] == list(range(2, 8))


@pytest.mark.parametrize(
    ("printed", "damaged", "name"),
    [
        ("| 0           0    / 0          ", "| 700         0    / 0          ", "busy_percent"),
        ("/ 65536 ", "/ 6553  ", "hbm_used_mib"),
        ("| OK   ", "| Ok   ", "health"),
        ("910B2 ", "x10B2 ", "name"),
    ],
)
def test_a_value_that_cannot_be_is_unknown(printed: str, damaged: str, name: str) -> None:
    text = load_toml(CASES[0].parent / "info_910B3_25.0.rc1.b010_busy.toml")["output"]
    text = load_toml(CASES[0].parent / "info_910B2_24.1.0_idle8.toml")["output"] if printed not in text else text
    read = parse_info(text.replace(printed, damaged))
    assert printed in text and isinstance(read, SmiTable) and len(read.cards) == 8
    assert all(getattr(card, name) is None for card in read.cards)


def test_no_card_on_the_server_is_an_answer_and_not_a_trouble() -> None:
    read = parse_info("There is no NPU card on this server.\n")
    assert isinstance(read, SmiTable) and read.cards == () and read.layout is None


def test_a_card_whose_lower_row_is_lost_makes_the_table_incomplete() -> None:
    output = load_toml(CASES[0].parent / "info_910B2_24.1.0_idle8.toml")["output"]
    lines = output.splitlines()
    lower = next(number for number, line in enumerate(lines) if "0000:" in line)
    whole, cut = parse_info(output), parse_info("\n".join(lines[:lower] + lines[lower + 1 :]))
    assert isinstance(whole, SmiTable) and isinstance(cut, SmiTable)
    assert (whole.is_complete, len(whole.cards)) == (True, 8)
    assert (cut.is_complete, len(cut.cards)) == (False, 7)


def test_a_process_of_a_container_has_its_number_there_in_26() -> None:
    text = load_toml(CASES[0].parent / "info_910B3_26.0_process_table.toml")["output"]
    read = parse_info(text.replace("| NA                      |", "| 4711                    |"))
    assert isinstance(read, SmiTable)
    assert [(item.npu, item.pid, item.name, item.container_pid) for item in read.processes] == [
        (0, 485946, "pytest", 4711)
    ]
    plain = parse_info(text)
    assert isinstance(plain, SmiTable) and plain.processes[0].container_pid is None


@pytest.mark.parametrize("name", ["info_A3_25.5.0", "info_910B4_25.5.2_npu5", "info_310P3_22.0.4_vm", "info_950_doc"])
def test_a_table_without_its_head_is_still_read_and_said_to_be_cut(name: str) -> None:
    lines = load_toml(CASES[0].parent / f"{name}.toml")["output"].splitlines()
    whole = parse_info("\n".join(lines))
    first = next(number for number, line in enumerate(lines) if "Bus-Id" in line) + 1
    cut = parse_info("\n".join(lines[first:]))
    assert isinstance(whole, SmiTable) and isinstance(cut, SmiTable)
    assert (cut.layout, cut.cards, cut.is_complete) == (whole.layout, whole.cards, False)


NOISE = st.lists(st.text(alphabet="|+-=/. 0123456789OKAlarmNPUChipBus-Id()%:\t\x1b[mé中\r", max_size=60), max_size=12)


@given(case=st.sampled_from(CASES), noise=NOISE, at=st.integers(0, 60), cut=st.integers(0, 6000), ends=st.booleans())
@settings(deadline=None)
def test_no_noise_in_a_table_raises_or_invents(case: Path, noise: list[str], at: int, cut: int, ends: bool) -> None:
    text = load_toml(case)["output"]
    lines = text.splitlines()
    mixed = "\n".join([*lines[:at], *noise, *lines[at:]])[: cut if ends else None]
    read = parse_info(mixed)
    if isinstance(read, SmiTable):
        for card in read.cards:
            assert card.bus_id is None or card.bus_id in mixed
            assert card.name is None or card.name in mixed
            assert all(str(value) in mixed for value in (card.npu, card.chip, card.hbm_used_mib) if value is not None)
        assert all(str(process.pid) in mixed for process in read.processes)


@pytest.mark.parametrize("lines", [3_500, pytest.param(70_000, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_long_log_around_a_table_is_read_in_a_time_that_grows_with_its_length(lines: int) -> None:
    """With the square of it, also the shorter one would take longer than a test may."""
    text = load_toml(CASES[0].parent / "info_910B2_24.1.0_idle8.toml")["output"]
    noise = "2026-03-04 05:06:07 INFO worker | step 17 | loss 0.031 | nothing to see |\n" * lines
    read = parse_info(noise + text + noise)
    assert isinstance(read, SmiTable) and len(read.cards) == 8


@pytest.mark.parametrize(
    "row", ["| x     0 | 12 | python | 5 |", "| 0     x | 12 | python | 5 |", "| 0 0 | pid | p | 5 |"]
)
def test_a_process_row_with_a_word_for_a_number_is_left_out(row: str) -> None:
    text = load_toml(CASES[0].parent / "info_910B2_24.1.0_idle8.toml")["output"]
    read = parse_info(f"{text}\n{row}\n")
    assert isinstance(read, SmiTable) and read.processes == () and len(read.cards) == 8


def test_a_lower_row_whose_numbers_are_not_all_numbers_is_no_card() -> None:
    text = load_toml(next(path for path in CASES if path.stem == "info_A3_25.5.0"))["output"]
    lower = next(line for line in text.splitlines() if re.match(r"\| +0 +0 +\|", line))
    damaged = text.replace(lower, re.sub(r"0( +)0( +\|)", r"0\1x\2", lower, count=1))
    whole, broken = parse_info(text), parse_info(damaged)
    assert damaged != text and isinstance(whole, SmiTable) and whole.cards
    assert not isinstance(broken, SmiTable) or len(broken.cards) < len(whole.cards)
