"""One step off policy: the rollouts of the next step are generated while the learner trains on those of this one.

Selected by `off_policy=1`; `trainer.loop` starts a `Prefetch`, waits for it, and takes its batch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from trainer.metrics.records import Progress
from trainer.rollouts import RolloutBatch
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.rollouts import GeneratedGroups
    from trainer.tasks.base import RewardBroken
    from trainer.types import Prompt


class StaleWeights(RuntimeError):
    """Answers that were drawn with weights older than the run allows."""


class Prefetch:
    """One step off policy: the batch that is being generated, or is ready, for the next step, while this one trains.

    At most one, by at most one thread. Between two steps nothing is pending: generation that `start` began in a step,
    with the weights before its update, is complete by that step's end, and only then do the generators get new weights.
    So every batch but the first of a run is exactly one step older than the policy that learns from it, whatever is
    slow; evaluations and checkpoints in between are not affected. A checkpoint includes the prefetched batch, so that a
    resumed run learns from the same answers.
    """

    def __init__(self) -> None:
        self.ready: RolloutBatch | None = None
        self.error: RewardBroken | None = None  # why no batch is ready
        self._thread: threading.Thread | None = None
        self._generated: list[GeneratedGroups] = []
        self._failures: list[BaseException] = []
        self._progress = Progress()

    def take(self) -> RolloutBatch | None:
        """Returns and removes the batch. Raises RewardBroken if its rewards failed."""
        if self.error is not None:
            raise self.error
        ready, self.ready = self.ready, None
        return ready

    def start(self, generate: Callable[[Progress], GeneratedGroups]) -> None:
        """Starts to generate in parallel to the caller; `generate` gets the object for its times."""
        self._progress = progress = Progress()

        def work() -> None:
            try:
                self._generated.append(generate(progress))
            except BaseException as error:  # it is raised by `wait`
                self._failures.append(error)

        self._thread = threading.Thread(target=work, name="generation", daemon=True)
        self._thread.start()

    def wait(self, progress: Progress) -> GeneratedGroups | None:
        """The batch that `start` began, once it is complete; None if none was begun. Raises its error.

        Generation time is added to its phases; time blocked here is recorded as `gen_wait`.
        """
        if self._thread is None:
            return None
        with progress.phase("gen_wait"):
            self._thread.join()
        self._thread = None
        for name, seconds in self._progress.seconds.items():
            progress.seconds[name] = progress.seconds.get(name, 0.0) + seconds
        if self._failures:
            raise self._failures.pop()
        return self._generated.pop()


# What a checkpoint holds of a prefetched batch.


def prefetched_state(batch: RolloutBatch | None, questions: Sequence[Prompt]) -> dict[str, Any]:
    """The batch as tensors and numbers, its prompts as places in the list of questions; empty for none."""
    if batch is None:
        return {}
    places = {id(prompt): at for at, prompt in enumerate(questions)}
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    return {
        "prompts": torch.tensor([places[id(group.prompt)] for group in batch.groups]),
        "sizes": torch.tensor([len(group.rollouts) for group in batch.groups]),
        "tokens": _flat([each.tokens for each in rollouts], torch.int64),
        "logprobs": _flat([each.logprobs for each in rollouts], torch.float64),
        "is_action": _flat([each.response_mask for each in rollouts], torch.bool),
        "is_valid": _flat([each.is_valid for each in rollouts], torch.bool),
        "stops": torch.tensor([list(Stop).index(each.stop) for each in rollouts]),
        "paid": _flat([() if each.reward is None else (each.reward,) for each in rollouts], torch.float64),
        "rewards": batch.rewards_PG.cpu(),
        "num_drawn": batch.num_generated,
        "step": batch.step,
        **({} if batch.reference_BT is None else {"reference": batch.reference_BT}),
    }


def prefetched_of_state(
    state: Mapping[str, Any], questions: Sequence[Prompt], device: torch.device
) -> RolloutBatch | None:
    """What `prefetched_state` was given, the rewards on a device."""
    if not state:
        return None
    columns = (_rows(state[name]) for name in ("tokens", "logprobs", "is_action", "is_valid", "paid"))
    rollouts = iter(
        Rollout(tokens, logprobs, list(Stop)[stop], response_mask, paid[0] if paid else None, is_valid)
        for tokens, logprobs, response_mask, is_valid, paid, stop in zip(*columns, state["stops"].tolist(), strict=True)
    )
    pairs = zip(state["prompts"].tolist(), state["sizes"].tolist(), strict=True)
    groups = [Group(questions[place], tuple(next(rollouts) for _ in range(size))) for place, size in pairs]
    reference_BT = state.get("reference")
    return RolloutBatch(
        groups,
        state["rewards"].to(device),
        int(state["num_drawn"]),
        int(state["step"]),
        None if reference_BT is None else reference_BT.cpu(),
    )


def _flat(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> dict[str, Tensor]:
    values = [value for row in rows for value in row]
    return {"lengths": torch.tensor([len(row) for row in rows]), "values": torch.tensor(values, dtype=dtype)}


def _rows(flat: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    return [tuple(row.tolist()) for row in torch.split(flat["values"], flat["lengths"].tolist())]
