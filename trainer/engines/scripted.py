"""An engine with prepared answers, to inspect rewards, prompts and episodes without a model.

The file has one JSON list per prompt, in the order of the prompts; after the last line it starts again. A list holds
the answers of one group and is repeated if the group is larger. An answer is a text, to which the end token is added,
or an object: `{"text": "12", "logprobs": [-0.1, -0.2, -0.3], "stop": "length"}`, where `logprobs` (one for each token,
default 0) and `stop` (default `end`; `length` means no end token) are optional.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.engines.engine import LocalEngine
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.engines.engine import Sampling, Tokens
    from trainer.tasks.base import Task
    from trainer.tasks.tokenizers import Tokenizer


class Scripted(LocalEngine):
    """Hands out its lists of answers in turn; its only state is the number of the next one."""

    def __init__(self, script: Sequence[Sequence[Rollout]]) -> None:
        self._script = script
        self._next = 0
        self._weights: dict[str, Tensor] = {}

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """The answers, cut to `max_new_tokens`; temperature and greediness change nothing."""
        groups = []
        for _ in prompts:
            answers = self._script[self._next % len(self._script)]
            self._next += 1
            groups.append(
                tuple(
                    _cut(answers[at % len(answers)], sampling.max_new_tokens)
                    for at in range(sampling.rollouts_per_prompt)
                )
            )
        return groups

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}

    def weights(self) -> Mapping[str, Tensor]:
        return self._weights

    def random_state(self) -> Tensor:
        return torch.tensor([self._next], dtype=torch.int64)

    def restore_random_state(self, state: Tensor) -> None:
        self._next = int(state[0])


def _cut(rollout: Rollout, length: int) -> Rollout:
    if len(rollout.tokens) <= length:
        return rollout
    return Rollout(rollout.tokens[:length], rollout.logprobs[:length], Stop.LENGTH)


def start(config: Config, task: Task) -> Scripted:
    """The engine of the file that `script` names. Raises BadSetting with the line that cannot be used."""
    if not config.rollout.script:
        raise BadSetting("engine=scripted needs script=FILE: one JSON list of answers a line")
    return Scripted(read(Path(config.rollout.script), task.tokenizer))


def read(path: Path, tokenizer: Tokenizer) -> list[list[Rollout]]:
    """The script in a file; empty lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"script={path} cannot be read: {error}") from error
    script = [_group(line, tokenizer, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not script:
        raise BadSetting(f"script={path} holds no answers")
    return script


def _group(line: str, tokenizer: Tokenizer, where: str) -> list[Rollout]:
    try:
        answers = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadSetting(f"{where}: no JSON: {error}") from error
    if not isinstance(answers, list) or not answers:
        raise BadSetting(f"{where}: a line is a JSON list of at least one answer")
    return [_rollout(answer, tokenizer, where) for answer in answers]


def _rollout(answer: Any, tokenizer: Tokenizer, where: str) -> Rollout:
    given = {"text": answer} if isinstance(answer, str) else answer
    if not isinstance(given, dict) or not isinstance(given.get("text"), str) or given.keys() - _KEYS:
        raise BadSetting(f"{where}: an answer is a text or an object with {', '.join(sorted(_KEYS))}, not {answer!r}")
    if given.get("stop", "end") not in ("end", "length"):
        raise BadSetting(f"{where}: stop={given['stop']!r} is not accepted. Accepted: end, length")
    is_closed = given.get("stop", "end") == "end" and tokenizer.end is not None
    try:
        tokens = (*tokenizer.encode(given["text"]), *((tokenizer.end,) if is_closed else ()))
        logprobs = tuple(float(value) for value in given.get("logprobs", (0.0,) * len(tokens)))
    except (TypeError, ValueError) as error:
        raise BadSetting(f"{where}: {answer!r} cannot be said: {error}") from error
    if len(logprobs) != len(tokens):
        raise BadSetting(f"{where}: {answer!r} has {len(logprobs)} logprobs for {len(tokens)} tokens")
    return Rollout(tokens, logprobs, Stop.END if is_closed else Stop.LENGTH)


_KEYS = {"text", "logprobs", "stop"}
