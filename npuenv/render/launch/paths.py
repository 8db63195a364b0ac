"""Where the model, the data and the results of a run lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paths:
    """Places as the nodes of the run see them, the same on all of them."""

    model: str  # a folder, or a name like Qwen/Qwen2.5-0.5B-Instruct
    train_file: str
    validation_file: str
    output: str | None = None  # folder of the checkpoints; None: where the framework puts them
    preparation: str = ""  # verl's script that writes the two files, as gsm8k; "": they are the user's own
