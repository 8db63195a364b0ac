"""A reference policy in the generators instead of beside the learner: the same run, and one model fewer there."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import on_ranks
from tests.trainer.generator_cases import Crew
from tests.trainer.rank_processes import on_processes
from tests.trainer.trainer_cases import CPU, TINY, changed, only, read, run
from trainer import models
from trainer.config import BadSetting, Config
from trainer.config import read as read_settings
from trainer.engines.generator_client import GeneratorLost, ReferenceLogProbs
from trainer.loop import make_rollouts, train_step
from trainer.metrics import meter
from trainer.metrics.records import Progress
from trainer.models.decoder import Decoder
from trainer.run_state import MARK, restore, set_reference, state_of
from trainer.saving.checkpoint import difference, load, save
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.distributed import World
    from trainer.metrics.step import StepResult
    from trainer.saving import State
    from trainer.trainer import Trainer

pytestmark = pytest.mark.slow

# One generator: its micro batches are the learner's, so that every number is the same to the bit.
THERE = changed(
    TINY, layers=1, distractors=0, steps=4, generators=1, reference_place="generators", kl_coef=0.05, lr=0.01,
    mini_batches=2, generator_timeout_s=60.0,
)  # fmt: skip
HERE = changed(THERE, reference_place="learner")
AHEAD = {"off_policy": 1, "correction": "token"}


def trainer_of(config: Config = THERE, crew: Crew | None = None, *, seed: int = 0) -> Trainer:
    return build_trainer(config, CPU, seed=seed, engine=(crew or Crew(config)).engine(config.rollout.generators))


def turns(trainer: Trainer, first: int = 1, last: int = 4) -> list[StepResult]:
    return [train_step(trainer, step) for step in range(first, last + 1)]


def copied(state: State) -> State:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: State = torch.load(file, weights_only=True)
    return found


def learnt(state: State) -> State:
    """A state without what tells where the reference is."""
    left = {name: each for name, each in state["learner"].items() if name != "reference"}
    return {"learner": left, **{name: state[name] for name in ("step", "prompts_random", "sampler_random")}}


# The same run.


@pytest.mark.parametrize(
    "settings",
    [
        AHEAD,
        {"kl_in": "reward", "kl": "k1", "kl_controller": "adaptive", "estimator": "reinforce"},
        {"lora_rank": 2, "micro_batch_rows": 5},
        {"dtype": "bfloat16"},
        {"dynamic_sampling": True, "reward": "exact", **AHEAD},
        {"task": "frozen_lake", "map_size": 2, "max_turns": 2, "max_new_tokens": 3, "prompts_per_step": 2, "steps": 2},
    ],
    ids=lambda each: " ".join(each) or "plain",
)
def test_the_run_is_to_the_bit_that_of_a_learner_with_a_reference_of_its_own(settings: dict[str, Any]) -> None:
    there, here = trainer_of(changed(THERE, **settings)), trainer_of(changed(HERE, **settings))
    last = min(3, settings.get("steps", 3))
    pairs = list(zip(turns(there, last=last), turns(here, last=last), strict=True))
    for one, other in pairs:
        assert one.logprobs.reference_BT is not None and other.logprobs.reference_BT is not None
        assert torch.equal(one.logprobs.reference_BT, other.logprobs.reference_BT)
        assert one.update.kl == other.update.kl
    assert pairs[-1][0].update.kl > 0
    assert difference(learnt(state_of(there, last)), learnt(state_of(here, last))) is None


@pytest.mark.slow
def test_without_a_divergence_there_is_no_reference_anywhere() -> None:
    crew = Crew(changed(THERE, kl_coef=0.0))
    turn = turns(trainer_of(crew.config, crew))[-1]
    assert turn.logprobs.reference_BT is None
    assert crew.started[0].referred == []
    with pytest.raises(ValueError, match="a reference"):
        crew.started[0].server.reference_logprobs([])


@pytest.mark.slow
def test_a_learner_whose_generators_have_said_nothing_does_not_go_on_without() -> None:
    made = trainer_of()
    rollouts = make_rollouts(made)
    with pytest.raises(ValueError, match=r"no generator .* reference"):
        made.learner.compute_logprobs(made.make_batch(rollouts.groups, rollouts.rewards_PG))


@pytest.mark.slow
def test_each_rank_asks_its_own_generators_about_its_own_rollouts() -> None:
    config = changed(THERE, prompts_per_step=4, ranks=2)

    def job(world: World) -> Tensor:
        made = build_trainer(config, CPU, seed=0, world=world, engine=Crew(config).engine(1, seed=world.rank))
        alone = build_trainer(changed(config, reference_place="learner", generators=0), CPU, seed=0)
        for step in (1, 2):
            turn = train_step(made, step)
            own = alone.learner.compute_logprobs(turn.batch).reference_BT
            assert own is not None and turn.logprobs.reference_BT is not None
            assert torch.equal(turn.logprobs.reference_BT, own)
        return turn.batch.tokens_BT

    one, two = on_ranks(job)
    assert one.shape != two.shape or not torch.equal(one, two)


# What the learner holds.


def held_bytes(trainer: Trainer) -> int:
    """Of all tensors that can be reached from the learner, each piece of memory once."""
    seen: dict[int, int] = {}
    known: set[int] = set()
    waiting: list[Any] = [trainer.learner]
    while waiting:
        each = waiting.pop()
        if id(each) in known or isinstance(each, (type, str, bytes, Config)):
            continue
        known.add(id(each))
        if isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            continue
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, (list, tuple, set)) else []
        waiting += list(vars(each).values()) if hasattr(each, "__dict__") else []
        slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        waiting += [getattr(each, name) for name in slots if hasattr(each, name) and name != "__weakref__"]
    return sum(seen.values())


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}, {"dtype": "bfloat16"}], ids=str)
def test_the_learner_holds_one_model_fewer(settings: dict[str, Any]) -> None:
    there, here = trainer_of(changed(THERE, **settings)), trainer_of(changed(HERE, **settings))
    plain = models.build(changed(HERE, **{**settings, "lora_rank": 0}), 19, seed=0, device=CPU)
    model = sum(each.numel() * each.element_size() for each in plain.parameters())
    assert held_bytes(here) - held_bytes(there) == model
    assert "reference" in state_of(here, 0)["learner"] and "reference" not in state_of(there, 0)["learner"]
    # Nor does the engine keep one, which would be as bad where it has no memory of its own.
    assert there.remote is not None and there.remote.origin is not None and there.remote.origin.buckets == ()


# Records.


@pytest.mark.slow
def test_records_tell_its_time_and_its_operations_and_the_checkpoint_passes(tmp_path: Path) -> None:
    for settings in ({}, AHEAD):
        config = changed(THERE, **settings)
        out = tmp_path / str(len(settings))
        records = run(out, config, trainer_of(config))
        steps = [each for each in records if each["kind"] == "step"]
        told = steps if not settings else steps[:-1]  # the last step of one ahead begins nothing
        assert all(each["timing_s/ref"] > 0 and each["timing_per_token_ms/ref"] > 0 for each in told)
        stage = only(read(out), kind="stage", name="checkpoint")
        assert (stage["passed"], stage["next_step_equal"]) == (True, True)
    assert not any("timing_s/ref" in each for each in run(tmp_path / "here", HERE, trainer_of(HERE)))
    policy = trainer_of().learner.model
    assert isinstance(policy, Decoder)
    sizes, work = meter.sizes(policy), meter.Work(6, 2, 4, 19, 10)
    assert sizes is not None
    there, here = (meter.of_phases(sizes, work, each) for each in (THERE, HERE))
    assert there["ref"] == there["gen"] and "ref" not in here
    assert there["old_log_prob"] + there["ref"] == here["old_log_prob"]


# Going on.


@pytest.mark.parametrize(
    "settings", [pytest.param({}, marks=pytest.mark.slow), AHEAD], ids=lambda each: " ".join(each) or "plain"
)
@pytest.mark.slow
def test_a_run_goes_on_from_any_step_in_either_place_with_the_same_bits(settings: dict[str, Any]) -> None:
    configs = {"generators": changed(THERE, **settings), "learner": changed(HERE, **settings)}
    live = trainer_of(configs["generators"])
    states = {"generators": [copied(state_of(live, 0))], "learner": []}
    for step in range(1, 4):
        train_step(live, step)
        states["generators"].append(copied(state_of(live, step)))
    beside = trainer_of(configs["learner"])
    states["learner"].append(copied(state_of(beside, 0)))
    for step in range(1, 4):
        train_step(beside, step)
        states["learner"].append(copied(state_of(beside, step)))
    for began in configs:
        for now, config in configs.items():
            for step in (0, 2):
                other = trainer_of(config)
                assert restore(other, states[began][step]) == step
                turns(other, step + 1, 3)
                assert difference(learnt(copied(state_of(other, 3))), learnt(states[now][3])) is None, (began, now)
            assert (MARK in state_of(other, 3)) is (now == "generators")


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in trainer.learner.model.named_parameters()}


@pytest.mark.parametrize("began", [THERE, HERE], ids=["there", "here"])
@pytest.mark.parametrize("now", [THERE, HERE], ids=["there", "here"])
@pytest.mark.parametrize("rank", [0, 2], ids=["whole", "lora"])
@pytest.mark.slow
def test_after_a_warm_start_the_reference_is_what_that_ended_with_wherever_the_run_goes_on(
    began: Config, now: Config, rank: int
) -> None:
    """The settings make other weights: only the checkpoint knows those that the run began with."""
    began, now = changed(began, lora_rank=rank), changed(now, lora_rank=rank)
    live = trainer_of(began)
    with torch.no_grad():
        for name, each in live.learner.model.named_parameters():
            if each.requires_grad:
                each.add_(0.1 * torch.randn(each.shape, generator=torch.Generator().manual_seed(len(name))))
    set_reference(live)
    live.sync_weights(0)
    # At its start the policy is its reference.
    rollouts = make_rollouts(live)
    batch = live.make_batch(rollouts.groups, rollouts.rewards_PG)
    known = live.learner.compute_logprobs(batch, rollouts.reference_BT)
    assert known.reference_BT is not None and known.old_BT is not None
    assert float((known.reference_BT - known.old_BT).abs().max()) < 1e-5
    turns(live, 1, 2)
    crew = Crew(now)
    other = trainer_of(now, crew)
    restore(other, copied(state_of(live, 2)))
    found = other.learner.compute_logprobs(batch, other.reference_logprobs(rollouts.groups, Progress())).reference_BT
    assert found is not None and torch.equal(found, known.reference_BT)
    # A generator that takes the place of a lost one has it too.
    if now.reference_at == "generators":
        crew.started[0].end()
        assert torch.equal(other.reference_logprobs(rollouts.groups, Progress()), known.reference_BT)  # type: ignore[arg-type]
        assert len(crew.started) == 2
    again = trainer_of(began)
    restore(again, copied(state_of(other, 2)))
    found = again.learner.compute_logprobs(batch, again.reference_logprobs(rollouts.groups, Progress())).reference_BT
    assert found is not None and torch.equal(found, known.reference_BT)


def test_a_folder_that_holds_another_model_by_now_is_no_reference_of_a_run_that_goes_on(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    first = models.build(THERE, 19, seed=5, device=CPU)
    assert isinstance(first, Decoder)
    models.save(first, folder)
    there, here = (changed(each, path=str(folder)) for each in (THERE, HERE))
    live, beside = trainer_of(there), trainer_of(here)
    for each in (live, beside):
        turns(each, 1, 2)
    save(state_of(live, 2), out)
    other = models.build(THERE, 19, seed=6, device=CPU)
    assert isinstance(other, Decoder)
    models.save(other, folder)
    for config in (there, here):
        with pytest.raises(BadSetting, match=r"resume: .* reference policy"):
            restore(trainer_of(config), load(out, CPU))
    # What the learner had is in its checkpoint, and goes from there to the generators.
    save(state_of(beside, 2), out)
    rollouts = make_rollouts(beside)
    wanted = beside.learner.compute_logprobs(beside.make_batch(rollouts.groups, rollouts.rewards_PG)).reference_BT
    moved = trainer_of(there)
    restore(moved, load(out, CPU))
    found = moved.reference_logprobs(rollouts.groups, Progress())
    assert found is not None and wanted is not None and torch.equal(found, wanted)
    assert copied(state_of(moved, 2))["learner"]["reference"].keys() == dict(first.named_parameters()).keys()


def test_a_generator_that_reads_another_model_than_the_learner_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    """As where the same path names another model on another node."""
    for number in (0, 1):
        made = models.build(THERE, 19, seed=number, device=CPU)
        assert isinstance(made, Decoder)
        models.save(made, tmp_path / str(number))
    crew = Crew(changed(THERE, path=str(tmp_path / "1")))
    trainer = build_trainer(changed(THERE, path=str(tmp_path / "0")), CPU, seed=0, engine=crew.engine(1))
    with pytest.raises(BadSetting, match=r"generator 0 .* another reference"):
        train_step(trainer, 1)


SHARDED = """
from tests.trainer.generator_cases import Crew
from tests.trainer.test_reference_place import HERE, THERE, turns
from tests.trainer.trainer_cases import CPU, changed
from trainer.trainer import build_trainer
from trainer.distributed import World
from trainer.loop import make_rollouts
from trainer.metrics.records import Progress
from trainer.run_state import restore, save_checkpoint, set_reference, state_of
from trainer.saving.checkpoint import load
from trainer.distributed import is_sharded

