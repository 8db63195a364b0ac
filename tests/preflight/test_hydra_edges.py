"""Words of a Hydra command line at the borders of its grammar: functions against text, backslashes in quotes."""

from __future__ import annotations

import pytest

from npuenv.preflight.hydra import read_override, read_value, write_value


@pytest.mark.parametrize("text", ["int(3.4)", "range(0,4)", "what(ever)"])
def test_a_function_in_quotes_is_text(text: str) -> None:
    found = read_override(f"a='{text}'")
    assert (found.value, found.is_computed) == (text, False)


@pytest.mark.parametrize("value", ["it's \\d", "\\d, \\w", "\\' \\\\"])
def test_backslashes_keep_their_number_in_quotes(value: str) -> None:
    assert read_value(write_value(value)) == value
