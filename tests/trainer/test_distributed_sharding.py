"""Ranks that keep some rows of every weight each learn what one process learns that holds them all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.trainer.core_cases import SMALL
from tests.trainer.rank_processes import on_processes
from tests.trainer.shared import once
from tests.trainer.trainer_cases import CPU, changed
from trainer.config import BadSetting, parse
from trainer.distributed import is_sharded, layers, like, local, put, rows, whole
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from torch import Tensor

    from tests.trainer.plain_run import PlainRun

LIMITS = {"float64": 1e-12, "float32": 1e-5}  # of the largest gradient

# Rank 0 has the first of three groups, rank 1 the others: unequal in tokens, in width and in the number of passes.
SCRIPT = """
from dataclasses import fields
from tests.trainer.core_cases import BARE, batch, by_row, learner, on_ranks, update
from tests.trainer.trainer_cases import CPU, changed, decoder
from trainer import distributed, faults
from trainer.distributed import World
from trainer.algorithms.update_metrics import UpdateMetrics
from trainer.learner import Learner
from trainer.run_state import learner_state
from trainer.distributed import local, whole

SHARES = ((0,), (1, 2))
EVERYTHING = {"kl_coef": 0.1, "entropy_coef": 0.05}
own = SHARES[world.rank]


def sharded(**settings):
    config = changed(BARE, sharding="fsdp2", **settings)
    models = [decoder(config, seed=1), decoder(config, seed=2)]
    for each in models:
        distributed.shard(each, config.run, CPU, num_ranks=world.size)
    return Learner(models[0], models[1] if config.algorithm.kl_coef else None, config, seed=0, world=world)


def gradients(made):
    return {name: whole(each.grad) for name, each in made.model.named_parameters() if each.grad is not None}


def gap(left, right):
    assert left.keys() == right.keys() and left
    largest = max(float(each.abs().max()) for each in right.values())
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in right) / largest


def against_one(**settings):
    one, made = learner(World.single(), **settings), sharded(**settings)
    wanted, got = update(one, batch(0, 1, 2)), update(made, batch(*own))
    numbers = {each.name: [getattr(got, each.name), getattr(wanted, each.name)] for each in fields(UpdateMetrics)}
    numbers.pop("weights")
    held, alike = made.weights(), one.weights()
    is_same = list(held) == list(alike) and all(torch.equal(held[name], alike[name]) for name in alike)
    return {"gap": gap(gradients(made), gradients(one)), "numbers": numbers, "is_same": is_same}


for name, settings in CASES.items():
    found[name] = against_one(**EVERYTHING, **settings)
"""

PARTS = """
# What a rank holds.
made = sharded(**EVERYTHING)
parameters = dict(made.model.named_parameters())
found["rows"] = [sum(each.numel() for each in some) for some in (made.parameters().values(), parameters.values())]
found["moments"] = sum(each.numel() for each in made.optimizer.adamw.first.values())
found["reference"] = sum(local(each).numel() for each in learner_state(made)["reference"].values())

# What it says before it learns.
known, wanted = made.compute_logprobs(batch(*own)), learner(World.single(), **EVERYTHING).compute_logprobs(batch(*own))
found["look"] = float((known.reference_BT - wanted.reference_BT).abs().max())

# Steps, with the gradient's norm bounded, and without any row for a rank in a mini batch.
def moved(**settings):
    of = {"lr": 0.01, "weight_decay": 0.1, "dtype": "float64", **EVERYTHING, **settings}

    def whole_one(each):
        one = learner(each, **of)
        return update(one, batch(*SHARES[each.rank])), one.weights()

    threads = on_ranks(whole_one)
    live = sharded(**of)
    before = {name: each.clone() for name, each in live.weights().items()}
    got = update(live, batch(*own))
    weights = live.weights()
    largest = max(float((weights[name] - before[name]).abs().max()) for name in before)
    off = max(float((weights[name] - each).abs().max()) for name, each in threads[world.rank][1].items())
    return [off, largest, got.grad_norm, threads[0][0].grad_norm]

found["bounded"] = moved(grad_clip=0.05)
found["rankless"] = moved(mini_batches=2)

