"""The arithmetic of a step against a second opinion: log-probabilities, advantages, loss, gradient, update, critic.

Each link is judged on the inputs that it really got: the advantages on the rewards of the batch, the loss on those
advantages, the gradient on that loss, the optimizer on that gradient. So what is wrong is found where it is, and what
follows from it is not blamed. The formulas are those of `metrics.second_opinion` and `metrics.plain_decoder`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trainer.metrics import plain_decoder
from trainer.metrics import second_opinion as plain
from trainer.metrics.records import one_line
from trainer.stages.evidence import double
from trainer.weights import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.metrics.step import StepResult
    from trainer.stages.evidence import Results, Tap, Update
    from trainer.trainer import Trainer

# Logits or scores of attention at once, as numbers.
_AT_ONCE = 1 << 23
# What sums in float32 may lose of all that is added, and numbers of fewer bits.
_SUMMED = 1e-5
_NARROW = (torch.bfloat16, torch.float16)
# Rows of which it is looked up whether they answer another prompt.
_NUM_MISPLACED = 4


# Of gaps between two log-probabilities of a token, of which one has the rounding of the run.
_OF_GAPS = ("logprob_diff_mean", "rollout_kl", "rollout_kl_direct")
_FEWEST_TOKENS = 64  # over which the roundings of bfloat16 average out


@dataclass(frozen=True, slots=True)
class Limits:
    """How far float64 and the run may be apart: small healthy runs are 1,000 times closer, in bfloat16 10 times."""

    is_exact: bool
    logprob: float  # in the mean, in nats
    loss: float  # absolute and, beyond 1, relative
    gradient: float  # the distance over the length; of a single tensor ten times that
    clip: float

    @classmethod
    def of(cls, config: Config) -> Limits:
        run = config.run
        if run.dtype in ("float32", "float64") and run.matmul_precision == "highest":
            return cls(True, 1e-4, 1e-5, 2e-3, 1e-4)
        return cls(False, 0.05, 0.05, 0.3, 0.02)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the loss of a rank's step is made from; floats in float64, [B, T]."""

    answers: plain_decoder.Answers
    raw: Tensor  # advantages as recomputed, before whitening
    masks: list[Tensor]  # of each mini batch
    old_BT: Tensor | None
    reference_BT: Tensor | None
    values_BT: Tensor | None
    advantages_BT: Tensor  # the step's own


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of an optimizer step, recomputed."""

    parts: dict[str, float]  # of the loss
    gradients: dict[str, Tensor]


class Recompute:
    """Recomputes a step that a `Tap` has copied."""

    def __init__(self, trainer: Trainer, config: Config, results: Results, tap: Tap) -> None:
        self._trainer, self._config, self._results, self._tap = trainer, config, results, tap
        self._learner, self.limits = trainer.learner, Limits.of(config)
        self.is_cut = config.rollout.top_p < 1 or config.rollout.top_k > 0

    def run(self, step: int, result: StepResult) -> None:
        """A collective: every rank computes its rows, and all have the sums."""
        gather = self._trainer.world.gather
        own = self._attempt(lambda: self._inputs(result))
        everybody = gather(None if own is None else (own.raw[own.answers.mask_BT], own.masks))
        if own is None or any(each is None for each in everybody):
            self._agree_to_skip()
            return
        shares = self._attempt(lambda: self._judge_inputs(step, result, own, everybody))
        gathered = gather(shares)
        if any(each is None for each in gathered):
            self._agree_to_skip()
            return
        self._results.asked["recomputed"] += 1
        self._attempt(lambda: self._judge_updates(step, gathered, result))

    def _agree_to_skip(self) -> None:
        """What one rank cannot recompute is not asked on any: the next time, the others would wait for it."""
        for reason in self._trainer.world.gather(self._results.skipped["recomputed"]):
            self._results.skip(("recomputed",), reason)

    def _attempt(self, compute: Callable[[], Any]) -> Any:
        """Its result; None where there is no second opinion, for whatever reason: a run does not end for that."""
        try:
            return compute()
        except (plain.Unknown, plain_decoder.TooClose) as error:
            self._results.skip(("recomputed",), str(error))
        except Exception as error:  # then it is not known whether the step was right
            self._results.broken["recomputed"] = one_line(error)
        return None

    def _inputs(self, result: StepResult) -> Inputs:
        algorithm, batch, logprobs = self._config.algorithm, result.batch, result.logprobs
        pairs = [(number, group.prompt.tokens, each) for number, group in enumerate(result.groups)
                 for each in group.rollouts]  # fmt: skip
        answers = plain_decoder.Answers(
            [(*prompt, *each.tokens) for _, prompt, each in pairs],
            [len(prompt) for _, prompt, _ in pairs],
            batch.tokens_BT.cpu(),
            batch.mask_BT.cpu(),
            [number for number, _, _ in pairs],
            double(batch.rewards_B),
            double(batch.rollout_logprobs_BT),
        )
        known = logprobs.old_BT, logprobs.reference_BT, logprobs.values_BT
        old_BT, reference_BT, values_BT = (None if each is None else double(each) for each in known)
        penalty_BT = None
        if algorithm.kl_in == "reward" and old_BT is not None and reference_BT is not None:
            kl_BT = plain.divergence(algorithm.kl, old_BT, reference_BT, answers.mask_BT, algorithm.convention)
            penalty_BT = result.advantages.kl_coef * kl_BT
        rewards = plain.token_rewards(answers, penalty_BT)
        raw = torch.tensor(plain.advantages(rewards, answers, algorithm, values_BT=values_BT), dtype=torch.float64)
        masks = [answers.mask_BT[sorted(update.rows)] for update in self._tap.updates]
        own_BT = double(result.advantages.advantages_BT)
        return Inputs(answers, raw, masks, old_BT, reference_BT, values_BT, own_BT)

    def _judge_inputs(self, step: int, result: StepResult, own: Inputs, everybody: list[Any]) -> list[Share]:
        """Log-probabilities and advantages; this rank's share of the loss and its gradient, by optimizer step."""
        self._judge_logprobs(step, result, own)
        self._judge_advantages(step, own, everybody)
        if own.values_BT is not None and self._tap.critic is not None:
            self._judge_critic(step, result, own, self._tap.critic)
        if self.is_cut:  # other weights may not draw a token that was drawn: how it counts then is the run's own matter
            raise plain.Unknown("it has no formula for the loss with top_p or top_k")
        shares = []
        for number, update in enumerate(self._tap.updates):
            masks = [of_rank[number] for _, of_rank in everybody]
            counts = plain.Counts.of(masks, self._config.algorithm, longest=self._longest())
            shares.append(self._share(step, update, own, counts, result.advantages.kl_coef))
        return shares

    def _longest(self) -> float:
        return self._trainer.task.max_new_tokens * self._trainer.task.max_turns

    # Log-probabilities.

    @torch.no_grad()
    def _judge_logprobs(self, step: int, result: StepResult, own: Inputs) -> None:
        results, mask, limit = self._results, own.answers.mask_BT, self.limits.logprob
        expected_BT = self._forward(self._tap.updates[0].weights, own.answers)[0]

        def gap(name: str, found_BT: Tensor | None, wanted_BT: Tensor) -> float:
            return 0.0 if found_BT is None else results.measure(name, float((found_BT - wanted_BT)[mask].abs().mean()))

        def is_rounded(found_BT: Tensor | None) -> bool:
            return found_BT is not None and _is_rounded(found_BT[mask])

        if not (error := gap("learner", own.old_BT, expected_BT)) <= limit or is_rounded(own.old_BT):
            results.fail("recomputed", "learner-logprobs-wrong", step=step, error=error)
        if self._learner.reference is not None and own.reference_BT is not None and not self.is_cut:
            weights = {name: double(each) for name, each in self._learner.reference.named_parameters()}
            wanted_BT = self._forward(weights, own.answers)[0]
            if not (error := gap("reference", own.reference_BT, wanted_BT)) <= limit or is_rounded(own.reference_BT):
                results.fail("reference", "reference-logprobs-wrong", step=step, error=error)
        rollout = self._config.rollout
        if rollout.engine == "builtin" and is_rounded(own.answers.rollout_BT):
            error = gap("sampler", own.answers.rollout_BT, expected_BT)
            results.fail("samples", "sampler-logprobs-wrong", step=step, error=error)
        is_same = self.limits.is_exact and rollout.engine in ("builtin", "transformers") and not rollout.off_policy
        if is_same and not self._config.noise.noise_stages:
            results.asked["samples"] += 1
            error = gap("sampler", own.answers.rollout_BT, expected_BT)
            if not error <= limit:
                results.fail("samples", self._why_far(own, expected_BT), step=step, error=error)

    def _samples_with_other_weights(self) -> bool:
        """Whether the engine's weights are not the learner's; its log-probabilities may then be theirs."""
        if self._config.model.lora_rank or self._trainer.remote is not None:
            return False
        sampled = self._trainer.engine.weights()
        own = dict(self._learner.model.named_parameters())
        return any(name in own and not same_bits(each, own[name]) for name, each in sampled.items())

    def _why_far(self, own: Inputs, expected_BT: Tensor) -> str:
        """Why the engine's log-probabilities are not those of the learner's weights."""
        if self._samples_with_other_weights():
            return "sampler-weights-failed"
        rollout_BT, is_episode = own.answers.rollout_BT, self._trainer.task.environment is not None
        # What an environment says has the log-probability 0.
        sampled = own.answers.mask_BT & (rollout_BT != 0)
        if is_episode and float((rollout_BT - expected_BT)[sampled].abs().mean()) <= self.limits.logprob:
            return "mask-on-observations"
        return "answers-misplaced" if self._are_misplaced(own) else "sampler-logprobs-wrong"

    def _are_misplaced(self, own: Inputs) -> bool:
        """Whether the engine's log-probabilities are those of answers to another prompt of the step."""
        answers, weights = own.answers, self._tap.updates[0].weights
        prompts = dict.fromkeys(
            row[:length] for row, length in zip(answers.sequences, answers.prompt_lengths, strict=True)
        )
        found = []
        for row in range(min(_NUM_MISPLACED, len(answers.sequences))):
            one = answers.rows([row])
            length, gaps = one.prompt_lengths[0], []
            for prompt in prompts:
                sequence = (*prompt, *one.sequences[0][length:])
                moved = replace(one, sequences=[sequence], prompt_lengths=[len(prompt)])
                apart_BT = (self._forward(weights, moved)[0] - one.rollout_BT).abs()
                gaps.append(float(apart_BT[one.mask_BT].mean()))
            found.append(min(gaps) <= self.limits.logprob)
        return all(found)

    def _forward(self, weights: Mapping[str, Tensor], answers: plain_decoder.Answers) -> tuple[Tensor, Tensor]:
        return plain_decoder.logprobs(self._merged(weights), self._shape, answers, self._config.rollout)

    def _merged(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        settings = self._config.model
        if not settings.lora_rank:
            return weights
        return plain_decoder.merged(weights, alpha=settings.lora_alpha, rank=settings.lora_rank)

    @property
    def _shape(self) -> Any:
        return self._learner.model.shape

    # Advantages and the critic.

    def _judge_advantages(self, step: int, own: Inputs, everybody: list[Any]) -> None:
        answers, expected = own.answers, own.raw
        if plain.is_whitened(self._config.algorithm):
            values = torch.cat([values for values, _ in everybody])
            expected = torch.where(answers.mask_BT, plain.whitened(own.raw, values), 0.0)
        apart = (own.advantages_BT - expected).abs() - _rounding(answers)[:, None]
        apart = torch.where(answers.mask_BT, apart, 0.0).clamp(min=0)
        scale = max(1.0, float(expected.abs().max()))
        if not self._results.measure("advantages", float(apart.max()) / scale) <= 2e-4:
            row, token = divmod(int(apart.argmax()), apart.shape[1])
            found, wanted = float(own.advantages_BT[row, token]), float(expected[row, token])
            self._results.fail("recomputed", "advantages-wrong", step=step, found=found, expected=wanted, row=row)

    def _judge_critic(self, step: int, result: StepResult, own: Inputs, before: Update) -> None:
        """Its values, their targets, and what its optimizer step makes of them."""
        results, mask, limit = self._results, own.answers.mask_BT, self.limits
        old_BT, returns_BT = own.values_BT, result.advantages.returns_BT
        assert old_BT is not None and returns_BT is not None
        returns_BT, after = double(returns_BT), self._tap.of_critic()
        weights = {name: each.clone().requires_grad_() for name, each in before.weights.items()}
        body = {name.removeprefix("decoder."): each for name, each in weights.items()}
        values_BT = plain_decoder.values(body, weights["score"], self._shape, own.answers)
        loss = plain.value_loss(values_BT, old_BT, returns_BT, mask, clip=self._config.optim.value_clip)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: each.grad for name, each in weights.items() if each.grad is not None}
        bounded, norm = plain.clipped(gradients, self._config.optim.grad_clip)
        actual = {name: each for name in bounded if (each := after.gradients[name]) is not None}
        room = limit.logprob * 10
        far = {
            "values": float((values_BT.detach() - old_BT)[mask].abs().mean()) / room,
            "returns": float((torch.where(mask, own.raw + old_BT, 0.0) - returns_BT)[mask].abs().max()) / room,
            "loss": abs(float(loss.detach()) - result.update.value_loss) / limit.loss,
            "gradient": math.inf if actual.keys() != bounded.keys()
            else _distance(actual, bounded, 1e-3 * norm)[0] / limit.gradient,
            "update": max(
                self._far_from_adamw(before, after, name, each, lr=self._config.optim.critic_lr, number=step)
                for name, each in actual.items()
            ),
        }  # fmt: skip
        results.measure("critic", max(far.values()))
        if (what := next((name for name, each in far.items() if not each <= 1), None)) is not None:
            results.fail("recomputed", "critic-wrong", step=step, what=what)

    # The updates.

    def _share(self, step: int, update: Update, own: Inputs, counts: plain.Counts, kl_coef: float) -> Share:
        trained, all_now_BT = self._trained(), torch.full_like(own.advantages_BT, math.nan)
        weights = {name: each.clone().requires_grad_(name in trained) for name, each in update.weights.items()}
        sums: dict[str, float] = {}
        for rows in self._in_parts(sorted(update.rows), own.answers):
            part = own.answers.rows(rows)
            now_BT, entropy_BT = self._forward(weights, part)
            all_now_BT[rows] = now_BT.detach()
            parts = plain.loss(
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
            parts["loss"].backward()  # type: ignore[no-untyped-call]
            sums = {name: sums.get(name, 0.0) + float(each.detach()) for name, each in parts.items()}
        self._judge_passes(step, update, own.answers.mask_BT, all_now_BT)
        gradients = {name: each for name in trained if (each := weights[name].grad) is not None}
        return Share(sums, gradients)

    def _judge_passes(self, step: int, update: Update, mask_BT: Tensor, expected_BT: Tensor) -> None:
        """The log-probabilities that the loss was made of; `expected_BT` is NaN in rows of other updates."""
        mask_BT, gaps = mask_BT & ~expected_BT.isnan(), [torch.zeros(0, dtype=torch.float64)]
        for rows, found_BT in update.logprobs:
            width = found_BT.shape[1]
            gaps.append((found_BT - expected_BT[rows, :width])[mask_BT[rows, :width]].abs())
        if len(gap := torch.cat(gaps)) >= (1 if self.limits.is_exact else _FEWEST_TOKENS):
            error = self._results.measure("learner in the update", float(gap.mean()))
            if not error <= self.limits.logprob:
                self._results.fail("recomputed", "learner-logprobs-wrong", step=step, error=error)

    def _trained(self) -> list[str]:
        """The names of the weights that learn: the adapters, or all."""
        names = [name for name, _ in self._learner.model.named_parameters()]
        return [name for name in names if ".lora_" in name] or names

    def _in_parts(self, rows: list[int], answers: plain_decoder.Answers) -> Iterator[list[int]]:
        """Rows whose logits and scores fit into memory together."""
        length = max(len(each) for each in answers.sequences)
        size = max(1, _AT_ONCE // (length * max(self._shape.vocabulary, self._shape.heads * length)))
        return (rows[at : at + size] for at in range(0, len(rows), size))

    def _judge_updates(self, step: int, shares: list[list[Share]], result: StepResult) -> None:
        updates, norms = self._tap.updates, []
        for number, (update, then) in enumerate(zip(updates, [*updates[1:], self._tap.after], strict=True)):
            mine = [each[number] for each in shares]
            names = dict.fromkeys(name for each in mine for name in each.gradients)
            expected = {name: _total(each.gradients.get(name) for each in mine) for name in names}
            is_right = self._judge_gradient(step, update, mine[self._trainer.world.rank], expected)
            self._judge_loss(step, update, mine, is_right=is_right)
            if then is not None:
                norms.append(self._judge_optimizer(step, number, update, then))
        found = result.update.grad_norm
        if self.limits.is_exact and len(norms) == len(updates) and math.isfinite(found):
            expected_norm = sum(norms) / len(norms)
            if not abs(found - expected_norm) <= 1e-3 * expected_norm + 1e-9:
                details = {"what": "grad_norm", "found": found, "expected": expected_norm}
                self._results.fail("recomputed", "metrics-wrong", step=step, **details)

    def _judge_loss(self, step: int, update: Update, mine: Sequence[Share], *, is_right: bool) -> None:
        """The loss, its parts and what is reported; where the gradient is right, only the record of them is wrong."""
        for name in dict.fromkeys(name for each in mine for name in each.parts):
            found, expected = update.metrics.get(name, math.nan), sum(each.parts.get(name, 0.0) for each in mine)
            is_part = name in ("loss", "policy_loss", "entropy", "kl")
            # An engine may not say its log-probabilities.
            if not is_part and not (self.limits.is_exact and math.isfinite(expected)):
                continue
            if name in _OF_GAPS and math.isinf(found):
                continue
            apart = self._results.measure(name, abs(found - expected) / max(1.0, abs(expected)))
            if not apart <= (self.limits.logprob if name in _OF_GAPS else self.limits.loss):
                is_recorded = is_right or name not in ("loss", "policy_loss")
                wrong = "metrics-wrong" if is_recorded else "loss-wrong"
                self._results.fail("recomputed", wrong, step=step, what=name, found=found, expected=expected)

    def _judge_gradient(self, step: int, update: Update, own: Share, expected: Mapping[str, Tensor]) -> bool:
        """Whether it is that of the loss, as exactly as can be seen."""
        algorithm = self._config.algorithm
        if algorithm.kl == "abs" and algorithm.kl_in == "loss" and algorithm.kl_coef:
            return False  # where policy and reference agree, rounding decides on the sign of its gradient
        floor = 1e-3 * math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
        found = {name: update.gradients.get(name) for name in expected}
        actual = {name: torch.zeros_like(expected[name]) if each is None else each for name, each in found.items()}
        if not all(bool(torch.isfinite(each).all()) for each in actual.values()):
            return False
        matter = [name for name, each in expected.items() if float(each.norm()) > floor]
        missing = [name for name in matter if not bool(actual[name].any())]
        left_out = [name for name in matter if name not in missing and name not in update.first]
        if left_out:  # nobody sets their gradients to 0 before a step: of those nothing can be said
            self._results.fail("recomputed", "optimizer-wrong", step=step, tensor=left_out[0])
            return False
        apart, worst, of_worst = _distance(actual, expected, floor)
        self._results.measure("gradient", apart)
        self._results.measure("gradient of a tensor", of_worst)
        limit = self.limits.gradient
        if missing:
            self._results.fail("recomputed", "gradient-missing", step=step, tensor=missing[0], count=len(missing))
        elif not (apart <= limit and of_worst <= 10 * limit):
            is_own = self._trainer.world.size > 1 and _distance(actual, own.gradients, floor)[0] <= limit
            wrong = "gradients-not-summed" if is_own else "gradient-wrong"
            self._results.fail("recomputed", wrong, step=step, error=apart, tensor=worst)
        elif (unsummed := _unsummed(update, getattr(torch, self._config.run.dtype))) is not None:
            self._results.fail("recomputed", "gradient-wrong", step=step, error=apart, tensor=unsummed)
        return self.limits.is_exact and not missing and apart <= 1e-5

    def _judge_optimizer(self, step: int, number: int, update: Update, then: Update) -> float:
        """The bound on the gradient's norm, and what AdamW makes of the gradient; the norm."""
        optim = self._config.optim
        present = {name: each for name, each in update.gradients.items() if each is not None and name in update.first}
        bounded, norm = plain.clipped(present, optim.grad_clip)
        if not math.isfinite(norm):
            return norm
        if then is self._tap.after:  # the gradient that the optimizer has used is still there
            actual = {name: each for name in bounded if (each := then.gradients.get(name)) is not None}
            if actual.keys() == bounded.keys():
                apart = self._results.measure("clip", _distance(actual, bounded, 1e-3 * norm)[0])
                if not apart <= self.limits.clip:
                    self._results.fail("recomputed", "clip-wrong", step=step, error=apart, norm=norm)
                bounded = actual
        count = (step - 1) * optim.mini_batches * optim.ppo_epochs + number + 1
        for name, gradient in bounded.items():
            far = self._far_from_adamw(update, then, name, gradient, lr=update.lr, number=count)
            if not self._results.measure("optimizer", far) <= 1:
                self._results.fail("recomputed", "optimizer-wrong", step=step, tensor=name)
                break
        return norm

    def _far_from_adamw(
        self, before: Update, after: Update, name: str, gradient: Tensor, *, lr: float, number: int
    ) -> float:
        """How far a tensor is from where AdamW takes it, over what rounding may do."""
        weight, decay = before.wide[name], self._config.optim.weight_decay
        moments = before.first[name], before.second[name]
        expected = plain.adamw(weight, *moments, gradient, lr=lr, number=number, decay=decay)
        room = 1e-2 * (expected - weight).abs().max() + 1e-6 * weight.abs() + 1e-30
        return float(((after.wide[name] - expected).abs() / room).max())

    # Validation.

    @torch.no_grad()
    def wrong_samples(self, samples: Sequence[Mapping[str, str]]) -> tuple[int, int]:
        """Of the answers in a record of an evaluation: how many were computed again, how many are not the weights'.

        `samples` are evenly spread over the held-out prompts. Answers whose likeliest token is a matter of rounding are
        left out.
        """
        task = self._trainer.task
        weights = self._merged({name: double(each) for name, each in self._learner.model.named_parameters()})
        stride = max(1, -(-len(task.heldout) // max(1, len(samples))))
        checked = differ = 0
        for prompt, sample in zip(task.heldout[::stride], samples, strict=False):
            answer = plain_decoder.greedy(
                weights, self._shape, prompt.tokens,
                end=task.tokenizer.end, longest=task.max_new_tokens, margin=1e-3,
            )  # fmt: skip
            if answer is not None:
                checked += 1
                differ += (sample["prompt"], sample["answer"]) != (prompt.text, task.tokenizer.decode(answer))
        return checked, differ


def _rounding(answers: plain_decoder.Answers) -> Tensor:
    """What rounding may do to the advantages of each row: rewards all but equal are divided by next to nothing."""
    groups, rewards = torch.tensor(answers.group_B), answers.rewards_B
    room = torch.zeros(len(rewards), dtype=torch.float64)
    for group in sorted(set(answers.group_B)):
        own = rewards[groups == group]
        spread = float(own.std(correction=0)) if len(own) > 1 else 1.0
        room[groups == group] = 1e-6 * float(own.abs().max()) / (spread + 1e-6)
    return room


def _unsummed(update: Update, dtype: torch.dtype) -> str | None:
    """The first tensor whose gradient is not the sum of what the passes add to it, rounded to `dtype` once."""
    for name, total in update.shares.items():
        found = update.gradients.get(name)
        room = torch.finfo(dtype).eps * total.abs() + _SUMMED * update.sizes[name]
        if found is not None and float(((found - total).abs() > room).double().mean()) > 0.01:
            return name
    return None


def _is_rounded(values: Tensor) -> bool:
    """Whether enough numbers all have the few bits of bfloat16 or of float16."""
    values = torch.unique(values[values != 0])
    return len(values) >= 16 and any(bool((values.to(dtype).double() == values).all()) for dtype in _NARROW)


def _total(parts: Iterator[Tensor | None]) -> Tensor:
    present = [each for each in parts if each is not None]
    return torch.stack(present).sum(dim=0)


def _distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float) -> tuple[float, str, float]:
    """How far apart all tensors together are over their length; the worst of them, and how far that one is."""
    length = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
    apart = {name: float((found[name] - each).norm()) for name, each in expected.items()}
    share = {name: each / (float(expected[name].norm()) + floor + 1e-30) for name, each in apart.items()}
    worst = max(share, key=lambda name: share[name] if share[name] == share[name] else math.inf)
    return math.sqrt(sum(each * each for each in apart.values())) / (length + 1e-30), worst, share[worst]
