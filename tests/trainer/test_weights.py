"""Weights come out of buckets as they went in, and a change on the way is seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.trainer_cases import decoder
from trainer.weights import (
    AT_START,
    Bucket,
    Loading,
    NotWhole,
    Packer,
    checksum,
    fingerprint,
    first_unlike,
    same_bits,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

MIXED = {
    "wide": torch.arange(300, dtype=torch.float64).reshape(20, 15) / 7,
    "odd": torch.arange(7, dtype=torch.bfloat16),
    "one": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
    "flags": torch.tensor([True, False, True]),
    "across": torch.arange(12.0).reshape(3, 4).t(),  # not contiguous
    "last": torch.full((5,), torch.nan),
}


def packed(bucket_bytes: int, version: int = 0) -> list[Bucket]:
    return list(Packer(bucket_bytes).pack(MIXED.items(), version))


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 10, 1 << 20])
def test_every_dtype_and_shape_comes_back_from_buckets_of_any_size(bucket_bytes: int) -> None:
    found = unpack(packed(bucket_bytes))
    assert list(found) == list(MIXED)
    for name, tensor in MIXED.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name].nan_to_num(9), tensor.nan_to_num(9)), name


def test_buckets_are_numbered_and_only_the_last_one_says_so() -> None:
    buckets = packed(200, version=4)
    assert [each.index for each in buckets] == list(range(len(buckets)))
    assert [each.is_last for each in buckets] == [False] * (len(buckets) - 1) + [True]
    assert {each.version for each in buckets} == {4}
    # 2400 bytes do not fit in 200 and stand alone; the six small ones share, 64 bytes each
    assert [[entry.name for entry in each.entries] for each in buckets] == [
        ["wide"],
        ["odd", "one", "none", "flags"],
        ["across", "last"],
    ]


def test_of_no_weights_there_is_one_empty_bucket() -> None:
    (bucket,) = Packer(64).pack([], 0)
    assert (bucket.is_last, bucket.entries, len(bucket.flat), bucket.checksum) == (True, (), 0, 0)


def test_the_next_version_takes_the_same_memory() -> None:
    packer = Packer(200)
    places = [
        [each.flat.data_ptr() for each in packer.pack(((n, t * 2) for n, t in MIXED.items() if n != "flags"), version)]
        for version in range(2)
    ]
    assert places[0] == places[1]


def test_each_bucket_is_there_before_the_next_tensor_is_asked_for() -> None:
    asked: list[str] = []

    def gathered() -> object:
        for name in ("a", "b", "c"):
            asked.append(name)
            yield name, torch.ones(16)

    buckets = Packer(64).pack(gathered(), 0)  # type: ignore[arg-type]
    next(buckets)
    assert asked == ["a", "b"]


def test_a_checksum_sees_one_bit_and_the_order_of_its_rows() -> None:
    flat = torch.randint(0, 256, (1 << 18,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    known = checksum(flat)
    assert checksum(flat.clone()) == known
    for place in (0, 77_777, (1 << 18) - 1):
        changed = flat.clone()
        changed[place] ^= 1
        assert checksum(changed) != known
    rows = flat.view(-1, 1 << 15)
    assert checksum(rows.flip(0).reshape(-1)) != known
    assert checksum(torch.zeros(64, dtype=torch.uint8)) == 0


def test_a_models_weights_are_whole_in_small_buckets() -> None:
    weights = dict(decoder().named_parameters())
    found = unpack(Packer(1 << 10).pack(weights.items(), 0))
    assert all(torch.equal(found[name], each) for name, each in weights.items())
    assert found.keys() == weights.keys()


def test_a_bucket_is_filled_to_its_last_byte() -> None:
    weights = [(name, torch.ones(16)) for name in ("a", "b", "c")]  # 64 bytes each
    buckets = list(Packer(128).pack(weights, 0))
    assert [[entry.name for entry in each.entries] for each in buckets] == [["a", "b"], ["c"]]
    assert [len(each.flat) for each in buckets] == [128, 64]


def test_what_lies_between_tensors_is_zero_whatever_the_memory_held() -> None:
    dirty, (clean,) = Packer(1 << 20), packed(1 << 20)
    (before,) = dirty.pack([("full", torch.full_like(clean.flat, 255))], 0)
    (found,) = dirty.pack(MIXED.items(), 0)
    assert found.flat is before.flat
    assert torch.equal(found.flat, clean.flat)
    assert found.checksum == clean.checksum


def test_a_smaller_version_after_a_larger_one_is_sent_without_a_rest_of_it() -> None:
    packer = Packer(1 << 10)
    sizes = [
        [len(each.flat) for each in packer.pack([("a", torch.ones(count))], version)]
        for version, count in enumerate((64, 16, 64))
    ]
    assert sizes == [[256], [64], [256]]


def test_a_checksum_sees_the_highest_bit_of_every_row_and_of_what_is_left_over() -> None:
    """A row that is weighed by an even number would lose it."""
    flat = torch.zeros(3 * (1 << 15) + 64, dtype=torch.uint8)
    for row in range(4):
        changed = flat.clone()
        changed[row * (1 << 15) + 7] = 128
        assert checksum(changed) != checksum(flat), row


# A number that tells whether two places hold the same weights.

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


# A version of the weights is taken over whole or not at all.

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
