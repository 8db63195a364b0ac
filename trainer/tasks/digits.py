"""Three tasks on digits, for randomly initialised models: the next digit, the sum of two, a copy of two.

`successor`, small enough to be learnt in seconds: the digit after the last one shown, `4=` -> `5`, `9=` -> `0`; digits
before it only distract, and provide held-out prompts. `copy`: `47=` -> `47`; with the partial reward a random model
learns half of it in a minute. `addition`: `7+5=` -> `12`; a random model needs far more than a smoke test's time.

Each prompt has one right answer, judged token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.base import Task
from trainer.tasks.tokenizers import Characters
from trainer.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainer.config import Config
    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Rollout

    Reward = Callable[[Prompt, Rollout], float]
    Lists = tuple[Sequence[Prompt], Sequence[Prompt]]  # to train on, and held out

# Held out for deciding digit d: distractors d+1, d+4, d+8 (then on by 3), so that every digit stands three times in
# each place, and seven times or more in training.
_OFFSETS = (1, 4, 8)
_WORDS = Characters()


def task(config: Config) -> Task:
    """As a configuration wants it."""
    reward = config.task.reward
    makers: dict[str, Callable[[], Task]] = {
        "successor": lambda: successor(config.task.distractors, reward=reward),
        "addition": lambda: addition(reward=reward),
        "copy": lambda: copy(reward=reward),
    }
    return makers[config.task.task]()


def successor(distractors: int, *, reward: str = "partial") -> Task:
    """The task with `distractors` leading digits; 30 prompts are held out, or all ten prompts are both lists at 0."""
    return _by_tokens("successor", _lists(distractors), reward)


def addition(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice on either side."""
    every = [prompt(f"{left}+{right}=", str(left + right), _WORDS) for left in range(10) for right in range(10)]
    heldout = [each for each in every if (int(each.text[2]) - int(each.text[0])) % 10 in (3, 8)]
    return _by_tokens("addition", _split(every, heldout), reward)


def copy(*, reward: str = "partial") -> Task:
    """100 prompts, of which 20 are held out: each digit twice in either place."""
    every = [prompt(f"{number:02d}=", f"{number:02d}", _WORDS) for number in range(100)]
    heldout = [each for each in every if (int(each.text[1]) - int(each.text[0])) % 10 in (3, 8)]
    return _by_tokens("copy", _split(every, heldout), reward)


def _by_tokens(name: str, lists: Lists, reward: str) -> Task:
    """A task whose reward is a key of `_REWARDS`. Right is what the exact reward pays for."""
    judge = exact(_WORDS)
    return Task(
        name,
        _WORDS,
        *lists,
        max_new_tokens=3,
        reward=_REWARDS[reward](_WORDS),
        is_right=lambda prompt, rollout: judge(prompt, rollout) == 1.0,
    )


def exact(tokenizer: Tokenizer) -> Reward:
    """A reward: 1 for exactly the expected text followed by the end token, else 0."""

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        return float(rollout.tokens == _expected_tokens(prompt, tokenizer))

    return reward


def partial(tokenizer: Tokenizer) -> Reward:
    """A reward: the share of the expected tokens, end token included, at their right position; divided by the longer
    length.

    Example: expected `12` and end; `13` and end -> 2/3; `1` and end -> 1/3; `12` without end -> 2/3.
    """

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        expected = _expected_tokens(prompt, tokenizer)
        hits = sum(1 for token, right in zip(rollout.tokens, expected, strict=False) if token == right)
        return hits / max(len(expected), len(rollout.tokens))

    return reward


_REWARDS: Mapping[str, Callable[[Tokenizer], Reward]] = {"exact": exact, "partial": partial}


def _expected_tokens(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The right answer, closed with the end token if the tokenizer has one."""
    expected = tokenizer.encode(prompt.expected)
    return expected if tokenizer.end is None else (*expected, tokenizer.end)


def prompt(text: str, expected: str, tokenizer: Tokenizer) -> Prompt:
    """A prompt with its tokens."""
    return Prompt(text, tokenizer.encode(text), expected)


def _split(prompts: Sequence[Prompt], heldout: Sequence[Prompt]) -> Lists:
    """The prompts that are not held out, and those that are."""
    texts = {held.text for held in heldout}
    return tuple(each for each in prompts if each.text not in texts), tuple(heldout)


def _lists(distractors: int) -> Lists:
    if distractors == 0:
        every = tuple(_ask(str(digit)) for digit in range(10))
        return every, every
    every = tuple(_ask(f"{number:0{distractors + 1}d}") for number in range(10 ** (distractors + 1)))
    heldout = [_ask(_leading(digit + offset, distractors) + str(digit)) for digit in range(10) for offset in _OFFSETS]
    return _split(every, heldout)


def _ask(digits: str) -> Prompt:
    return prompt(f"{digits}=", str((int(digits[-1]) + 1) % 10), _WORDS)


def _leading(first: int, count: int) -> str:
    return "".join(str((first + 3 * place) % 10) for place in range(count))
