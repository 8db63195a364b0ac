"""Measurements that accompany a run: answers, rewards, update, mask, weights, log-probabilities, checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer import device as devices
from trainer import faults
from trainer.assembly import Parts, assemble, score
from trainer.distributed import Agreement, checksum
from trainer.metrics.checks import (
    LOGPROB_LIMIT,
    GenerationCheck,
    LogprobsCheck,
    MaskCheck,
    RewardCheck,
    UpdateCheck,
    WeightsCheck,
)
from trainer.metrics.progress import Progress
from trainer.metrics.step import of_validation
from trainer.rollouts import collect
from trainer.saving.checkpoint import CorruptCheckpoint, difference, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.config import Config
    from trainer.metrics.records import Records
    from trainer.turn import Turn

_NUM_SAMPLES = 5


class Watch:
    """Follows one run and writes what it finds; it changes nothing that the next turn depends on."""

    def __init__(
        self,
        parts: Parts,
        config: Config,
        out: Path,
        records: Records,
        progress: Progress,
        *,
        advance: Callable[[Parts, int, Progress], Turn],  # the loop's turn
        num_validated: int | None = None,  # before the first step, by the process that this one goes on from
    ) -> None:
        self._parts, self._config, self._out = parts, config, out
        self._records, self._progress, self._advance = records, progress, advance
        self._mask, self._weights = MaskCheck(), WeightsCheck()
        self._logprobs = LogprobsCheck(*logprob_limits(config))
        self._generation, self._reward = GenerationCheck(parts.task.tokenizer.end), RewardCheck()
        self._update = UpdateCheck.begin(dict(parts.learner.model.named_parameters()))
        self._agreement = Agreement()
        self._checkpoint: dict[str, Any] = {}
        self._checked = Progress()  # the time that looking takes, by stage
        # Number of prompts of each evaluation, by its moment.
        self._validated: dict[str, list[int]] = {} if num_validated is None else {"before": [num_validated]}
        self._tried_after = max(config.run.steps // 2, parts.learner.steps_done)

    def validate(self, when: str, step: int = 0) -> None:
        """Greedy answers to every held-out prompt, with the weights as they are trained: noise is for rollouts only."""
        parts = self._parts
        if faults.skips_validation(self._config.run.fault):
            return
        with self._progress.part("testing"):
            if parts.injection is not None:
                parts.engine.receive(parts.learner.weights())
            found = evaluate(parts)
            by_source = of_validation(parts.task.heldout, found["correct"], task=self._config.task.task)
            self._validated.setdefault(when, []).append(found["num_prompts"])
            self._records.write("eval", when=when, step=step, **found, **by_source)
            if parts.injection is not None:
                parts.publish(step)

    def split_off(self, step: int) -> Parts | None:
        """In the middle of the run: parts restored from a fresh checkpoint, to take the same turn once more.

        A resumed run that is past its middle does so in its first turn.
        """
        if step != self._tried_after + 1:
            return None
        with self._progress.part("try_checkpoint"), self._checked.part("checkpoint"):
            twin, self._checkpoint = self._round_trip(step - 1)
        return twin

    def compare(self, twin: Parts | None, step: int) -> None:
        """Lets the restored parts take the turn that the live ones have just taken, and compares every bit."""
        if twin is None:
            return
        with self._progress.part("try_checkpoint"), self._checked.part("checkpoint"):
            self._advance(twin, step, Progress())
            name = difference(self._parts.state(step), twin.state(step))
        self._checkpoint |= {"next_step_equal": name is None, "next_step_first_different": name}
        self._checkpoint["passed"] = self._checkpoint["restored_equal"] and name is None

    def look_at(self, turn: Turn, step: int) -> None:
        """What every turn is held against: answers, rewards, mask, update, the sampler's weights and probabilities."""
        parts, update = self._parts, turn.update
        self._generation.add(turn.groups)
        with self._checked.part("reward"):
            self._reward.add(turn.rewards_PG, turn.batch, self._second_opinion(turn))
        self._update.add(update.lr, update.grad_norm)
        with self._checked.part("mask"):
            self._mask.add(turn.groups, turn.batch)
        with self._checked.part("sampler-weights"):
            expected = parts.learner.weights()
            if parts.injection is not None:
                expected = parts.injection.apply(expected, step)
            self._weights.add(step, expected, parts.engine.weights())
        self._logprobs.add(update.logprob_diff_max, update.logprob_diff_mean, update.sampler_kl)
        if parts.world.size > 1:
            with self._checked.part("ranks-agree"):
                self._agreement.add(step, parts.world.gather(checksum(parts.learner.weights())))

    def _second_opinion(self, turn: Turn) -> Tensor | None:
        """The rewards of a turn asked for once more, past whatever stands between the task and the loop.

        Of one turn only, the first whose rewards differ: a reward may be costly, and equal rewards tell nothing.
        """
        if not self._reward.wants_second_opinion or bool((turn.rewards_PG == turn.rewards_PG.reshape(-1)[0]).all()):
            return None
        return score(turn.groups, task=self._parts.task, config=self._config, device=self._parts.device)

    def between_steps(self, step: int) -> None:
        """Validation and checkpoints that are due after a step; the last ones are `finish`'s."""
        run = self._config.run
        if step == run.steps:
            return
        if run.validate_every and step % run.validate_every == 0:
            self.validate("during", step)
        if run.save_every and step % run.save_every == 0:
            self.save(step)

    def finish(self) -> None:
        """What the measurements came to, and the last checkpoint: a disk may be full, and the rest is still told."""
        spent, device = self._progress.seconds, self._parts.device
        generation = {
            **self._generation.result(),
            "tokens_per_s": self._generation.tokens / max(spent.get("gen", 0), 1e-9),
        }
        update = self._update.result(dict(self._parts.learner.model.named_parameters()))
        self._tell("generation", generation, spent.get("gen", 0.0))
        self._tell("reward", self._reward.result())
        self._tell("update", {**update, "device_peak_mib": devices.peak_mib(device)}, spent.get("update_actor", 0.0))
        self._tell("mask", self._mask.result())
        self._tell("sampler-weights", self._weights.result())
        self._tell("logprobs", self._logprobs.result(), 0.0)
        if self._parts.world.size > 1:
            self._tell("ranks-agree", self._agreement.result())
        counts = {when: sum(numbers) for when, numbers in self._validated.items()}
        is_whole = counts.get("before", 0) > 0 and counts.get("before") == counts.get("after")
        validation = {"passed": is_whole, "evaluations": counts, "heldout_prompts": len(self._parts.task.heldout)}
        self._tell("validation", validation, spent.get("testing", 0.0))
        self.save(self._config.run.steps)
        self._tell("checkpoint", self._checkpoint)

    def _tell(self, name: str, result: Mapping[str, Any], seconds: float | None = None) -> None:
        taken = self._checked.seconds.get(name, 0.0) if seconds is None else seconds
        self._records.write("stage", name=name, seconds=taken, **{"passed": None, "reason": None, **result})

    def save(self, step: int) -> None:
        """The checkpoint of the state after a step; a collective."""
        with self._progress.part("save_checkpoint"), self._checked.part("checkpoint"):
            self._parts.keep(self._parts.state(step), self._out / "checkpoint")

    def _round_trip(self, step: int) -> tuple[Parts | None, dict[str, Any]]:
        """Saves the state and restores it into fresh parts of another seed; None when it cannot be restored."""
        folder = self._out / "checkpoint"
        live = self._parts.state(step)
        saved = self._parts.keep(live, folder)
        result = {"passed": False, "step": step, "tensors": saved.tensors, "bytes": saved.bytes, "sha256": saved.sha256}
        # A vllm engine has its card for itself: there is no room for a second one, whose turn could be compared.
        lent = self._parts.engine if self._config.rollout.engine == "vllm" else None
        seed = self._config.run.seed + 1
        twin = assemble(self._config, self._parts.device, seed=seed, world=self._parts.world, engine=lent)
        try:
            twin.restore(load(folder, self._parts.device))
        except CorruptCheckpoint as error:
            return None, {**result, "restored_equal": False, "next_step_equal": None, "reason": str(error)}
        name = difference(live, twin.state(step))
        result |= {"restored_equal": name is None, "first_different": name}
        if lent is not None:
            return None, {**result, "passed": name is None, "next_step_equal": None}
        return twin, result


