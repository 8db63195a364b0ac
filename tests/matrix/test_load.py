"""Tables that are wrong are refused with file and row; the tables that come with npuenv are right."""

from __future__ import annotations

import shutil
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core import versions
from npuenv.core.errors import BadInput, NpuenvError
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.maintain.check import check
from npuenv.matrix import Matrix, load_matrix, rows
from npuenv.matrix.load import Row, load_table, parse_table
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = load_matrix()
GOOD = """
[[row]]
id = "limit.one"
when = "numpy<2"
needs = "pyarrow<26"
why = "stack.limit-pyarrow-numpy1"
source = "measured"
seen = "2026-11-21"
"""


def refused(text: str, kind: type[Row] = rows.Limit) -> Message:
    with pytest.raises(BadInput) as error:
        parse_table(text, kind, "limits.toml")
    assert isinstance(error.value, NpuenvError)
    assert error.value.hint is not None
    assert error.value.message.args["file"] == "limits.toml"
    return error.value.message


def test_good_table_gives_frozen_rows() -> None:
    (row,) = parse_table(GOOD, rows.Limit, "limits.toml")
    assert (row.id, row.when, row.needs) == ("limit.one", "numpy<2", "pyarrow<26")
    with pytest.raises(AttributeError):
        row.when = "numpy<3"  # type: ignore[misc]


def test_unknown_key_names_the_row() -> None:
    message = refused(GOOD + 'whne = "x"\n')
    assert (message.key, message.args["row"], message.args["what"]) == ("matrix.unknown-key", "limit.one", "whne")


def test_missing_key_names_the_row() -> None:
    message = refused(GOOD.replace('source = "measured"\n', ""))
    assert (message.key, message.args["row"], message.args["what"]) == ("matrix.missing-key", "limit.one", "source")


def test_row_without_an_id_is_named_by_its_place() -> None:
    message = refused(GOOD + GOOD.replace('id = "limit.one"\n', ""))
    assert (message.key, message.args["row"]) == ("matrix.missing-key", "#2")


@pytest.mark.parametrize("value", ["2", "true", '["numpy<2"]'])
def test_wrong_type_names_the_row_and_the_field(value: str) -> None:
    message = refused(GOOD.replace('"numpy<2"', value))
    assert (message.key, message.args["row"], message.args["what"]) == ("matrix.wrong-type", "limit.one", "when")


def test_duplicate_id_is_refused() -> None:
    message = refused(GOOD + GOOD)
    assert (message.key, message.args["what"]) == ("matrix.duplicate", "limit.one")


def test_table_that_is_no_list_of_rows_is_refused() -> None:
    assert refused('[row]\nid = "x"\n').key == "matrix.not-rows"
    assert refused('[[rule]]\nid = "x"\n').key == "matrix.not-rows"


def test_text_that_is_no_toml_is_refused_with_the_place() -> None:
    message = refused("[[row]\n")
    assert message.key == "matrix.unreadable"
    assert "line 1" in str(message.args["what"])


def test_unknown_strength_of_a_nested_pin_is_refused(tmp_path: Path) -> None:
    text = (MATRIX.folder / "frameworks" / "verl.toml").read_text(encoding="utf-8")
    with pytest.raises(BadInput) as error:
        parse_table(text.replace('strength = "identity"', 'strength = "rumour"', 1), rows.Recipe, "verl.toml")
    assert error.value.message.key == "matrix.not-one-of"
    assert error.value.message.args["what"] == "strength = 'rumour'"
    assert error.value.message.args["row"] == "verl-cann9.1.0: pin[1]"


def test_missing_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        load_table(tmp_path / "cann.toml", rows.Cann)
    assert error.value.message.key == "matrix.unreadable"


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("frameworks/verl.toml", 'version = "2.8.0.post2"', 'version = "2.8.0.post99"', "torch-npu 2.8.0.post99"),
        ("frameworks/verl.toml", 'cann = "9.1.0"', 'cann = "9.7.0"', "CANN 9.7.0"),
        ("frameworks/verl.toml", 'a3 = "ascend910_9392"', 'a3 = "ascend910b1"', "soc ascend910b1"),
        ("frameworks/verl.toml", 'what = ["mindspeed"]', 'what = ["mindspeeed"]', "step mindspeed: mindspeeed"),
        ("triton_ascend.toml", 'index = "huawei-ascend"', 'index = "huawei"', "index huawei"),
        ("images.toml", 'hardware = ["310p", ', 'hardware = ["310x", ', "310x"),
        ("runs.toml", 'hardware = "950"', 'hardware = "960"', "960"),
    ],
)
@pytest.mark.one_in(3)
def test_dangling_reference_names_file_and_row(tmp_path: Path, file: str, old: str, new: str, what: str) -> None:
    folder = tmp_path / "matrix"
    shutil.copytree(MATRIX.folder, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadInput) as error:
        check(Matrix(folder))
    assert error.value.message.key == "matrix.dangling"
    assert error.value.message.args["file"] == file
    assert error.value.message.args["what"] == what


