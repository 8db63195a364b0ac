"""Holds a run against a second opinion: prompts, batches, schedules, reference, state, and the arithmetic of two steps.

Each link of a step is judged on the inputs that it really got: the advantages on the rewards of the batch, the loss on
those advantages, the gradient on that loss, the optimizer on that gradient. So what is wrong is found where it is, and
nothing that follows from it is blamed. The formulas are those of `metrics.second_opinion`.

`SecondLook` takes what it needs where it passes by: it wraps calls of the trainer from outside, as `trainer.faults`
does, and changes nothing of what they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch

from trainer.metrics import second_opinion as plain
from trainer.metrics.checks import checksum, first_difference
from trainer.metrics.progress import Progress
from trainer.metrics.step import Observer
from trainer.models.decoder import Decoder
from trainer.shards import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.metrics.records import Records
    from trainer.metrics.step import StepResult
    from trainer.trainer import Trainer
    from trainer.types import Batch, Prompt

# Numbers of the model times tokens of a step: beyond that a step in float64 on the CPU would take minutes.
_LARGEST = 5_000_000_000
# Logits or scores of attention at once, as numbers.
_AT_ONCE = 1 << 23
# Settings of these sections that the second opinion has formulas for; with any other one off its default there is none.
_KNOWN = """
    convention estimator scale_by_std gamma lam loss clip_low clip_high dual_clip aggregation kl kl_in kl_coef
    kl_controller kl_target kl_horizon entropy_coef dynamic_sampling max_generations overlong_buffer overlong_factor
    correction correction_cap correction_floor correction_bound
    lr lr_schedule warmup_steps weight_decay grad_clip mini_batches micro_batch_rows critic_lr value_clip
    warm_start_steps warm_start_lr warm_start_until
    engine prompts_per_step rollouts_per_prompt temperature script tensor_parallel memory_fraction enforce_eager
    weight_sync sleep generators off_policy max_staleness bucket_mib generator_timeout_s
"""
# The questions, each a `stage` record, and what may be wrong with each, causes first.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("prompts-repeat", "prompts-differ"),
    "heldout": ("heldout-overlaps",),
    "batch": ("batch-differs",),
    "mini-batches": ("mini-batches-differ",),
    "schedules": ("lr-off-schedule", "noise-off-schedule", "noise-repeats", "kl-coef-off"),
    "reference": ("reference-not-start", "reference-moved", "reference-logprobs-wrong"),
    "state": ("state-changed",),
    "recomputed": (
        "learner-logprobs-wrong",
        "advantages-wrong",
        "loss-wrong",
        "gradients-not-summed",
        "gradient-missing",
        "gradient-wrong",
        "clip-wrong",
        "optimizer-wrong",
    ),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How far float64 and the run may be apart; measured on healthy runs, with room."""

    logprob_mean: float
    loss: float  # absolute and, beyond 1, relative
    gradient: float  # the distance over the length; of a single tensor ten times that
    clip: float

    @classmethod
    def of(cls, config: Config) -> Limits:
        run = config.run
        if run.dtype in ("float32", "float64") and run.matmul_precision == "highest":
            return cls(1e-4, 2e-5, 5e-3, 1e-4)
        return cls(0.05, 0.05, 0.3, 0.02)


@dataclass(slots=True)
class Update:
    """One optimizer step as it passed by: everything on the CPU, floats in float64."""

    rows: list[int]
    weights: dict[str, Tensor] = field(default_factory=dict)  # that the gradient was taken at
    wide: dict[str, Tensor] = field(
        default_factory=dict
    )  # that the optimizer moves: float32 where weights are bfloat16
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # summed over the ranks, not clipped
    metrics: Mapping[str, float] = field(default_factory=dict)
    lr: float = math.nan


