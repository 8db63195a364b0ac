"""A version of the weights is taken over whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
import torch

from trainer.weights import AT_START, Bucket, Loading, NotWhole, Packer, first_unlike, same_bits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

NAMES = ("a", "b", "c")


class Held:
    """An engine's weights, and how often new ones were taken."""

    def __init__(self) -> None:
        self.tensors = {name: torch.zeros(16) for name in NAMES}
        self.taken = 0

    def take(self, weights: Mapping[str, Tensor]) -> None:
        self.taken += 1
        for name, tensor in weights.items():
            self.tensors[name].copy_(tensor)

    def values(self) -> list[float]:
        return [float(each[0]) for each in self.tensors.values()]


def loading() -> tuple[Held, Loading]:
    held = Held()
    return held, Loading(held.take, lambda: held.tensors)


def version(number: int) -> list[Bucket]:
    """Three buckets, a tensor each, full of the number."""
    return list(Packer(64).pack(((name, torch.full((16,), float(number))) for name in NAMES), number))


def test_nothing_is_taken_over_before_the_last_missing_bucket_whatever_their_order() -> None:
    for order in permutations(range(3)):
        held, made = loading()
        buckets = version(5)
        for index in order[:2]:
            made.add(buckets[index])
            assert (held.taken, held.values(), made.version) == (0, [0.0, 0.0, 0.0], AT_START)
        made.add(buckets[order[2]])
        assert (held.taken, held.values(), made.version) == (1, [5.0, 5.0, 5.0], 5)


def test_half_of_one_version_and_half_of_another_are_never_mixed() -> None:
    held, made = loading()
    old, new = version(1), version(2)
    made.add(old[0])
    made.add(old[1])
    for bucket in (new[2], new[1]):
        made.add(bucket)
    assert held.taken == 0
    made.add(new[0])
    assert (held.values(), made.version) == ([2.0, 2.0, 2.0], 2)
    made.add(old[2])  # what comes late of an older version completes nothing
    assert (held.values(), made.version, held.taken) == ([2.0, 2.0, 2.0], 2, 1)


def test_a_bucket_that_was_sent_twice_counts_once() -> None:
    held, made = loading()
    first, second, last = version(1)
    for bucket in (first, first, last):
        made.add(bucket)
    assert held.taken == 0
    made.add(second)
    assert held.taken == 1


def test_a_bucket_changed_on_its_way_is_refused_and_the_weights_stay() -> None:
    held, made = loading()
    buckets = version(1)
    flat = buckets[1].flat.clone()
    flat[3] ^= 4
    made.add(buckets[0])
    with pytest.raises(NotWhole, match=r"bucket 1 of version 1 .*changed"):
        made.add(replace(buckets[1], flat=flat))
    made.add(buckets[2])
    assert (held.taken, made.version) == (0, AT_START)


def test_an_engine_that_fails_half_way_or_keeps_its_own_has_no_version_from_then_on() -> None:
    held = Held()

    def half(weights: Mapping[str, Tensor]) -> None:
        held.tensors["a"].copy_(weights["a"])
        raise KeyError("b")

    broken = Loading(half, lambda: held.tensors)
    with pytest.raises(KeyError):
        for bucket in version(1):
            broken.add(bucket)
    assert broken.version is None
    deaf = Loading(lambda weights: None, lambda: held.tensors)
    with pytest.raises(NotWhole, match=r"\bb\b.*\bversion 1\b"):
        for bucket in version(1):
            deaf.add(bucket)
    assert deaf.version is None


def test_weights_are_compared_by_bits_in_the_engines_dtype_and_only_where_both_have_them() -> None:
    sent = {"a": torch.tensor([1.0, torch.nan, 1.00001]), "b": torch.ones(2), "n": torch.ones(3)}
    assert first_unlike(sent, {"a": sent["a"].clone(), "more": torch.ones(1)}) is None
    assert first_unlike(sent, {"a": sent["a"].bfloat16()}) is None
    assert first_unlike(sent, {"a": sent["a"].clone(), "b": torch.tensor([1.0, -1.0])}) == "b"
    assert first_unlike(sent, {"n": torch.ones(2)}) == "n"
    zero = {"z": torch.zeros(4)}
    assert first_unlike(zero, {"z": -torch.zeros(4)}) == "z"


def test_a_bucket_that_comes_again_after_its_version_was_taken_changes_nothing() -> None:
    held, made = loading()
    buckets = version(1)
    for bucket in (*buckets, buckets[2], buckets[0]):
        made.add(bucket)
    assert (held.taken, made.version) == (1, 1)
    made.add(buckets[1])  # all three have come again: that is a whole version, once more
    assert (held.taken, made.version) == (2, 1)


def test_one_bucket_that_is_all_of_a_version_is_taken_at_once() -> None:
    held, made = loading()
    (bucket,) = Packer(1 << 10).pack(((name, torch.full((16,), 7.0)) for name in NAMES), 3)
    made.add(bucket)
    assert (held.values(), made.version) == ([7.0, 7.0, 7.0], 3)


def test_an_engine_without_a_version_gets_one_with_the_next_whole_weights() -> None:
    held = Held()
    fails = [True]

    def take(weights: Mapping[str, Tensor]) -> None:
        if fails.pop() if fails else False:
            raise KeyError("b")
        held.take(weights)

    made = Loading(take, lambda: held.tensors)
    with pytest.raises(KeyError):
        for bucket in version(1):
            made.add(bucket)
    for bucket in version(2):
        made.add(bucket)
    assert (held.values(), made.version) == ([2.0, 2.0, 2.0], 2)


def test_the_same_numbers_in_another_shape_or_elsewhere_in_memory_are_told_apart_by_shape_alone() -> None:
    sent = {"m": torch.arange(16.0).reshape(2, 8)}
    assert first_unlike(sent, {"m": sent["m"].reshape(8, 2)}) == "m"
    odd = torch.zeros(17)[1:].reshape(2, 8)  # begins at no multiple of 8 bytes
    odd.copy_(sent["m"])
    assert first_unlike(sent, {"m": odd}) is None
    odd[1, 7] += 1
    assert first_unlike(sent, {"m": odd}) == "m"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), False),
        (torch.tensor(3), torch.tensor(3), True),
        (torch.ones(4), torch.ones(5)[1:], True),
        (torch.ones(4, dtype=torch.bfloat16), torch.tensor([1.0, 1.0, 1.0, 1.0078125]).bfloat16(), False),
    ],
)
def test_the_same_bits_is_what_it_says(left: torch.Tensor, right: torch.Tensor, expected: bool) -> None:
    assert same_bits(left, right) is expected
