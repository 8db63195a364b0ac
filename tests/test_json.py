"""The readers of JSON and TOML: everything that is not plainly right is one kind of error with one line of text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from npuenv.core import documents as _json
from npuenv.core import documents as _toml
from npuenv.core.documents import JsonError, TomlError, load_json, parse_json, parse_json_at

BAD = [
    "",
    "{",
    "[" * 100_000,
    "[" * 101 + "]" * 101,
    '{"a":' * 150 + "1" + "}" * 150,
    "1" * 100_000,
    "-" + "1" * 301,
    "[1e999]",
    "1" * 400 + ".0",
    "NaN",
    "[-Infinity]",
    "[1] 2",
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:8])
def test_bad_json_is_one_kind_of_error(text: str) -> None:
    for given in (text, text.encode()):
        with pytest.raises(JsonError) as caught:
            parse_json(given)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("data", [b"\xff", b'"\xed\xa0\x80"', b"\xff\xfe{\x00}\x00"])
def test_what_is_not_utf_8_is_bad_json(data: bytes) -> None:
    with pytest.raises(JsonError):
        parse_json(data)


@pytest.mark.parametrize("text", ["[" * 100 + "]" * 100, "-" + "1" * 299, "1e308", '"\\ud800"', "null", "\ufeff[]"])
def test_json_within_the_bounds_is_read(text: str) -> None:
    parse_json(text.encode())


def test_nan_is_a_number_where_it_is_asked_for() -> None:
    nan, infinity = parse_json("[NaN, Infinity]", has_nan=True)
    assert math.isnan(nan) and math.isinf(infinity)


def test_a_value_inside_a_text_has_the_same_bounds() -> None:
    assert parse_json_at('see {"a": 1} there', 4) == ({"a": 1}, 12)
    for text in ("[" * 100_000, "1" * 5000, "x"):
        with pytest.raises(JsonError):
            parse_json_at(text, 0)


def test_a_file_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json, "_MOST_BYTES", 1 << 20)
    with pytest.raises(OSError, match="large"):
        load_json(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "a = " + "[" * 100_000,
        "a = " + "1" * 100_000,
        "a = 0x" + "1" * 100_000,
        "a = " + "1" * 400 + ".0",
        "a." * 100_000 + "b = 1",
        "[" + '"a" . ' * 150 + "b]",
    ],
    ids=lambda text: text[:8],
)
def test_bad_toml_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(TomlError):
        _toml.parse_toml(text)


def test_texts_with_many_dots_and_digits_are_toml() -> None:
    text = "x.y, " * 200 + "..." * 100
    assert _toml.parse_toml(f'a = "{text}"\nhash = "{"0" * 128}"') == {"a": text, "hash": "0" * 128}
