"""Holds a run against a second opinion: prompts, answers, batches, schedules, reference, state, a step's arithmetic.

What is cheap is asked of every step, of batches every tenth. `recompute` looks at two: the first whose rewards differ,
and the last. A question that cannot be asked says why in its record; what cannot be answered is unknown.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer.metrics import second_opinion as plain
from trainer.metrics.checks import first_difference
from trainer.metrics.records import one_line
from trainer.metrics.step import Observer
from trainer.models.decoder import Decoder
from trainer.rollouts import compute_rewards, reward_limit_s
from trainer.saving.checkpoint import difference
from trainer.stages.evidence import Results, Tap, double, first_other_mark, marks, whole_state
from trainer.stages.recompute import Recompute
from trainer.types import Stop
from trainer.weights import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.metrics.records import Records
    from trainer.metrics.step import StepResult
    from trainer.trainer import Trainer
    from trainer.types import Group, Rollout

# Numbers of the model times tokens of a step: beyond that a step in float64 on the CPU would take minutes.
_LARGEST = 5_000_000_000
# Steps after which a batch is held against its rollouts again: for a small model that is a hundredth of a step.
_BATCH_EVERY = 10
# Steps whose rewards are computed again: that may be costly.
_MOST_SCORED = 2
# Groups of a step whose answers get rewards for another prompt too.
_MOST_SWAPPED = 8
# A chance of 1 in 10^13, as a logarithm.
_UNLIKELY = -30.0
# Settings of three sections that the second opinion has formulas for, and what is not asked with another one off its
# default.
_KNOWN = """
    convention estimator scale_by_std gamma lam mask_truncated loss clip_low clip_high dual_clip aggregation
    kl kl_in kl_coef kl_controller kl_target kl_horizon entropy_coef dynamic_sampling max_generations
    overlong_buffer overlong_factor correction correction_cap correction_floor correction_bound
    lr lr_schedule warmup_steps weight_decay grad_clip mini_batches ppo_epochs micro_batch_rows critic_lr value_clip
    warm_start_steps warm_start_lr warm_start_until
    engine prompts_per_step rollouts_per_prompt temperature top_p top_k script tensor_parallel memory_fraction
    enforce_eager weight_sync sleep generators off_policy max_staleness bucket_mib generator_timeout_s
