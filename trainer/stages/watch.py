"""Measurements that accompany a run: answers, rewards, update, mask, weights, log-probabilities, checkpoint."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from trainer import device as devices
from trainer import faults
from trainer.launch import Interrupted
from trainer.metrics import checks
from trainer.metrics.records import Progress
from trainer.metrics.step import Observer, of_validation
from trainer.rollouts import collect, compute_rewards
from trainer.run_state import restore, save_checkpoint, state_of
from trainer.saving import CorruptCheckpoint
from trainer.saving.checkpoint import difference, load
from trainer.tasks.base import RewardBroken
from trainer.trainer import build_trainer
from trainer.weights import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.learner import Learner
    from trainer.metrics.records import Records
    from trainer.metrics.step import StepResult
    from trainer.saving import State
    from trainer.stages.second_look import SecondLook
    from trainer.trainer import Trainer
    from trainer.types import Group, Prompt

_NUM_SAMPLES = 5
# The state once more, and the activations of a result.
_TWIN = 1.5
NO_ROOM = "the shards have their digests; the device has no room to restore them beside the run"


class Watch(Observer):
    """Follows one run and writes its findings; it changes nothing that the next step depends on."""

    def __init__(
        self,
        trainer: Trainer,
        config: Config,
        out: Path,
        records: Records,
        look: SecondLook | None = None,
        *,
        train_step: Callable[[Trainer, int], StepResult],  # the loop's
        num_validated: int | None = None,  # before the first step, by the process that this one resumes
    ) -> None:
        self._trainer, self._config, self._out = trainer, config, out
        self._records, self._progress, self._train_step = records, trainer.progress, train_step
        self._look = look
        self._samples = {"samples_checked": 0, "samples_differ": 0}
        self._mask, self._weights = checks.MaskCheck(), checks.WeightsCheck()
        self._logprobs = checks.LogprobsCheck(*logprob_limits(config))
        self._generation, self._reward = checks.GenerationCheck(trainer.task.tokenizer.end), checks.RewardCheck()
        self._update = checks.UpdateCheck.begin(trainable(trainer.learner))
        self._agreement = checks.Agreement()
        self._checkpoint: dict[str, Any] = {}
        self._twin: Trainer | None = None
        self._checked = Progress()  # the time that looking takes, by stage
        # Number of prompts of each evaluation, by its moment.
        self._validated: dict[str, list[int]] = {} if num_validated is None else {"before": [num_validated]}
        self._tried_after = max(config.run.steps // 2, trainer.learner.global_step)

    def validate(self, when: str, step: int = 0) -> None:
        """Greedy answers to every held-out prompt, with the weights as they are trained: noise is for rollouts only."""
        trainer = self._trainer
        if faults.skips_validation(self._config.run.fault):
            return
        if trainer.injection is not None:
            with self._progress.phase("testing"):
                trainer.engine.load_weights(trainer.learner.weights())
        found = evaluate(trainer)
        if self._look is not None:
            checked, differ = self._look.wrong_samples(found["samples"])
            self._samples["samples_checked"] += checked
            self._samples["samples_differ"] += differ
        by_source = of_validation(trainer.task.heldout, found["correct"], task=self._config.task.task)
        self._validated.setdefault(when, []).append(found["num_prompts"])
        self._records.write("eval", when=when, step=step, **found, **by_source)
        if trainer.injection is not None:
            with self._progress.phase("testing"):
                trainer.sync_weights(step)

    def on_start(self) -> None:
        """Validates, unless the resumed process did."""
        if "before" not in self._validated:
            self.validate("before", self._trainer.learner.global_step)

    def on_step_start(self, step: int) -> None:
        """In the middle of the run: restores a twin from a fresh checkpoint, to take the same step once more.

        A resumed run that is past its middle does so in its first step.
        """
        if step == self._tried_after + 1:
            with self._progress.phase("try_checkpoint"), self._checked.phase("checkpoint"):
                self._twin, self._checkpoint = self._round_trip(step - 1)

    def on_step(self, step: int, result: StepResult) -> None:
        """Checks the step, then validates and saves if due."""
        if self._twin is not None:
            twin, self._twin = self._twin, None
            self._compare(twin, step)
        self._check(result, step)
        self._after_step(step)

    def _compare(self, twin: Trainer, step: int) -> None:
        """Lets the twin take the step that the run has just taken, and compares every bit."""
        with self._progress.phase("try_checkpoint"), self._checked.phase("checkpoint"):
            self._train_step(twin, step)
            name = self._first_of_ranks(difference(state_of(self._trainer, step), state_of(twin, step)))
        self._checkpoint |= {"next_step_equal": name is None, "next_step_first_different": name}
        self._checkpoint["passed"] = self._checkpoint["restored_equal"] and name is None

    def _check(self, result: StepResult, step: int) -> None:
        """What every step is held against: answers, rewards, mask, update, the engine's weights and probabilities."""
        trainer, update = self._trainer, result.update
        self._generation.add(result.groups)
        with self._checked.phase("reward"):
            self._reward.add(result.rewards_PG, result.batch, self._second_opinion(result))
        self._update.add(update.lr, update.grad_norm)
        with self._checked.phase("mask"):
            algorithm = self._config.algorithm
            may_lack = algorithm.mask_truncated or bool(algorithm.rejection)
            self._mask.add(result.groups, result.batch, may_lack=may_lack)
        with self._checked.phase("sampler-weights"):
            # One tensor after the other: all at once there may be no room for those of shards.
            held = trainer.learner.full_weights()
            expected = held if trainer.injection is None else trainer.injection.apply_each(held, step)
            sampled = trainer.engine.weights()
            self._weights.add(step, expected, sampled)
        self._logprobs.add(update.logprob_diff_max, update.logprob_diff_mean, update.rollout_kl)
        if trainer.world.size > 1:
            with self._checked.phase("ranks-agree"):
                # Shards are one copy of the weights between them: what may differ is what each rank samples with.
                compared = sampled.items() if trainer.learner.is_sharded else trainer.learner.full_weights()
                self._agreement.add(step, trainer.world.gather(fingerprint(compared)))

    def _first_of_ranks(self, name: str | None) -> str | None:
        """Of sharded tensors each rank compares its own rows: the first rank's name that is one; a collective then."""
        if not self._trainer.learner.is_sharded:
            return name
        return next(filter(None, self._trainer.world.gather(name)), None)

    def _second_opinion(self, result: StepResult) -> Tensor | None:
        """Computes the rewards of a step once more, bypassing any wrapper between the task and the loop.

        Only for one step, the first whose rewards differ: a reward may be costly, and equal rewards prove nothing.
        """
        if not self._reward.wants_second_opinion or bool((result.rewards_PG == result.rewards_PG.reshape(-1)[0]).all()):
            return None
        # What breaks now has another reward than before, and ends nothing.
        config = replace(self._config, task=replace(self._config.task, on_reward_error="drop"))
        return compute_rewards(result.groups, task=self._trainer.task, config=config, device=self._trainer.device)

    def _after_step(self, step: int) -> None:
        """Validation and checkpoints that are due after a step; the last ones are `on_end`'s."""
        run = self._config.run
        if step == run.steps:
            return
        if run.validate_every and step % run.validate_every == 0:
            self.validate("during", step)
        if run.save_every and step % run.save_every == 0:
            self.save(step)

    def on_end(self) -> None:
        """The last validation, the results of the measurements, the last checkpoint: a full disk hides nothing else."""
        self.validate("after", self._config.run.steps)
        spent, device = self._progress.seconds, self._trainer.device
        generation = {
            **self._generation.result(),
            "tokens_per_s": self._generation.tokens / max(spent.get("gen", 0), 1e-9),
        }
        update = self._update.result(trainable(self._trainer.learner))
        self._tell("generation", generation, spent.get("gen", 0.0))
        self._tell("reward", {**self._reward.result(), **self._reward_errors()})
        self._tell("update", {**update, "device_peak_mib": devices.peak_mib(device)}, spent.get("update_actor", 0.0))
        self._tell("mask", self._mask.result())
        self._tell("sampler-weights", self._weights.result())
        self._tell("logprobs", self._logprobs.result(), 0.0)
        if self._trainer.world.size > 1:
            self._tell("ranks-agree", self._agreement.result())
        if (remote := self._trainer.remote) is not None:
            lost = [each for rank in self._trainer.world.gather(remote.pool.losses) for each in rank]
            self._tell("generators", {"passed": True, "num_lost": len(lost), "lost": lost})
        counts = {when: sum(numbers) for when, numbers in self._validated.items()}
        is_whole = counts.get("before", 0) > 0 and counts.get("before") == counts.get("after")
        is_right = is_whole and not self._samples["samples_differ"]
        heldout = len(self._trainer.task.heldout)
        validation = {"passed": is_right, "evaluations": counts, "heldout_prompts": heldout, **self._samples}
        self._tell("validation", validation, spent.get("testing", 0.0))
        self.save(self._config.run.steps)
        self._tell("checkpoint", self._checkpoint)

    def _reward_errors(self) -> dict[str, Any]:
        """The number of failed rewards, and the first reason; empty if a failed reward ends the run."""
        if self._config.task.on_reward_error == "stop":
            return {}
        errors = self._trainer.reward_errors
        errors_of_ranks = self._trainer.world.gather((len(errors), errors[:1]))
        first = next((own[0] for _, own in errors_of_ranks if own), None)
        return {"errors": sum(count for count, _ in errors_of_ranks), "first_error": first}

    def _tell(self, name: str, result: Mapping[str, Any], seconds: float | None = None) -> None:
        taken = self._checked.seconds.get(name, 0.0) if seconds is None else seconds
        self._records.write("stage", name=name, seconds=taken, **{"passed": None, "reason": None, **result})

    def save(self, step: int) -> None:
        """The checkpoint of the state after a step; a collective."""
        with self._progress.phase("save_checkpoint"), self._checked.phase("checkpoint"):
            save_checkpoint(self._trainer, state_of(self._trainer, step), self._out / "checkpoint")

    @contextmanager
    def saves_before_leaving(self) -> Iterator[None]:
        """After a signal or a failing reward the run ends only once the state is saved, from which it can resume."""
        try:
            yield
        except Interrupted as left:
            self.save(left.step)
            raise
        except RewardBroken:
            with suppress(OSError):  # the reward is what broke the run
                self.save(self._trainer.learner.global_step)
            raise

    def _round_trip(self, step: int) -> tuple[Trainer | None, dict[str, Any]]:
        """Saves the state and restores it into fresh trainer of another seed; None when it cannot be restored."""
        folder = self._out / "checkpoint"
        live = state_of(self._trainer, step)
        saved = save_checkpoint(self._trainer, live, folder)
        result = {"passed": False, "step": step, "tensors": saved.tensors, "bytes": saved.bytes, "sha256": saved.sha256}
        # Generators in other processes serve both. Else a vllm engine has its card for itself: there is no room for a
        # second one, whose step could be compared.
        shared = None if self._trainer.remote is None else self._trainer.remote.twin()
        is_alone = self._config.rollout.engine == "vllm" and shared is None
        try:
            if is_alone or not self._has_room(saved.bytes):
                return None, {**result, **self._against_disk(live, folder), "next_step_equal": None}
            seed = self._config.run.seed + 1
            twin = build_trainer(
                self._config, self._trainer.device, seed=seed, world=self._trainer.world, engine=shared
            )
            restore(twin, load(folder, torch.device("cpu")))
            if self._look is not None:
                self._look.check_restored(twin)
        except CorruptCheckpoint as error:
            return None, {**result, "restored_equal": False, "next_step_equal": None, "reason": str(error)}
        name = self._first_of_ranks(difference(live, state_of(twin, step)))
        return twin, {**result, "restored_equal": name is None, "first_different": name}

    def _has_room(self, num_bytes: int) -> bool:
        """Whether every rank's device can hold the state once more, and take a step with it. A collective."""
        trainer = self._trainer
        devices.give_back(trainer.device)
        room = devices.memory(trainer.device)
        own = num_bytes // trainer.world.size if trainer.learner.is_sharded else num_bytes
        return all(trainer.world.gather(room is None or room.free > _TWIN * own))

    def _against_disk(self, live: State, folder: Path) -> dict[str, Any]:
        """The files on the disk against the saved state, tensor by tensor; of shards only their digests."""
        saved = load(folder, torch.device("cpu"))
        if self._trainer.learner.is_sharded:
            return {"passed": None, "restored_equal": None, "reason": NO_ROOM}
        name = difference(live, saved)
        return {"passed": name is None, "restored_equal": name is None, "first_different": name}