def test_the_tables_that_come_with_npuenv_are_right() -> None:
    check(MATRIX)
    assert len(MATRIX.torch_npu) > 100
    assert [row.id for row in MATRIX.recipes] == [
        "cpu",
        "cpu-full",
        "verl-cann9.1.0",
        "verl-0.9.0-cann9.1.0-guide",
        "verl-0.9.1-cann9.1.0",
        "verl-0.8.0-cann9.0.0",
        "verl-0.8.0-cann9.0.0-guide",
        "verl-0.8.0-cann9.0.0-mcore0.12",
        "verl-0.9.0-cann9.0.0-guide",
        "verl-0.7.1-cann8.5.0",
        "verl-qwen3.5-cann8.5.0",
        "verl-0.8.0-cann8.5.0",
        "verl-qwen3.5-cann8.5.2",
        "verl-uni-agent-cann8.5.2",
        "verl-0.7.0-cann8.3.RC1",
        "verl-0.7.1-cann8.3.RC1",
        "verl-0.6.1-cann8.2.RC1",
        "verl-aqn-guide",
        "verl-sglang-cann8.5.0",
        "verl-sglang-guide-cann8.5.0",
        "verl-sglang-cann8.3.RC1",
        "verl-950",
        "roll-cann9.1.0",
        "roll-0.3.0-cann9.0.0",
        "roll-deepspeed-cann8.5.1",
        "roll-guide-cann8.3.RC1",
        "roll-950",
        "sglang-cann9.1.0",
        "sglang-950-cann9.1.0",
        "veomni-0.1.11-cann9.0.0",
        "vime-a3",
        "ms-swift-guide-cann9.1.0",
        "llama-factory-cann9.1.0",
    ]


def test_cann_rows_come_in_version_order_whatever_the_file_order() -> None:
    keys = [versions.cann(row.version) for row in MATRIX.cann]
    assert keys == sorted(keys)


class CountedMatrix(Matrix):
    """Notes which tables are read whole."""

    def __init__(self) -> None:
        super().__init__(MATRIX.folder)
        self.read: list[str] = []

    def _table(self, name: str, kind: type[Any]) -> tuple[Any, ...]:
        self.read.append(name)
        return super()._table(name, kind)


def test_an_answer_reads_each_table_once_and_not_the_long_lists() -> None:
    matrix = CountedMatrix()
    assert isinstance(resolve(Request(stack="vllm-ascend-0.18.0", hardware="a2"), matrix), Stack)
    assert len(matrix.read) == len(set(matrix.read))
    # What vllm-ascend releases ask for belongs to their rows; the list of vllm is twice as long.
    assert [name for name in matrix.read if name.startswith(("built/", "contradictions"))] == ["built/vllm_ascend"]


def test_tables_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    shutil.copy(MATRIX.folder / "cann.toml", tmp_path / "cann.toml")
    matrix = Matrix(tmp_path)
    assert matrix.cann_row("8.5.0.B160") == MATRIX.cann_row("8.5.0")
    with pytest.raises(BadInput):
        _ = matrix.recipes


def sentences() -> set[str]:
    """The message keys that rows name."""
    found: set[str] = set()
    for recipe in MATRIX.recipes:
        found |= {step.why for step in recipe.step} | {each.why for each in recipe.override} | set(recipe.notes)
        found |= {pin.why for pin in recipe.pin} | {each.why for each in recipe.dispute}
    found |= {row.why for row in MATRIX.limits} | {row.why for row in MATRIX.settings}
    found |= {row.why for row in MATRIX.clashes}
    return found - {""}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_sentence_a_row_names_is_in_the_catalogue(lang: str) -> None:
    assert len(sentences()) > 40
    for key in sentences():
        assert say(Message(key), lang)


def test_every_row_has_a_source_and_a_date() -> None:
    names = ("hardware", "cann", "torch_npu", "vllm_ascend", "triton_ascend", "companions", "built", "images")
    for name in (*names, "requires_python"):
        for row in getattr(MATRIX, name):
            assert row.source, row.id
            assert row.seen[:2] == "20", row.id
            assert len(row.seen) == 10, row.id


@pytest.mark.parametrize(
    ("chip", "generation"),
    [
        ("910B3", "a2"),
        ("Ascend910B1", "a2"),
        ("ascend910_9391", "a3"),
        ("Ascend910", "a3"),
        ("910B", "910"),
        ("310P3", "310p"),
        ("Ascend950PR", "950"),
    ],
)
def test_chip_names_lead_to_their_generation(chip: str, generation: str) -> None:
    row = MATRIX.hardware_of_chip(chip)
    assert row is not None
    assert row.id == generation


def test_unknown_chip_leads_nowhere() -> None:
    assert MATRIX.hardware_of_chip("H200") is None


def test_disputes_keep_both_sides_with_sources() -> None:
    disputes = [each for recipe in MATRIX.recipes for each in recipe.dispute]
    assert len(disputes) >= 15
    for each in disputes:
        assert all(getattr(each, field.name) for field in fields(each)), each
        assert each.one != each.other


def test_the_companions_of_a_torch_are_those_of_its_number_whatever_its_build() -> None:
    row = load_matrix().companion_row("2.8.0")
    assert row is not None and row.torchvision == "0.23.0"
    assert load_matrix().companion_row("2.8.0+cpu") == row
    assert load_matrix().companion_row("2.8") is None