"""
_UNASKED = {
    "algorithm": ("recomputed", "samples", "reference"),
    "optim": ("recomputed", "samples", "mini-batches", "schedules"),
    "rollout": ("recomputed", "samples", "prompts"),
}


class SecondLook(Observer):
    """Follows one run beside `Watch`, and before it in the list of observers; writes the stages of `QUESTIONS`."""

    def __init__(self, trainer: Trainer, config: Config, records: Records) -> None:
        self._trainer, self._config, self._records = trainer, config, records
        self._learner, self._results = trainer.learner, Results()
        self._tap = Tap(trainer, self._results.spent, on_update=lambda: self._compare_marks("before the update"))
        self._recompute = Recompute(trainer, config, self._results, self._tap)
        self._looks, self._has_looked = False, False  # at this step, and at any
        self._marks: dict[str, list[float]] = {}
        self._kl_coef = config.algorithm.kl_coef
        self._noise: Tensor | None = None  # of the step before, over its deviation
        self._prompts: list[str] = []  # of the step before
        self._drawn: plain.Prompts | None = None
        self._order = torch.Generator().manual_seed(config.run.seed)  # of groups in mini batches
        self._num_scored = 0  # steps whose rewards were computed again
        self._counted: dict[str, float] = {}  # what the record of this step should say
        self._follow_records()
        self._reference_mark: int | None = None
        self._skip()

    def _skip(self) -> None:
        """Which questions are not asked of this run, and why."""
        trainer, learner, config, skip = self._trainer, self._learner, self._config, self._results.skip
        for section, questions in _UNASKED.items():
            skip(questions, _unknown_setting(getattr(config, section)))
        if learner.is_sharded:
            skip(("recomputed", "samples", "state", "reference"), "the weights are sharded")
        rows = config.rollout.prompts_per_step * config.rollout.rollouts_per_prompt // trainer.world.size
        size = learner.num_parameters * rows * trainer.task.max_new_tokens * trainer.task.max_turns
        if size > _LARGEST:
            skip(("recomputed", "samples", "state"), "the model is too large to be computed in float64 on the CPU")
        if not isinstance(learner.model, Decoder):
            skip(("recomputed", "samples"), "the model is not the built-in decoder")
        is_other = not self._recompute.limits.is_exact or config.rollout.engine not in ("builtin", "transformers")
        if self._recompute.is_cut and (is_other or config.rollout.off_policy or config.noise.noise_stages):
            skip(("recomputed", "samples"), "which tokens are among those of top_p or top_k differs from the sampler's")
        if learner.reference is None:
            skip(("reference",), "the learner holds no reference policy")

    def _follow_records(self) -> None:
        """Has each step's record checked as it is written."""
        write = self._records.write

        def seen_write(kind: str, **values: Any) -> None:
            write(kind, **values)
            if kind == "step":
                self._ask("recomputed", lambda: self._check_record(values))

        tapped: Any = self._records
        tapped.write = seen_write

    def _asks(self, question: str) -> bool:
        return self._results.skipped[question] is None

    # The run.

    def on_start(self) -> None:
        """Held-out prompts against those of training, the reference against the policy; where prompts and state are."""
        self._check_heldout()
        if self._asks("reference"):
            self._check_start()
        trainer, seed, count = self._trainer, self._config.run.seed, self._config.rollout.prompts_per_step
        by_epoch = bool(self._config.run.epochs) and count <= len(trainer.task.train)
        self._drawn = plain.Prompts(trainer.task.train, count, torch.Generator().manual_seed(seed), by_epoch)
        if self._learner.global_step:
            self._go_on(self._drawn)
        if self._asks("state"):
            self._marks = marks(trainer)

    def _go_on(self, drawn: plain.Prompts) -> None:
        """A resumed run's prompts and coefficient go on from its checkpoint."""
        trainer, self._kl_coef = self._trainer, self._learner.kl_coef
        self._order.set_state(self._learner.generator.get_state())
        state = trainer.prompts.state()
        drawn.generator.set_state(state["prompts_random"].cpu())
        if drawn.by_epoch:
            drawn.left = drawn.order()[int(state["prompts_taken"]) :]
        if trainer.prefetch is not None and trainer.prefetch.ready is not None:
            self._results.skip(("prompts",), "prompts were drawn before this process began")

    def on_step_start(self, step: int) -> None:
        """Whether this step is looked at."""
        self._looks = self._looks_at(step)
        # Copies take several times the memory of the weights.
        self._tap.begin(looks=self._looks and (self._asks("recomputed") or self._asks("state")))
        self._compare_marks("between two steps")

    def _looks_at(self, step: int) -> bool:
        return not self._has_looked or step == self._config.run.steps

    def on_step(self, step: int, result: StepResult) -> None:
        """Holds the step against all questions."""
        self._ask("prompts", lambda: self._check_prompts(step, result))
        self._counted = {}
        if self._looks or step % _BATCH_EVERY == 0:
            self._counted = self._count(result)
            self._ask("batch", lambda: self._check_batch(step, result))
            self._ask("batch", lambda: self._check_rewards(step, result))
        self._ask("mini-batches", lambda: self._check_mini_batches(step, result))
        self._ask("schedules", lambda: self._check_schedules(step, result))
        self._ask("recomputed", lambda: self._check_means(step, result))
        if self._looks:
            self._look(step, result)
        self._tap.looks = False
        if self._asks("state") and self._looks_at(step + 1):
            with self._results.spent.phase("state"):
                self._marks = marks(self._trainer)

    def _look(self, step: int, result: StepResult) -> None:
        self._ask("state", self._check_synced)
        self._ask("reference", lambda: self._check_reference(step))
        self._ask("samples", lambda: self._check_rows(step, result))
        self._ask("samples", lambda: self._check_ends(step, result))
        rewards_PG = result.rewards_PG
        is_useful = bool(torch.isfinite(rewards_PG).all()) and bool((rewards_PG.amax(1) > rewards_PG.amin(1)).any())
        if any(self._trainer.world.gather(is_useful)):
            if not self._has_looked:
                self._ask("samples", lambda: self._check_samples(step, result))
                self._ask("batch", lambda: self._check_rewards_of_others(step, result))
            self._has_looked = True
            self._ask("recomputed", lambda: self._recompute.run(step, result))

    def _ask(self, question: str, check: Callable[[], None]) -> None:
        """Asks a question; an error leaves it open, and the run goes on."""
        if not self._asks(question):
            return
        with self._results.spent.phase(question):
            try:
                check()
            except Exception as error:
                self._results.broken[question] = one_line(error)

    def on_end(self) -> None:
        """Writes what was found, on any rank."""
        self._results.write(self._records, self._trainer.world)

    # The questions.

    def _check_heldout(self) -> None:
        """No held-out prompt is among those of training, unless both are the same list."""
        task = self._trainer.task
        train, heldout = ({each.tokens for each in some} for some in (task.train, task.heldout))
        self._results.asked["heldout"] += 1
        if train & heldout and train != heldout:
            self._results.fail("heldout", "heldout-overlaps", count=len(train & heldout), heldout=len(heldout))

    def _check_start(self) -> None:
        """A new run's reference is the policy as it is; any run's stays what it is now."""
        learner, reference = self._learner, dict(self._learner.reference.named_parameters())  # type: ignore[union-attr]
        with self._results.spent.phase("reference"):
            self._reference_mark = fingerprint(reference.items())
            if learner.global_step == 0:
                # Adapters have to be merged; else the weights themselves, not what is sent of them.
                named = learner.full_weights() if self._config.model.lora_rank else learner.model.named_parameters()
                own = [(name, each) for name, each in named if name in reference]
                if (name := first_difference(own, reference)) is not None:
                    self._results.fail("reference", "reference-not-start", tensor=name)

    def _check_reference(self, step: int) -> None:
        self._results.asked["reference"] += 1
        if fingerprint(self._learner.reference.named_parameters()) != self._reference_mark:  # type: ignore[union-attr]
            self._results.fail("reference", "reference-moved", step=step)

    def _check_prompts(self, step: int, result: StepResult) -> None:
        """Each group's prompt is the one that was drawn for it."""
        assert self._drawn is not None
        trainer, algorithm = self._trainer, self._config.algorithm
        self._results.asked["prompts"] += 1
        own = max(1, result.num_generated // trainer.num_prompts)
        drawn = [self._drawn.draw() for _ in range(max(trainer.world.gather(own)))][:own]
        expected = [prompt.text for each in drawn for prompt in each[trainer.world.rank :: trainer.world.size]]
        actual, texts = [group.prompt.text for group in result.groups], iter(expected)
        may_lack = algorithm.dynamic_sampling or self._config.task.on_reward_error == "drop"
        if not all(text in texts for text in actual) or not (may_lack or len(actual) == len(expected)):
            repeats = actual == self._prompts or len(set(actual)) < min(len(actual), len(set(expected)))
            self._results.fail("prompts", "prompts-repeat" if repeats else "prompts-differ", step=step)
        self._prompts = actual

    def _check_rows(self, step: int, result: StepResult) -> None:
        """Not all answers of each group are the same, if the engine's own log-probabilities make that unlikely."""
        groups = [group.rollouts for group in result.groups]
        if self._config.rollout.engine == "scripted" or any(len({each.tokens for each in some}) > 1 for some in groups):
            return
        log_chance = sum((len(some) - 1) * sum(some[0].logprobs) for some in groups)
        if log_chance < _UNLIKELY:
            self._results.fail("samples", "rows-repeat", step=step, expected=log_chance / math.log(10))

    def _check_ends(self, step: int, result: StepResult) -> None:
        """Each answer ends at its first end token, or at the longest length without one."""
        task, is_own = self._trainer.task, self._config.rollout.engine in ("builtin", "transformers")
        end, longest = task.tokenizer.end, task.max_new_tokens
        if not is_own or end is None or task.environment is not None:
            return
        count = 0
        for each in (rollout for group in result.groups for rollout in group.rollouts):
            is_ended = each.tokens[-1:] == (end,) and each.stop is Stop.END
            is_longest = len(each.tokens) == longest and each.stop is Stop.LENGTH
            count += end in each.tokens[:-1] or not (is_ended or (is_longest and each.tokens[-1] != end))
        if count:
            self._results.fail("samples", "answers-cut", step=step, count=count)

    def _check_samples(self, step: int, result: StepResult) -> None:
        """Asked twice for answers to the same prompts, the engine gives others."""
        trainer, engine = self._trainer, self._trainer.engine
        is_builtin = self._config.rollout.engine in ("builtin", "transformers") and trainer.remote is None
        mixed = sum(len({each.tokens for each in group.rollouts}) > 1 for group in result.groups)
        if not is_builtin or trainer.task.environment is not None or mixed < 2:
            return
        self._results.asked["samples"] += 1
        state, prompts = engine.random_state().clone(), [group.prompt.tokens for group in result.groups]
        once, again = ([[each.tokens for each in group] for group in engine.generate(prompts, trainer.sampling())]
                       for _ in range(2))  # fmt: skip
        engine.restore_random_state(state)
        if once == again and sum(len(set(group)) > 1 for group in once) > 1:
            self._results.fail("samples", "samples-repeat", step=step)

    def _check_batch(self, step: int, result: StepResult) -> None:
        """The tensors hold the tokens, prompts and log-probabilities of the rollouts, row by row."""
        self._results.asked["batch"] += 1
        batch, rollouts = result.batch, [(group.prompt, each) for group in result.groups for each in group.rollouts]
        width, pad = batch.tokens_BT.shape[1], self._trainer.task.tokenizer.pad
        answers = [[*each.tokens, *[pad] * (width - len(each.tokens))] for _, each in rollouts]
        logprobs = [[*each.logprobs, *[0.0] * (width - len(each.logprobs))] for _, each in rollouts]
        lengths, prompts = batch.prompt_lengths_P.tolist(), batch.prompts_PS.tolist()
        found = {
            "prompts": [tuple(prompts[number][: lengths[number]]) for number in batch.prompt_of_B.tolist()]
            == [prompt.tokens for prompt, _ in rollouts],
            "tokens": batch.tokens_BT.tolist() == answers,
            "mask": self._is_masked(batch.mask_BT, [each for _, each in rollouts]),
            "lengths": batch.lengths_B.tolist() == [len(each.tokens) for _, each in rollouts],
            "log-probabilities": torch.equal(
                batch.rollout_logprobs_BT.cpu(), torch.tensor(logprobs, dtype=batch.rollout_logprobs_BT.dtype)
            ),
        }  # fmt: skip
        if (what := next((name for name, is_right in found.items() if not is_right), None)) is not None:
            self._results.fail("batch", "batch-differs", step=step, what=what)

    def _is_masked(self, mask_BT: Tensor, rollouts: Sequence[Rollout]) -> bool:
        """Whether the mask is on the model's own tokens of all answers that count, but for those rejected."""
        algorithm, width = self._config.algorithm, mask_BT.shape[1]
        expected_BT = torch.zeros(mask_BT.shape, dtype=torch.bool)
        for row, each in enumerate(rollouts):
            if not (algorithm.mask_truncated and each.stop is Stop.LENGTH):
                own = each.response_mask or (True,) * len(each.tokens)
                expected_BT[row] = torch.tensor([*own, *[False] * (width - len(own))])
        mask_BT = mask_BT.cpu()
        return bool((mask_BT <= expected_BT).all()) if algorithm.rejection else torch.equal(mask_BT, expected_BT)

    def _check_rewards(self, step: int, result: StepResult) -> None:
        """The rewards are those of each answer to its own prompt; a function of the user's is not called again."""
        config, rewards = self._config, result.rewards_PG.reshape(-1).tolist()
        if config.task.reward_function or self._num_scored == _MOST_SCORED:
            return
        self._num_scored += 1
        self._compare_rewards(step, result.groups, rewards)

    def _check_rewards_of_others(self, step: int, result: StepResult) -> None:
        """What an answer gets hangs on its prompt: the next prompt's answers get theirs beside its own."""
        config, groups = self._config, result.groups[:_MOST_SWAPPED]
        # Where each answer has a process of its own, that is costly.
        if config.task.reward_function or self._trainer.task.environment is not None or reward_limit_s(config) is None:
            return
        swapped = [replace(group, rollouts=group.rollouts + other.rollouts)
                   for group, other in zip(groups, [*groups[1:], groups[0]], strict=True)]  # fmt: skip
        config = replace(config, task=replace(config.task, on_reward_error="drop"))
        rewards_PG = compute_rewards(swapped, task=self._trainer.task, config=config, device=self._trainer.device)
        if bool(torch.isfinite(rewards_PG).all()):  # else the reward broke, which the step itself shows
            self._compare_rewards(step, swapped, rewards_PG.reshape(-1).tolist())

    def _compare_rewards(self, step: int, groups: Sequence[Group], rewards: Sequence[float]) -> None:
        config = self._config
        pairs = [(group.prompt, each) for group in groups for each in group.rollouts]
        num_compared, problem = 0, ""
        for row, ((prompt, rollout), found) in enumerate(zip(pairs, rewards, strict=True)):
            try:
                expected = plain.reward(self._trainer.task, prompt, rollout, config.algorithm)
            except Exception as error:  # one row may, as in the step itself; of none, nothing is known
                problem = one_line(error)
                continue
            num_compared += 1
            if not abs(found - expected) <= 1e-6 * max(1.0, abs(expected)):
                details = {"found": found, "expected": expected, "row": row}
                self._results.fail("batch", "rewards-wrong", step=step, **details)
                return
        if problem and not num_compared:
            self._results.broken["batch"] = problem

    def _check_mini_batches(self, step: int, result: StepResult) -> None:
        """Together the mini batches have every row once in each epoch, and so have the forward passes of each.

        Their groups are in the order that the run's seed gives.
        """
        self._results.asked["mini-batches"] += 1
        every, optim = range(len(result.batch.tokens_BT)), self._config.optim
        epochs, usual = optim.ppo_epochs, self._trainer.num_prompts
        sizes = [len(group.rollouts) for group in result.groups]
        expected = plain.mini_batches(sizes, optim, usual=usual, generator=self._order)
        if [sorted(update.rows) for update in self._tap.updates] != expected:
            self._results.fail("mini-batches", "order-differs", step=step)
        for name in ("rows", "passes"):
            rows = [row for update in self._tap.updates for row in getattr(update, name)]
            if sorted(rows) != sorted([*every] * epochs):
                missing, twice = len({*every} - set(rows)), max(0, len(rows) - epochs * len(set(rows)))
                self._results.fail("mini-batches", "mini-batches-differ", step=step, missing=missing, twice=twice)

    def _check_schedules(self, step: int, result: StepResult) -> None:
        self._results.asked["schedules"] += 1
        optim, steps = self._config.optim, self._config.run.steps
        for number, update in enumerate(self._tap.updates):
            done = (step - 1) * optim.mini_batches * optim.ppo_epochs + number
            expected = plain.learning_rate(optim, done=done, steps=steps)
            if not abs(update.lr - expected) <= 1e-6 * optim.lr:
                self._results.fail("schedules", "lr-off-schedule", step=step, found=update.lr, expected=expected)
        self._check_kl_coef(step, result)
        if self._trainer.injection is not None:
            self._check_noise(step)

    def _check_means(self, step: int, result: StepResult) -> None:
        """The numbers of a step are the means over its optimizer steps; maxima stay, the rate is the last one."""
        updates, is_same = [each.metrics for each in self._tap.updates], partial(math.isclose, rel_tol=1e-6)
        expected = {"lr": self._tap.updates[-1].lr}
        for name in updates[-1]:
            values = [each[name] for each in updates]
            if not all(map(math.isfinite, values)):
                continue
            expected[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        for name, value in expected.items():
            found = getattr(result.update, name, value)  # some are combined to others
            if not is_same(found, value):
                self._results.fail("recomputed", "metrics-wrong", step=step, what=name, found=found, expected=value)

    def _count(self, result: StepResult) -> dict[str, float]:
        """What the record of a step should say, of all ranks; a collective."""
        rewards = result.rewards_PG.reshape(-1).tolist()
        credit = result.advantages.advantages_BT[result.batch.mask_BT].tolist()
        found: dict[str, list[float]] = {}
        for own in self._trainer.world.gather(plain.counted(result.groups, rewards, credit)):
            for name, value in own.items():
                found.setdefault(name, []).append(value)
        mean = {name: sum(values) / len(values) for name, values in found.items()}
        most = {name: max(values) for name, values in found.items() if name.endswith("/max")}
        return mean | most | {name: min(values) for name, values in found.items() if name.endswith("/min")}

    def _check_record(self, record: Mapping[str, Any]) -> None:
        room = 1e-4 if self._recompute.limits.is_exact else 0.02
        for name, value in self._counted.items():
            found, quantity = record.get(name, math.nan), name.rpartition("/")[0]
            # A mean may be near 0 though its values are large.
            largest = max(abs(self._counted.get(f"{quantity}/{each}", 0.0)) for each in ("max", "min"))
            if math.isfinite(value) and not abs(found - value) <= room * max(1.0, abs(value), largest):
                details = {"what": name, "found": found, "expected": value}
                self._results.fail("recomputed", "metrics-wrong", step=record["step"], **details)

    def _check_kl_coef(self, step: int, result: StepResult) -> None:
        """The coefficient of the divergence: what was set, or what the controller makes of each step."""
        algorithm, logprobs, found = self._config.algorithm, result.logprobs, result.advantages.kl_coef
        if not abs(found - self._kl_coef) <= 1e-6 * self._kl_coef:
            self._results.fail("schedules", "kl-coef-off", step=step, found=found, expected=self._kl_coef)
        self._kl_coef, old_BT, reference_BT = found, logprobs.old_BT, logprobs.reference_BT
        is_adaptive = algorithm.kl_controller == "adaptive" and algorithm.kl_in == "reward"
        if not is_adaptive or old_BT is None or reference_BT is None:
            return
        mask = result.batch.mask_BT.cpu()
        kl_BT = plain.divergence(algorithm.kl, double(old_BT), double(reference_BT), mask, algorithm.convention)
        sums = self._trainer.world.gather((float(kl_BT.sum()), int(mask.sum()), len(mask)))
        total, tokens, rows = (sum(each) for each in zip(*sums, strict=True))
        self._kl_coef = plain.adapted(found, algorithm, kl=total / max(1, tokens), rows=rows)

    def _check_noise(self, step: int) -> None:
        """The engine's weights are off the learner's by the deviation that the schedule says, anew in each step."""
        expected = plain.noise_deviation(self._config.noise, step=step, steps=self._config.run.steps)
        sampled = self._trainer.engine.weights()
        pairs = [(double(sampled[name]), double(each)) for name, each in self._learner.full_weights()]
        apart = [(noisy - own).reshape(-1) for noisy, own in pairs if not torch.equal(noisy, own)]
        noise = torch.cat(apart) if apart else torch.zeros(1, dtype=torch.float64)
        found = float(noise.pow(2).mean().sqrt())
        # Six deviations of what so many random numbers have; bfloat16 rounds them too.
        room = min(0.5, 6 / math.sqrt(2 * len(noise)) + (0.0 if self._recompute.limits.is_exact else 0.1))
        if not abs(found - expected) <= room * expected + 1e-12:
            self._results.fail("schedules", "noise-off-schedule", step=step, found=found, expected=expected)
        before, self._noise = self._noise, noise / found if found else None
        is_pair = before is not None and self._noise is not None and before.shape == self._noise.shape
        if is_pair and abs(float((before * self._noise).mean())) > 0.9:  # type: ignore[operator]
            self._results.fail("schedules", "noise-repeats", step=step)

    # The state.

    def _compare_marks(self, when: str) -> None:
        """Whether weights and moments are what they were when they were last marked."""
        if self._tap.looks and self._marks:
            with self._results.spent.phase("state"):
                self._results.asked["state"] += 1
                if (what := first_other_mark(marks(self._trainer), self._marks)) is not None:
                    self._results.fail("state", "state-changed", what=what, when=when)

    def _check_synced(self) -> None:
        """The learner's weights are what they were before the engine got them."""
        now = {name: double(each) for name, each in self._learner.model.named_parameters()}
        before = self._tap.after.weights if self._tap.after is not None else {}
        if any(not torch.equal(now[name], each) for name, each in before.items()):
            self._results.fail("state", "state-changed", what="weights", when="while the sampler got them")

    def check_restored(self, twin: Trainer) -> None:
        """A trainer that was restored from a checkpoint is in the state of the one that was saved."""
        if not self._asks("state"):
            return
        with self._results.spent.phase("state"):
            name = difference(_numbered(whole_state(self._trainer)), _numbered(whole_state(twin)))
        if name is not None:
            self._results.fail("state", "restore-incomplete", what=name.partition("/")[0])

    def wrong_samples(self, samples: Sequence[Mapping[str, str]]) -> tuple[int, int]:
        """Of the answers in a record of an evaluation: how many were computed again, how many differ."""
        is_exact = self._recompute.limits.is_exact and self._config.rollout.engine == "builtin"
        if not is_exact or not self._asks("recomputed") or self._trainer.task.environment is not None:
            return 0, 0
        return self._recompute.wrong_samples(samples)


def _numbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with tuples as mappings, as checkpoints have them."""
    return {name: dict(enumerate(value)) if isinstance(value, tuple) else value for name, value in state.items()}


def _unknown_setting(section: Any) -> str | None:
    """The first setting without a formula; None: there is none."""
    known = set(_KNOWN.split())
    for each in fields(section):
        if each.name not in known and getattr(section, each.name) != each.default:
            return f"it has no formula for {each.name}={getattr(section, each.name)}"
    return None