def trainable(learner: Learner) -> dict[str, Tensor]:
    """What this rank holds of each weight that should move, in the precision that it moves in; by reference."""
    own = learner.parameters()
    adapters = {name: each for name, each in own.items() if ".lora_" in name}
    return {name: learner.optimizer.adamw.master.get(name, each) for name, each in (adapters or own).items()}


def logprob_limits(config: Config) -> tuple[float, float]:
    """How far engine and learner may be apart: at most, and in the mean of a step; in nats.

    The same sums in another order in float32 with exact products, else rounding of 8 bits. bfloat16 engines beside a
    learner are 0.01 apart in the mean, and single unlikely tokens by more than 1. With `top_p` or `top_k` one rounding
    decides whether a token at the edge may be drawn, which moves the probabilities of all others.
    """
    run = config.run
    if config.noise.noise_stages or config.rollout.off_policy:
        return 8.0, 1.0  # the engine's policy differs on purpose; its weights are checked separately
    is_exact = run.dtype in ("float32", "float64") and run.matmul_precision == "highest"
    if not is_exact or config.rollout.engine == "vllm":
        return 4.0, 0.05
    is_cut = config.rollout.top_p < 1 or config.rollout.top_k > 0
    return (4.0 if is_cut else checks.LOGPROB_LIMIT), checks.LOGPROB_LIMIT


