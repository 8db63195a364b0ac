"""Transcripts for supervised learning: jsonl of conversations, tool calls included, the loss on the assistant only.

A line is `{"messages": [{"role", "content", "tool_calls"?}, ...], "tools"?: [...]}`. The tokens of a conversation are
concatenated from its pieces, cut at the boundaries of the assistant's turns: as in sampling, which never encodes its
own output again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.tasks.data import rows
from trainer.tasks.tokenizers import Pretrained
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trainer.tasks.base import Tokenizer

    Message = Mapping[str, Any]

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation in tokens. The mask is true on the assistant's tokens, its end tokens included."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]

    def group(self) -> Group:
        """The conversation as one prompt (all before the assistant's first token) with one answer (the rest).

        What follows the assistant's last token is left out. The log-probabilities are 0: nobody sampled them.
        """
        first = self.mask.index(True)
        last = len(self.mask) - self.mask[::-1].index(True)
        answer = self.tokens[first:last]
        rollout = Rollout(answer, (0.0,) * len(answer), Stop.END, response_mask=self.mask[first:last])
        return Group(Prompt("", self.tokens[:first], ""), (rollout,))


def read(path: Path, tokenizer: Tokenizer, *, max_tokens: int) -> list[Transcript]:
    """The transcripts of a jsonl file that have at most `max_tokens` tokens.

    Raises BadSetting for a line that is no conversation with an assistant in it, and where none is short enough.
    """
    found, num_overlong = [], 0
    for number, row in enumerate(rows(path)):
        problem = _problem(row)
        if problem:
            raise BadSetting(f"{path}: row {number} {problem}")
        try:
            made = transcript(row["messages"], tokenizer, tools=row.get("tools"))
        except ValueError as error:  # BadSetting too: which row it was is what the reader needs
            raise BadSetting(f"{path}: row {number}: {error}") from error
        if len(made.tokens) <= max_tokens:
            found.append(made)
        else:
            num_overlong += 1
    if not found:
        raise BadSetting(f"{path} leaves no transcript: {num_overlong} had more than {max_tokens} tokens")
    return found


def transcript(
    messages: Sequence[Message], tokenizer: Tokenizer, *, tools: Sequence[Mapping[str, Any]] | None = None
) -> Transcript:
    """One conversation in tokens. A message may carry `"train": false`: an assistant's turn without loss.

    With the built-in tokenizer the texts are concatenated, each of the assistant's followed by the end token. Raises
    BadSetting for a chat template that rewrites earlier turns as the conversation grows: then the assistant's tokens
    cannot be located.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    pieces = _rendered(messages, tokenizer, tools) if isinstance(tokenizer, Pretrained) else _plain(messages, tokenizer)
    for piece, is_said in pieces:
        tokens += piece
        mask += [is_said] * len(piece)
    if not any(mask):
        raise BadSetting("there is nothing in it that the assistant said")
    return Transcript(tuple(tokens), tuple(mask))


def _plain(messages: Sequence[Message], tokenizer: Tokenizer) -> Iterator[tuple[tuple[int, ...], bool]]:
    for message in messages:
        end = (tokenizer.end,) if message["role"] == "assistant" and tokenizer.end is not None else ()
        yield (*tokenizer.encode(render_message(message)), *end), _is_learnt(message)


def _rendered(
    messages: Sequence[Message], tokenizer: Pretrained, tools: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Pieces of the complete conversation's text; the assistant's turns begin and end between two of them."""
    whole = tokenizer.render(messages, is_asking=False, tools=tools)
    done = 0
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.render(messages[:place], is_asking=True, tools=tools)
        after = tokenizer.render(messages[: place + 1], is_asking=False, tools=tools)
        if not (whole.startswith(after) and after.startswith(before) and len(before) >= done):
            raise BadSetting(f"the chat template writes message {place} differently once more messages follow")
        # The template may write a line break after the end token, which the model never samples.
        end = after.rfind(tokenizer.end_text, len(before)) if tokenizer.end_text else -1
        stop = end + len(tokenizer.end_text) if end >= 0 else len(after)
        yield tokenizer.encode(whole[done : len(before)]), False
        yield tokenizer.encode(whole[len(before) : stop]), _is_learnt(message)
        done = stop
    yield tokenizer.encode(whole[done:]), False


def render_message(message: Message) -> str:
    """A message's text with its tool calls behind it, each as JSON between `<tool_call>` marks (Hermes, Qwen)."""
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join(
        [*filter(None, [message.get("content")]), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    )


def _is_learnt(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("train", True) is not False


def _problem(row: Mapping[str, Any]) -> str | None:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        return f"has no list 'messages'; it has {', '.join(map(repr, row)) or 'none'}"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"has a message {place} without a role of {', '.join(_ROLES)}"
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            return f"has tool_calls that are no list of calls in message {place}"
        if not isinstance(message.get("content"), str) and not (message.get("content") is None and calls):
            return f"has no text 'content' in message {place}"
    return None
