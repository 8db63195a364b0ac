"""One step off policy: the next step's answers are generated while this step trains.

Between two steps nothing is pending: generation that `Prefetch.start` began in a step, with the weights before its
update, is complete by that step's end, and only then do the generators get new weights. So every batch but the first of
a run is exactly one step older than the policy that learns from it, whatever is slow; evaluations and checkpoints in
between are not affected. A checkpoint includes the prefetched batch, so that a resumed run learns from the same
answers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trainer.metrics.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.rollouts import GeneratedGroups, RolloutBatch
    from trainer.tasks.rewards import RewardBroken


class StaleWeights(RuntimeError):
    """Answers that were drawn with weights older than the run allows."""


class Prefetch:
    """The batch that is being generated, or is ready, for the next step. At most one, by at most one thread."""

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
