"""A number that tells whether two places hold the same weights."""

from __future__ import annotations

import pytest
import torch

from trainer.weights import fingerprint

WEIGHTS = {
    "wide": torch.arange(12, dtype=torch.float64).reshape(3, 4),
    "odd": torch.arange(5, dtype=torch.float32),
    "narrow": torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16),
    "one": torch.tensor(3.0),
    "none": torch.zeros(0),
}


def test_the_same_weights_have_one_number_in_any_order_and_wherever_they_lie_in_memory() -> None:
    mark = fingerprint(WEIGHTS.items())
    assert 0 <= mark < 2**63
    assert fingerprint(reversed(list(WEIGHTS.items()))) == mark
    moved = {
        name: torch.cat((each.new_ones(1), each.reshape(-1)))[1:].reshape(each.shape) for name, each in WEIGHTS.items()
    }
    assert fingerprint(moved.items()) == mark
    turned = {**WEIGHTS, "wide": WEIGHTS["wide"].T.contiguous().T}
    assert fingerprint(turned.items()) == mark
    assert fingerprint(iter(())) == 0


@pytest.mark.parametrize("name", ["wide", "odd", "narrow", "one"])
def test_one_bit_in_any_place_makes_another_number(name: str) -> None:
    mark = fingerprint(WEIGHTS.items())
    for at in range(WEIGHTS[name].numel()):
        other = WEIGHTS[name].clone()
        bits = other.reshape(-1).view(torch.uint8)
        bits[at * other.element_size()] ^= 1
        assert fingerprint({**WEIGHTS, name: other}.items()) != mark


def test_names_shapes_and_dtypes_count() -> None:
    odd = WEIGHTS["odd"]
    marks = [
        fingerprint(each.items())
        for each in (
            WEIGHTS,
            {**WEIGHTS, "wide": WEIGHTS["wide"].reshape(4, 3)},
            {**WEIGHTS, "odd": odd.to(torch.float64)},
            {("even" if name == "odd" else name): each for name, each in WEIGHTS.items()},
            {**WEIGHTS, "odd": WEIGHTS["one"], "one": odd},
            {name: each for name, each in WEIGHTS.items() if name != "none"},
            {**WEIGHTS, "zeros": torch.zeros(2)},
        )
    ]
    assert len(set(marks)) == len(marks)