# bfloat16: rows in float32, weights in bfloat16.
narrow = sharded(dtype="bfloat16", lr=1e-5, **EVERYTHING)
before = {name: local(each).clone() for name, each in narrow.model.named_parameters()}
update(narrow, batch(*own))
now = {name: local(each) for name, each in narrow.model.named_parameters()}
change = max(float((now[name] - each).abs().max()) for name, each in before.items() if each.numel())
found["narrow"] = {
    "rows": sorted({str(each.dtype) for each in narrow.parameters().values()}),
    "weights": sorted({str(each.dtype) for each in narrow.weights().values()}),
    "masters": len(learner_state(narrow)["master"]),
    "change": change,
}

# A gradient that is not a number on its way.
faults.poison(made.model.named_parameters())
before = made.weights()
poisoned = update(made, batch(*own))
is_still = all(torch.equal(each, before[name]) for name, each in made.weights().items())
found["poisoned"] = [str(poisoned.grad_norm), is_still]

# A torch that can only take means.
from torch.distributed.fsdp import FSDPModule
told = FSDPModule.set_force_sum_reduction_for_comms
del FSDPModule.set_force_sum_reduction_for_comms
found["means"] = against_one(dtype="float32", **EVERYTHING)
FSDPModule.set_force_sum_reduction_for_comms = told
"""

Case = dict[str, Any]

CASES: dict[str, Case] = {
    "checkpointing": {"micro_batch_rows": 2, "gradient_checkpointing": True},
    "checkpointed adapters": {"lora_rank": 2, "lora_targets": "q_proj,up_proj", "gradient_checkpointing": True},
    "gspo": {"loss": "gspo"},
    "correction": {"correction": "token"},
    "micro batches": {"micro_batch_rows": 2},
    "adapters": {"lora_rank": 2, "micro_batch_rows": 2},
    "cispo": {"loss": "cispo"},
}

MEANS: dict[str, Case] = {
    f"{aggregation} {convention} {dtype}": {"aggregation": aggregation, "convention": convention, "dtype": dtype}
    for aggregation in ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
    for convention in ("verl", "trl", "roll")
    for dtype in LIMITS
}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What both ranks found: one start of two processes computes what all tests marked slow judge."""
    every = {**MEANS, **{name: {"dtype": "float64", **each} for name, each in CASES.items()}}
    text = f"CASES = {every!r}\n{SCRIPT}{PARTS}"
    found: list[dict[str, Any]] = once("sharding", lambda folder: on_processes(text, folder))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MEANS)
def test_shards_with_unequal_counts_have_the_gradient_and_numbers_of_one_process(
    ranks: list[dict[str, Any]], name: str
) -> None:
    dtype = MEANS[name]["dtype"]
    for rank in ranks:
        found = rank[name]
        assert found["gap"] < LIMITS[dtype]
        assert found["is_same"]  # the learning rate is 0
        for number, (own, wanted) in found["numbers"].items():
            assert own == pytest.approx(wanted, rel=1e-9 if dtype == "float64" else 1e-4, abs=1e-6), number


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_so_they_have_in_passes_of_few_rows_computed_again_adapted_or_with_another_loss(
    ranks: list[dict[str, Any]], case: str
) -> None:
    for rank in ranks:
        assert rank[case]["gap"] < 1e-12
        assert rank[case]["is_same"]
        own, wanted = rank[case]["numbers"]["loss"]
        assert own == pytest.approx(wanted)


@pytest.mark.slow
def test_a_rank_holds_half_of_weights_moments_and_reference(ranks: list[dict[str, Any]]) -> None:
    (first, total), (second, _) = (rank["rows"] for rank in ranks)
    assert first + second == total
    assert abs(first - second) < total / 20  # an odd number of rows
    assert [rank["moments"] for rank in ranks] == [first, second]
    assert [rank["reference"] for rank in ranks] == [first, second]


@pytest.mark.slow
def test_a_look_at_a_batch_gives_the_log_probabilities_of_one_process(ranks: list[dict[str, Any]]) -> None:
    assert max(rank["look"] for rank in ranks) < 1e-12


@pytest.mark.slow
def test_a_step_is_bounded_by_the_norm_over_all_shards(ranks: list[dict[str, Any]]) -> None:
    for off, largest, norm, wanted in (rank["bounded"] for rank in ranks):
        assert norm == pytest.approx(wanted)
        assert norm > 0.1  # the bound is 0.05
        assert off < 1e-9 < largest


