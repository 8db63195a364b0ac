"""Questions from files: rows in verl's layout, parquet or jsonl, validated before the run.

A row is `{data_source, prompt: [{role, content}], ability, reward_model: {style, ground_truth}, extra_info}`. A ground
truth that is no text, which verl loads silently and then always scores 0, is rejected by name. `questions` reads the
files, `task_of_texts` makes a task of them; `rows` and `check` are for programs that write them.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.tasks.base import Task
from trainer.tasks.tokenizers import choose_tokenizer
from trainer.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainer.config import Config
    from trainer.sections import TaskSettings
    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Rollout

    Row = Mapping[str, Any]
    Raw = Callable[[Row, str, int], Row]

Prompts = tuple[Prompt, ...]


def questions(settings: TaskSettings, tokenizer: Tokenizer, *, raw: Raw | None = None) -> tuple[Prompts, Prompts]:
    """The prompts of `train_files` and of `val_files`; each may name several files, by comma.

    `raw` turns a row with a `question` column, its split and its number into verl's layout. Raises BadSetting for
    a file that is not named, cannot be read, breaks the layout or leaves no prompt.
    """
    return _list("train_files", "train", settings, tokenizer, raw), _list("val_files", "test", settings, tokenizer, raw)


def task_of_texts(
    name: str, config: Config, score: Callable[[str, str], float], *, max_new_tokens: int, raw: Raw | None = None
) -> Task:
    """The questions of `train_files` and `val_files`, with answers that are judged by their text and the ground truth.

    An answer is right if it scores 1. Raises BadSetting.
    """
    tokenizer = choose_tokenizer(config.model.path)
    train, heldout = questions(config.task, tokenizer, raw=raw)

    def reward(prompt: Prompt, rollout: Rollout) -> float:
        return score(tokenizer.decode(rollout.tokens), prompt.expected)

    return Task(
        name,
        tokenizer,
        train,
        heldout,
        max_new_tokens=max_new_tokens,
        reward=reward,
        is_right=lambda prompt, rollout: reward(prompt, rollout) == 1.0,
    )


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a parquet or jsonl file as plain values. Raises BadSetting for a file that cannot be read."""
    if not path.is_file():
        raise BadSetting(f"{path} is no file")
    if path.suffix not in (".parquet", ".jsonl", ".json"):
        raise BadSetting(f"{path} is neither .parquet nor .jsonl")
    yield from _parquet(path) if path.suffix == ".parquet" else _jsonl(path)


def check(row: Row) -> str | None:
    """The error in the first column of a row that verl's reader or rewards would fail on; None if there is none."""
    for name, kind in (("data_source", str), ("prompt", list), ("reward_model", dict)):
        if name not in row:
            return f"has no column {name!r}; it has {', '.join(map(repr, row)) or 'none'}"
        if not isinstance(row[name], kind):
            return _wrong(name, row[name], _WANTED[name])
    for message in row["prompt"]:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return _wrong("prompt", message, "messages of a text 'role' and a text 'content'")
    if not row["prompt"]:
        return "has an empty 'prompt'"
    if not isinstance(row["reward_model"].get("ground_truth"), str):
        return _wrong("reward_model.ground_truth", row["reward_model"].get("ground_truth"), _WANTED["ground_truth"])
    if row.get("extra_info") is not None and not isinstance(row["extra_info"], dict):
        return _wrong("extra_info", row["extra_info"], "named values")
    return None


_WANTED = {
    "data_source": "text",
    "prompt": "a list of messages, [{'role': 'user', 'content': ...}]; plain text leaves verl an empty data set",
    "reward_model": "{'style': 'rule', 'ground_truth': ...}",
    "ground_truth": "text: answers are compared as text, so that any other kind would score 0 for ever",
}


def _wrong(name: str, value: object, expected: str) -> str:
    return f"has {type(value).__name__} {str(value)[:40]!r} in column {name!r}, which must be {expected}"


def _list(name: str, split: str, settings: TaskSettings, tokenizer: Tokenizer, raw: Raw | None) -> Prompts:
    given = [part.strip(" '\"") for part in getattr(settings, name).strip("[] ").split(",") if part.strip(" '\"")]
    if not given:
        raise BadSetting(f"task={settings.task} reads its questions from a file: give {name}=FILE.parquet or .jsonl")
    prompts: list[Prompt] = []
    num_overlong = 0
    for path in given:
        for number, row in enumerate(rows(Path(path).expanduser())):
            where = f"{path}: row {number}"
            prompt = _prompt(_checked(row, split, number, raw, where), tokenizer, where)
            if len(prompt.tokens) <= settings.max_prompt_tokens:
                prompts.append(prompt)
                continue
            num_overlong += 1
            if not settings.filter_overlong_prompts:
                raise BadSetting(f"{where} has {len(prompt.tokens)} tokens, {_OVERLONG.format(settings)}")
    if not prompts:
        raise BadSetting(
            f"{name}={','.join(given)} leaves no question; {num_overlong} had {_OVERLONG.format(settings)}"
        )
    return tuple(prompts)


_OVERLONG = "more than max_prompt_tokens={0.max_prompt_tokens} (filter_overlong_prompts={0.filter_overlong_prompts})"


def _checked(row: Row, split: str, number: int, raw: Raw | None, where: str) -> Row:
    if raw is not None and "question" in row and "prompt" not in row:
        try:
            row = raw(row, split, number)
        except ValueError as error:
            raise BadSetting(f"{where}: {error}") from error
    problem = check(row)
    if problem:
        raise BadSetting(f"{where} {problem}")
    return row


def _prompt(row: Row, tokenizer: Tokenizer, where: str) -> Prompt:
    messages = row["prompt"]
    text = "\n".join(message["content"] for message in messages)
    try:
        tokens = tokenizer.chat(messages)
    except ValueError as error:
        raise BadSetting(f"{where} cannot be written in the model's tokens ({error}): {text[:60]!r}") from error
    extra = {"data_source": row["data_source"], "extra_info": row.get("extra_info") or {}, "messages": messages}
    return Prompt(text, tokens, row["reward_model"]["ground_truth"], extra)


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadSetting(f"{path}: line {number} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise BadSetting(f"{path}: line {number} is no JSON object")
            yield row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    arrow = parquet_module()
    try:
        with arrow.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these two
        raise BadSetting(f"{path} cannot be read as parquet: {' '.join(str(error).split())[:200]}") from error


def parquet_module() -> Any:
    """`pyarrow.parquet`. Raises BadSetting if it is missing or incompatible with the installed numpy."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:  # pyarrow from 26.0 on raises this at import if numpy is below 2
        raise BadSetting(f"Parquet files need the package pyarrow, which cannot be imported: {error}") from error
