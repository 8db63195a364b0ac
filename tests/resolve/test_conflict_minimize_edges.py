"""Pins that were left out beside others, and fit once those are gone."""

from __future__ import annotations

import pytest

from npuenv.matrix import load_matrix
from npuenv.resolve.conflict import fitting_pins, with_pins
from npuenv.resolve.search import by_preference, first_fit
from npuenv.resolve.types import Request

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("request_", "back"),
    [
        (
            Request(cann="9.1.0", pins={"triton-ascend": "3.2.0", "torch": "2.8.0", "torchvision": "0.23.0"}),
            "torchvision",
        ),
        (
            Request(
                stack="cpu-full",
                pins={"torch": "2.5.1", "torchaudio": "2.7.1", "tensordict": "0.10.0", "torchvision": "0.23.0"},
            ),
            "torch",
        ),
    ],
)
@pytest.mark.slow
def test_a_pin_that_fits_once_others_are_gone_is_kept(request_: Request, back: str) -> None:
    asked, _ = by_preference(request_, MATRIX)
    most = fitting_pins(asked, request_, MATRIX)
    assert most is not None and back in most.pins
    for name in request_.pins.keys() - most.pins.keys():
        assert first_fit(asked, with_pins(request_, {*most.pins, name}), MATRIX) is None