MORE = {"prompts_per_step": 4, "ranks": 2, "sharding": "fsdp2", "dtype": "bfloat16"}


def parts(config, of=world, **more):
    config = changed(config, **MORE, **more)
    return build_trainer(config, CPU, seed=0, world=of, engine=Crew(config).engine(1, seed=world.rank))


def says(made, rollouts):
    batch = made.make_batch(rollouts.groups, rollouts.rewards_PG)
    return made.learner.compute_logprobs(batch, made.reference_logprobs(rollouts.groups, Progress())).reference_BT


for is_moved in (False, True):
    for name, config in (("there", THERE), ("here", HERE)):
        live = parts(config)
        if is_moved:
            with torch.no_grad():
                for each in live.learner.model.parameters():
                    each.mul_(1.5)
            set_reference(live)
        rollouts = make_rollouts(live)
        wanted = says(live, rollouts)
        found[f"says {name} {is_moved}"] = wanted.tolist()
        turns(live, 1, 1)
        state = state_of(live, 1)
        reference = state["learner"].get("reference", {})
        found[f"rows {name} {is_moved}"] = sorted({is_sharded(each) for each in reference.values()})
        save_checkpoint(live, state, here / f"{name}-{is_moved}")
        given = load(here / f"{name}-{is_moved}", CPU)
        places = {"there": (THERE, world), "here": (HERE, world), "alone": (THERE, World.single())}
        places.pop(name)
        for now, place in places.items():
            other = parts(*place)
            restore(other, given)
            found[f"{name} {now} {is_moved}"] = bool(torch.equal(says(other, rollouts), wanted))
