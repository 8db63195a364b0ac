"""One step off policy: the next step's answers are generated while this step's are learnt from.

Between two steps nothing is under way: what `Ahead.launch` began in a step, with the weights of before its update, has
arrived by that step's end, and only then do the generators get new weights. So every batch but the first of a run is
exactly one step older than the policy that learns from it, whatever is slow; evaluations and checkpoints in between
need to know nothing of it; and a checkpoint holds the batch that lies ready, so that a run that goes on from it learns
from the same answers. `packed` and `unpacked` are that batch as tensors.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.metrics.progress import Progress
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from trainer.tasks.rewards import RewardBroken
    from trainer.types import Prompt


class StaleWeights(RuntimeError):
    """Answers that were drawn with weights older than the run allows."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rollouts before they are judged."""

    groups: list[Group]
    reference_BT: Tensor | None = None  # as in `Made`


@dataclass(frozen=True, slots=True)
class Made:
    """The rollouts of one step."""

    groups: list[Group]
    rewards_PG: Tensor
    num_drawn: int  # groups generated for them
    step: int  # after which the weights were published that they were drawn with
    # What a reference policy in the generators says of them, on the CPU, rows and tokens as they are packed; None: the
    # learner has the reference, or nobody.
    reference_BT: Tensor | None = None


class Ahead:
    """The batch that is being made, or lies ready, for the next step. At most one, by at most one thread."""

    def __init__(self) -> None:
        self.ready: Made | None = None
        self.broken: RewardBroken | None = None  # why nothing lies ready, told when it is needed
        self._thread: threading.Thread | None = None
        self._drawn: list[Drawn] = []
        self._error: list[BaseException] = []
        self._spent = Progress()

    def take(self) -> Made | None:
        """What lies ready, which then is gone."""
        ready, self.ready = self.ready, None
        return ready

    def launch(self, generate: Callable[[Progress], Drawn]) -> None:
        """Begins to generate beside whatever the caller does next; `generate` is given where to put its times."""
        self._spent = spent = Progress()

        def work() -> None:
            try:
                self._drawn.append(generate(spent))
            except BaseException as error:  # it is raised where the groups are waited for
                self._error.append(error)

        self._thread = threading.Thread(target=work, name="generation", daemon=True)
        self._thread.start()

    def arrive(self, progress: Progress) -> Drawn | None:
        """What `launch` began, when it is all there; None where nothing was begun. Raises what it ended with.

        Its own seconds count as those of its parts, the waiting here as the learner's idle time.
        """
        if self._thread is None:
            return None
        with progress.part("gen_wait"):
            self._thread.join()
        self._thread = None
        for name, seconds in self._spent.seconds.items():
            progress.seconds[name] = progress.seconds.get(name, 0.0) + seconds
        if self._error:
            raise self._error.pop()
        return self._drawn.pop()


def packed(made: Made | None, questions: Sequence[Prompt]) -> dict[str, Any]:
    """The batch as tensors and numbers, its prompts as places in the list of questions; empty for none."""
    if made is None:
        return {}
    places = {id(prompt): at for at, prompt in enumerate(questions)}
    rollouts = [rollout for group in made.groups for rollout in group.rollouts]
    return {
        "prompts": torch.tensor([places[id(group.prompt)] for group in made.groups]),
        "sizes": torch.tensor([len(group.rollouts) for group in made.groups]),
        "tokens": _flat([each.tokens for each in rollouts], torch.int64),
        "logprobs": _flat([each.logprobs for each in rollouts], torch.float64),
        "is_action": _flat([each.response_mask for each in rollouts], torch.bool),
        "is_valid": _flat([each.is_valid for each in rollouts], torch.bool),
        "stops": torch.tensor([list(Stop).index(each.stop) for each in rollouts]),
        "paid": _flat([() if each.reward is None else (each.reward,) for each in rollouts], torch.float64),
        "rewards": made.rewards_PG.cpu(),
        "num_drawn": made.num_drawn,
        "step": made.step,
        **({} if made.reference_BT is None else {"reference": made.reference_BT}),
    }


def unpacked(state: Mapping[str, Any], questions: Sequence[Prompt], device: torch.device) -> Made | None:
    """What `packed` was given, the rewards on a device."""
    if not state:
        return None
    columns = (_rows(state[name]) for name in ("tokens", "logprobs", "is_action", "is_valid", "paid"))
    rollouts = iter(
        Rollout(tokens, logprobs, list(Stop)[stop], response_mask, paid[0] if paid else None, is_valid)
        for tokens, logprobs, response_mask, is_valid, paid, stop in zip(*columns, state["stops"].tolist(), strict=True)
    )
    pairs = zip(state["prompts"].tolist(), state["sizes"].tolist(), strict=True)
    groups = [Group(questions[place], tuple(next(rollouts) for _ in range(size))) for place, size in pairs]
    said = state.get("reference")
    return Made(
        groups,
        state["rewards"].to(device),
        int(state["num_drawn"]),
        int(state["step"]),
        None if said is None else said.cpu(),
    )


def _flat(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> dict[str, Tensor]:
    values = [value for row in rows for value in row]
    return {"lengths": torch.tensor([len(row) for row in rows]), "values": torch.tensor(values, dtype=dtype)}


def _rows(flat: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    return [tuple(row.tolist()) for row in torch.split(flat["values"], flat["lengths"].tolist())]