class SecondLook(Observer):
    """Follows one run beside `Watch`, first in the list of observers; it writes the stages in `QUESTIONS`."""

    def __init__(self, trainer: Trainer, config: Config, records: Records) -> None:
        self._trainer, self._config, self._records = trainer, config, records
        self._learner, self._limits = trainer.learner, Limits.of(config)
        self._skipped = dict.fromkeys(QUESTIONS, _unknown_settings(config))
        self._failed: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, int] = dict.fromkeys(QUESTIONS, 0)  # steps that each question was held against
        self._errors: dict[str, float] = {}
        self._broken: str | None = None  # why a step could not be recomputed
        self._spent = Progress()
        self._looks, self._has_looked = False, False
        self._updates: list[Update] = []
        self._marks: dict[str, list[float]] = {}
        self._before_sync: Update | None = None
        self._kl_coef = config.algorithm.kl_coef
        self._noise: Tensor | None = None  # of the step before, over its deviation
        self._prompts: list[str] = []  # of the step before
        self._stream: PlainPrompts | None = None
        self._reference_mark: int | None = None
        self._tap()

    # What passes by.

    def _tap(self) -> None:
        learner, trainer = self._learner, self._trainer
        mini_batches, reduce_metrics, lr, sync = (
            learner.mini_batches, learner.reduce_metrics, learner.lr, trainer.sync_weights
        )  # fmt: skip

        def seen_mini_batches(batch: Batch) -> Iterator[Tensor]:
            self._compare_marks("between")
            for rows in mini_batches(batch):
                self._updates.append(Update(rows.tolist()))
                yield rows

        def seen_metrics(shares: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
            metrics = reduce_metrics(shares)
            if self._updates:
                self._updates[-1].metrics = metrics
                if self._looks:
                    with self._spent.part("recomputed"):
                        self._snapshot(self._updates[-1])
            return metrics

        def seen_lr() -> float:
            rate = lr()
            if self._updates:
                self._updates[-1].lr = rate
            return rate

        def seen_sync(step: int) -> None:
            if self._looks:
                with self._spent.part("recomputed"):
                    self._before_sync = Update([])
                    self._snapshot(self._before_sync)
                    self._marks = self._mark()
            sync(step)

        tapped: Any = learner, trainer
        tapped[0].mini_batches, tapped[0].reduce_metrics, tapped[0].lr = seen_mini_batches, seen_metrics, seen_lr
        tapped[1].sync_weights = seen_sync

    def _snapshot(self, update: Update) -> None:
        adamw = self._learner.optimizer.adamw
        named = dict(self._learner.model.named_parameters())
        update.weights = {name: _double(each) for name, each in named.items()}
        update.wide = {name: _double(adamw.master.get(name, each)) for name, each in named.items()}
        update.first = {name: _double(each) for name, each in adamw.first.items()}
        update.second = {name: _double(each) for name, each in adamw.second.items()}
        update.gradients = {name: None if each.grad is None else _double(each.grad) for name, each in named.items()}

    def _mark(self) -> dict[str, list[float]]:
        """The norm of every tensor of the learner's state: cheap, and equal for equal bits."""
        adamw = self._learner.optimizer.adamw
        parts = {
            "policy": list(self._learner.parameters().values()),
            "first moments": list(adamw.first.values()),
            "second moments": list(adamw.second.values()),
        }
        norms = {name: torch._foreach_norm([each.detach() for each in tensors]) for name, tensors in parts.items()}
        return {name: torch.stack(list(each)).tolist() for name, each in norms.items()}

    def _compare_marks(self, when: str) -> None:
        """Whether weights and moments are what they were when they were last marked."""
        if not self._looks or not self._marks or self._skipped["state"]:
            return
        with self._spent.part("state"):
            self._seen["state"] += 1
            now = self._mark()
            changed = [name for name, norms in now.items() if not _equal(norms, self._marks[name])]
        if changed:
            self._fail("state", "state-changed", what=changed[0], when=when)

    def _fail(self, question: str, wrong: str, **details: Any) -> None:
        order = QUESTIONS[question]
        known = self._failed.get(question)
        if known is None or order.index(wrong) < order.index(known["wrong"]):
            self._failed[question] = {"wrong": wrong, **details}

    # The run.

    def on_start(self) -> None:
        """Held-out prompts against those of training, the reference against the policy, and where the prompts begin."""
        trainer, learner = self._trainer, self._learner
        self._start_skips()
        self._check_heldout()
        if not self._skipped["reference"]:
            with self._spent.part("reference"):
                reference = dict(learner.reference.named_parameters()) if learner.reference is not None else {}
                self._reference_mark = checksum(reference.items())
                if learner.steps_done == 0:
                    own = [(name, each) for name, each in learner.full_weights() if name in reference]
                    if (name := first_difference(own, reference)) is not None:
                        self._fail("reference", "reference-not-start", tensor=name, step=0)
        is_ready = trainer.prefetch is not None and trainer.prefetch.ready is not None
        self._stream = PlainPrompts.start(trainer, self._config)
        if is_ready:
            self._skipped["prompts"] = "the prompts of the first step were drawn before this process began"
        self._marks = {} if self._skipped["state"] else self._mark()

    def _start_skips(self) -> None:
        trainer, learner, skipped = self._trainer, self._learner, self._skipped
        skipped["heldout"] = None
        if skipped["prompts"] is not None:
            skipped["batch"] = None  # no setting decides what a batch holds
        if learner.is_sharded:
            for question in ("recomputed", "state", "reference"):
                skipped[question] = "the weights are sharded"
        rows = self._config.rollout.prompts_per_step * self._config.rollout.rollouts_per_prompt // trainer.world.size
        size = learner.num_parameters * rows * trainer.task.max_new_tokens * trainer.task.max_turns
        if size > _LARGEST:
            for question in ("recomputed", "state"):
                skipped[question] = skipped[question] or "the model is too large to be computed on the CPU in float64"
        if not isinstance(learner.model, Decoder):
            skipped["recomputed"] = skipped["recomputed"] or "the model is not the built-in decoder"
        if learner.reference is None:
            skipped["reference"] = skipped["reference"] or "the learner holds no reference policy"

    def on_step_start(self, step: int) -> None:
        """Whether this step is looked at: all until the first with different rewards, and the last."""
        self._updates, self._before_sync = [], None
        self._looks = not self._has_looked or step == self._config.run.steps
        self._compare_marks("between steps")

    def on_step(self, step: int, result: StepResult) -> None:
        """Holds the step against all questions."""
        self._check_prompts(step, result)
        with self._spent.part("batch"):
            self._check_batch(step, result)
        self._check_mini_batches(step, result.batch)
        with self._spent.part("schedules"):
            self._check_schedules(step, result)
        self._compare_marks("while the sampler got its weights")
        if self._looks:
            self._check_reference(step)
            rewards_PG = result.rewards_PG
            is_useful = bool(torch.isfinite(rewards_PG).all()) and bool((rewards_PG.amax(1) > rewards_PG.amin(1)).any())
            if any(self._trainer.world.gather(is_useful)):
                self._has_looked = True
                with self._spent.part("recomputed"):
                    self._recompute(step, result)
        if not self._skipped["state"]:
            with self._spent.part("state"):
                self._marks = self._mark()

    def on_end(self) -> None:
        """Writes what was found, on any rank."""
        found = self._trainer.world.gather(self._failed)
        for question in QUESTIONS:
            failed = next((each[question] for each in found if question in each), None)
            skipped, seen = self._skipped[question], self._seen[question]
            values: dict[str, Any] = {"passed": failed is None if failed or (seen and not skipped) else None}
            if values["passed"] is None:
                values["skipped"] = skipped or "no step could be held against it"
            if question == "recomputed":
                values["errors"] = self._errors
                if self._broken is not None and failed is None:
                    values |= {"passed": None, "skipped": None}
            reason = self._broken if question == "recomputed" else None
            spent = self._spent.seconds.get(question, 0.0)
            self._records.write(
                "stage", name=question, seconds=spent, reason=reason, steps=seen, **values, **(failed or {})
            )

    # The questions.

    def _check_heldout(self) -> None:
        """No held-out prompt is among those of training, unless both are the same list."""
        task = self._trainer.task
        train, heldout = ([each.tokens for each in some] for some in (task.train, task.heldout))
        self._seen["heldout"] = 1
        both = set(train) & set(heldout)
        if both and set(train) != set(heldout):
            self._fail("heldout", "heldout-overlaps", count=len(both), heldout=len(heldout))

    def _check_prompts(self, step: int, result: StepResult) -> None:
        """Each group's prompt is the one that was drawn for it."""
        if self._skipped["prompts"] or self._stream is None:
            return
        with self._spent.part("prompts"):
            trainer, self._seen["prompts"] = self._trainer, self._seen["prompts"] + 1
            num_draws = max(trainer.world.gather(max(1, result.num_drawn // trainer.num_prompts)))
            own = max(1, result.num_drawn // trainer.num_prompts)
            drawn = [self._stream.draw() for _ in range(num_draws)][:own]
            expected = [prompt for each in drawn for prompt in each[trainer.world.rank :: trainer.world.size]]
            actual = [group.prompt.text for group in result.groups]
            texts = iter(prompt.text for prompt in expected)
            may_lack = self._config.algorithm.dynamic_sampling or self._config.task.on_reward_error == "drop"
            is_right = all(text in texts for text in actual) and (may_lack or len(actual) == len(expected))
            if not is_right:
                texts_drawn = {prompt.text for prompt in expected}
                repeats = actual == self._prompts or (len(set(actual)) < min(len(actual), len(texts_drawn)))
                self._fail("prompts", "prompts-repeat" if repeats else "prompts-differ", step=step)
            self._prompts = actual

    def _check_batch(self, step: int, result: StepResult) -> None:
        """The tensors hold the tokens, prompts and probabilities of the rollouts, row by row."""
        self._seen["batch"] += 1
        batch, rollouts = result.batch, [(group.prompt, each) for group in result.groups for each in group.rollouts]
        dtype = batch.sampler_logprobs_BT.dtype
        width = batch.tokens_BT.shape[1]

        def is_same(found: Tensor, expected: list[list[Any]], kind: torch.dtype) -> bool:
            return len(found) == len(expected) and torch.equal(found.cpu(), torch.tensor(expected, dtype=kind))

        pad = self._trainer.task.tokenizer.pad
        answers = [[*each.tokens, *[pad] * (width - len(each.tokens))] for _, each in rollouts]
        probabilities = [[*each.logprobs, *[0.0] * (width - len(each.logprobs))] for _, each in rollouts]
        numbers, lengths = batch.prompt_of_B.tolist(), batch.prompt_lengths_P.tolist()
        prompts = batch.prompts_PS.tolist()
        what = None
        if len(numbers) != len(rollouts) or any(
            tuple(prompts[number][: lengths[number]]) != prompt.tokens
            for number, (prompt, _) in zip(numbers, rollouts, strict=False)
        ):
            what = "prompts"
        elif not is_same(batch.tokens_BT, answers, torch.int64):
            what = "tokens"
        elif batch.lengths_B.tolist() != [len(each.tokens) for _, each in rollouts]:
            what = "lengths"
        elif not is_same(batch.sampler_logprobs_BT, probabilities, dtype):
            what = "log-probabilities"
        if what is not None:
            self._fail("batch", "batch-differs", step=step, what=what)

    def _check_mini_batches(self, step: int, batch: Batch) -> None:
        """Together the mini batches have every row once."""
        if self._skipped["mini-batches"]:
            return
        self._seen["mini-batches"] += 1
        rows = [row for update in self._updates for row in update.rows]
        if sorted(rows) != list(range(len(batch.tokens_BT))):
            missing = len(set(range(len(batch.tokens_BT))) - set(rows))
            twice = len(rows) - len(set(rows))
            self._fail("mini-batches", "mini-batches-differ", step=step, missing=missing, twice=twice)

    def _check_schedules(self, step: int, result: StepResult) -> None:
        if self._skipped["schedules"]:
            return
        config, self._seen["schedules"] = self._config, self._seen["schedules"] + 1
        count = config.optim.mini_batches
        for number, update in enumerate(self._updates):
            expected = plain.learning_rate(config.optim, done=(step - 1) * count + number, steps=config.run.steps)
            if not _near(update.lr, expected, 1e-6 * config.optim.lr):
                self._fail("schedules", "lr-off-schedule", step=step, found=update.lr, expected=expected)
        self._check_kl_coef(step, result)
        if self._trainer.injection is not None:
            self._check_noise(step)

    def _check_kl_coef(self, step: int, result: StepResult) -> None:
        """The coefficient of the divergence: what was set, or what the controller makes of each step."""
        algorithm, logprobs = self._config.algorithm, result.logprobs
        if not _near(result.advantages.kl_coef, self._kl_coef, 1e-6 * self._kl_coef):
            details = {"found": result.advantages.kl_coef, "expected": self._kl_coef}
            self._fail("schedules", "kl-coef-off", step=step, **details)
        self._kl_coef = result.advantages.kl_coef
        old_BT, reference_BT = logprobs.old_BT, logprobs.reference_BT
        if (
            algorithm.kl_controller != "adaptive"
            or algorithm.kl_in != "reward"
            or old_BT is None
            or reference_BT is None
        ):
            return
        mask = result.batch.mask_BT.cpu()
        kl_BT = plain.divergence(algorithm.kl, _double(old_BT), _double(reference_BT), mask, algorithm.convention)
        sums = self._trainer.world.gather((float(kl_BT.sum()), int(mask.sum()), len(mask)))
        total, tokens, rows = (sum(each) for each in zip(*sums, strict=True))
        self._kl_coef = plain.adapted(self._kl_coef, algorithm, kl=total / max(1, tokens), rows=rows)

    def _check_noise(self, step: int) -> None:
        """The sampler's weights are off the learner's by the deviation that the schedule says, anew in each step."""
        expected = plain.noise_deviation(self._config.noise, step=step, steps=self._config.run.steps)
        sampled = self._trainer.engine.weights()
        pairs = [(_double(sampled[name]), _double(each)) for name, each in self._learner.full_weights()]
        apart = [(there - own).reshape(-1) for own, there in pairs if not torch.equal(own, there)]
        noise = torch.cat(apart) if apart else torch.zeros(0, dtype=torch.float64)
        found = float(noise.pow(2).mean().sqrt()) if len(noise) else 0.0
        room = 6 / math.sqrt(2 * max(1, len(noise))) + (0.05 if self._limits.clip > 1e-3 else 0.0)
        if abs(found - expected) > room * expected + 1e-12:
            self._fail("schedules", "noise-off-schedule", step=step, found=found, expected=expected)
        before, self._noise = self._noise, noise / found if found else None
        is_pair = before is not None and self._noise is not None and before.shape == self._noise.shape
        if is_pair and abs(float((before * self._noise).mean())) > 0.9:
            self._fail("schedules", "noise-repeats", step=step)

    def _check_reference(self, step: int) -> None:
        reference = self._learner.reference
        if self._skipped["reference"] or reference is None:
            return
        with self._spent.part("reference"):
            self._seen["reference"] += 1
            if checksum(reference.named_parameters()) != self._reference_mark:
                self._fail("reference", "reference-moved", step=step)

    # A step's arithmetic.

    def _recompute(self, step: int, result: StepResult) -> None:
        """A collective: every rank computes its rows, and all have the sums."""
        if self._skipped["recomputed"]:
            return
        own = self._attempt(lambda: self._inputs(result))
        everybody = self._trainer.world.gather(None if own is None else (own.raw[own.answers.mask_BT], own.masks))
        if own is None or any(each is None for each in everybody):
            return
        shares = self._attempt(lambda: self._judge_inputs(step, result, own, everybody))
        gathered = self._trainer.world.gather(shares)
        if any(each is None for each in gathered):
            return
        self._seen["recomputed"] += 1
        self._attempt(lambda: self._judge_updates(step, own, gathered))

    def _attempt(self, compute: Callable[[], Any]) -> Any:
        """Its result; None where there is no second opinion, for whatever reason: a run does not end for that."""
        try:
            return compute()
        except plain.Unknown as error:
            self._skipped["recomputed"] = str(error)
        except Exception as error:  # then it is not known whether the step was right
            self._broken = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return None

    def _inputs(self, result: StepResult) -> Inputs:
        algorithm, batch = self._config.algorithm, result.batch
        prompts = [group.prompt.tokens for group in result.groups for _ in group.rollouts]
        rollouts = [each for group in result.groups for each in group.rollouts]
        numbers = [number for number, group in enumerate(result.groups) for _ in group.rollouts]
        answers = plain.Answers(
            [(*prompt, *each.tokens) for prompt, each in zip(prompts, rollouts, strict=True)],
            [len(each) for each in prompts],
            batch.tokens_BT.cpu(),
            batch.mask_BT.cpu(),
            numbers,
            _double(batch.rewards_B),
            _double(batch.sampler_logprobs_BT),
        )
        logprobs = result.logprobs
        old_BT, reference_BT, values_BT = (
            None if each is None else _double(each)
            for each in (logprobs.old_BT, logprobs.reference_BT, logprobs.values_BT)
        )
        penalty_BT = None
        if algorithm.kl_in == "reward" and old_BT is not None and reference_BT is not None:
            kl_BT = plain.divergence(algorithm.kl, old_BT, reference_BT, answers.mask_BT, algorithm.convention)
            penalty_BT = result.advantages.kl_coef * kl_BT
        rewards = plain.token_rewards(answers, penalty_BT)
        raw = torch.tensor(plain.advantages(rewards, answers, algorithm, values_BT=values_BT), dtype=torch.float64)
        masks = [answers.mask_BT[sorted(update.rows)] for update in self._updates]
        return Inputs(answers, raw, masks, old_BT, reference_BT, _double(result.advantages.advantages_BT))

    def _judge_inputs(self, step: int, result: StepResult, own: Inputs, everybody: list[Any]) -> list[Share]:
        """Log-probabilities and advantages; this rank's share of the loss and its gradient, by optimizer step."""
        self._judge_logprobs(step, own)
        self._judge_advantages(step, own, everybody)
        shares = []
        for number, update in enumerate(self._updates):
            counts = plain.Counts.of(
                [masks[number] for _, masks in everybody], self._config.algorithm, longest=self._longest()
            )
            shares.append(self._share(update, own, counts, result.advantages.kl_coef))
        return shares

    def _longest(self) -> float:
        return self._trainer.task.max_new_tokens * self._trainer.task.max_turns

    def _judge_logprobs(self, step: int, own: Inputs) -> None:
        mask = own.answers.mask_BT
        with torch.no_grad():
            for question, wrong, found_BT, weights in (
                ("recomputed", "learner-logprobs-wrong", own.old_BT, self._updates[0].weights),
                ("reference", "reference-logprobs-wrong", own.reference_BT, self._reference_weights()),
            ):
                if found_BT is None or weights is None:
                    continue
                expected_BT = self._forward(weights, own.answers)[0]
                apart = float((found_BT - expected_BT)[mask].abs().mean())
                self._errors[wrong] = max(self._errors.get(wrong, 0.0), apart)
                if not apart <= self._limits.logprob_mean:
                    self._fail(question, wrong, step=step, error=apart)

    def _reference_weights(self) -> dict[str, Tensor] | None:
        reference = self._learner.reference
        return None if reference is None else {name: _double(each) for name, each in reference.named_parameters()}

    def _forward(self, weights: Mapping[str, Tensor], answers: plain.Answers) -> tuple[Tensor, Tensor]:
        settings, shape = self._config.model, self._learner.model.shape  # type: ignore[union-attr]
        if settings.lora_rank:
            weights = plain.merged(weights, alpha=settings.lora_alpha, rank=settings.lora_rank)
        return plain.logprobs(weights, shape, answers, temperature=self._config.rollout.temperature)

    def _judge_advantages(self, step: int, own: Inputs, everybody: list[Any]) -> None:
        algorithm, answers = self._config.algorithm, own.answers
        expected = own.raw
        if plain.is_whitened(algorithm):
            values = torch.cat([values for values, _ in everybody])
            expected = torch.where(answers.mask_BT, plain.whitened(own.raw, values), 0.0)
        room = self._room(answers)
        apart = torch.where(answers.mask_BT, (own.advantages_BT - expected).abs() - room[:, None], 0.0)
        scale = max(1.0, float(expected.abs().max()))
        self._errors["advantages-wrong"] = max(self._errors.get("advantages-wrong", 0.0), float(apart.max()) / scale)
        if not float(apart.max()) <= 2e-4 * scale:
            row, token = divmod(int(apart.argmax()), apart.shape[1])
            found = float(own.advantages_BT[row, token])
            details = {"found": found, "expected": float(expected[row, token]), "row": row, "token": token}
            self._fail("recomputed", "advantages-wrong", step=step, **details)

    def _room(self, answers: plain.Answers) -> Tensor:
        """What rounding may do to each row: rewards that are all but equal are divided by next to nothing."""
        groups, rewards = torch.tensor(answers.group_B), answers.rewards_B
        room = torch.zeros(len(rewards), dtype=torch.float64)
        for group in groups.unique():
            own = rewards[groups == group]
            spread = float(own.std(correction=0)) if len(own) > 1 else 1.0
            room[groups == group] = 1e-6 * float(own.abs().max()) / (spread + 1e-6)
        return room

    def _share(self, update: Update, own: Inputs, counts: plain.Counts, kl_coef: float) -> Share:
        trained = {name for name in update.gradients if name in self._trained()}
        weights = {name: each.clone().requires_grad_(name in trained) for name, each in update.weights.items()}
        whole = policy = 0.0
        for rows in self._in_parts(sorted(update.rows), own.answers):
            part = own.answers.rows(rows)
            now_BT, entropy_BT = self._forward(weights, part)
            loss, policy_loss = plain.loss(
                now_BT,
                entropy_BT,
                now_BT.detach() if own.old_BT is None else own.old_BT[rows],
                None if own.reference_BT is None else own.reference_BT[rows],
                own.advantages_BT[rows],
                part,
                self._config.algorithm,
                counts=counts,
                kl_coef=kl_coef,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            whole, policy = whole + float(loss.detach()), policy + float(policy_loss.detach())
        gradients = {name: weights[name].grad for name in trained if weights[name].grad is not None}
        return Share(whole, policy, gradients)  # type: ignore[arg-type]

    def _trained(self) -> set[str]:
        names = {name for name, _ in self._learner.model.named_parameters()}
        adapters = {name for name in names if ".lora_" in name}
        return adapters or names

    def _in_parts(self, rows: list[int], answers: plain.Answers) -> Iterator[list[int]]:
        """Rows whose logits and scores fit into memory together."""
        shape = self._learner.model.shape  # type: ignore[union-attr]
        length = max(len(each) for each in answers.sequences)
        size = max(1, _AT_ONCE // (length * max(shape.vocabulary, shape.heads * length)))
        return (rows[at : at + size] for at in range(0, len(rows), size))

    def _judge_updates(self, step: int, own: Inputs, shares: list[list[Share]]) -> None:
        after = [*self._updates[1:], self._before_sync]
        for number, (update, then) in enumerate(zip(self._updates, after, strict=True)):
            mine = [each[number] for each in shares]
            self._judge_loss(step, update, mine)
            expected = {
                name: sum(each.gradients[name] for each in mine if name in each.gradients) for name in mine[0].gradients
            }
            self._judge_gradient(step, update, mine[self._trainer.world.rank], expected)
            if then is not None:
                self._judge_optimizer(step, number, update, then)

    def _judge_loss(self, step: int, update: Update, mine: Sequence[Share]) -> None:
        for name, expected in (
            ("policy_loss", sum(each.policy_loss for each in mine)),
            ("loss", sum(each.loss for each in mine)),
        ):
            found = update.metrics.get(name, math.nan)
            apart = abs(found - expected) / max(1.0, abs(expected))
            self._errors["loss-wrong"] = max(self._errors.get("loss-wrong", 0.0), apart)
            if not apart <= self._limits.loss:
                self._fail("recomputed", "loss-wrong", step=step, what=name, found=found, expected=expected)

    def _judge_gradient(self, step: int, update: Update, own: Share, expected: Mapping[str, Tensor]) -> None:
        whole = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
        found = {name: update.gradients.get(name) for name in expected}
        floor = 1e-3 * whole
        missing = [
            name for name, each in found.items()
            if (each is None or not bool(each.any())) and float(expected[name].norm()) > floor
        ]  # fmt: skip
        zero = {name: torch.zeros_like(each) for name, each in expected.items()}
        actual = {name: zero[name] if each is None else each for name, each in found.items()}
        if not all(bool(torch.isfinite(each).all()) for each in actual.values()):
            return
        apart, worst, of_worst = _distance(actual, expected, floor)
        self._errors["gradient-wrong"] = max(self._errors.get("gradient-wrong", 0.0), apart)
        self._errors["tensor-wrong"] = max(self._errors.get("tensor-wrong", 0.0), of_worst)
        if apart <= self._limits.gradient and of_worst <= 10 * self._limits.gradient:
            return
        details = {"step": step, "error": apart, "tensor": worst}
        is_own = _distance(actual, own.gradients, floor)[0] <= self._limits.gradient
        if self._trainer.world.size > 1 and is_own:
            self._fail("recomputed", "gradients-not-summed", **details)
        elif missing:
            self._fail("recomputed", "gradient-missing", **{**details, "tensor": missing[0]}, count=len(missing))
        else:
            self._fail("recomputed", "gradient-wrong", **details)

    def _judge_optimizer(self, step: int, number: int, update: Update, then: Update) -> None:
        """The bound on the gradient's norm, and what AdamW makes of the gradient."""
        optim = self._config.optim
        present = {name: each for name, each in update.gradients.items() if each is not None and name in update.first}
        bounded, norm = plain.clipped(present, optim.grad_clip)
        if not math.isfinite(norm):
            return
        if then is self._before_sync:  # the optimizer's own are still there
            actual = {name: each for name in bounded if (each := then.gradients.get(name)) is not None}
            if actual.keys() == bounded.keys():
                apart = _distance(actual, bounded, 1e-3 * norm)[0]
                self._errors["clip-wrong"] = max(self._errors.get("clip-wrong", 0.0), apart)
                if not apart <= self._limits.clip:
                    self._fail("recomputed", "clip-wrong", step=step, error=apart, norm=norm)
                bounded = actual
        count = (step - 1) * optim.mini_batches + number + 1
        for name, gradient in bounded.items():
            weight = update.wide[name]
            expected = plain.adamw(
                weight, update.first[name], update.second[name], gradient,
                lr=update.lr, number=count, decay=optim.weight_decay,
            )  # fmt: skip
            moved, apart_each = (expected - weight).abs().max(), (then.wide[name] - expected).abs()
            room = 1e-2 * moved + 1e-6 * weight.abs()  # float32 rounds the weight itself
            share = float((apart_each / (room + 1e-30)).max())
            self._errors["optimizer-wrong"] = max(self._errors.get("optimizer-wrong", 0.0), share)
            if not share <= 1:
                self._fail("recomputed", "optimizer-wrong", step=step, tensor=name)
                return

    # Validation.

    def wrong_samples(self, samples: Sequence[Mapping[str, str]]) -> tuple[int, int]:
        """Of the answers that a record of an evaluation shows: how many were computed again, how many differ.

        `samples` are evenly spread over the held-out prompts. Answers whose likeliest token is a matter of rounding are
        left out.
        """
        task, model, config = self._trainer.task, self._learner.model, self._config
        is_exact = self._limits.clip <= 1e-3 and config.rollout.engine == "builtin"
        is_possible = not self._skipped["recomputed"] and task.environment is None and isinstance(model, Decoder)
        if not is_exact or not is_possible or not samples:
            return 0, 0
        with self._spent.part("validation"), torch.no_grad():
            weights = {name: _double(each) for name, each in model.named_parameters()}
            if config.model.lora_rank:
                weights = plain.merged(weights, alpha=config.model.lora_alpha, rank=config.model.lora_rank)
            stride = -(-len(task.heldout) // len(samples)) if len(samples) < len(task.heldout) else 1
            checked = differ = 0
            for at, sample in zip(range(0, len(task.heldout), stride), samples, strict=False):
                answer = plain.greedy(
                    weights, model.shape, task.heldout[at].tokens,
                    end=task.tokenizer.end, longest=task.max_new_tokens, margin=1e-3,
                )  # fmt: skip
                if answer is not None:
                    checked += 1
                    differ += task.tokenizer.decode(answer) != sample["answer"]
        return checked, differ


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the loss of a rank's step is made from; floats in float64, [B, T]."""

    answers: plain.Answers
    raw: Tensor  # advantages as recomputed, before whitening
    masks: list[Tensor]  # of each mini batch
    old_BT: Tensor | None
    reference_BT: Tensor | None
    advantages_BT: Tensor  # the step's own


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of an optimizer step, recomputed."""

    loss: float
    policy_loss: float
    gradients: dict[str, Tensor]


@dataclass(slots=True)
class PlainPrompts:
    """The prompts of each step of all ranks, from the run's seed alone, or from where a resumed run goes on."""

    prompts: Sequence[Prompt]
    count: int
    generator: torch.Generator
    by_epoch: bool
    left: list[int] = field(default_factory=list)

    @classmethod
    def start(cls, trainer: Trainer, config: Config) -> PlainPrompts:
        generator, count = torch.Generator().manual_seed(config.run.seed), config.rollout.prompts_per_step
        made = cls(trainer.task.train, count, generator, bool(config.run.epochs) and count <= len(trainer.task.train))
        if trainer.learner.steps_done:
            state = trainer.prompts.state()
            generator.set_state(state["prompts_random"].cpu())
            if made.by_epoch:
                made.left = made._order()[int(state["prompts_taken"]) :]
        return made

    def draw(self) -> list[Prompt]:
        if self.by_epoch and len(self.left) < self.count:
            self.left = self._order()
        numbers = self.left if self.by_epoch else self._order()
        while len(numbers) < self.count:
            numbers = numbers + self._order()
        self.left = numbers[self.count :] if self.by_epoch else []
        return [self.prompts[number] for number in numbers[: self.count]]

    def _order(self) -> list[int]:
        return torch.randperm(len(self.prompts), generator=self.generator).tolist()  # type: ignore[no-any-return]


def _unknown_settings(config: Config) -> str | None:
    """The first setting without a formula; None: there is none."""
    known = set(_KNOWN.split())
    for section in (config.algorithm, config.optim, config.rollout):
        for each in fields(section):
            if each.name not in known and getattr(section, each.name) != each.default:
                return f"{each.name}={getattr(section, each.name)}"
    return None


def _double(tensor: Tensor) -> Tensor:
    return local(tensor).detach().to("cpu", torch.float64, copy=True)


def _near(found: float, expected: float, room: float) -> bool:
    return abs(found - expected) <= room + 1e-12


def _equal(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(left, right, strict=True))


def _distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float) -> tuple[float, str, float]:
    """How far apart all tensors together are over their length; the worst of them, and how far that one is."""
    whole = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
    apart = {name: float((found[name] - each).norm()) for name, each in expected.items()}
    share = {name: each / (float(expected[name].norm()) + floor) for name, each in apart.items()}
    worst = max(share, key=lambda name: share[name] if share[name] == share[name] else math.inf)
    return math.sqrt(sum(each * each for each in apart.values())) / (whole + 1e-30), worst, share[worst]
