"""Where npuenv keeps what it makes: below an absolute folder of the user's, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.install.environments import data_folder, state_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.mark.parametrize("home", ["", "rel/home", "~"])
@pytest.mark.parametrize(
    ("folder", "variable"),
    [(data_folder, "XDG_DATA_HOME"), (state_folder, "XDG_STATE_HOME")],
)
def test_a_home_that_names_no_place_is_refused_unless_the_folder_itself_is_named(
    home: str, folder: Callable[[Mapping[str, str]], str], variable: str
) -> None:
    for value in ({}, {variable: ""}, {variable: "rel"}):
        with pytest.raises(BadInput) as caught:
            folder({"HOME": home, **value})
        assert caught.value.message == Message("store.no-home", {"home": home})
        assert caught.value.hint == Message("store.no-home-hint", {"variable": variable})
    assert folder({"HOME": home, variable: "/data"}) == "/data/npuenv"


def test_without_home_the_system_says_where_the_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert data_folder({}).startswith("/") and data_folder({"HOME": "/h"}) == "/h/.local/share/npuenv"
