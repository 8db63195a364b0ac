"""The interfaces of a task, of tokenizers, and of environments; scores answers, and names what broke a reward.

A reward is broken that raises, does not come back, or gives no number. Tasks whose answers are judged token by token
are made here too.
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

from trainer.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainer.types import Group, Rollout


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainer.types import Rollout

    Reward = Callable[[Prompt, Rollout], float]

# The characters of the offline tasks, in the order of their tokens.
ALPHABET = "0123456789+=*-#. "


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""

    @property
    def pad(self) -> int:
        """The padding token id."""

    @property
    def end(self) -> int | None:
        """Closes an answer. None: the model knows no end, every answer runs to its longest length."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids, nothing added. Raises ValueError for text that it cannot express."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, without the end token and padding."""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The tokens of a conversation (`role`, `content`) up to the start of the assistant's next turn."""


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


@dataclass(frozen=True, slots=True)
class Characters:
    """The built-in tokenizer: one token per character, then pad, then end."""

    alphabet: str = ALPHABET

    @property
    def vocabulary_size(self) -> int:
        return len(self.alphabet) + 2

    @property
    def pad(self) -> int:
        return len(self.alphabet)

    @property
    def end(self) -> int:
        return len(self.alphabet) + 1

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.alphabet.index(character) for character in text)

    def decode(self, tokens: Sequence[int]) -> str:
        """A pad, which no answer should hold, is shown as `_`. Example: (1, 2, 18) -> "12"."""
        return "".join("_" if token == self.pad else self.alphabet[token] for token in tokens if token != self.end)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The messages' texts, one after the other: the built-in model knows no roles."""
        return self.encode("".join(message["content"] for message in messages))


def prompt(text: str, expected: str, tokenizer: Tokenizer) -> Prompt:
    """A prompt with its tokens."""
    return Prompt(text, tokenizer.encode(text), expected)


def split(prompts: Sequence[Prompt], heldout: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """The prompts that are not held out, and those that are."""
    texts = {held.text for held in heldout}
    return tuple(each for each in prompts if each.text not in texts), tuple(heldout)


def exact(tokenizer: Tokenizer) -> Reward:
    """A reward: 1 for exactly the expected text followed by the end token, else 0."""

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        return float(rollout.tokens == expected_tokens(prompt, tokenizer))

    return reward


def partial(tokenizer: Tokenizer) -> Reward:
    """A reward: the share of the expected tokens, end token included, at their right position; divided by the longer
    length.

    Example: expected `12` and end; `13` and end -> 2/3; `1` and end -> 1/3; `12` without end -> 2/3.
    """

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        expected = expected_tokens(prompt, tokenizer)
        hits = sum(1 for token, right in zip(rollout.tokens, expected, strict=False) if token == right)
        return hits / max(len(expected), len(rollout.tokens))

    return reward


REWARDS: Mapping[str, Callable[[Tokenizer], Reward]] = {"exact": exact, "partial": partial}


def by_tokens(
    name: str,
    lists: tuple[Sequence[Prompt], Sequence[Prompt]],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    reward: str,
) -> Task:
    """A task with one right answer, judged token by token; `lists` are the prompts to train on and those held out.

    `reward` is a key of REWARDS. Right is what the exact reward pays for.
    """
    judge = exact(tokenizer)
    return Task(
        name,
        tokenizer,
        *lists,
        max_new_tokens=max_new_tokens,
        reward=REWARDS[reward](tokenizer),
        is_right=lambda prompt, rollout: judge(prompt, rollout) == 1.0,
    )


def expected_tokens(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The right answer, closed with the end token if the tokenizer has one."""
    expected = tokenizer.encode(prompt.expected)
    return expected if tokenizer.end is None else (*expected, tokenizer.end)


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
    """Where an error came from, the innermost call outside of this file. Example: `mine.py:12 reward`."""
    own = Path(__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) != own]
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
