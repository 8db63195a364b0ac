"""Files of questions for the tests of tasks that carry text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trainer.config import parse
from trainer.tasks.tokenizers import PRINTABLE, Characters
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trainer.config import Config

WORDS = Characters(PRINTABLE)


def said(text: str) -> Rollout:
    tokens = (*WORDS.encode(text), WORDS.end)
    return Rollout(tokens, (-1.0,) * len(tokens), Stop.END)


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(question: str = "2+3?", truth: object = "5", **changed: object) -> dict[str, Any]:
    """A row in verl's layout."""
    made = {
        "data_source": "tests",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": 0},
    }
    return made | changed


def settings(*words: str) -> Config:
    return parse(words, devices=("auto",))


def files(folder: Path, train: Iterable[Mapping[str, Any]], heldout: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The two settings that name these rows."""
    return (
        f"train_files={jsonl(folder / 'train.jsonl', train)}",
        f"val_files={jsonl(folder / 'val.jsonl', heldout)}",
    )