"""


@pytest.mark.slow
@pytest.mark.long
def test_shards_of_two_ranks_go_on_in_either_place_with_the_reference_of_the_first(tmp_path: Path) -> None:
    """In bfloat16, whose shards are wide; `moved` is what a warm start does."""
    pytest.importorskip("torch.distributed.fsdp", reason="this torch has no fully sharded data parallelism")
    for rank in on_processes(SHARDED, tmp_path):
        said = {name: rank.pop(name) for name in list(rank) if name.startswith("says")}
        assert said["says there False"] == said["says here False"] != said["says here True"]
        assert said["says there True"] == said["says here True"]
        rows = {name: rank.pop(name) for name in list(rank) if name.startswith("rows")}
        assert rows == {
            "rows there False": [], "rows there True": [False], "rows here False": [True], "rows here True": [True]
        }  # fmt: skip
        assert len(rank) == 8
        assert all(rank.values()), rank


# Faults.


def killed(found: ReferenceLogProbs) -> ReferenceLogProbs:
    raise GeneratorLost("generator ?", "was killed by SIGKILL")


def nan(found: ReferenceLogProbs) -> ReferenceLogProbs:
    return replace(found, logprobs=tuple(each * float("nan") for each in found.logprobs))


@pytest.mark.parametrize("settings", [pytest.param({}, id="on", marks=pytest.mark.slow), pytest.param(AHEAD, id="off")])
@pytest.mark.slow
def test_generators_that_are_lost_over_their_references_change_no_bit(settings: dict[str, Any]) -> None:
    config = changed(THERE, generators=2, **settings)
    crew = Crew(config, spoils_of_reference={0: [killed], 1: [nan]})
    live, whole = trainer_of(config, crew), trainer_of(config)
    turns(live), turns(whole)
    assert difference(state_of(live, 4), state_of(whole, 4)) is None
    assert len(crew.started) == 4


@pytest.mark.parametrize("settings", [{}, AHEAD], ids=["on", "off"])
@pytest.mark.slow
def test_garbage_from_every_reference_ends_the_run_with_its_cause(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = changed(THERE, **settings)
    trainer = trainer_of(config, Crew(config, spoils_of_reference={0: [nan] * 9}))
    with pytest.raises(GeneratorLost, match=r"nan .* reference policy"):
        run(tmp_path, config, trainer)


# Settings.


def given(*words: str) -> Config:
    return read_settings(words, devices=("auto", "cpu")).config


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("", "learner"),
        ("generators=2", "learner"),
        ("generators=2 reference_place=generators", "generators"),
        ("generators=2 reference_place=generators kl_coef=0", None),
        ("kl_coef=0", None),
        ("train_cards=0 infer_cards=1", "generators"),
        ("train_cards=0 infer_cards=1 kl_in=reward", "generators"),
        ("train_cards=0 infer_cards=1 kl_coef=0", None),
        ("train_cards=0 infer_cards=1 reference_place=learner", "learner"),
        ("train_cards=0-1 infer_cards=0-1", "learner"),
        ("train_cards=0", "learner"),
        ("train_cards=0 infer_cards=1-2 engine=vllm tensor_parallel=2 path=/m", "learner"),
        (
            "train_cards=0 infer_cards=1-2 engine=vllm tensor_parallel=2 path=/m reference_place=generators",
            "generators",
        ),
    ],
)
def test_where_the_reference_is_follows_from_where_answers_are_made(words: str, place: str | None) -> None:
    assert given(*words.split()).reference_at == place


@pytest.mark.parametrize("words", ["", "train_cards=0", "train_cards=0-1 infer_cards=[0,1]", "kl_coef=0"])
def test_a_reference_in_generators_needs_some(words: str) -> None:
    with pytest.raises(BadSetting, match="reference_place=generators needs generators=1 or more"):
        given("reference_place=generators", *words.split())