@pytest.mark.slow
def test_a_rank_without_rows_in_a_mini_batch_keeps_no_one_waiting(ranks: list[dict[str, Any]]) -> None:
    for off, largest, _, _ in (rank["rankless"] for rank in ranks):
        assert off < 1e-9 < largest


@pytest.mark.slow
def test_a_bfloat16_run_keeps_its_rows_in_float32_and_samples_with_bfloat16(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["narrow"]
        assert (found["rows"], found["weights"], found["masters"]) == (["torch.float32"], ["torch.bfloat16"], 0)
        assert 5e-6 < found["change"] < 2e-5  # one step of 1e-5, which most bfloat16 weights cannot take


@pytest.mark.slow
def test_a_gradient_that_is_no_number_in_one_rank_s_rows_leaves_all_weights_alone(ranks: list[dict[str, Any]]) -> None:
    assert [rank["poisoned"] for rank in ranks] == [["nan", True], ["nan", True]]


@pytest.mark.slow
def test_a_torch_that_takes_means_gives_sums_all_the_same(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["means"]["gap"] < 1e-5


def test_tensors_that_are_not_sharded_are_their_own_whole() -> None:
    weight, given = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    assert not is_sharded(weight)
    assert local(weight) is weight
    assert whole(weight) is weight
    assert like(weight, given) is given
    put(weight, given)
    assert weight.tolist() == [1.0, 2.0, 3.0]


def test_one_rank_is_not_sharded_whatever_is_asked() -> None:
    trainer = build_trainer(changed(SMALL, sharding="fsdp2"), CPU, seed=0)
    assert not trainer.learner.is_sharded
    assert dict(trainer.learner.full_weights()).keys() == dict(trainer.learner.model.named_parameters()).keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["offload=true"], "offload=true .* sharding=fsdp2"),
        (["offload=true", "sharding=fsdp2", "device=cpu"], "offload=true .* CPU"),
        (["sharding=fsdp1"], "sharding=fsdp1 .* none, fsdp2"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_one_sentence(words: list[str], says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        parse(words, devices=("auto", "cpu"))


def test_offload_is_refused_where_the_device_turns_out_to_be_the_cpu() -> None:
    with pytest.raises(BadSetting, match=r"offload=true .* CPU"):
        build_trainer(changed(SMALL, sharding="fsdp2", offload=True), CPU, seed=0)


def test_a_run_that_shards_nothing_imports_nothing_for_it(plain_run: PlainRun) -> None:
    late = ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo")
    assert [name for name in plain_run.imported if name.startswith(late)] == []


# Shards in one process: which rows a rank has when there are fewer rows than ranks, and which layers are gathered.


class Sharded:
    """What `rows` reads of a DTensor: the mesh, and this rank's place in it."""

    def __init__(self, rank: int, size: int) -> None:
        self.device_mesh = SimpleNamespace(size=lambda: size, get_local_rank=lambda: rank)

    def to_local(self) -> Tensor:
        raise AssertionError("of another tensor's rows this one's values are not asked")


@pytest.mark.parametrize(
    ("length", "size", "held"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (3, 4, [[0], [1], [2], []]),
        (5, 4, [[0, 1], [2, 3], [4], []]),
        (0, 2, [[], []]),
    ],
)
def test_every_row_is_held_once_and_a_rank_may_have_none(length: int, size: int, held: list[list[int]]) -> None:
    given = torch.arange(length).reshape(length, 1).expand(length, 3)
    for rank, wanted in enumerate(held):
        own: Any = Sharded(rank, size)
        found = rows(own, given)
        assert found.shape == (len(wanted), 3)
        assert found[:, 0].tolist() == wanted


def test_lists_within_a_layer_are_gathered_with_it() -> None:
    inner = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    model = nn.ModuleDict(
        {
            "body": nn.ModuleDict({"layers": nn.ModuleList([inner, nn.Linear(2, 2)])}),
            "heads": nn.ModuleList([nn.Linear(2, 2)]),
            "norm": nn.LayerNorm(2),
        }
    )
    assert layers(model) == [inner, model["body"]["layers"][1], model["heads"][0]]  # type: ignore[index]
