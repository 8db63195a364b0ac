"""The interfaces of a task: its environments, its rewards, and its tokenizer; the two tokenizers that there are.

`group_rewards` scores answers and names what broke a reward. A reward is broken that raises, does not come back, or
gives no number. A tokenizer is the built-in one of characters, or that of a model's folder; nothing is downloaded.
"""

from __future__ import annotations

import ctypes
import math
import signal
import string
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.config import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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


# Tokenizers.

# The characters of the offline tasks, in the order of their tokens.
ALPHABET = "0123456789+=*-#. "
_FILES = ("tokenizer.json", "*.model", "vocab*", "*.tiktoken")
# What tasks that carry text are written in without a model's folder: ASCII that can be printed, and the line break.
PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " \n"


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


def choose_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of the model at `path`, or 98 tokens for printable ASCII, line break, pad and end if it is empty.

    Raises BadSetting for a path that is no folder of a tokenizer.
    """
    return PretrainedTokenizer.load(Path(path)) if path else Characters(PRINTABLE)


class PretrainedTokenizer:
    """A transformers tokenizer, as a `Tokenizer`.

    Text becomes tokens without start or end added. Decoding drops the special tokens (end, pad); markers that are part
    of a model's answer, such as `<tool_call>`, stay, since their tokenizers do not declare them special.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.vocabulary_size: int = len(inner)
        self.end: int | None = inner.eos_token_id
        pad = inner.pad_token_id
        # Where there is no pad token any token serves: masks, not tokens, say what counts.
        self.pad: int = pad if pad is not None else (self.end if self.end is not None else 0)

    @classmethod
    def load(cls, folder: Path) -> PretrainedTokenizer:
        """The tokenizer of a local folder. Raises BadSetting where the folder or the package is missing."""
        if not folder.is_dir():
            raise BadSetting(f"path={folder} is no folder; a model is read from a local folder only")
        if not any(file for pattern in _FILES for file in folder.glob(pattern)):
            # transformers 5 makes an empty tokenizer of the model's kind there, and every text becomes nothing.
            raise BadSetting(f"path={folder} holds no tokenizer: none of {', '.join(_FILES)}")
        try:
            auto: Any = import_module("transformers").AutoTokenizer
        except ImportError as error:
            raise BadSetting(f"A model's folder needs the package transformers: {error}") from error
        try:
            return cls(auto.from_pretrained(str(folder), local_files_only=True))
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            raise BadSetting(f"path={folder} holds no tokenizer that transformers can read: {reason}") from error

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        decoded: str = self._inner.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return decoded

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return self.encode(self.render(messages, is_asking=True))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        is_asking: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation in the model's chat template; `is_asking`: up to the start of the assistant's next turn.

        Raises BadSetting if the tokenizer has no chat template or the template rejects the messages.
        """
        if not self._inner.chat_template:
            raise BadSetting("the tokenizer of the model's folder has no chat template")
        refusal: type[Exception] = import_module("jinja2").TemplateError
        try:
            text: str = self._inner.apply_chat_template(
                [dict(each) for each in messages],
                tokenize=False,
                add_generation_prompt=is_asking,
                tools=list(tools) if tools else None,
            )
        except (refusal, TypeError, ValueError) as error:
            raise BadSetting(f"the model's chat template refuses the messages: {error}") from error
        return text

    @property
    def end_text(self) -> str:
        """How the end token is written; empty without one."""
        return self._inner.eos_token or ""