def evaluate(trainer: Trainer) -> dict[str, Any]:
    """Greedy answers to every held-out prompt, in the task's order, from the engine's present weights.

    Each rank answers its share; all ranks have all of them. A collective. Raises RewardBroken, on all ranks.
    """
    task, world = trainer.task, trainer.world
    own: list[tuple[int, str]] = []
    error = None
    try:
        for prompts in _at_once(world.shard(task.heldout), trainer):
            # Each is a part of its own: ended parts show that a run makes progress.
            with trainer.progress.phase("testing"):
                groups = collect(trainer.engine, prompts, task, trainer.sampling(is_greedy=True))
                own += [_answer(trainer, group) for group in groups]
    except RewardBroken as found:
        error = found
    answers: list[tuple[int, str]] = [(0, "")] * len(task.heldout)
    with trainer.progress.phase("testing"):
        for rank, (some, broken) in enumerate(world.gather((own, error))):
            if broken is not None:
                raise error or broken
            answers[rank :: world.size] = some
    correct = [is_right for is_right, _ in answers]
    shown = range(0, len(answers), -(-len(answers) // _NUM_SAMPLES))
    return {
        "split": "heldout" if task.is_disjoint else "train",
        "num_prompts": len(correct),
        "num_correct": sum(correct),
        "accuracy": sum(correct) / len(correct),
        "correct": correct,
        "samples": [
            {"prompt": task.heldout[n].text, "answer": answers[n][1], "expected": task.heldout[n].expected}
            for n in shown
        ],
    }


def _at_once(prompts: Sequence[Prompt], trainer: Trainer) -> Iterator[Sequence[Prompt]]:
    """The prompts, as many at a time as a step has rows: where those fit, these do. vllm gets all: it queues them."""
    rollout = trainer.config.rollout
    size = rollout.prompts_per_step // trainer.world.size * rollout.rollouts_per_prompt
    if rollout.engine == "vllm":
        size = max(1, len(prompts))
    return (prompts[at : at + size] for at in range(0, len(prompts), size))


def _answer(trainer: Trainer, group: Group) -> tuple[int, str]:
    """Whether the first answer is right, and its text."""
    first = group.rollouts[0]
    return int(trainer.is_right(group.prompt, first)), trainer.task.tokenizer.decode(first.tokens)
