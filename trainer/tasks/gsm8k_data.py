"""The raw GSM8K jsonl as the parquet that verl's preprocessing makes of it.

`python -m trainer.tasks.gsm8k_data RAW.jsonl OUT.parquet [--split train|test]`, or `convert`. Only pyarrow is needed.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.tasks.data import parquet_module, rows
from trainer.tasks.gsm8k import row

if TYPE_CHECKING:
    from collections.abc import Sequence


def convert(raw: Path, out: Path, *, split: str) -> int:
    """Writes the rows of `raw` (columns question, answer) to `out` and gives back their number.

    Columns in order: data_source string; prompt list of struct(role, content); ability string; reward_model
    struct(style, ground_truth), both strings; extra_info struct(split, index int64, answer, question). Snappy. Raises
    BadSetting for a file that cannot be read and a row that lacks a column or the answer's `#### number`.
    Source: verl v0.7.1, examples/data_preprocess/gsm8k.py.
    """
    parquet = parquet_module()
    given = list(rows(raw))
    try:
        made = [row(each, split, index) for index, each in enumerate(given)]
    except ValueError as error:
        raise BadSetting(f"{raw}: {error}") from error
    if not made:
        raise BadSetting(f"{raw} holds no row")
    try:
        parquet.write_table(
            import_module("pyarrow").Table.from_pylist(made, schema=schema()), out, compression="snappy"
        )
    except OSError as error:
        raise BadSetting(f"{out} cannot be written: {error}") from error
    return len(made)


def schema() -> Any:
    """The columns and types of verl's GSM8K parquet, a `pyarrow.Schema`."""
    pyarrow = import_module("pyarrow")
    text = pyarrow.string()
    return pyarrow.schema(
        [
            ("data_source", text),
            ("prompt", pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pyarrow.struct([("style", text), ("ground_truth", text)])),
            (
                "extra_info",
                pyarrow.struct([("split", text), ("index", pyarrow.int64()), ("answer", text), ("question", text)]),
            ),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tasks.gsm8k_data", allow_abbrev=False)
    parser.add_argument("raw", type=Path, metavar="RAW.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    parser.add_argument("--split", choices=("train", "test"), default="train")
    given = parser.parse_args(argv)
    try:
        count = convert(given.raw, given.out, split=given.split)
    except BadSetting as error:
        sys.stderr.write(f"trainer: {error}\n")
        return 2
    sys.stderr.write(f"trainer: {count} rows written to {given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
