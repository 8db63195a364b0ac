"""The contradictions that are written down: complete, with both sides, and in agreement with the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npuenv.core import versions
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.matrix import load_matrix

MATRIX = load_matrix()
FACTS = Path(__file__).parents[2].parent / "shared" / "facts"
ROWS = {row.id: row for row in MATRIX.contradictions}


def believed(name: str) -> str:
    row = ROWS[f"contradiction.{name}"]
    assert row.believe in ("one", "other")
    return row.one if row.believe == "one" else row.other


def test_both_sides_and_their_sources_are_there_and_differ() -> None:
    assert len(ROWS) >= 64
    for row in MATRIX.contradictions:
        assert row.id.startswith("contradiction."), row.id
        assert row.about and row.one and row.other and row.one_source and row.other_source, row.id
        assert row.one != row.other, row.id


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_reason_of_each_is_in_the_catalogue_and_no_reason_is_unused(lang: str) -> None:
    from npuenv.core.documents import load_toml

    named = {row.why for row in MATRIX.contradictions}
    assert all(say(Message(key), lang) for key in named)
    path = Path(__file__).parents[2] / "npuenv" / "core" / "messages" / "contradiction.toml"
    assert {f"contradiction.{name}" for name in load_toml(path)} == named


def test_an_open_one_says_that_it_is_open() -> None:
    for row in MATRIX.contradictions:
        says_open = "open" in row.why or row.why == "contradiction.looks-like-a-slip"
        assert (row.believe == "open") is says_open, row.id


def test_the_rows_follow_the_side_that_is_believed() -> None:
    assert believed("torch-npu-2.8.0.post1-on-cann-8.5.0").startswith("2.8.0.post2 with CANN 8.5.0")
    pair, stop_gap = MATRIX.torch_npu_row("2.8.0.post2"), MATRIX.torch_npu_row("2.8.0.post1")
    assert pair and stop_gap
    assert (pair.cann, "8.5.0" in (stop_gap.cann, *stop_gap.cann_compatible)) == ("8.5.0", False)
    assert believed("torch-npu-2.10.0-missing-row").startswith("v2.10.0-26.0.0 is 2.10.0 with CANN 9.0.0")
    row = MATRIX.torch_npu_row("2.10.0")
    assert row is not None
    assert row.cann == "9.0.0"
    for version, vllm in (("0.14.0rc1", "0.14.1"), ("0.11.0rc0", "0.11.0rc3"), ("0.8.5rc1", "0.8.5.post1")):
        release = MATRIX.vllm_ascend_row(version)
        assert release is not None
        assert release.vllm == vllm
        assert vllm in believed("vllm-ascend-number-is-not-vllm-number")


def test_wheels_decide_which_pythons_there_are() -> None:
    post6 = MATRIX.torch_npu_row("2.10.0.post6")
    assert post6 is not None
    assert post6.python_aarch64 == ("3.10", "3.11", "3.12")
    assert post6.python_x86_64 == ("3.10", "3.11")
    for version, newest in (("2.8.0", "3.11"), ("2.8.0.post2", "3.12"), ("2.8.0.post4", "3.13"), ("2.12.0", "3.13")):
        row = MATRIX.torch_npu_row(version)
        assert row is not None
        assert row.python_aarch64[-1] == newest


def test_310p_images_ride_the_cann_that_is_written_down() -> None:
    row = ROWS["contradiction.vllm-ascend-310p-cann"]
    assert row.believe == "other"
    for release in (each for each in MATRIX.vllm_ascend if each.id in row.rows):
        canns = {image.cann for image in release.image if image.hardware == ("310p",)}
        assert canns == {"9.1.0-beta.1"}, release.id


def test_fastapi_of_both_never_meets_from_0_24_on() -> None:
    row = ROWS["contradiction.vllm-fastapi-against-vllm-ascend"]
    assert len(row.rows) >= 8
    for release in (each for each in MATRIX.vllm_ascend if each.id in row.rows):
        assert release.requirement("fastapi") == row.one.removeprefix("fastapi")
        partner = MATRIX.built_row("vllm", release.vllm)
        assert partner is not None
        (asked,) = (text for text in partner.requires if versions.requirement_name(text) == "fastapi")
        assert not versions.overlap(release.requirement("fastapi"), versions.requirement_spec(asked))


# The facts leave these without a side; what they are for is known better from elsewhere, or each is right in its place.
DECIDED_ELSEWHERE = {
    "B11": "vllm-fastapi-against-vllm-ascend",
    "D10": "hccl-buffsize-unit",
    "D7": "roll-950-vllm",
    "D8": "roll-ci-image",
}
SIDES = {"1": "one", "2": "other", "?": "open"}


@pytest.mark.skipif(not FACTS.is_dir(), reason="the collected facts are not beside this checkout")
def test_every_contradiction_of_the_facts_has_a_row_with_the_same_side() -> None:
    """The rows stand in the order of the facts; a side is compared where the facts say no more than which one."""
    text = (FACTS / "contradictions.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    facts = [row for row in cells if re.fullmatch(r"[A-F]\d+", row[0])]
    assert len(facts) == 64
    for fact, row in zip(facts, MATRIX.contradictions[:64], strict=True):
        use = fact[3][:1] if len(fact) > 3 else ""
        if use in SIDES and fact[0] not in DECIDED_ELSEWHERE:
            assert row.believe == SIDES[use], (fact[0], row.id)
    for number, name in DECIDED_ELSEWHERE.items():
        at = [fact[0] for fact in facts].index(number)
        assert MATRIX.contradictions[at].id == f"contradiction.{name}"


def test_no_row_names_a_document_by_a_number_of_ours() -> None:
    text = (MATRIX.folder / "contradictions.toml").read_text(encoding="utf-8")
    assert not re.search(r"\bseeds?\b|PyPI", text)
