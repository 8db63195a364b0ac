"""The interfaces of a task: its environments and its rewards.

`group_rewards` scores answers and names what broke a reward. A reward is broken that raises, does not come back, or
gives no number.
"""

from __future__ import annotations

import ctypes
import math
import signal
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Group, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment makes of a turn."""

    text: str  # the model's next input; empty once the episode has ended
    reward: float
    is_done: bool
    is_valid: bool = True  # false: no action could be read from the answer


class Environment(Protocol):
    """One episode. Made anew for each rollout of a prompt, from the prompt alone: a group shares its start."""

    def step(self, answer: str) -> Observation:
        """Applies the model's turn."""


@dataclass(frozen=True, slots=True)
class Task:
    """Two fixed lists of prompts, and what judges an answer.

    The lists share no prompt, unless `is_disjoint` is false: then they are the same list.
    """

    name: str
    tokenizer: Tokenizer
    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
    max_new_tokens: int  # of a complete answer, or of one turn
    reward: Callable[[Prompt, Rollout], float]  # unused if an environment gave the reward
    is_right: Callable[[Prompt, Rollout], bool]  # what accuracy counts
    environment: Callable[[Prompt], Environment] | None = None  # None: one question, one answer
    max_turns: int = 1
    parts: Callable[[Rollout], tuple[float, ...]] | None = None  # of an answer's reward, once it is scored; None: none

    @property
    def is_disjoint(self) -> bool:
        return not {prompt.text for prompt in self.train} & {prompt.text for prompt in self.heldout}


class RewardBroken(RuntimeError):
    """A reward function that raised, hung, died or gave back no number; the text names it and the line in its file."""


class RewardHung(RewardBroken):
    """A reward function that did not come back in time."""


def group_rewards(
    groups: Sequence[Group], task: Task, *, limit_s: float | None, errors: list[str] | None = None
) -> list[list[float]]:
    """Each answer's reward: the environment's, else the task's.

    A reward that cannot be computed is NaN, and `errors` gets a message for it. Without `errors` raises RewardBroken.
    Both name the line of the function that raised, or that was running when `limit_s` (None: none) was over; the
    remaining answers then have no reward either. The alarm is handled between steps of Python code: a function of the
    user's, which may hang anywhere, runs in its own process (`trainer.tasks.worker`).
    """
    answers = [(group.prompt, each) for group in groups for each in group.rollouts]
    rewards: list[float] = []
    try:
        with alarm(limit_s):
            for prompt, rollout in answers:
                rewards.append(_judge(prompt, rollout, task, errors))
    except TimeUp as error:
        timeout = RewardHung(f"the reward did not come back within {limit_s:g} s: it was at {line_of(error)}")
        if errors is None:
            raise timeout from error
        errors += [str(timeout)] * (len(answers) - len(rewards))
        rewards += [math.nan] * (len(answers) - len(rewards))
    each = iter(rewards)
    return [[next(each) for _ in group.rollouts] for group in groups]


def _judge(prompt: Prompt, rollout: Rollout, task: Task, errors: list[str] | None) -> float:
    try:
        return task.reward(prompt, rollout) if rollout.reward is None else rollout.reward
    except Exception as error:
        wrapped = error
        if not isinstance(error, RewardBroken):
            reason = " ".join(str(error).split())
            wrapped = RewardBroken(f"the reward raised {type(error).__name__} at {line_of(error)}: {reason}")
        if errors is None:
            raise wrapped from error.__cause__ if wrapped is error else error
        errors.append(str(wrapped))
        return math.nan


def line_of(error: BaseException) -> str:
    """Where an error came from, the innermost call but for those that score. Example: `mine.py:12 reward`."""
    scoring = {(__file__, name) for name in ("group_rewards", "_judge", "ring")}
    frames = [each for each in traceback.extract_tb(error.__traceback__) if (each.filename, each.name) not in scoring]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else "an unknown line"


class TimeUp(BaseException):
    """Raised by the alarm. No Exception, so that a function's own `except Exception` does not swallow it."""


@contextmanager
def alarm(limit_s: float | None) -> Iterator[None]:
    """Raises TimeUp within the block once it has taken so long; None: never."""
    if limit_s is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        with _alarm_elsewhere(limit_s):
            yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _alarm_elsewhere(limit_s: float) -> Iterator[None]:
    """The same for another thread than the main one, which signals do not reach: there a run is within Ray's actor."""
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def ring() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))

    timer = threading.Timer(limit_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # an alarm that was set and not handled yet
