"""The tokenizers of tasks: their interface, the built-in characters, or that of a model's folder. No downloads."""

from __future__ import annotations

import string
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.config import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
