"""The trained policy: recomputes log-probabilities, takes optimizer steps, provides its weights.

A batch is cut into mini batches of complete groups (one optimizer step each) and those into micro batches of rows (one
forward pass each). Sums are divided by counts of the complete mini batch, so the gradient does not depend on the second
cut, unless a setting selects tokens of each forward pass (`entropy_share`, the losses `clip_cov` and `kl_cov`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.algorithms.advantages import Advantages, EstimatorInputs, Settings
from trainer.algorithms.conventions import CONVENTIONS, Rejection
from trainer.algorithms.estimators import next_kl_coef, whitened_and_clipped
from trainer.algorithms.losses import LossSettings, Totals, aggregate, count, divergence, policy_loss
from trainer.algorithms.optimizer import Optimizer, learning_rate
from trainer.algorithms.packing import select
from trainer.algorithms.policy_losses import importance_weights, learns, rejection_mask
from trainer.algorithms.update_metrics import MAXIMA, token_metrics
from trainer.config import load_function
from trainer.distributed import World, gathered, is_sharded, local, put
from trainer.models import lora
from trainer.registry import AGGREGATIONS, ESTIMATORS, LOSSES, find
from trainer.sections import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainer.config import Config
    from trainer.models.critic import Critic
    from trainer.models.decoder import Model
    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class ForwardOutputs:
    """Old, reference and value outputs for a batch, [B, T], before the first optimizer step; None: not needed."""

    old_BT: Tensor | None  # None: one optimizer step, so the old policy is the present one, and is computed anyway
    reference_BT: Tensor | None
    values_BT: Tensor | None
    sum_pi_squared_BT: Tensor | None = None  # of the old policy, the sum over the vocabulary of squared probabilities

    def take(self, rows: Tensor, width: int) -> ForwardOutputs:
        """Of some rows, no wider than `width`."""
        parts = (self.old_BT, self.reference_BT, self.values_BT)
        return ForwardOutputs(*(None if part is None else part[rows, :width] for part in parts))


@dataclass(frozen=True, slots=True)
class StepAdvantages(Advantages):
    """Advantages and their inputs."""

    rewards_after_kl_B: Tensor  # of each answer, less the divergence from the reference if it is part of the reward
    kl_coef: float  # the coefficient of the divergence in this step, in the loss or in the reward


class Learner:
    """Owns the policy, its frozen reference, the critic if there is one, moments, and the order of groups.

    Without a reference, if the divergence counts, its log-probabilities are passed in: see `compute_logprobs`.
    """

    def __init__(
        self,
        model: Model,
        reference: Model | None,
        config: Config,
        *,
        seed: int,
        critic: Critic | None = None,
        world: World | None = None,
        longest_answer: int | None = None,
    ) -> None:
        """`longest_answer`: tokens that the model may say in one answer, over all turns; None: it is not known."""
        self.model, self.critic, self._world = model, critic, world or World.single()
        self.reference = reference.requires_grad_(False) if reference is not None else None
        self._config, self.dtype = config, getattr(torch, config.run.dtype)
        self.is_sharded = any(is_sharded(each) for each in model.parameters())  # each rank holds its rows alone
        self.optimizer = Optimizer.start(
            model.named_parameters(), weight_decay=config.optim.weight_decay, add=self._world.all_reduce_sum
        )
        algorithm = config.algorithm
        self._loss_settings = LossSettings(
            low=algorithm.clip_low,
            high=algorithm.clip_high,
            dual=algorithm.dual_clip or None,
            tau_pos=algorithm.tau_pos,
            tau_neg=algorithm.tau_neg,
            cov_ratio=algorithm.cov_ratio,
            clip_cov_low=algorithm.clip_cov_low,
            clip_cov_high=algorithm.clip_cov_high,
            kl_cov_coef=algorithm.kl_cov_coef,
        )
        self._convention, self._longest_answer = CONVENTIONS[algorithm.convention], longest_answer
        fixed = AGGREGATIONS.get(algorithm.loss)
        if algorithm.loss == "gspo":
            fixed = self._convention.gspo_aggregation
        self._policy_mode = fixed or algorithm.aggregation
        estimator, loss = algorithm.estimator, algorithm.loss
        self._estimator = load_function("estimator", estimator) if is_own(estimator) else find(ESTIMATORS, estimator)
        self._policy_loss = load_function("loss", loss) if is_own(loss) else find(LOSSES, loss)
        self._rejections = Rejection.of(algorithm.rejection, algorithm.rejection_threshold)
        self.kl_coef = algorithm.kl_coef  # changes if the controller is adaptive
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def grad_clip(self) -> float:
        """The largest norm of a step's gradients."""
        return self._config.optim.grad_clip

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps done so far."""
        return self.optimizer.optimizer_steps

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def global_step(self) -> int:
        """Rollout batches learnt so far."""
        return self.optimizer_steps // self._config.optim.optimizer_steps_per_batch

    def parameters(self) -> dict[str, Tensor]:
        """What this rank holds of each weight of the model, by reference."""
        return {name: local(each) for name, each in self.model.named_parameters()}

    def weights(self) -> Mapping[str, Tensor]:
        """The weights for an engine, under transformers' names, with adapters merged.

        By reference if nothing is sharded; else a complete copy, and a collective.
        """
        return dict(self.full_weights())

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """`weights` one after the other: of a sharded model no more than one is gathered at a time. A collective."""
        if self._config.model.lora_rank:
            return lora.each_merged(self.model, partial(gathered, dtype=self.dtype))
        if not self.is_sharded:
            return self.model.named_parameters()
        return ((name, gathered(each, self.dtype)) for name, each in self.model.named_parameters())

    def lr(self) -> float:
        """The learning rate of the next optimizer step."""
        optim = self._config.optim
        total = self._config.run.steps * optim.optimizer_steps_per_batch
        return optim.lr * learning_rate(optim.lr_schedule, self.optimizer_steps, total, warmup=optim.warmup_steps)

    @torch.no_grad()
    def compute_logprobs(self, batch: Batch, reference_BT: Tensor | None = None) -> ForwardOutputs:
        """Old, reference and value outputs for a batch, before its first optimizer step.

        `reference_BT` are the log-probabilities of a reference in another process. Raises ValueError if they are
        missing.
        """
        algorithm = self._config.algorithm
        if reference_BT is not None:
            reference_BT = reference_BT.to(batch.rollout_logprobs_BT)
        elif self.reference is not None:
            reference_BT = self._logprobs(self.reference, batch)
        elif self._config.reference_at == "generators":
            raise ValueError("no generator has said what its reference policy says of these answers")
        needs_sum_pi_squared = algorithm.estimator == "optimal_token_baseline"
        needs_old = (
            needs_sum_pi_squared or self._config.optim.optimizer_steps_per_batch > 1 or algorithm.kl_in == "reward"
        )
        return ForwardOutputs(
            old_BT=self._logprobs(self.model, batch) if needs_old or self._rejections else None,
            reference_BT=reference_BT,
            values_BT=self.critic.values(batch) if self.critic is not None else None,
            sum_pi_squared_BT=self._logprobs(self.model, batch, of_squares=True) if needs_sum_pi_squared else None,
        )

    def reject(self, batch: Batch, logprobs: ForwardOutputs) -> Batch:
        """The batch without the tokens on which learner and engine are too far apart; their rewards count."""
        if not self._rejections or logprobs.old_BT is None:
            return batch
        mask_BT = rejection_mask(
            logprobs.old_BT, batch.rollout_logprobs_BT, batch.mask_BT, self._convention, self._rejections
        )
        return replace(batch, mask_BT=mask_BT)

    @torch.no_grad()
    def compute_advantages(self, batch: Batch, logprobs: ForwardOutputs) -> StepAdvantages:
        """Advantages of every token, from the rewards and the outputs of a critic or the reference."""
        algorithm, coef, rewards_B = self._config.algorithm, self.kl_coef, batch.rewards_B
        add = self._world.all_reduce_sum
        # An episode may end with an observation: the reward is on the last token of the model.
        places_T = torch.arange(batch.mask_BT.shape[1], device=batch.mask_BT.device)
        last_B1 = torch.where(batch.mask_BT, places_T, 0).amax(dim=1, keepdim=True)
        token_rewards_BT = torch.zeros_like(batch.rollout_logprobs_BT).scatter(1, last_B1, rewards_B.unsqueeze(1))
        if algorithm.kl_in == "reward" and logprobs.old_BT is not None and logprobs.reference_BT is not None:
            kl_BT = divergence(
                algorithm.kl, logprobs.old_BT, logprobs.reference_BT, self._convention, mask_BT=batch.mask_BT
            )
            token_rewards_BT = token_rewards_BT - coef * kl_BT
            rewards_B = token_rewards_BT.sum(dim=1)
            if algorithm.kl_controller == "adaptive":
                self.kl_coef = next_kl_coef(algorithm, coef, kl_BT, batch.mask_BT, add=add)
        inputs = EstimatorInputs(
            token_rewards_BT,
            batch.mask_BT,
            batch.prompt_of_B,
            values_BT=logprobs.values_BT,
            logprobs_BT=logprobs.old_BT,
            sum_pi_squared_BT=logprobs.sum_pi_squared_BT,
            baselines_B=batch.baselines_B,
            parts_BK=batch.parts_BK,
        )
        settings = Settings(
            algorithm.scale_by_std,
            algorithm.gamma,
            algorithm.lam,
            add,
            scale_by_batch=algorithm.scale_by_batch,
            part_weights=self._config.task.part_weights,
        )
        result = self._estimator(inputs, self._convention, settings=settings)
        if algorithm.whiten_advantages or algorithm.advantage_clip:
            result = whitened_and_clipped(
                result,
                batch.mask_BT,
                self._convention,
                is_whitened=algorithm.whiten_advantages,
                limit=algorithm.advantage_clip,
                add=add,
            )
        return StepAdvantages(result.advantages_BT, result.returns_BT, rewards_B, coef)

    def update_critic(self, batch: Batch, logprobs: ForwardOutputs, advantages: Advantages) -> float:
        """Takes the critic's optimizer steps; its loss, 0 without a critic."""
        if self.critic is None or logprobs.values_BT is None or advantages.returns_BT is None:
            return 0.0
        return self.critic.update(batch, logprobs.values_BT, advantages.returns_BT)

    def _logprobs(self, model: Model, batch: Batch, *, of_squares: bool = False) -> Tensor:
        """Log-probabilities [B, T] of a complete batch, micro batch by micro batch; or the sums of squares."""
        temperature, size = self._config.rollout.temperature, self._config.optim.micro_batch_rows

        def of(micro_batch: Batch) -> Tensor:
            output = model.token_logprobs(
                micro_batch, temperature=temperature, with_entropy=False, with_sum_pi_squared=of_squares
            )
            found = output.logprobs_BT if output.sum_pi_squared_BT is None else output.sum_pi_squared_BT
            return found.to(logprobs_BT.dtype)

        logprobs_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        if not size or (size >= len(logprobs_BT) and not self.is_sharded):
            return of(batch)
        all_rows = torch.arange(len(logprobs_BT), device=logprobs_BT.device)
        micro_batches = list(torch.split(all_rows, size))
        if self.is_sharded:  # every pass is a collective: a rank with fewer rows computes its first one again
            num_passes = int(self._world.all_reduce_max(all_rows.new_tensor(len(micro_batches))))
            micro_batches += [all_rows[:1]] * (num_passes - len(micro_batches))
        for rows in micro_batches:
            micro_batch = select(batch, rows)
            logprobs_BT[rows, : micro_batch.tokens_BT.shape[1]] = of(micro_batch)
        return logprobs_BT

    def split_mini_batches(self, batch: Batch) -> Iterator[Tensor]:
        """Row numbers of each mini batch: complete groups in a new random order; sizes differ by one group at most.

        All of them `ppo_epochs` times, in another order each time.
        Missing groups draw random numbers too: with dynamic sampling the ranks may have different numbers of groups.
        """
        num_groups, usual = len(batch.prompts_PS), self._config.rollout.prompts_per_step // self._world.size
        prompt_of_B = batch.prompt_of_B.cpu()
        for _ in range(self._config.optim.ppo_epochs):
            order_P = torch.randperm(max(num_groups, usual), generator=self.generator)
            order_P = order_P[order_P < num_groups]
            for prompts in order_P.tensor_split(self._config.optim.mini_batches):
                yield torch.isin(prompt_of_B, prompts).nonzero().squeeze(1).to(batch.prompt_of_B.device)

    def split_micro_batches(self, batch: Batch, rows: Tensor) -> tuple[list[Tensor], Totals]:
        """A mini batch's rows for each forward pass, and the denominators of its optimizer step over all ranks.

        Passes are taken together: a rank with fewer rows than another has passes over no row.
        """
        passes = [
            each for each in torch.split(rows, self._config.optim.micro_batch_rows or max(1, len(rows))) if len(each)
        ]
        mask_BT = batch.mask_BT[rows]
        totals = count(mask_BT, self._convention, scale=self._longest_answer)
        counts = [torch.as_tensor(each, device=mask_BT.device) for each in (totals.num_tokens, totals.num_rows)]
        num_tokens, num_rows = self._world.all_reduce_sum(torch.stack(counts)).clamp(min=1).unbind()
        sizes = torch.tensor([totals.width, len(passes)], device=mask_BT.device)
        width, num_passes = self._world.all_reduce_max(sizes).tolist()
        # Of no rows, where fewer groups have a signal than there are mini batches, one pass over nothing is taken.
        passes += [rows[:0]] * (max(1, num_passes) - len(passes))
        return passes, replace(totals, num_tokens=num_tokens, num_rows=num_rows, width=width)

    def loss(
        self, batch: Batch, rows: Tensor, logprobs: ForwardOutputs, advantages: Advantages, totals: Totals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A micro batch's share of the loss, and of each metric of the step; see `update_metrics`.

        Policy loss - entropy_coef * entropy + kl_coef * divergence from the reference, each summed over the rows and
        divided by `totals`. Of no row the loss and its gradient are 0.
        """
        algorithm, is_idle = self._config.algorithm, not len(rows)
        rows = torch.zeros(1, dtype=torch.int64, device=batch.tokens_BT.device) if is_idle else rows
        micro_batch = select(batch, rows)
        if is_idle:
            micro_batch = replace(micro_batch, mask_BT=torch.zeros_like(micro_batch.mask_BT))
        mask_BT, width = micro_batch.mask_BT, micro_batch.tokens_BT.shape[1]
        logprobs, advantages_BT = logprobs.take(rows, width), advantages.advantages_BT[rows, :width]
        output = self.model.token_logprobs(micro_batch, temperature=self._config.rollout.temperature)
        old_BT = output.logprobs_BT.detach() if logprobs.old_BT is None else logprobs.old_BT
        corrected = importance_weights(algorithm, old_BT, micro_batch, self._convention)
        policy = policy_loss(
            self._policy_loss,
            output.logprobs_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            settings=self._loss_settings,
            convention=self._convention,
            weights_BT=None if corrected is None else corrected.weights_BT,
        )
        learns_BT = learns(algorithm, output.logprobs_BT, output.entropy_BT, micro_batch, advantages_BT)
        losses_BT = torch.where(learns_BT, policy.losses_BT, 0.0)
        policy_share = aggregate(losses_BT, mask_BT, self._policy_mode, totals)
        entropy = aggregate(output.entropy_BT, mask_BT, "token-mean", totals)
        mode = algorithm.aggregation if self._convention.aggregates_entropy else "token-mean"
        bonus = entropy if mode == "token-mean" else aggregate(output.entropy_BT, mask_BT, mode, totals)
        loss = policy_share - algorithm.entropy_coef * bonus
        kl = torch.zeros_like(loss)
        if logprobs.reference_BT is not None:
            kl_BT = divergence(
                algorithm.kl,
                output.logprobs_BT,
                logprobs.reference_BT,
                self._convention,
                mask_BT=mask_BT,
                old_BT=old_BT,
            )
            kl = aggregate(kl_BT, mask_BT, "token-mean", totals)
            if algorithm.kl_in == "loss":
                is_same = algorithm.aggregation == "token-mean"
                penalty = kl if is_same else aggregate(kl_BT, mask_BT, algorithm.aggregation, totals)
                loss = loss + self.kl_coef * penalty
        parts = {"loss": loss, "policy_loss": policy_share, "kl": kl, "entropy": entropy}
        metrics = {name: each.detach() for name, each in parts.items()}
        return loss, {**metrics, **token_metrics(micro_batch, old_BT, policy, corrected, totals, algorithm)}

    def reduce_gradients(self) -> None:
        """Sums the gradients over the ranks: each loss is divided by the totals of all of them."""
        self._world.all_reduce_gradients(self.optimizer.parameters.values())

    def reduce_metrics(self, shares: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """The metrics of an optimizer step from those of its micro batches on all ranks."""
        table = torch.stack([value for each in shares for value in each.values()]).double().view(len(shares), -1)
        sums, maxima = self._world.all_reduce_sum(table.sum(dim=0)), self._world.all_reduce_max(table.amax(dim=0))
        sums, maxima = torch.stack((sums, maxima)).tolist()  # one transfer from the device for all numbers
        return {name: (maxima if name in MAXIMA else sums)[index] for index, name in enumerate(shares[0])}

    @torch.no_grad()
    def set_reference(self) -> None:
        """The reference policy, if it is here, becomes the present one."""
        if self.reference is not None:
            # What adapters have learnt so far belongs to it, and they are not part of it.
            weights = dict(self.full_weights() if self._config.model.lora_rank else self.model.named_parameters())
            for name, own in self.reference.named_parameters():
                put(own, weights[name])
