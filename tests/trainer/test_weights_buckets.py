"""Weights come out of buckets as they went in, and a change on the way is seen."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.trainer_cases import decoder
from trainer.weights import Bucket, Packer, checksum, unpack

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