def logprob_limits(config: Config) -> tuple[float, float]:
    """How far sampler and learner may be apart: at most, and in the mean of a step; in nats.

    The same sums in another order in float32 with exact products, else rounding of 8 bits. bfloat16 engines beside a
    learner are 0.01 apart in the mean, and single unlikely tokens by more than 1.
    """
    run = config.run
    if config.noise.noise_stages:
        return 8.0, 1.0  # the sampler is another policy on purpose; that its weights are the noisy ones is told apart
    is_exact = run.dtype in ("float32", "float64") and run.matmul_precision == "highest"
    return (LOGPROB_LIMIT, LOGPROB_LIMIT) if is_exact and config.rollout.engine != "vllm" else (4.0, 0.05)


def evaluate(parts: Parts) -> dict[str, Any]:
    """Greedy answers to every held-out prompt, in the task's order, from the engine's present weights."""
    task = parts.task
    groups = collect(parts.engine, task.heldout, task, parts.sampling(is_greedy=True))
    correct = [int(task.is_right(group.prompt, group.rollouts[0])) for group in groups]
    samples = [
        {
            "prompt": group.prompt.text,
            "answer": task.tokenizer.decode(group.rollouts[0].tokens),
            "expected": group.prompt.expected,
        }
        for group in groups[:: -(-len(groups) // _NUM_SAMPLES)]
    ]
    return {
        "split": "heldout" if task.is_disjoint else "train",
        "num_prompts": len(correct),
        "num_correct": sum(correct),
        "accuracy": sum(correct) / len(correct),
        "correct": correct,
        "samples": samples,
    }
