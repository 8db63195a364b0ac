"""What a task is, and the alphabet that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

ALPHABET = "0123456789+=*-#. "
PAD = len(ALPHABET)
END = len(ALPHABET) + 1
VOCABULARY_SIZE = len(ALPHABET) + 2


@dataclass(frozen=True, slots=True)
class Task:
    """Two fixed lists of prompts and the room for an answer.

    The lists share no prompt, unless `is_disjoint` is false: then they are the same list.
    """

    name: str
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    max_new_tokens: int

    @property
    def is_disjoint(self) -> bool:
        return not {prompt.text for prompt in self.train} & {prompt.text for prompt in self.heldout}


def prompt(text: str, expected: str) -> Prompt:
    """A prompt with its tokens."""
    return Prompt(text, encode(text), expected)


def encode(text: str) -> tuple[int, ...]:
    """Token ids, one per character. Raises ValueError for a character outside the alphabet."""
    return tuple(ALPHABET.index(character) for character in text)


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids, the end token left out and a pad shown as `_`. Example: (1, 2, 18) -> "12"."""
    return "".join("_" if token == PAD else ALPHABET[token] for token in tokens if token != END)


def split(prompts: Sequence[Prompt], heldout: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """The prompts that are not held out, and those that are."""
    texts = {held.text for held in heldout}
    return tuple(each for each in prompts if each.text not in texts), tuple(heldout)
