"""What FrozenLake gains from a short warm start with the settings that the README gives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.trainer.trainer_cases import CPU, ROOT, only, read, watched
from trainer.config import parse
from trainer.metrics.records import Progress, Records
from trainer.supervised import warm_start
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from pathlib import Path


def preset(file: str) -> list[str]:
    """The settings in the text, from the one that names the task to the end of the quotation."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.findall(r"`(task=frozen_lake[^`]*)`", text)
    assert len(found) == 1, file
    return sorted(found[0].split())


def test_every_place_that_gives_the_settings_gives_the_same() -> None:
    assert preset("README.md") == preset("README.zh.md") == preset("trainer/supervised/warm_start.py")
    config = parse(preset("README.md"), devices=("cpu",))
    assert config.optim.warm_start_until > 0


@pytest.mark.slow
@pytest.mark.long
def test_held_out_success_rises_by_a_fifth(tmp_path: Path) -> None:
    """The gains of fifteen seeds stand in `trainer.supervised.warm_start`; this is one that none was tuned on."""
    seed = 21
    config = parse([*preset("README.md"), f"seed={seed}", "device=cpu"], devices=("cpu",))
    trainer = build_trainer(config, CPU, seed=seed)
    with Records(tmp_path) as records:
        warm_start.run(trainer, config, records, Progress())
        watched(trainer, config, tmp_path, records)
    told = read(tmp_path)
    assert [each["ended"] for each in told if each["kind"] == "warm-start"][-1] == "reached"
    before, after = (only(told, kind="eval", when=when)["accuracy"] for when in ("before", "after"))
    assert after - before >= 0.2
